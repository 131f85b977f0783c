//! Integer products with AVX-512 VNNI: `vpdpbusd` multiplies four columns of 16 rows at once.

use std::arch::x86_64::*;
use std::sync::atomic::Ordering;

use super::{Job, groups};
use crate::activations::{Activations, Group, fine_scale};
use crate::tiles::{BLOCK_COLUMNS, Format};

/// # Safety
/// The contract of [`super::product`]; the CPU has the features.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn product<F: Format>(job: &Job, input: &Activations) {
    // SAFETY: the same contract; `in_step` is used with one group of as many rows as it names.
    unsafe {
        match job.rows.len() {
            1 => in_step::<F, 4, 1>(job, input),
            2 => in_step::<F, 2, 2>(job, input),
            3 => in_step::<F, 2, 3>(job, input),
            4 => in_step::<F, 2, 4>(job, input),
            _ => one_by_one::<F>(job, job.tiles.start, input),
        }
    }
}

/// `S` tiles at a time times all `M` rows.
///
/// # Safety
/// The contract of [`super::product`]; the input has `M` rows.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn in_step<F: Format, const S: usize, const M: usize>(job: &Job, input: &Activations) {
    let group = input.group(job.rows.start);
    let mut tile = job.tiles.start;
    // SAFETY: `tile + S` stays within the job's tiles.
    unsafe {
        while tile + S <= job.tiles.end {
            let more = tile + 2 * S <= job.tiles.end;
            let ahead = if more { S * job.tile_bytes } else { 0 };
            kernel::<F, S, M>(job, tile, group, job.rows.start, ahead);
            for s in 0..S {
                add_fine::<F>(job, tile + s, group, job.rows.start);
            }
            tile += S;
        }
        one_by_one::<F>(job, tile, input);
    }
}

/// One tile at a time, from `first` on, times all rows.
///
/// # Safety
/// The contract of [`super::product`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn one_by_one<F: Format>(job: &Job, first: usize, input: &Activations) {
    for tile in first..job.tiles.end {
        for (row, group) in groups(job, input) {
            // SAFETY: the contract.
            unsafe { one_group::<F>(job, tile, group, row) }
        }
    }
}

/// One tile times a group of up to 16 rows that starts at input row `row`.
///
/// # Safety
/// The contract of [`super::product`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn one_group<F: Format>(job: &Job, tile: usize, group: Group, row: usize) {
    let mut done = 0;
    while done < group.stride {
        // SAFETY: rows `done` to `done + M` are the group's.
        unsafe {
            let rest = group.starting_at(done);
            let row = row + done;
            done += match group.stride - done {
                1 => kernel::<F, 1, 1>(job, tile, rest, row, 0),
                2 => kernel::<F, 1, 2>(job, tile, rest, row, 0),
                3 => kernel::<F, 1, 3>(job, tile, rest, row, 0),
                4 => kernel::<F, 1, 4>(job, tile, rest, row, 0),
                5 => kernel::<F, 1, 5>(job, tile, rest, row, 0),
                6 => kernel::<F, 1, 6>(job, tile, rest, row, 0),
                7 => kernel::<F, 1, 7>(job, tile, rest, row, 0),
                16 => kernel::<F, 1, 16>(job, tile, rest, row, 0),
                _ => kernel::<F, 1, 8>(job, tile, rest, row, 0),
            };
        }
    }
    // SAFETY: the same contract; the group's products are stored.
    unsafe { add_fine::<F>(job, tile, group, row) }
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

/// A block times 32 activations, whose sum is `total` and that of the first half `low`: the two
/// halves' sums if they have scales of their own, else one sum (and anything), offsets subtracted.
///
/// # Safety
/// `a` is valid for 32 bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn dot<F: Format>(w: &[__m512i; 8], a: *const i32, total: i32, low: i32) -> [__m512i; 2] {
    let mut sums = [_mm512_setzero_si512(); 2];
    for g in 0..4 {
        // SAFETY: inside the 32 bytes.
        let (x, y) = unsafe { (a.add(g).read_unaligned(), a.add(4 + g).read_unaligned()) };
        sums[0] = _mm512_dpbusd_epi32(sums[0], w[g], _mm512_set1_epi32(x));
        sums[1] = _mm512_dpbusd_epi32(sums[1], w[4 + g], _mm512_set1_epi32(y));
    }
    if F::HALVES {
        let high = _mm512_set1_epi32((total - low) << F::OFFSET_BITS);
        let low = _mm512_set1_epi32(low << F::OFFSET_BITS);
        return [_mm512_sub_epi32(sums[0], low), _mm512_sub_epi32(sums[1], high)];
    }
    sums[0] = without_offset::<F>(_mm512_add_epi32(sums[0], sums[1]), total);
    sums
}

