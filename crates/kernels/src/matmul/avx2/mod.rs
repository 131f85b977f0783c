//! Integer products with AVX2: `vpmaddubsw` multiplies, sums stay in 16 bits as long as they fit.
//! Many rows have a way of their own ([`panel`]); what follows is of few.
//!
//! A pair of products is at most `2 * largest * 127`: of nibbles eight pairs fit into 16 bits
//! (30,480), of 5-bit integers four (31,496), of 6-bit ones two (32,004); then `vpmaddwd` widens.
//! Signed bytes use the sign trick, |a| times w with a's sign, and are widened at once.

mod panel;

use std::arch::asm;
use std::arch::x86_64::*;
use std::sync::atomic::Ordering;

use super::{Job, Lookahead, groups};
use crate::activations::{Activations, Group};
use crate::tiles::{BLOCK_COLUMNS, Format};

/// Rows from which on a tile is unpacked once for all of them.
const PANEL: usize = 6;
/// How far ahead of the multiplications weights are asked for, over all streams: enough to keep two
/// cores' bus busy, little enough to stay in the first-level cache.
const LEAD: usize = 8 << 10;

/// # Safety
/// The contract of [`super::product`]; the CPU has the features.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn product<F: Format>(job: &Job, input: &Activations) {
    // SAFETY: the same contract; `in_step` is used with one group of as many rows as it names.
    unsafe {
        match job.rows.len() {
            1 => in_step::<F, 4, 1>(job, input),
            2 => in_step::<F, 2, 2>(job, input),
            rows if rows >= PANEL => panel::product::<F>(job, input),
            _ => one_by_one::<F>(job, input),
        }
    }
}

/// `S` tiles at a time times all `M` rows.
///
/// # Safety
/// The contract of [`super::product`]; the input has `M` rows.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn in_step<F: Format, const S: usize, const M: usize>(job: &Job, input: &Activations) {
    let group = input.group(job.rows.start);
    let row = job.rows.start;
    let mut tile = job.tiles.start;
    while tile < job.tiles.end {
        // SAFETY: as many tiles as are left, or fewer.
        unsafe {
            if tile + S <= job.tiles.end {
                kernel::<F, S, M>(job, tile, group, row, None);
                tile += S;
            } else if S > 2 && tile + 2 <= job.tiles.end {
                kernel::<F, 2, M>(job, tile, group, row, None);
                tile += 2;
            } else {
                kernel::<F, 1, M>(job, tile, group, row, None);
                tile += 1;
            }
        }
    }
}

/// One tile at a time times all rows, four at a time.
///
/// # Safety
/// The contract of [`super::product`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn one_by_one<F: Format>(job: &Job, input: &Activations) {
    for tile in job.tiles.clone() {
        let mut ahead = Lookahead::new(job, tile, job.blocks * job.rows.len().div_ceil(4));
        for (row, group) in groups(job, input) {
            let mut done = 0;
            while done < group.stride {
                // SAFETY: rows `done` to `done + M` are the group's.
                unsafe {
                    let rest = group.starting_at(done);
                    let row = row + done;
                    done += match group.stride - done {
                        1 => kernel::<F, 1, 1>(job, tile, rest, row, Some(&mut ahead)),
                        2 => kernel::<F, 1, 2>(job, tile, rest, row, Some(&mut ahead)),
                        3 => kernel::<F, 1, 3>(job, tile, rest, row, Some(&mut ahead)),
                        _ => kernel::<F, 1, 4>(job, tile, rest, row, Some(&mut ahead)),
                    };
                }
            }
        }
    }
}

/// The integers of group `g` of half `half` of a block: tile rows 0 to 7 or (`upper` = 1) 8 to 15.
///
/// # Safety
/// `p` is a block of the format; `half` and `upper` are below 2 and `g` below 4.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn unpack<F: Format>(p: *const u8, half: usize, g: usize, upper: usize) -> __m256i {
    // SAFETY: all loads are inside the block.
    unsafe {
        let at = p.add(g * 64 + upper * 32);
        if F::BYTES {
            return _mm256_loadu_si256(at.add(half * 256).cast());
        }
        let v = _mm256_loadu_si256(at.cast());
        let v = if half == 0 { v } else { _mm256_srli_epi16::<4>(v) };
        let v = _mm256_and_si256(v, _mm256_set1_epi8(15));
        if F::HIGH_BITS == 0 {
            return v;
        }
        let (plane, bits, left) = if F::HIGH_BITS == 1 {
            (256, 16, 4 - (half * 4 + g) as i32)
        } else {
            (256 + half * 64, 48, 4 - 2 * g as i32)
        };
        let h = _mm256_loadu_si256(p.add(plane + upper * 32).cast());
        let moved = if left >= 0 {
            _mm256_sll_epi16(h, _mm_cvtsi32_si128(left))
        } else {
            _mm256_srl_epi16(h, _mm_cvtsi32_si128(-left))
        };
        _mm256_or_si256(v, _mm256_and_si256(moved, _mm256_set1_epi8(bits)))
    }
}

