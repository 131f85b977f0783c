//! AVX2, FMA and F16C: a vector is two registers.

use std::arch::x86_64::*;

use super::{LANES, Simd};
use crate::activations::Pairs;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx2;

/// Lanes 0 to 7 and 8 to 15.
type F = [__m256; 2];

macro_rules! halves {
    ($h:ident => $value:expr) => {
        // SAFETY: the trait's contract: the features are there, and pointers are valid.
        unsafe {
            [
                {
                    let $h = 0;
                    $value
                },
                {
                    let $h = 1;
                    $value
                },
            ]
        }
    };
}

/// Sixteen vectors to one: lanes are combined with those 8, 4, 2 and 1 further on, as in a sum.
macro_rules! tree {
    ($v:ident, $op:ident) => {
        halves!(h => {
            // Of two vectors at a time: halves, pairs, single lanes.
            macro_rules! eight {
                ($i:literal) => {{
                    let (a, b) = ($v[h * 8 + $i], $v[h * 8 + $i + 4]);
                    let (a, b) = ($op(a[0], a[1]), $op(b[0], b[1]));
                    $op(_mm256_permute2f128_ps::<0x20>(a, b), _mm256_permute2f128_ps::<0x31>(a, b))
                }};
            }
            macro_rules! pairs {
                ($i:literal, $j:literal) => {{
                    let (a, b) = (_mm256_castps_pd(eight!($i)), _mm256_castps_pd(eight!($j)));
                    let (x, y) = (_mm256_unpacklo_pd(a, b), _mm256_unpackhi_pd(a, b));
                    $op(_mm256_castpd_ps(x), _mm256_castpd_ps(y))
                }};
            }
            let (a, b) = (pairs!(0, 1), pairs!(2, 3));
            $op(_mm256_shuffle_ps::<0x88>(a, b), _mm256_shuffle_ps::<0xdd>(a, b))
        })
    };
}

/// [`Simd::pairs`], also of the tiers that have more.
///
/// # Safety
/// `ints` is valid for 32 bytes.
#[inline(always)]
pub(crate) unsafe fn pairs(ints: *const i8) -> Pairs {
    // SAFETY: the contract above, and a tier with AVX2; 64 bits are the two halves' numbers.
    unsafe {
        let words = _mm256_maddubs_epi16(_mm256_set1_epi8(1), _mm256_loadu_si256(ints.cast()));
        let words = _mm256_add_epi16(words, _mm256_shuffle_epi32::<0b01_00_11_10>(words));
        let words = _mm256_add_epi16(words, _mm256_shuffle_epi32::<0b10_11_00_01>(words));
        let low = _mm256_castsi256_si128(words);
        let all = _mm_add_epi16(low, _mm256_extracti128_si256::<1>(words));
        std::mem::transmute::<i64, Pairs>(_mm_cvtsi128_si64(_mm_unpacklo_epi32(low, all)))
    }
}

impl Simd for Avx2 {
    type F = F;
    const ROWS: usize = 3;

