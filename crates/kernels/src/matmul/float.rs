//! Products with weights that are stored as floats, and f32 activations.

use super::Job;
use crate::dispatch::Cpu;
use crate::simd::{LANES, Simd, tiered};
use crate::tiles::{BLOCK_COLUMNS, TileFormat};

/// # Safety
/// The contract of [`super::product`]; `input` is the input's `[rows][blocks * 32]`.
pub(super) unsafe fn product(cpu: Cpu, format: TileFormat, job: &Job, input: *const f32) {
    // SAFETY: the same contract.
    unsafe {
        match format {
            TileFormat::F16 => product_f16(cpu, job, input),
            TileFormat::Bf16 => product_bf16(cpu, job, input),
            _ => product_f32(cpu, job, input),
        }
    }
}

/// An element type: how many bytes, and how 16 of them are read.
trait Element {
    const BYTES: usize;
    /// # Safety
    /// As for [`Simd`]'s loads.
    unsafe fn load<S: Simd>(from: *const u8) -> S::F;
}
struct Half;
struct Brain;
struct Single;
macro_rules! element {
    ($name:ident, $bytes:literal, $load:ident) => {
        impl Element for $name {
            const BYTES: usize = $bytes;
            #[inline(always)]
            unsafe fn load<S: Simd>(from: *const u8) -> S::F {
                // SAFETY: the caller's promise.
                unsafe { S::$load(from.cast()) }
            }
        }
    };
}
element!(Half, 2, load_f16);
element!(Brain, 2, load_bf16);
element!(Single, 4, load);

tiered! { fn product_f16(job: &Job, input: *const f32) = f16; }
tiered! { fn product_bf16(job: &Job, input: *const f32) = bf16; }
tiered! { fn product_f32(job: &Job, input: *const f32) = f32; }

#[inline(always)]
unsafe fn f16<S: Simd>(job: &Job, input: *const f32) {
    // SAFETY: the caller's contract.
    unsafe { all::<S, Half>(job, input) }
}
#[inline(always)]
unsafe fn bf16<S: Simd>(job: &Job, input: *const f32) {
    // SAFETY: the caller's contract.
    unsafe { all::<S, Brain>(job, input) }
}
#[inline(always)]
unsafe fn f32<S: Simd>(job: &Job, input: *const f32) {
    // SAFETY: the caller's contract.
    unsafe { all::<S, Single>(job, input) }
}

/// # Safety
/// The contract of [`product`].
#[inline(always)]
unsafe fn all<S: Simd, E: Element>(job: &Job, input: *const f32) {
    let mut tile = job.tiles.start;
    while tile < job.tiles.end {
        let streams = if job.rows.len() == 1 && job.tiles.end - tile >= 4 { 4 } else { 1 };
        let mut row = job.rows.start;
        while row < job.rows.end {
            // SAFETY: tiles and rows in range.
            unsafe {
                row += match (streams, job.rows.end - row) {
                    (4, _) => some::<S, E, 4, 1>(job, input, tile, row),
                    (_, 1) => some::<S, E, 1, 1>(job, input, tile, row),
                    (_, 2 | 3) => some::<S, E, 1, 2>(job, input, tile, row),
                    _ => some::<S, E, 1, 4>(job, input, tile, row),
                };
            }
        }
        tile += streams;
    }
}

/// `T` tiles times `M` rows; returns `M`.
///
/// # Safety
/// The tiles and rows from `tile` and `row` on exist.
#[inline(always)]
unsafe fn some<S: Simd, E: Element, const T: usize, const M: usize>(
    job: &Job,
    input: *const f32,
    tile: usize,
    row: usize,
) -> usize {
    let columns = job.blocks * BLOCK_COLUMNS;
    // SAFETY: the contract above.
    unsafe {
        let mut acc = [[S::splat(0.0); M]; T];
        for k in 0..columns {
            for t in 0..T {
                let w = E::load::<S>(job.tile(tile + t).add(k * LANES * E::BYTES));
                for m in 0..M {
                    let x = S::splat(*input.add((row + m) * columns + k));
                    acc[t][m] = S::fma(w, x, acc[t][m]);
                }
            }
        }
        for (t, acc) in acc.iter().enumerate() {
            for (m, &acc) in acc.iter().enumerate() {
                S::store(job.to(tile + t, row + m), acc);
            }
        }
    }
    M
}