/// Keeps LLVM from re-associating the integer sums into trees, which spills: up to 1.7 times
/// slower.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn fence(x: &mut __m256i) {
    // SAFETY: the text is a comment; the register is handed through unchanged.
    unsafe {
        asm!("/* {0} */", inout(ymm_reg) * x, options(pure, nomem, nostack, preserves_flags));
    }
}

/// The sums of a block with 32 fine activations, as [half][upper]; both halves' in the first if they
/// share a scale. Out of the way of [`kernel`]'s loop: few blocks have any.
///
/// # Safety
/// `p` is a block of the format, `a` valid for 32 bytes.
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn fine_sums<F: Format>(p: *const u8, a: *const i8) -> [[__m256i; 2]; 2] {
    let mut sums = [[_mm256_setzero_si256(); 2]; 2];
    for half in 0..2 {
        for upper in 0..2 {
            let mut w = [_mm256_setzero_si256(); 4];
            for (g, w) in w.iter_mut().enumerate() {
                // SAFETY: inside of the block.
                *w = unsafe { unpack::<F>(p, half, g, upper) };
            }
            // SAFETY: half of the 32 bytes.
            let sum = unsafe { half_dot::<F>(&w, a.add(half * 16).cast()) };
            let to = &mut sums[if F::HALVES { half } else { 0 }][upper];
            *to = _mm256_add_epi32(*to, sum);
        }
    }
    sums
}

/// Four groups of columns of eight rows times 16 activations.
///
/// # Safety
/// `a` is valid for 16 bytes; `w` has four vectors.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn half_dot<F: Format>(w: &[__m256i], a: *const i32) -> __m256i {
    let ones = _mm256_set1_epi16(1);
    let mut wide = _mm256_setzero_si256();
    let mut narrow = _mm256_setzero_si256();
    for (g, &w) in w.iter().enumerate() {
        // SAFETY: one of the four groups.
        let x = _mm256_set1_epi32(unsafe { a.add(g).read_unaligned() });
        if F::BYTES {
            let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(x), _mm256_sign_epi8(w, x));
            wide = _mm256_add_epi32(wide, _mm256_madd_epi16(pairs, ones));
            continue;
        }
        narrow = _mm256_add_epi16(narrow, _mm256_maddubs_epi16(w, x));
        if g == 3 || F::HIGH_BITS == 2 && g == 1 {
            wide = _mm256_add_epi32(wide, _mm256_madd_epi16(narrow, ones));
            narrow = _mm256_setzero_si256();
        }
    }
    wide
}

