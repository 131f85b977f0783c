//! Integer products with AVX-512 VNNI: `vpdpbusd` multiplies four columns of 16 rows at once.

use std::arch::x86_64::*;
use std::sync::atomic::Ordering;

use super::minima::add_minima;
use super::{Job, Lookahead, groups};
use crate::activations::{Activations, Group};
use crate::simd::avx512::Avx512;
use crate::tiles::{BLOCK_COLUMNS, Format};

/// Rows from which on a tile is unpacked once for all of them.
const PANEL: usize = 9;
/// How far ahead of the multiplications weights are asked for, over all streams: enough to keep two
/// cores' bus busy, little enough to stay in the first-level cache.
const LEAD: usize = 16 << 10;

/// # Safety
/// The contract of [`super::product`]; the CPU has the features.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn product<F: Format>(job: &Job, input: &Activations) {
    // SAFETY: the same contract; `in_step` is used with one group of as many rows as it names.
    unsafe {
        match job.rows.len() {
            1 => in_step::<F, 1>(job, input),
            2 => in_step::<F, 2>(job, input),
            3..PANEL => one_by_one::<F>(job, input),
            _ => panels::<F>(job, input),
        }
    }
}

/// Several tiles at a time times all `M` rows.
///
/// # Safety
/// The contract of [`super::product`]; the input has `M` rows.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn in_step<F: Format, const M: usize>(job: &Job, input: &Activations) {
    let group = input.group(job.rows.start);
    let row = job.rows.start;
    let none = std::ptr::null();
    let mut tile = job.tiles.start;
    while tile < job.tiles.end {
        // SAFETY: as many tiles as are left, or fewer.
        unsafe {
            tile += match (M, job.tiles.end - tile) {
                (_, 1) => kernel::<F, false, 1, M>(job, tile, none, group, row, None),
                (1, 3 | 5 | 6) => kernel::<F, false, 3, M>(job, tile, none, group, row, None),
                (1, 4..) => kernel::<F, false, 4, M>(job, tile, none, group, row, None),
                _ => kernel::<F, false, 2, M>(job, tile, none, group, row, None),
            };
        }
    }
}

/// One tile at a time times one group of at most eight rows.
///
/// # Safety
/// The contract of [`super::product`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn one_by_one<F: Format>(job: &Job, input: &Activations) {
    let group = input.group(job.rows.start);
    let row = job.rows.start;
    let none = std::ptr::null();
    for tile in job.tiles.clone() {
        // SAFETY: the contract; the group has as many rows as the kernel is for.
        unsafe {
            let mut ahead = Lookahead::new(job, tile, job.blocks);
            match group.stride {
                3 => kernel::<F, false, 1, 3>(job, tile, none, group, row, Some(&mut ahead)),
                4 => kernel::<F, false, 1, 4>(job, tile, none, group, row, Some(&mut ahead)),
                5 => kernel::<F, false, 1, 5>(job, tile, none, group, row, Some(&mut ahead)),
                6 => kernel::<F, false, 1, 6>(job, tile, none, group, row, Some(&mut ahead)),
                7 => kernel::<F, false, 1, 7>(job, tile, none, group, row, Some(&mut ahead)),
                _ => kernel::<F, false, 1, 8>(job, tile, none, group, row, Some(&mut ahead)),
            };
            if F::MIN {
                add_minima::<Avx512, F>(job, tile, group, row);
            }
        }
    }
}

/// One tile at a time, unpacked to bytes first, times all rows.
///
/// # Safety
/// The contract of [`super::product`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn panels<F: Format>(job: &Job, input: &Activations) {
    let mut panel = vec![[_mm512_setzero_si512(); 8]; job.blocks];
    for tile in job.tiles.clone() {
        // SAFETY: blocks of the tile; rows `done` to `done + M` are the group's.
        unsafe {
            for (b, panel) in panel.iter_mut().enumerate() {
                *panel = unpack::<F>(job.tile(tile).add(b * F::BLOCK));
            }
            let panel = panel.as_ptr();
            let steps = job.blocks * job.rows.len().div_ceil(8);
            let mut ahead = Lookahead::new(job, tile, steps);
            for (row, group) in groups(job, input) {
                let mut done = 0;
                while done < group.stride {
                    let rest = group.starting_at(done);
                    let row = row + done;
                    done += match group.stride - done {
                        1 => kernel::<F, true, 1, 1>(job, tile, panel, rest, row, Some(&mut ahead)),
                        2 | 3 => {
                            kernel::<F, true, 1, 2>(job, tile, panel, rest, row, Some(&mut ahead))
                        }
                        4..8 => {
                            kernel::<F, true, 1, 4>(job, tile, panel, rest, row, Some(&mut ahead))
                        }
                        8..16 => {
                            kernel::<F, true, 1, 8>(job, tile, panel, rest, row, Some(&mut ahead))
                        }
                        _ => {
                            kernel::<F, true, 1, 16>(job, tile, panel, rest, row, Some(&mut ahead))
                        }
                    };
                }
                if F::MIN {
                    add_minima::<Avx512, F>(job, tile, group, row);
                }
            }
        }
    }
}

