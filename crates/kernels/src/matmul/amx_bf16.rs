//! Products with bf16 AMX tiles: both factors rounded to bfloat16, sums of f32.
//!
//! These are the products of `prefill: 'fast'`. They are not the numbers of the other kernels, which
//! are exact inside of a block of 32 columns: weights are dequantised and rounded to eight bits of
//! mantissa, and so are activations. What stays: an element of the result takes its terms in
//! ascending order, two columns at a time, by the same instructions whatever else there is; so a
//! row's numbers depend on no other row, on no number of rows and on no number of threads.
//!
//! Without an epilogue for every block of 32 columns a product can stay in tile registers from its
//! first column to its last: four hold sums of 32 input rows by 32 matrix rows, two activations, two
//! weights, so that each tile that is loaded is multiplied twice.
//!
//! A run of tiles is dequantised first, as many as stay in the second-level cache, and then
//! multiplied with all input rows, a strip of 32 after the other. The two do not mix: for some forty
//! nanoseconds after a tile instruction the core runs 512-bit arithmetic on one port instead of two.

use std::arch::x86_64::*;
use std::cell::RefCell;
use std::ops::Range;

use super::{Job, avx512};
use crate::bf16::{Bf16Rows, Bf16Tiles};
use crate::bf16_tiles::{Block, Panel, TILE_BYTES, configured, pair};
use crate::simd::Simd;
use crate::simd::avx512::Avx512;
use crate::tiles::{BLOCK_COLUMNS, Format, TILE_ROWS, TileFormat, with_format};

/// Bytes of dequantised weights that a pass over the input rows should not exceed.
const PANEL_BYTES: usize = 1 << 20;

/// Sums of 32 input rows by 32 matrix rows, where the output has room for fewer.
#[repr(C, align(64))]
struct Corner([f32; 32 * 32]);

/// What a thread keeps between products.
struct Scratch {
    panels: Vec<Panel>,
    corner: Box<Corner>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch {
        panels: Vec::new(),
        corner: Box::new(Corner([0.0; 32 * 32])),
    });
}

/// The job's tiles times all of `input`, whose first row is the job's first.
///
/// # Safety
/// The contract of [`super::product`], with `input` in place of the quantised rows and as many rows
/// as the job names.
pub(super) unsafe fn product(proof: Bf16Tiles, format: TileFormat, job: &Job, input: &Bf16Rows) {
    debug_assert_eq!((job.rows.len(), job.blocks), (input.rows(), input.blocks()));
    SCRATCH.with_borrow_mut(|scratch| {
        let most = (PANEL_BYTES / (job.blocks * TILE_BYTES)).max(2) & !1;
        let most = most.min(job.tiles.len().max(1));
        if scratch.panels.len() < most * job.blocks {
            scratch.panels.resize(most * job.blocks, Panel::ZERO);
        }
        for first in job.tiles.clone().step_by(most) {
            let tiles = first..job.tiles.end.min(first + most);
            // SAFETY: the token proves the features; the panels have room for `most` tiles.
            unsafe {
                unpack(format, job, tiles.clone(), &mut scratch.panels);
                configured(proof, || multiply(job, tiles, input, scratch));
            }
        }
    });
}

/// Dequantises some tiles, one after the other.
///
/// # Safety
/// The tiles are the job's and of the format, and `to` has room; the CPU has the features.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,avx2,fma,f16c")]
unsafe fn unpack(format: TileFormat, job: &Job, tiles: Range<usize>, to: &mut [Panel]) {
    let bytes = format.block_bytes();
    for (tile, to) in tiles.zip(to.chunks_exact_mut(job.blocks)) {
        for (b, to) in to.iter_mut().enumerate() {
            // SAFETY: a block of the tile, by the contract; prefetching may name any address.
            unsafe {
                let block = job.tile(tile).add(b * bytes);
                for line in 0..bytes.div_ceil(64) {
                    let at = block.wrapping_add(AHEAD + line * 64);
                    _mm_prefetch::<_MM_HINT_T0>(at.cast());
                }
                with_format!(format, F => quantised::<F>(block, to), _ => floats(format, block, to));
            }
        }
    }
}

/// How far ahead of the dequantisation weights are asked for.
const AHEAD: usize = 4 << 10;