/// `S` tiles from `tile` on times the first `M` rows of `acts`, which are the input's from `row`
/// on. Returns `M`.
///
/// # Safety
/// The tiles are the job's, the rows the input's.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn kernel<F: Format, const S: usize, const M: usize>(
    job: &Job,
    tile: usize,
    acts: Group,
    row: usize,
    mut lookahead: Option<&mut Lookahead>,
) -> usize {
    let ones = _mm256_set1_epi16(1);
    let zero = _mm256_setzero_si256();
    let mut acc = [[[_mm256_setzero_ps(); M]; 2]; S];
    let mut low = [[[_mm256_setzero_ps(); M]; 2]; S];
    // SAFETY: every address is inside of tile, activations or output by the contract;
    // prefetching may name any address.
    unsafe {
        let first = job.tile(tile);
        let lead = (LEAD / S / F::BLOCK).min(job.blocks);
        let next = job.upcoming(tile + S);
        for b in 0..job.blocks {
            let (ahead, far) = if b + lead < job.blocks {
                (first.wrapping_add((b + lead) * F::BLOCK), job.tile_bytes)
            } else {
                (next.at.wrapping_add((b + lead - job.blocks) * F::BLOCK), next.tile_bytes)
            };
            let outliers = (*acts.outliers.add(b)).load(Ordering::Relaxed) >> acts.first;
            for s in 0..S {
                let p = first.add(s * job.tile_bytes + b * F::BLOCK);
                if let Some(lookahead) = &mut lookahead {
                    lookahead.step();
                } else {
                    for line in 0..F::BLOCK.div_ceil(64) {
                        let at = ahead.wrapping_add(s * far + line * 64);
                        _mm_prefetch::<_MM_HINT_T0>(at.cast());
                    }
                }
                let a = acts.ints.add(b * acts.stride * BLOCK_COLUMNS).cast::<i32>();
                // Sums in 16 bits, and in 32 bits for each half of the block.
                let mut narrow = [[zero; M]; 2];
                let mut wide = [[[zero; M]; 2]; 2];
                for half in 0..2 {
                    for g in 0..4 {
                        let mut w = [zero; 2];
                        for (upper, w) in w.iter_mut().enumerate() {
                            *w = unpack::<F>(p, half, g, upper);
                        }
                        for m in 0..M {
                            let x = _mm256_set1_epi32(a.add(m * 8 + half * 4 + g).read());
                            for upper in 0..2 {
                                if F::BYTES {
                                    let w = _mm256_sign_epi8(w[upper], x);
                                    let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(x), w);
                                    let sum = &mut wide[0][upper][m];
                                    *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(pairs, ones));
                                    if M > 1 {
                                        fence(sum);
                                    }
                                } else {
                                    let pairs = _mm256_maddubs_epi16(w[upper], x);
                                    let sum = &mut narrow[upper][m];
                                    *sum = _mm256_add_epi16(*sum, pairs);
                                    if M > 1 {
                                        fence(sum);
                                    }
                                }
                            }
                        }
                        // Widen before the next sum could overflow.
                        let full = match F::HIGH_BITS {
                            0 => half == 1 && g == 3,
                            1 => g == 3,
                            _ => g % 2 == 1,
                        };
                        if !F::BYTES && full {
                            let to = if F::HALVES { half } else { 0 };
                            for upper in 0..2 {
                                for m in 0..M {
                                    let pairs = _mm256_madd_epi16(narrow[upper][m], ones);
                                    let sum = &mut wide[to][upper][m];
                                    *sum = _mm256_add_epi32(*sum, pairs);
                                    narrow[upper][m] = zero;
                                }
                            }
                        }
                    }
                }
                for m in 0..M {
                    if outliers >> m & 1 != 0 {
                        let a = acts.fine.add((b * acts.stride + m) * BLOCK_COLUMNS);
                        let fine = fine_sums::<F>(p, a);
                        for (wide, fine) in wide.iter_mut().zip(fine) {
                            for (wide, fine) in wide.iter_mut().zip(fine) {
                                let high = _mm256_slli_epi32::<8>(wide[m]);
                                wide[m] = _mm256_add_epi32(high, fine);
                            }
                        }
                    }
                }
                for upper in 0..2 {
                    let scales = p.add(F::SCALES + upper * 16);
                    let scale = _mm256_cvtph_ps(_mm_loadu_si128(scales.cast()));
                    let second = if F::MIN || F::HALVES {
                        _mm256_cvtph_ps(_mm_loadu_si128(scales.add(32).cast()))
                    } else {
                        _mm256_setzero_ps()
                    };
                    for m in 0..M {
                        let at = b * acts.stride + m;
                        let by = _mm256_set1_ps(*acts.scales.add(at));
                        let to = &mut acc[s][upper][m];
                        let mut sum = wide[0][upper][m];
                        if F::OFFSET_BITS > 0 {
                            let of = if F::HALVES { acts.lows } else { acts.totals };
                            let offset = *of.add(at) << F::OFFSET_BITS;
                            sum = _mm256_sub_epi32(sum, _mm256_set1_epi32(offset));
                        }
                        let x = _mm256_cvtepi32_ps(sum);
                        *to = _mm256_fmadd_ps(x, _mm256_mul_ps(scale, by), *to);
                        if F::HALVES {
                            let highs = *acts.totals.add(at) - *acts.lows.add(at);
                            let offset = _mm256_set1_epi32(highs << F::OFFSET_BITS);
                            let sum = _mm256_sub_epi32(wide[1][upper][m], offset);
                            let x = _mm256_cvtepi32_ps(sum);
                            *to = _mm256_fmadd_ps(x, _mm256_mul_ps(second, by), *to);
                        }
                        if F::MIN {
                            let sums = _mm256_set1_ps(*acts.sums.add(at));
                            let low = &mut low[s][upper][m];
                            *low = _mm256_fmadd_ps(second, sums, *low);
                        }
                    }
                }
            }
        }
        for s in 0..S {
            for upper in 0..2 {
                for m in 0..M {
                    let mut sum = acc[s][upper][m];
                    if F::MIN {
                        sum = _mm256_add_ps(sum, low[s][upper][m]);
                    }
                    _mm256_storeu_ps(job.to(tile + s, row + m).add(upper * 8), sum);
                }
            }
        }
    }
    M
}
