//! Integer products with AMX tiles, for nine input rows or more; fewer take the AVX-512 kernels,
//! whose bits are the same.
//!
//! One `tdpbssd` multiplies up to 16 input rows with a block of 16 matrix rows; applying a scale to
//! the 256 sums takes longer. For some forty nanoseconds after a tile instruction the core runs
//! 512-bit arithmetic on one port instead of two, so the two do not mix: the sums of many blocks are
//! computed first, as many as fit into the first-level cache, and scaled afterwards.
//!
//! The tile registers are configured and released inside of one call: nothing else uses them, and a
//! thread that holds none is cheaper to switch.

use std::arch::asm;
use std::arch::x86_64::*;
use std::cell::RefCell;
use std::ops::Range;
use std::sync::atomic::Ordering;

use super::avx512::{self, unrolled};
use super::minima::add_minima;
use super::{Job, Lookahead, groups};
use crate::activations::{Activations, GROUP, Group};
use crate::simd::avx512::Avx512;
use crate::tiles::{BLOCK_COLUMNS, Format, TILE_ROWS};

/// Input rows from which on tiles pay.
const FEWEST: usize = 9;
/// Steps (a step is a block, or half of one that has two scales) whose sums are kept at a time.
const KEPT: usize = 9;

/// The operand of `ldtilecfg`: palette 1; tmm0 takes sums (64 bytes for each input row); tmm1
/// activations of a block (32 bytes for each) and tmm2 its weights (8 rows of 64 bytes); tmm3 and
/// tmm4 the same of half a block.
#[repr(C, align(64))]
struct Configuration([u8; 64]);

impl Configuration {
    /// For `rows` input rows, at most 16.
    fn new(rows: u8) -> Configuration {
        let mut bytes = [0; 64];
        bytes[0] = 1;
        // Bytes of a row, in 16 bits each from byte 16 on; rows from byte 48 on.
        for (tile, (columns, rows)) in
            [(64, rows), (32, rows), (64, 8), (16, rows), (64, 4)].into_iter().enumerate()
        {
            bytes[16 + 2 * tile] = columns;
            bytes[48 + tile] = rows;
        }
        Configuration(bytes)
    }
}

/// The sums of a block: `[16 input rows][16 matrix rows]`.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Sums([i32; GROUP * TILE_ROWS]);

/// The sums of some steps, and of those of them that have fine integers.
struct Kept {
    sums: [Sums; KEPT],
    fine: [Sums; KEPT],
}

/// What a product needs beside its operands. A thread keeps its own, because making (and clearing)
/// it would take as long as the product of a few tiles.
struct Scratch {
    integers: Vec<[__m512i; 8]>,
    scales: Vec<__m512>,
    kept: Box<Kept>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch {
        integers: Vec::new(),
        scales: Vec::new(),
        kept: Box::new(Kept {
            sums: [Sums([0; GROUP * TILE_ROWS]); KEPT],
            fine: [Sums([0; GROUP * TILE_ROWS]); KEPT],
        }),
    });
}

/// A tile's blocks as signed bytes, `[8 groups][16 rows][4 columns]`, and how far apart they lie.
#[derive(Clone, Copy)]
struct Panel {
    bytes: *const u8,
    pitch: usize,
    /// Scales, one vector for each block (two, if its halves have their own).
    scales: *const __m512,
}

/// # Safety
/// The contract of [`super::product`]; the CPU has the features, AMX included.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn product<F: Format>(job: &Job, input: &Activations) {
    if job.rows.len() < FEWEST {
        // SAFETY: the same contract.
        return unsafe { avx512::product::<F>(job, input) };
    }
    SCRATCH.with_borrow_mut(|scratch| {
        // SAFETY: the same contract.
        unsafe { with_tiles::<F>(job, input, scratch) }
    });
}

