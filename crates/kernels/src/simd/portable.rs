//! The portable tier: arrays that LLVM turns into the vectors of whatever CPU it compiles for.

use super::{LANES, Simd};
use crate::f16::{bf16_to_f32, f16_to_f32, f32_to_f16};

#[derive(Debug, Clone, Copy)]
pub(crate) struct Portable;

type F = [f32; LANES];

macro_rules! lanes {
    ($i:ident => $value:expr) => {{
        let mut out = [0.0; LANES];
        for ($i, lane) in out.iter_mut().enumerate() {
            *lane = $value;
        }
        out
    }};
}

impl Simd for Portable {
    type F = F;
    const ROWS: usize = 3;

    #[inline(always)]
    unsafe fn splat(x: f32) -> F {
        [x; LANES]
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> F {
        // SAFETY: the trait's contract.
        unsafe { from.cast::<F>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, v: F) {
        // SAFETY: the trait's contract.
        unsafe { to.cast::<F>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> F {
        // SAFETY: the trait's contract.
        let bits = unsafe { from.cast::<[u16; LANES]>().read_unaligned() };
        lanes!(i => f16_to_f32(bits[i]))
    }
    #[inline(always)]
    unsafe fn store_f16(to: *mut u16, v: F) {
        // SAFETY: the trait's contract.
        unsafe { to.cast::<[u16; LANES]>().write_unaligned(v.map(f32_to_f16)) }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> F {
        // SAFETY: the trait's contract.
        let bits = unsafe { from.cast::<[u16; LANES]>().read_unaligned() };
        lanes!(i => bf16_to_f32(bits[i]))
    }
    #[inline(always)]
    unsafe fn add(a: F, b: F) -> F {
        lanes!(i => a[i] + b[i])
    }
    #[inline(always)]
    unsafe fn sub(a: F, b: F) -> F {
        lanes!(i => a[i] - b[i])
    }
    #[inline(always)]
    unsafe fn mul(a: F, b: F) -> F {
        lanes!(i => a[i] * b[i])
    }
    #[inline(always)]
    unsafe fn div(a: F, b: F) -> F {
        lanes!(i => a[i] / b[i])
    }
    #[inline(always)]
    unsafe fn max(a: F, b: F) -> F {
        lanes!(i => if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    unsafe fn min(a: F, b: F) -> F {
        lanes!(i => if a[i] < b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    unsafe fn abs(a: F) -> F {
        lanes!(i => a[i].abs())
    }
    #[inline(always)]
    unsafe fn fma(a: F, b: F, c: F) -> F {
        lanes!(i => a[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    unsafe fn fnma(a: F, b: F, c: F) -> F {
        lanes!(i => (-a[i]).mul_add(b[i], c[i]))
    }
    #[inline(always)]
    unsafe fn round(a: F) -> F {
        lanes!(i => a[i].round_ties_even())
    }
    #[inline(always)]
    unsafe fn exp2_int(a: F) -> F {
        lanes!(i => f32::from_bits(((a[i] as i32 + 127) as u32) << 23))
    }
    #[inline(always)]
    unsafe fn keep_below(v: F, first: usize, fill: f32) -> F {
        lanes!(i => if i < first { v[i] } else { fill })
    }
    #[inline(always)]
    unsafe fn store_i8(to: *mut i8, v: F) {
        // SAFETY: the trait's contract.
        unsafe { to.cast::<[i8; LANES]>().write_unaligned(v.map(|x| x as i8)) }
    }
    #[inline(always)]
    unsafe fn sum(v: F) -> f32 {
        let mut v = v;
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                v[i] += v[i + half];
            }
        }
        v[0]
    }
    #[inline(always)]
    unsafe fn max_lane(v: F) -> f32 {
        let mut v = v;
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                v[i] = if v[i] > v[i + half] { v[i] } else { v[i + half] };
            }
        }
        v[0]
    }
    #[inline(always)]
    unsafe fn scale(a: F, shifted: F) -> F {
        lanes!(i => f32::from_bits(a[i].to_bits().wrapping_add(shifted[i].to_bits() << 23)))
    }
    #[inline(always)]
    unsafe fn prefetch(at: *const u8) {
        let _ = at;
    }
}