/// Repeats a body for `$m` from 0 to below `$count`, at most 16, unrolled: LLVM leaves a loop of 16
/// rolled, and then keeps the accumulators in memory.
macro_rules! unrolled {
    ($count:expr, $m:ident => $body:block) => {
        unrolled!($count, $m => $body, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    ($count:expr, $m:ident => $body:block, $($i:literal)*) => {
        $(if $i < $count {
            let $m: usize = $i;
            $body
        })*
    };
}
pub(super) use unrolled;

/// A block's integers, unpacked to a group of columns in each register.
///
/// # Safety
/// `p` is a block of the format.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn unpack<F: Format>(p: *const u8) -> [__m512i; 8] {
    let mut w = [_mm512_setzero_si512(); 8];
    // SAFETY: all loads are inside the block.
    unsafe {
        if F::BYTES {
            for (g, w) in w.iter_mut().enumerate() {
                // To unsigned bytes, 128 more; undone with the sum of the activations.
                let signed = _mm512_loadu_si512(p.add(g * 64).cast());
                *w = _mm512_xor_si512(signed, _mm512_set1_epi8(-128));
            }
            return w;
        }
        let nibble = _mm512_set1_epi8(15);
        for g in 0..4 {
            let v = _mm512_loadu_si512(p.add(g * 64).cast());
            w[g] = _mm512_and_si512(v, nibble);
            w[g + 4] = _mm512_and_si512(_mm512_srli_epi16::<4>(v), nibble);
        }
        if F::HIGH_BITS == 1 {
            let h = _mm512_loadu_si512(p.add(256).cast());
            let bit = _mm512_set1_epi8(16);
            macro_rules! add {
                ($($g:literal: $moved:expr),*) => {
                    $(w[$g] = _mm512_or_si512(w[$g], _mm512_and_si512($moved, bit));)*
                };
            }
            add!(
                0: _mm512_slli_epi16::<4>(h), 1: _mm512_slli_epi16::<3>(h),
                2: _mm512_slli_epi16::<2>(h), 3: _mm512_slli_epi16::<1>(h),
                4: h, 5: _mm512_srli_epi16::<1>(h),
                6: _mm512_srli_epi16::<2>(h), 7: _mm512_srli_epi16::<3>(h)
            );
        } else if F::HIGH_BITS == 2 {
            let bits = _mm512_set1_epi8(48);
            for half in 0..2 {
                let h = _mm512_loadu_si512(p.add(256 + half * 64).cast());
                let moved = [
                    _mm512_slli_epi16::<4>(h),
                    _mm512_slli_epi16::<2>(h),
                    h,
                    _mm512_srli_epi16::<2>(h),
                ];
                for (g, moved) in moved.into_iter().enumerate() {
                    let at = half * 4 + g;
                    w[at] = _mm512_or_si512(w[at], _mm512_and_si512(moved, bits));
                }
            }
        }
    }
    w
}

/// A block's scales, and its minima or the scales of its second half.
///
/// # Safety
/// `p` is a block of the format.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn scales<F: Format>(p: *const u8) -> [__m512; 2] {
    // SAFETY: inside the block.
    unsafe {
        let scales = p.add(F::SCALES);
        let first = _mm512_cvtph_ps(_mm256_loadu_si256(scales.cast()));
        if F::MIN || F::HALVES {
            [first, _mm512_cvtph_ps(_mm256_loadu_si256(scales.add(32).cast()))]
        } else {
            [first, _mm512_setzero_ps()]
        }
    }
}

/// What is too much in sums of stored (or, from bytes, of made unsigned) integers with activations
/// whose sum is `total`.
#[inline(always)]
fn offset<F: Format>(total: i32) -> i32 {
    total << if F::BYTES { 7 } else { F::OFFSET_BITS }
}