/// # Safety
/// The contract of [`product`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn with_tiles<F: Format>(job: &Job, input: &Activations, scratch: &mut Scratch) {
    let Scratch { integers, scales, kept } = scratch;
    let configuration = Configuration::new(job.rows.len().min(GROUP) as u8);
    let steps = if F::HALVES { 2 } else { 1 };
    if integers.len() < job.blocks {
        integers.resize(job.blocks, [_mm512_setzero_si512(); 8]);
    }
    if scales.len() < job.blocks * steps {
        scales.resize(job.blocks * steps, _mm512_setzero_ps());
    }
    // SAFETY: the same contract. The configuration is valid, and `tilerelease` undoes it.
    unsafe {
        // Equal parts of the blocks, so that a part's panel stays in the cache for all groups.
        let part = job.blocks.div_ceil(job.blocks.div_ceil(KEPT / steps));
        asm!("ldtilecfg [{0}]", in(reg) &raw const configuration, options(nostack));
        for tile in job.tiles.clone() {
            let weights = job.tile(tile);
            for b in 0..job.blocks {
                let block = weights.add(b * F::BLOCK);
                if !F::BYTES {
                    integers[b] = signed::<F>(&avx512::unpack::<F>(block));
                }
                let [first, second] = avx512::scales::<F>(block);
                scales[b * steps] = first;
                if F::HALVES {
                    scales[b * steps + 1] = second;
                }
            }
            let scales = scales.as_ptr();
            let panel = if F::BYTES {
                Panel { bytes: weights, pitch: F::BLOCK, scales }
            } else {
                Panel { bytes: integers.as_ptr().cast(), pitch: 512, scales }
            };
            let groups_of = job.rows.len().div_ceil(GROUP);
            let mut ahead = Lookahead::new(job, tile, job.blocks * steps * groups_of);
            let ahead = &mut ahead;
            for first in (0..job.blocks).step_by(part) {
                let blocks = first..job.blocks.min(first + part);
                for (row, group) in groups(job, input) {
                    let blocks = blocks.clone();
                    match group.stride {
                        1..=4 => {
                            one_group::<F, 4>(job, tile, panel, group, row, blocks, kept, ahead);
                        }
                        5..=8 => {
                            one_group::<F, 8>(job, tile, panel, group, row, blocks, kept, ahead);
                        }
                        9..=12 => {
                            one_group::<F, 12>(job, tile, panel, group, row, blocks, kept, ahead);
                        }
                        _ => one_group::<F, 16>(job, tile, panel, group, row, blocks, kept, ahead),
                    }
                    if F::MIN && first + part >= job.blocks {
                        add_minima::<Avx512, F>(job, tile, group, row);
                    }
                }
            }
        }
        asm!("tilerelease", options(nostack, nomem));
    }
}

/// Unpacked integers of a block less their offset.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn signed<F: Format>(integers: &[__m512i; 8]) -> [__m512i; 8] {
    if F::OFFSET_BITS == 0 {
        return *integers;
    }
    let offset = _mm512_set1_epi8(1 << F::OFFSET_BITS);
    integers.map(|integers| _mm512_sub_epi8(integers, offset))
}

