//! Many rows: a tile is unpacked to bytes once, and its products with some rows at a time are made
//! without leaving the registers.
//!
//! The sums in 16 bits are instructions of our own. LLVM, left alone with intrinsics, re-associates
//! the additions into trees and spills, or leaves the loop over a block's halves rolled: a third
//! slower.

use std::arch::asm;
use std::arch::x86_64::*;
use std::sync::atomic::Ordering;

use super::unpack;
use crate::activations::{Activations, Group};
use crate::matmul::minima::add_minima;
use crate::matmul::{Job, Lookahead, groups};
use crate::simd::avx2::Avx2;
use crate::tiles::{BLOCK_COLUMNS, Format};

/// Bytes of an unpacked block: `[8 groups of columns][16 rows][4 columns]`.
const UNPACKED: usize = 512;
/// Rows at a time. Their sums, a group's weights and what is made of them leave four registers.
const ROWS: usize = 4;

/// One tile at a time times all rows, [`ROWS`] at a time.
///
/// # Safety
/// The contract of [`super::super::product`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn product<F: Format>(job: &Job, input: &Activations) {
    let mut panel = vec![_mm256_setzero_si256(); job.blocks * UNPACKED / 32];
    for tile in job.tiles.clone() {
        for (b, to) in panel.chunks_exact_mut(UNPACKED / 32).enumerate() {
            for (i, to) in to.iter_mut().enumerate() {
                // SAFETY: block b of the tile.
                *to = unsafe {
                    unpack::<F>(job.tile(tile).add(b * F::BLOCK), i / 8, i / 2 % 4, i % 2)
                };
            }
        }
        let panel = panel.as_ptr().cast::<u8>();
        let mut ahead = Lookahead::new(job, tile, job.blocks * job.rows.len().div_ceil(ROWS));
        for (row, group) in groups(job, input) {
            let mut done = 0;
            while done < group.stride {
                // SAFETY: rows `done` to `done + M` are the group's; the panel is the tile's.
                unsafe {
                    let rest = group.starting_at(done);
                    let row = row + done;
                    done += match group.stride - done {
                        1 => rows::<F, 1>(job, tile, panel, rest, row, &mut ahead),
                        2 => rows::<F, 2>(job, tile, panel, rest, row, &mut ahead),
                        3 => rows::<F, 3>(job, tile, panel, rest, row, &mut ahead),
                        _ => rows::<F, 4>(job, tile, panel, rest, row, &mut ahead),
                    };
                }
            }
            if F::MIN {
                // SAFETY: the contract; the group's products are stored.
                unsafe { add_minima::<Avx2, F>(job, tile, group, row) }
            }
        }
    }
}

/// Adds the products of one group of four columns with some rows to their sums in 16 bits, or
/// begins the sums with them.
///
/// `vpmaddubsw` takes unsigned weights and a row's signed integers; the rows are 32 bytes apart.
macro_rules! group {
    (begin $narrow:ident, $panel:expr, $a:expr, $g:literal; $($m:literal $low:ident $high:ident)+) => {
        asm!(
            concat!("vmovdqa {w0}, [{panel} + 64*", $g, "]"),
            concat!("vmovdqa {w1}, [{panel} + 64*", $g, " + 32]"),
            $(
                concat!("vpbroadcastd {x}, [{a} + 32*", $m, " + 4*", $g, "]"),
                concat!("vpmaddubsw {", stringify!($low), "}, {w0}, {x}"),
                concat!("vpmaddubsw {", stringify!($high), "}, {w1}, {x}"),
            )+
            panel = in(reg) $panel,
            a = in(reg) $a,
            w0 = out(ymm_reg) _,
            w1 = out(ymm_reg) _,
            x = out(ymm_reg) _,
            $(
                $low = out(ymm_reg) $narrow[$m][0],
                $high = out(ymm_reg) $narrow[$m][1],
            )+
            options(pure, readonly, nostack, preserves_flags),
        )
    };
    (add $narrow:ident, $panel:expr, $a:expr, $g:literal; $($m:literal $low:ident $high:ident)+) => {
        asm!(
            concat!("vmovdqa {w0}, [{panel} + 64*", $g, "]"),
            concat!("vmovdqa {w1}, [{panel} + 64*", $g, " + 32]"),
            $(
                concat!("vpbroadcastd {x}, [{a} + 32*", $m, " + 4*", $g, "]"),
                "vpmaddubsw {y}, {w0}, {x}",
                concat!("vpaddw {", stringify!($low), "}, {", stringify!($low), "}, {y}"),
                "vpmaddubsw {x}, {w1}, {x}",
                concat!("vpaddw {", stringify!($high), "}, {", stringify!($high), "}, {x}"),
            )+
            panel = in(reg) $panel,
            a = in(reg) $a,
            w0 = out(ymm_reg) _,
            w1 = out(ymm_reg) _,
            x = out(ymm_reg) _,
            y = out(ymm_reg) _,
            $(
                $low = inout(ymm_reg) $narrow[$m][0],
                $high = inout(ymm_reg) $narrow[$m][1],
            )+
            options(pure, readonly, nostack, preserves_flags),
        )
    };
}