/// A block's sums of stored (or, from bytes, of made unsigned) integers, less what is too much; the
/// activations' sum is `total`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) fn without_offset<F: Format>(sums: __m512i, total: i32) -> __m512i {
    let bits = if F::BYTES { 7 } else { F::OFFSET_BITS };
    if bits == 0 {
        return sums;
    }
    let total = _mm512_set1_epi32(total);
    _mm512_sub_epi32(sums, _mm512_sll_epi32(total, _mm_cvtsi32_si128(bits as i32)))
}

/// Adds a block's sums, each times its scale and the activations', `by`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) fn add_scaled<F: Format>(
    acc: __m512,
    sums: [__m512i; 2],
    scale: __m512,
    second: __m512,
    by: f32,
) -> __m512 {
    let by = _mm512_set1_ps(by);
    let acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[0]), _mm512_mul_ps(scale, by), acc);
    if F::HALVES {
        _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[1]), _mm512_mul_ps(second, by), acc)
    } else {
        acc
    }
}

/// Adds what the fine integers of a group give to the products of one tile, which are stored. The
/// group's first row is input row `row`.
///
/// # Safety
/// The contract of [`super::product`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn add_fine<F: Format>(job: &Job, tile: usize, group: Group, row: usize) {
    for b in 0..job.blocks {
        // SAFETY: block b of the group and of the tile.
        unsafe {
            if (*group.outliers.add(b)).load(Ordering::Relaxed) != 0 {
                let w = unpack::<F>(job.tile(tile).add(b * F::BLOCK));
                add_fine_block::<F>(job, tile, group, row, b, &w);
            }
        }
    }
}

/// The same of one block, whose unpacked integers are `w`.
///
/// # Safety
/// The contract of [`super::product`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn add_fine_block<F: Format>(
    job: &Job,
    tile: usize,
    group: Group,
    row: usize,
    b: usize,
    w: &[__m512i; 8],
) {
    // SAFETY: block b of the group and of the tile; rows in the mask are the group's.
    unsafe {
        let mut rows = (*group.outliers.add(b)).load(Ordering::Relaxed);
        if rows == 0 {
            return;
        }
        let [scale, second] = scales::<F>(job.tile(tile).add(b * F::BLOCK));
        while rows != 0 {
            let m = rows.trailing_zeros() as usize;
            rows &= rows - 1;
            let at = b * group.stride + m;
            let a = group.fine.add(at * BLOCK_COLUMNS).cast::<i32>();
            let sums = dot::<F>(w, a, *group.fine_totals.add(at), *group.fine_lows.add(at));
            let by = fine_scale(*group.scales.add(at));
            let to = job.to(tile, row + m);
            let acc = _mm512_loadu_ps(to);
            _mm512_storeu_ps(to, add_scaled::<F>(acc, sums, scale, second, by));
        }
    }
}

/// `S` tiles from `tile` on times the first `M` rows of `acts`, which are the input's from `row`
/// on; `ahead` is how far on a later tile's weights lie (to prefetch), or 0. Returns `M`.
///
/// # Safety
/// The tiles are the job's, the rows the input's; the CPU has the features.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn kernel<F: Format, const S: usize, const M: usize>(
    job: &Job,
    tile: usize,
    acts: Group,
    row: usize,
    ahead: usize,
) -> usize {
    let mut acc = [[_mm512_setzero_ps(); M]; S];
    // SAFETY: every address is inside of tile, activations or output by the contract; prefetching
    // may name any address.
    unsafe {
        let first = job.tile(tile);
        for b in 0..job.blocks {
            for s in 0..S {
                let p = first.add(s * job.tile_bytes + b * F::BLOCK);
                if ahead > 0 {
                    for line in 0..F::BLOCK.div_ceil(64) {
                        _mm_prefetch::<_MM_HINT_T0>(p.wrapping_add(ahead + line * 64).cast());
                    }
                }
                let w = unpack::<F>(p);
                let [scale, second] = scales::<F>(p);
                unrolled!(M, m => {
                    let at = b * acts.stride + m;
                    let a = acts.ints.add(at * BLOCK_COLUMNS).cast::<i32>();
                    let sums = dot::<F>(&w, a, *acts.totals.add(at), *acts.lows.add(at));
                    let by = *acts.scales.add(at);
                    acc[s][m] = add_scaled::<F>(acc[s][m], sums, scale, second, by);
                    if F::MIN {
                        let sums = _mm512_set1_ps(*acts.sums.add(at));
                        acc[s][m] = _mm512_fmadd_ps(second, sums, acc[s][m]);
                    }
                });
            }
        }
        for (s, acc) in acc.iter().enumerate() {
            for (m, &acc) in acc.iter().enumerate() {
                _mm512_storeu_ps(job.to(tile + s, row + m), acc);
            }
        }
    }
    M
}