/// Some blocks of one tile times a group that starts at input row `row`, for which registers for `M`
/// rows suffice: added to what the blocks before them gave. What the minima give is left out.
///
/// # Safety
/// The contract of [`super::product`]; tile registers are configured; the panel is the tile's, the
/// blocks are no more than `KEPT` steps, and the group has no more than `M` rows.
#[allow(clippy::too_many_arguments)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn one_group<F: Format, const M: usize>(
    job: &Job,
    tile: usize,
    panel: Panel,
    group: Group,
    row: usize,
    blocks: Range<usize>,
    Kept { sums, fine }: &mut Kept,
    ahead: &mut Lookahead,
) {
    let halves = if F::HALVES { 2 } else { 1 };
    let steps = blocks.start * halves..blocks.end * halves;
    debug_assert!(steps.len() <= KEPT, "{} steps", steps.len());
    // SAFETY: blocks of the tile and of the group. A last group may have fewer rows than registers
    // are configured for, or than `M`: what is read beyond its rows is a next block's, or of the 16
    // rows of a block that `Activations` keeps behind the last one (initialised, and not used).
    // Outputs by the contract, for the group's rows alone.
    unsafe {
        let mut fine_steps = fine.iter_mut();
        for (step, sums) in steps.clone().zip(sums.iter_mut()) {
            let (b, half) = (step / halves, step % halves);
            let weights = panel.bytes.add(b * panel.pitch + half * 256);
            let at = b * group.stride * BLOCK_COLUMNS + half * 16;
            multiply::<F>(weights, group.ints.add(at), sums);
            if (*group.outliers.add(b)).load(Ordering::Relaxed) != 0
                && let Some(sums) = fine_steps.next()
            {
                multiply::<F>(weights, group.fine.add(at), sums);
            }
        }
        let mut acc = [_mm512_setzero_ps(); M];
        if blocks.start > 0 {
            unrolled!(M, m => {
                if m < group.stride {
                    acc[m] = _mm512_loadu_ps(job.to(tile, row + m));
                }
            });
        }
        // Lines of a block of the next group's, if there is one.
        let lines = if row + GROUP < job.rows.end { GROUP * BLOCK_COLUMNS / 64 } else { 0 };
        let mut fine_steps = fine.iter();
        for (step, sums) in steps.zip(sums.iter_mut()) {
            ahead.step();
            let b = step / halves;
            // The next group's integers of this block.
            let next = group.ints.wrapping_add((job.blocks + b) * group.stride * BLOCK_COLUMNS);
            for line in 0..lines {
                _mm_prefetch::<_MM_HINT_T0>(next.wrapping_add(line * 64));
            }
            let sums = sums.0.as_mut_ptr();
            let mut rows = (*group.outliers.add(b)).load(Ordering::Relaxed);
            if rows != 0
                && let Some(fine) = fine_steps.next()
            {
                while rows != 0 {
                    let m = rows.trailing_zeros() as usize * TILE_ROWS;
                    rows &= rows - 1;
                    let high = _mm512_slli_epi32::<8>(_mm512_load_si512(sums.add(m).cast()));
                    let low = _mm512_load_si512(fine.0.as_ptr().add(m).cast());
                    _mm512_store_si512(sums.add(m).cast(), _mm512_add_epi32(high, low));
                }
            }
            let scale = *panel.scales.add(step);
            let by = group.scales.add(b * group.stride);
            unrolled!(M, m => {
                let x = _mm512_load_si512(sums.add(m * TILE_ROWS).cast());
                let by = _mm512_mul_ps(scale, _mm512_set1_ps(*by.add(m)));
                acc[m] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(x), by, acc[m]);
            });
        }
        unrolled!(M, m => {
            if m < group.stride {
                _mm512_storeu_ps(job.to(tile, row + m), acc[m]);
            }
        });
    }
}

/// A block's (or half a block's) signed integers times the configured rows of as many.
///
/// # Safety
/// Tile registers are configured; `weights` is valid for 512 (256) bytes and `ints` for rows of 32,
/// of which the first 32 (16) are read.
#[inline(always)]
unsafe fn multiply<F: Format>(weights: *const u8, ints: *const i8, sums: &mut Sums) {
    macro_rules! multiply {
        ($activations:literal, $weights:literal) => {
            // SAFETY: reads what the contract says and writes the sums. No compiled code uses tile
            // registers.
            unsafe {
                asm!(
                    "tilezero tmm0",
                    concat!("tileloadd ", $weights, ", [{weights} + {line}*1]"),
                    concat!("tileloadd ", $activations, ", [{ints} + {row}*1]"),
                    concat!("tdpbssd tmm0, ", $activations, ", ", $weights),
                    "tilestored [{sums} + {line}*1], tmm0",
                    weights = in(reg) weights,
                    ints = in(reg) ints,
                    sums = in(reg) sums.0.as_mut_ptr(),
                    line = in(reg) 64_usize,
                    row = in(reg) 32_usize,
                    options(nostack, preserves_flags),
                );
            }
        };
    }
    if F::HALVES {
        multiply!("tmm3", "tmm4");
    } else {
        multiply!("tmm1", "tmm2");
    }
}