/// The sums of a block with `M` rows, as [half][row][lower and upper eight of the tile's]; both
/// halves' in the first if they share a scale.
///
/// # Safety
/// `panel` is an unpacked block, `a` valid for `M` rows of 32 bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn sums<F: Format, const M: usize>(
    panel: *const u8,
    a: *const i8,
) -> [[[__m256i; 2]; M]; 2] {
    let ones = _mm256_set1_epi16(1);
    let mut wide = [[[_mm256_setzero_si256(); 2]; M]; 2];
    let mut narrow = [[_mm256_setzero_si256(); 2]; 4];
    macro_rules! of_rows {
        ($kind:ident $g:literal) => {
            // SAFETY: reads a group of the panel and of `M` rows.
            unsafe {
                match M {
                    1 => group!($kind narrow, panel, a, $g; 0 s0 s1),
                    2 => group!($kind narrow, panel, a, $g; 0 s0 s1 1 s2 s3),
                    3 => group!($kind narrow, panel, a, $g; 0 s0 s1 1 s2 s3 2 s4 s5),
                    _ => group!($kind narrow, panel, a, $g; 0 s0 s1 1 s2 s3 2 s4 s5 3 s6 s7),
                }
            }
        };
    }
    macro_rules! widen {
        ($half:literal) => {
            for (wide, narrow) in wide[if F::HALVES { $half } else { 0 }].iter_mut().zip(&narrow) {
                for (wide, &narrow) in wide.iter_mut().zip(narrow) {
                    *wide = _mm256_add_epi32(*wide, _mm256_madd_epi16(narrow, ones));
                }
            }
        };
    }
    // Widened before a further product could overflow 16 bits.
    match F::HIGH_BITS {
        0 => {
            of_rows!(begin 0);
            of_rows!(add 1);
            of_rows!(add 2);
            of_rows!(add 3);
            of_rows!(add 4);
            of_rows!(add 5);
            of_rows!(add 6);
            of_rows!(add 7);
            widen!(0);
        }
        1 => {
            of_rows!(begin 0);
            of_rows!(add 1);
            of_rows!(add 2);
            of_rows!(add 3);
            widen!(0);
            of_rows!(begin 4);
            of_rows!(add 5);
            of_rows!(add 6);
            of_rows!(add 7);
            widen!(1);
        }
        _ => {
            of_rows!(begin 0);
            of_rows!(add 1);
            widen!(0);
            of_rows!(begin 2);
            of_rows!(add 3);
            widen!(0);
            of_rows!(begin 4);
            of_rows!(add 5);
            widen!(1);
            of_rows!(begin 6);
            of_rows!(add 7);
            widen!(1);
        }
    }
    wide
}

/// [`sums`] of one row's fine integers, out of the way of the loop: few blocks have any.
///
/// # Safety
/// `panel` is an unpacked block, `a` valid for 32 bytes.
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn fine_sums<F: Format>(panel: *const u8, a: *const i8) -> [[[__m256i; 2]; 1]; 2] {
    // SAFETY: the same contract.
    unsafe { sums::<F, 1>(panel, a) }
}

/// The unpacked tile times the first `M` rows of `acts`, which are the input's from `row` on. What
/// the minima give is left out. Returns `M`.
///
/// # Safety
/// The tile is the job's, the panel the tile's, and the rows are the input's.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn rows<F: Format, const M: usize>(
    job: &Job,
    tile: usize,
    panel: *const u8,
    acts: Group,
    row: usize,
    ahead: &mut Lookahead,
) -> usize {
    let mut acc = [[_mm256_setzero_ps(); 2]; M];
    // SAFETY: every address is inside of tile, panel, activations or output by the contract.
    unsafe {
        for b in 0..job.blocks {
            ahead.step();
            let panel = panel.add(b * UNPACKED);
            let at = b * acts.stride;
            let mut wide = sums::<F, M>(panel, acts.ints.add(at * BLOCK_COLUMNS));
            let outliers = (*acts.outliers.add(b)).load(Ordering::Relaxed) >> acts.first;
            if outliers & ((1 << M) - 1) != 0 {
                for m in 0..M {
                    if outliers >> m & 1 == 0 {
                        continue;
                    }
                    let fine = fine_sums::<F>(panel, acts.fine.add((at + m) * BLOCK_COLUMNS));
                    for (wide, [fine]) in wide.iter_mut().zip(fine) {
                        for (wide, fine) in wide[m].iter_mut().zip(fine) {
                            *wide = _mm256_add_epi32(_mm256_slli_epi32::<8>(*wide), fine);
                        }
                    }
                }
            }
            let scales = job.tile(tile).add(b * F::BLOCK + F::SCALES);
            for upper in 0..2 {
                let scale = |at: usize| _mm256_cvtph_ps(_mm_loadu_si128(scales.add(at).cast()));
                let first = scale(upper * 16);
                let second = if F::HALVES { scale(upper * 16 + 32) } else { first };
                for m in 0..M {
                    let at = at + m;
                    let by = _mm256_set1_ps(*acts.scales.add(at));
                    let to = &mut acc[m][upper];
                    let mut add = |sum: __m256i, activations: i32, scale: __m256| {
                        let offset = _mm256_set1_epi32(activations << F::OFFSET_BITS);
                        let sum =
                            if F::OFFSET_BITS > 0 { _mm256_sub_epi32(sum, offset) } else { sum };
                        let scale = _mm256_mul_ps(scale, by);
                        *to = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), scale, *to);
                    };
                    let total = *acts.totals.add(at);
                    if F::HALVES {
                        let low = *acts.lows.add(at);
                        add(wide[0][m][upper], low, first);
                        add(wide[1][m][upper], total - low, second);
                    } else {
                        add(wide[0][m][upper], total, first);
                    }
                }
            }
        }
        for (m, acc) in acc.iter().enumerate() {
            for (upper, &acc) in acc.iter().enumerate() {
                _mm256_storeu_ps(job.to(tile, row + m).add(upper * 8), acc);
            }
        }
    }
    M
}