    #[inline(always)]
    unsafe fn splat(x: f32) -> F {
        halves!(_h => _mm256_set1_ps(x))
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> F {
        halves!(h => _mm256_loadu_ps(from.add(h * 8)))
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, v: F) {
        halves!(h => _mm256_storeu_ps(to.add(h * 8), v[h]));
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> F {
        halves!(h => _mm256_cvtph_ps(_mm_loadu_si128(from.add(h * 8).cast())))
    }
    #[inline(always)]
    unsafe fn store_f16(to: *mut u16, v: F) {
        halves!(h => _mm_storeu_si128(to.add(h * 8).cast(), _mm256_cvtps_ph::<0>(v[h])));
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> F {
        halves!(h => {
            let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.add(h * 8).cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits))
        })
    }
    #[inline(always)]
    unsafe fn add(a: F, b: F) -> F {
        halves!(h => _mm256_add_ps(a[h], b[h]))
    }
    #[inline(always)]
    unsafe fn sub(a: F, b: F) -> F {
        halves!(h => _mm256_sub_ps(a[h], b[h]))
    }
    #[inline(always)]
    unsafe fn mul(a: F, b: F) -> F {
        halves!(h => _mm256_mul_ps(a[h], b[h]))
    }
    #[inline(always)]
    unsafe fn div(a: F, b: F) -> F {
        halves!(h => _mm256_div_ps(a[h], b[h]))
    }
    #[inline(always)]
    unsafe fn max(a: F, b: F) -> F {
        halves!(h => _mm256_max_ps(a[h], b[h]))
    }
    #[inline(always)]
    unsafe fn min(a: F, b: F) -> F {
        halves!(h => _mm256_min_ps(a[h], b[h]))
    }
    #[inline(always)]
    unsafe fn abs(a: F) -> F {
        halves!(h => _mm256_andnot_ps(_mm256_set1_ps(-0.0), a[h]))
    }
    #[inline(always)]
    unsafe fn fma(a: F, b: F, c: F) -> F {
        halves!(h => _mm256_fmadd_ps(a[h], b[h], c[h]))
    }
    #[inline(always)]
    unsafe fn fnma(a: F, b: F, c: F) -> F {
        halves!(h => _mm256_fnmadd_ps(a[h], b[h], c[h]))
    }
    #[inline(always)]
    unsafe fn round(a: F) -> F {
        halves!(h => _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a[h]))
    }
    #[inline(always)]
    unsafe fn exp2_int(a: F) -> F {
        halves!(h => {
            let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(a[h]), _mm256_set1_epi32(127));
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent))
        })
    }
    #[inline(always)]
    unsafe fn keep_below(v: F, first: usize, fill: f32) -> F {
        halves!(h => {
            let lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            let bound = _mm256_set1_epi32(first as i32 - h as i32 * 8);
            let keep = _mm256_castsi256_ps(_mm256_cmpgt_epi32(bound, lane));
            _mm256_blendv_ps(_mm256_set1_ps(fill), v[h], keep)
        })
    }
    #[inline(always)]
    unsafe fn store_i8(to: *mut i8, v: F) {
        // SAFETY: the trait's contract.
        unsafe {
            let words = _mm256_packs_epi32(_mm256_cvtps_epi32(v[0]), _mm256_cvtps_epi32(v[1]));
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(words);
            let low = _mm256_castsi256_si128(words);
            let bytes = _mm_packs_epi16(low, _mm256_extracti128_si256::<1>(words));
            _mm_storeu_si128(to.cast(), bytes);
        }
    }
    #[inline(always)]
    unsafe fn sum(v: F) -> f32 {
        // SAFETY: the trait's contract.
        unsafe {
            let v = _mm256_add_ps(v[0], v[1]);
            let x = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)))
        }
    }
    #[inline(always)]
    unsafe fn max_lane(v: F) -> f32 {
        // SAFETY: the trait's contract.
        unsafe {
            let v = _mm256_max_ps(v[0], v[1]);
            let x = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let x = _mm_max_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)))
        }
    }
    #[inline(always)]
    unsafe fn scale(a: F, shifted: F) -> F {
        halves!(h => {
            let exponent = _mm256_slli_epi32::<23>(_mm256_castps_si256(shifted[h]));
            _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a[h]), exponent))
        })
    }
    #[inline(always)]
    unsafe fn exceeds(a: F, b: F) -> u16 {
        let [low, high] = halves!(h => _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_GT_OQ>(a[h], b[h])));
        (low | high << 8) as u16
    }
    #[inline(always)]
    unsafe fn sums(v: &[F; LANES]) -> F {
        tree!(v, _mm256_add_ps)
    }
    #[inline(always)]
    unsafe fn max_lanes(v: &[F; LANES]) -> F {
        tree!(v, _mm256_max_ps)
    }
    #[inline(always)]
    unsafe fn store_blocks(
        to: &[*mut i8; LANES],
        from: &[*const f32; LANES],
        factors: &[f32; LANES],
        lows: &mut [i32; LANES],
        totals: &mut [i32; LANES],
    ) -> F {
        // SAFETY: the trait's contract; a half of the blocks is eight.
        unsafe {
            let mut floats = [_mm256_setzero_ps(); 2];
            // Packing works inside halves of a register.
            let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
            for half in 0..2 {
                let mut fours = [_mm256_setzero_si256(); 2];
                for (four, fours) in fours.iter_mut().enumerate() {
                    let mut sums = [_mm256_setzero_si256(); 4];
                    for (i, sums) in sums.iter_mut().enumerate() {
                        let block = half * 8 + four * 4 + i;
                        let factor = _mm256_set1_ps(factors[block]);
                        let mut ints = [_mm256_setzero_si256(); 4];
                        for (i, ints) in ints.iter_mut().enumerate() {
                            let x = _mm256_loadu_ps(from[block].add(i * 8));
                            *ints = _mm256_cvtps_epi32(_mm256_mul_ps(x, factor));
                        }
                        let low = _mm256_packs_epi32(ints[0], ints[1]);
                        let high = _mm256_packs_epi32(ints[2], ints[3]);
                        let bytes = _mm256_packs_epi16(low, high);
                        let bytes = _mm256_permutevar8x32_epi32(bytes, order);
                        _mm256_storeu_si256(to[block].cast(), bytes);
                        let pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes);
                        *sums = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
                    }
                    // Now the first halves' sums of four blocks, then their second halves'.
                    let [a, b, c, d] = sums;
                    *fours = _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d));
                }
                let [a, b] = fours;
                let low = _mm256_permute2x128_si256::<0x20>(a, b);
                let total = _mm256_add_epi32(low, _mm256_permute2x128_si256::<0x31>(a, b));
                _mm256_storeu_si256(lows.as_mut_ptr().add(half * 8).cast(), low);
                _mm256_storeu_si256(totals.as_mut_ptr().add(half * 8).cast(), total);
                floats[half] = _mm256_cvtepi32_ps(total);
            }
            floats
        }
    }
    #[inline(always)]
    unsafe fn pairs(ints: *const i8) -> Pairs {
        // SAFETY: the trait's contract.
        unsafe { pairs(ints) }
    }
    #[inline(always)]
    unsafe fn prefetch(at: *const u8) {
        // SAFETY: prefetching may name any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
    }
}
