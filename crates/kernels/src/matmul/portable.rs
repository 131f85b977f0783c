//! Integer products in plain Rust.

use std::sync::atomic::Ordering;

use super::{Job, groups};
use crate::activations::{Activations, Group};
use crate::simd::Simd;
use crate::simd::portable::Portable;
use crate::tiles::{BLOCK_COLUMNS, Format, TILE_ROWS};

/// # Safety
/// The contract of [`super::product`].
pub(super) unsafe fn product<F: Format>(job: &Job, input: &Activations) {
    let mut unpacked = vec![[0_i16; 512]; job.blocks];
    for tile in job.tiles.clone() {
        // SAFETY: a tile of the matrix.
        let weights = unsafe { job.tile(tile) };
        for (b, unpacked) in unpacked.iter_mut().enumerate() {
            // SAFETY: a block of the tile.
            let block = unsafe { std::slice::from_raw_parts(weights.add(b * F::BLOCK), F::BLOCK) };
            unpack::<F>(block, unpacked);
        }
        for (first, group) in groups(job, input) {
            for row in 0..group.stride {
                // SAFETY: the contract, and `row` is one of the group's.
                unsafe {
                    let acts = group.starting_at(row);
                    let sums = one_row::<F>(weights, &unpacked, acts);
                    Portable::store(job.to(tile, first + row), sums);
                }
            }
        }
    }
}

/// The integers of a block, `[group][row][4]`, offsets subtracted.
fn unpack<F: Format>(block: &[u8], out: &mut [i16; 512]) {
    if F::BYTES {
        for (out, &byte) in out.iter_mut().zip(block) {
            *out = i16::from(byte as i8);
        }
        return;
    }
    let offset = if F::OFFSET_BITS == 0 { 0 } else { 1_i16 << F::OFFSET_BITS };
    for g in 0..4 {
        for i in 0..64 {
            let byte = block[g * 64 + i];
            let (mut low, mut high) = (byte & 15, byte >> 4);
            if F::HIGH_BITS == 1 {
                low |= (block[256 + i] >> g & 1) << 4;
                high |= (block[256 + i] >> (g + 4) & 1) << 4;
            } else if F::HIGH_BITS == 2 {
                low |= (block[256 + i] >> (2 * g) & 3) << 4;
                high |= (block[320 + i] >> (2 * g) & 3) << 4;
            }
            out[g * 64 + i] = i16::from(low) - offset;
            out[256 + g * 64 + i] = i16::from(high) - offset;
        }
    }
}

/// A tile times one row.
///
/// # Safety
/// `weights` is a tile of `unpacked.len()` blocks, `acts` a row of as many.
unsafe fn one_row<F: Format>(
    weights: *const u8,
    unpacked: &[[i16; 512]],
    acts: Group,
) -> [f32; TILE_ROWS] {
    let mut acc = [0.0; TILE_ROWS];
    let mut low = [0.0; TILE_ROWS];
    for (b, ints) in unpacked.iter().enumerate() {
        let at = b * acts.stride;
        // SAFETY: block b of the row and of the tile; the portable tier needs no features.
        unsafe {
            let scales = weights.add(b * F::BLOCK + F::SCALES);
            let a = acts.ints.add(at * BLOCK_COLUMNS).cast::<[i8; BLOCK_COLUMNS]>();
            let mut sums = dots::<F>(ints, &a.read());
            if (*acts.outliers.add(b)).load(Ordering::Relaxed) >> acts.first & 1 != 0 {
                let a = acts.fine.add(at * BLOCK_COLUMNS).cast::<[i8; BLOCK_COLUMNS]>();
                for (sums, fine) in sums.iter_mut().zip(dots::<F>(ints, &a.read())) {
                    for (sum, fine) in sums.iter_mut().zip(fine) {
                        *sum = (*sum << 8) + fine;
                    }
                }
            }
            let by = [*acts.scales.add(at); TILE_ROWS];
            let first = Portable::mul(Portable::load_f16(scales.cast()), by);
            acc = Portable::fma(sums[0].map(|x| x as f32), first, acc);
            if F::HALVES {
                let second = Portable::mul(Portable::load_f16(scales.add(32).cast()), by);
                acc = Portable::fma(sums[1].map(|x| x as f32), second, acc);
            }
            if F::MIN {
                let min = Portable::load_f16(scales.add(32).cast());
                low = Portable::fma(min, [*acts.sums.add(at); TILE_ROWS], low);
            }
        }
    }
    if F::MIN {
        for (acc, low) in acc.iter_mut().zip(low) {
            *acc += low;
        }
    }
    acc
}

/// A block's integers times 32 activations: the sums of the two halves if they have scales of their
/// own, else one sum (and zeros).
fn dots<F: Format>(ints: &[i16; 512], a: &[i8; BLOCK_COLUMNS]) -> [[i32; TILE_ROWS]; 2] {
    let mut low = dot(&ints[..256], &a[..16]);
    let high = dot(&ints[256..], &a[16..]);
    if F::HALVES {
        return [low, high];
    }
    for (sum, high) in low.iter_mut().zip(high) {
        *sum += high;
    }
    [low, [0; TILE_ROWS]]
}

/// Sixteen rows times 16 columns, integers as `[4 groups][16 rows][4]`.
#[inline(always)]
fn dot(ints: &[i16], a: &[i8]) -> [i32; TILE_ROWS] {
    let mut sums = [0_i32; TILE_ROWS];
    for (ints, a) in ints.chunks_exact(64).zip(a.chunks_exact(4)) {
        let a = [i32::from(a[0]), i32::from(a[1]), i32::from(a[2]), i32::from(a[3])];
        for (sum, w) in sums.iter_mut().zip(ints.chunks_exact(4)) {
            *sum += i32::from(w[0]) * a[0]
                + i32::from(w[1]) * a[1]
                + i32::from(w[2]) * a[2]
                + i32::from(w[3]) * a[3];
        }
    }
    sums
}