/// A block times 32 activations: the sums of the two halves if they have scales of their own, else
/// one sum (and anything). Offsets are not subtracted.
///
/// # Safety
/// `a` is valid for 32 bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn dot<F: Format>(w: &[__m512i; 8], a: *const i8) -> [__m512i; 2] {
    let a = a.cast::<i32>();
    let mut sums = [_mm512_setzero_si512(); 2];
    for g in 0..4 {
        // SAFETY: inside the 32 bytes.
        let (x, y) = unsafe { (a.add(g).read_unaligned(), a.add(4 + g).read_unaligned()) };
        sums[0] = _mm512_dpbusd_epi32(sums[0], w[g], _mm512_set1_epi32(x));
        sums[1] = _mm512_dpbusd_epi32(sums[1], w[4 + g], _mm512_set1_epi32(y));
    }
    if !F::HALVES {
        sums[0] = _mm512_add_epi32(sums[0], sums[1]);
    }
    sums
}

/// The integer sums of a block with the activations at `at` of a group, which have fine integers if
/// `fine`.
///
/// # Safety
/// `at` is a block of a row of the group.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn integers<F: Format>(
    w: &[__m512i; 8],
    acts: Group,
    at: usize,
    fine: bool,
) -> [__m512i; 2] {
    // SAFETY: the contract above.
    unsafe {
        let mut sums = dot::<F>(w, acts.ints.add(at * BLOCK_COLUMNS));
        if fine {
            let low = dot::<F>(w, acts.fine.add(at * BLOCK_COLUMNS));
            for (sum, low) in sums.iter_mut().zip(low) {
                *sum = _mm512_add_epi32(_mm512_slli_epi32::<8>(*sum), low);
            }
        }
        if F::HALVES {
            let (total, low) = (*acts.totals.add(at), *acts.lows.add(at));
            sums[0] = _mm512_sub_epi32(sums[0], _mm512_set1_epi32(offset::<F>(low)));
            sums[1] = _mm512_sub_epi32(sums[1], _mm512_set1_epi32(offset::<F>(total - low)));
        } else if F::BYTES || F::OFFSET_BITS > 0 {
            let total = *acts.totals.add(at);
            sums[0] = _mm512_sub_epi32(sums[0], _mm512_set1_epi32(offset::<F>(total)));
        }
        sums
    }
}

/// `S` tiles from `tile` on times the first `M` rows of `acts`, which are the input's from `row`
/// on. With `PANEL` the one tile's integers come from `panel`. With it, and from three rows on, what
/// the minima give is left out. Returns how many it did: tiles, or with `PANEL` rows.
///
/// # Safety
/// The tiles are the job's, the rows the input's; `panel` is the unpacked tile if `PANEL`; the CPU
/// has the features.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn kernel<F: Format, const PANEL: bool, const S: usize, const M: usize>(
    job: &Job,
    tile: usize,
    panel: *const [__m512i; 8],
    acts: Group,
    row: usize,
    mut lookahead: Option<&mut Lookahead>,
) -> usize {
    let mut acc = [[_mm512_setzero_ps(); M]; S];
    let mut low = [[_mm512_setzero_ps(); M]; S];
    // SAFETY: every address is inside of tile, panel, activations or output by the contract;
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
                let w = if PANEL { *panel.add(b) } else { unpack::<F>(p) };
                let [scale, second] = scales::<F>(p);
                unrolled!(M, m => {
                    let at = b * acts.stride + m;
                    let sums = integers::<F>(&w, acts, at, outliers >> m & 1 != 0);
                    let by = _mm512_set1_ps(*acts.scales.add(at));
                    let x = _mm512_cvtepi32_ps(sums[0]);
                    acc[s][m] = _mm512_fmadd_ps(x, _mm512_mul_ps(scale, by), acc[s][m]);
                    if F::HALVES {
                        let x = _mm512_cvtepi32_ps(sums[1]);
                        acc[s][m] = _mm512_fmadd_ps(x, _mm512_mul_ps(second, by), acc[s][m]);
                    }
                    if F::MIN && M < 3 && !PANEL {
                        let sums = _mm512_set1_ps(*acts.sums.add(at));
                        low[s][m] = _mm512_fmadd_ps(second, sums, low[s][m]);
                    }
                });
            }
        }
        for (s, (acc, low)) in acc.iter().zip(&low).enumerate() {
            for (m, (&acc, &low)) in acc.iter().zip(low).enumerate() {
                let sum = if F::MIN && M < 3 && !PANEL { _mm512_add_ps(acc, low) } else { acc };
                _mm512_storeu_ps(job.to(tile + s, row + m), sum);
            }
        }
    }
    if PANEL { M } else { S }
}
