//! AVX-512: a vector is one register.

use std::arch::x86_64::*;

use super::Simd;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx512;

type F = __m512;

macro_rules! op {
    ($value:expr) => {
        // SAFETY: the trait's contract: the features are there, and pointers are valid.
        unsafe { $value }
    };
}

impl Simd for Avx512 {
    type F = F;
    const ROWS: usize = 12;

    #[inline(always)]
    unsafe fn splat(x: f32) -> F {
        op!(_mm512_set1_ps(x))
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> F {
        op!(_mm512_loadu_ps(from))
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, v: F) {
        op!(_mm512_storeu_ps(to, v));
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> F {
        op!(_mm512_cvtph_ps(_mm256_loadu_si256(from.cast())))
    }
    #[inline(always)]
    unsafe fn store_f16(to: *mut u16, v: F) {
        op!(_mm256_storeu_si256(to.cast(), _mm512_cvtps_ph::<0>(v)));
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> F {
        op!(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(
            _mm256_loadu_si256(from.cast())
        ))))
    }
    #[inline(always)]
    unsafe fn add(a: F, b: F) -> F {
        op!(_mm512_add_ps(a, b))
    }
    #[inline(always)]
    unsafe fn sub(a: F, b: F) -> F {
        op!(_mm512_sub_ps(a, b))
    }
    #[inline(always)]
    unsafe fn mul(a: F, b: F) -> F {
        op!(_mm512_mul_ps(a, b))
    }
    #[inline(always)]
    unsafe fn div(a: F, b: F) -> F {
        op!(_mm512_div_ps(a, b))
    }
    #[inline(always)]
    unsafe fn max(a: F, b: F) -> F {
        op!(_mm512_max_ps(a, b))
    }
    #[inline(always)]
    unsafe fn min(a: F, b: F) -> F {
        op!(_mm512_min_ps(a, b))
    }
    #[inline(always)]
    unsafe fn abs(a: F) -> F {
        op!(_mm512_abs_ps(a))
    }
    #[inline(always)]
    unsafe fn fma(a: F, b: F, c: F) -> F {
        op!(_mm512_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    unsafe fn fnma(a: F, b: F, c: F) -> F {
        op!(_mm512_fnmadd_ps(a, b, c))
    }
    #[inline(always)]
    unsafe fn round(a: F) -> F {
        op!(_mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a))
    }
    #[inline(always)]
    unsafe fn exp2_int(a: F) -> F {
        op!({
            let exponent = _mm512_add_epi32(_mm512_cvtps_epi32(a), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(exponent))
        })
    }
    #[inline(always)]
    unsafe fn keep_below(v: F, first: usize, fill: f32) -> F {
        let keep = ((1_u32 << first) - 1) as u16;
        op!(_mm512_mask_blend_ps(keep, _mm512_set1_ps(fill), v))
    }
    #[inline(always)]
    unsafe fn store_i8(to: *mut i8, v: F) {
        op!(_mm_storeu_si128(to.cast(), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v))));
    }
    #[inline(always)]
    unsafe fn sum(v: F) -> f32 {
        op!({
            let v = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
            let x = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)))
        })
    }
    #[inline(always)]
    unsafe fn max_lane(v: F) -> f32 {
        op!({
            let v = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
            let x = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let x = _mm_max_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)))
        })
    }
    #[inline(always)]
    unsafe fn scale(a: F, shifted: F) -> F {
        op!({
            let exponent = _mm512_slli_epi32::<23>(_mm512_castps_si512(shifted));
            _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a), exponent))
        })
    }
    #[inline(always)]
    unsafe fn prefetch(at: *const u8) {
        // SAFETY: prefetching may name any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
    }
}