/// A block of a quantised format: `scale * (integer - offset) + minimum`, rounded once to f32 and
/// once to bf16.
///
/// # Safety
/// `block` is one of the format; the CPU has the features.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,avx2,fma,f16c")]
unsafe fn quantised<F: Format>(block: *const u8, to: &mut Panel) {
    // SAFETY: the contract above.
    let (integers, [scale, second]) =
        unsafe { (avx512::unpack::<F>(block), avx512::scales::<F>(block)) };
    // Bytes come unpacked with 128 added.
    let offset = if F::BYTES {
        128.0
    } else {
        [0.0, (1_u32 << F::OFFSET_BITS) as f32][usize::from(F::OFFSET_BITS > 0)]
    };
    let offset = _mm512_set1_ps(-offset);
    let byte = _mm512_set1_epi32(255);
    for (g, &w) in integers.iter().enumerate() {
        let by = if F::HALVES && g >= 4 { second } else { scale };
        let low = if F::MIN { second } else { _mm512_mul_ps(by, offset) };
        let value = |w| _mm512_fmadd_ps(_mm512_cvtepi32_ps(w), by, low);
        let columns = [
            _mm512_and_si512(w, byte),
            _mm512_and_si512(_mm512_srli_epi32::<8>(w), byte),
            _mm512_and_si512(_mm512_srli_epi32::<16>(w), byte),
            _mm512_srli_epi32::<24>(w),
        ];
        let [a, b, c, d] = columns.map(value);
        // SAFETY: pairs 2g and 2g + 1 of 16.
        unsafe {
            let to = to.0.as_mut_ptr().add(g * 64);
            _mm512_store_si512(to.cast(), pair(a, b));
            _mm512_store_si512(to.add(32).cast(), pair(c, d));
        }
    }
}

/// A block of floats.
///
/// # Safety
/// `block` is one of the format; the CPU has the features.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,avx2,fma,f16c")]
unsafe fn floats(format: TileFormat, block: *const u8, to: &mut Panel) {
    for p in 0..BLOCK_COLUMNS / 2 {
        let at = 2 * p * TILE_ROWS;
        // SAFETY: columns 2p and 2p + 1 of the block, pair p of 16.
        unsafe {
            let (a, b) = match format {
                TileFormat::F32 => {
                    let from = block.cast::<f32>().add(at);
                    (Avx512::load(from), Avx512::load(from.add(TILE_ROWS)))
                }
                TileFormat::F16 => {
                    let from = block.cast::<u16>().add(at);
                    (Avx512::load_f16(from), Avx512::load_f16(from.add(TILE_ROWS)))
                }
                _ => {
                    let from = block.cast::<u16>().add(at);
                    (Avx512::load_bf16(from), Avx512::load_bf16(from.add(TILE_ROWS)))
                }
            };
            _mm512_store_si512(to.0.as_mut_ptr().add(p * 32).cast(), pair(a, b));
        }
    }
}

/// Some tiles, dequantised in `scratch`, times all input rows.
///
/// # Safety
/// The contract of [`product`]; the panels are those of the tiles, and tile registers configured.
unsafe fn multiply(job: &Job, tiles: Range<usize>, input: &Bf16Rows, scratch: &mut Scratch) {
    let span = job.blocks * TILE_BYTES;
    let panels = scratch.panels.as_ptr().cast::<u8>();
    let corner = scratch.corner.0.as_mut_ptr();
    for first in (0..job.rows.len()).step_by(32) {
        let rows = (job.rows.len() - first).min(32);
        let a = input.group(first);
        for tile in tiles.clone().step_by(2) {
            let columns = (tiles.end - tile).min(2);
            // SAFETY: groups of the input, which have sixteen rows each in memory, and panels of the
            // tiles; outputs by the contract, or the corner.
            unsafe {
                let b = panels.add((tile - tiles.start) * span);
                let out = job.to(tile, job.rows.start + first);
                let whole = rows.is_multiple_of(16);
                let (to, stride) = if whole { (out, job.stride) } else { (corner, 32) };
                let (a, b) = ([a, a.wrapping_add(span)], [b, b.wrapping_add(span)]);
                Block { a, b, blocks: job.blocks, to, stride }.multiply(rows > 16, columns > 1);
                if !whole {
                    for row in 0..rows {
                        let (from, to) = (corner.add(row * 32), out.add(row * job.stride));
                        from.copy_to_nonoverlapping(to, columns * TILE_ROWS);
                    }
                }
            }
        }
    }
}
