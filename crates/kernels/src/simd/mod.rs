//! Sixteen f32 lanes, the same on every tier: the reason why all tiers give the same bits.
//!
//! Float kernels (norms, rotations, activations, attention, the float part of a matrix product) are
//! written once, generic over [`Simd`], and compiled for every tier by [`tiered!`]. What could
//! differ between tiers is fixed here:
//! - the width: always 16 lanes (one register with AVX-512, two with AVX2, an array elsewhere), and
//!   sums across lanes fold halves: 16, 8, 4, 2, 1;
//! - fused or not: [`Simd::fma`] rounds once, everywhere. Without FMA in hardware that is slow (an
//!   x86-64 that can only run the portable tier predates 2013), but equal;
//! - functions: [`exp`] and what is built on it are polynomials of ours, never the C library's.
//!
//! Methods are `inline(always)` so that they end up inside of a function with the tier's
//! features; a closure in between would lose them.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod portable;

/// Lanes of a vector.
pub(crate) const LANES: usize = 16;

/// A tier's arithmetic on 16 f32 lanes.
///
/// # Safety
/// Every method requires a CPU with the tier's features; those that take pointers require them to
/// be valid for 16 elements (unaligned is fine).
pub(crate) trait Simd: Copy {
    /// Sixteen f32.
    type F: Copy;
    /// Rows of [`accumulate`](Self::accumulate) that fit the registers, two vectors each.
    const ROWS: usize;

    unsafe fn splat(x: f32) -> Self::F;
    unsafe fn load(from: *const f32) -> Self::F;
    unsafe fn store(to: *mut f32, v: Self::F);
    /// From half precision, exactly.
    unsafe fn load_f16(from: *const u16) -> Self::F;
    /// To half precision, to nearest, ties to even.
    unsafe fn store_f16(to: *mut u16, v: Self::F);
    /// From bfloat16, exactly.
    unsafe fn load_bf16(from: *const u16) -> Self::F;
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F;
    /// The larger of each pair (without NaN, which no kernel asks about).
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn abs(a: Self::F) -> Self::F;
    /// `a * b + c`, rounded once.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `c - a * b`, rounded once.
    unsafe fn fnma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// To the nearest integer, ties to even.
    unsafe fn round(a: Self::F) -> Self::F;
    /// Two to the power of integers between -126 and 127.
    unsafe fn exp2_int(a: Self::F) -> Self::F;
    /// Lanes from `first` on become `fill`.
    unsafe fn keep_below(v: Self::F, first: usize, fill: f32) -> Self::F;
    /// Stores integers between -128 and 127 (as f32 with no fraction) as bytes.
    unsafe fn store_i8(to: *mut i8, v: Self::F);
    /// The sum: lane i + lane (i + 8), then 4, 2, 1.
    unsafe fn sum(v: Self::F) -> f32;
    /// The largest lane.
    unsafe fn max_lane(v: Self::F) -> f32;
    /// `a` times two to the power of z, where `shifted` is [`SHIFTER`] + z and the result is a
    /// normal number: an addition to the exponents' bits.
    unsafe fn scale(a: Self::F, shifted: Self::F) -> Self::F;
    /// Asks for a cache line; any address will do.
    unsafe fn prefetch(at: *const u8);

    /// `sums[r][v] += a[r][i] * b[i][v]` for i from 0 to `n`, in this order, fused; a matrix
    /// product's innermost loop. Rows of `a` are [`ROW_STRIDE`] f32 apart, rows of `b` `step`
    /// halves. Prefetches `V * 32` bytes per i, from `ahead` on and `ahead_step` bytes further each.
    ///
    /// # Safety
    /// `a` is valid for `n` elements of `R` rows, `b` for `V * 16` elements of `n` rows.
    #[inline(always)]
    unsafe fn accumulate<const R: usize, const V: usize>(
        sums: &mut [[Self::F; V]; R],
        a: *const f32,
        (b, step): (*const u16, usize),
        n: usize,
        (ahead, ahead_step): (*const u8, usize),
    ) {
        // SAFETY: the contract above.
        unsafe { accumulate::<Self, R, V>(sums, a, (b, step), n, (ahead, ahead_step)) };
    }
}

/// What [`Simd::accumulate`] does, where the compiler keeps the sums in registers.
#[inline(always)]
unsafe fn accumulate<S: Simd, const R: usize, const V: usize>(
    sums: &mut [[S::F; V]; R],
    a: *const f32,
    (b, step): (*const u16, usize),
    n: usize,
    (ahead, ahead_step): (*const u8, usize),
) {
    for i in 0..n {
        // SAFETY: the contract of `Simd::accumulate`.
        unsafe {
            for line in 0..V.div_ceil(2) {
                S::prefetch(ahead.wrapping_add(i * ahead_step + line * 64));
            }
            let mut values = [S::splat(0.0); V];
            for v in 0..V {
                values[v] = S::load_f16(b.add(i * step + v * LANES));
            }
            for r in 0..R {
                let factor = S::splat(*a.add(r * ROW_STRIDE + i));
                for v in 0..V {
                    sums[r][v] = S::fma(values[v], factor, sums[r][v]);
                }
            }
        }
    }
}

/// Distance of the rows of [`Simd::accumulate`]'s left side: 256 elements, and a cache line that
/// keeps rows from competing for the same part of the cache.
pub(crate) const ROW_STRIDE: usize = 256 + LANES;

/// 1.5 * 2^23: adding it rounds to an integer, which is then found in the lowest bits.
pub(crate) const SHIFTER: f32 = 12_582_912.0;

/// Two to the power of each lane, up to 88; from -126 downwards always 2^-126. Relative error
/// below 2e-7, and exactly 1 for 0.
// The fitted coefficient of r is not ln 2, though close.
#[allow(clippy::approx_constant)]
#[inline(always)]
pub(crate) unsafe fn exp2<S: Simd>(x: S::F) -> S::F {
    // SAFETY: the caller's promise that the tier's features are there.
    unsafe {
        let x = S::max(x, S::splat(-126.0));
        let shifted = S::add(x, S::splat(SHIFTER));
        let r = S::sub(x, S::sub(shifted, S::splat(SHIFTER)));
        let mut p = S::splat(1.326_472_7e-3);
        p = S::fma(p, r, S::splat(9.671_513e-3));
        p = S::fma(p, r, S::splat(5.550_733_6e-2));
        p = S::fma(p, r, S::splat(0.240_222_42));
        p = S::fma(p, r, S::splat(0.693_147));
        p = S::fma(p, r, S::splat(1.0));
        S::scale(p, shifted)
    }
}

/// e to the power of each lane, between e^-87 and e^88; relative error below 2e-7.
#[inline(always)]
pub(crate) unsafe fn exp<S: Simd>(x: S::F) -> S::F {
    // SAFETY: the caller's promise that the tier's features are there.
    unsafe {
        let x = S::min(S::max(x, S::splat(-87.0)), S::splat(88.0));
        let z = S::round(S::mul(x, S::splat(std::f32::consts::LOG2_E)));
        // ln 2 in two parts, the first of which is exact times any z.
        let r = S::fnma(z, S::splat(0.693_359_4), x);
        let r = S::fnma(z, S::splat(-2.121_944_4e-4), r);
        let mut p = S::splat(1.987_569_1e-4);
        p = S::fma(p, r, S::splat(1.398_199_9e-3));
        p = S::fma(p, r, S::splat(8.333_452e-3));
        p = S::fma(p, r, S::splat(4.166_579_6e-2));
        p = S::fma(p, r, S::splat(0.166_666_65));
        p = S::fma(p, r, S::splat(0.5));
        p = S::fma(p, r, S::splat(1.0));
        p = S::fma(p, r, S::splat(1.0));
        S::mul(p, S::exp2_int(z))
    }
}

/// Makes a function that runs a generic kernel on a [`Cpu`](crate::dispatch::Cpu)'s tier:
/// `tiered! { fn name(a: A, b: B) -> R = kernel; }` defines `unsafe fn name(cpu, a, b) -> R`, which
/// calls `kernel::<Tier>(a, b)` compiled with the tier's features.
macro_rules! tiered {
    ($(#[$doc:meta])* $vis:vis fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $ret:ty)? = $kernel:ident;) => {
        $(#[$doc])*
        #[allow(clippy::too_many_arguments)]
        $vis unsafe fn $name(cpu: crate::dispatch::Cpu, $($arg: $type),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            #[allow(clippy::too_many_arguments)]
            unsafe fn avx2($($arg: $type),*) $(-> $ret)? {
                // SAFETY: the caller's promises; the features are enabled.
                unsafe { $kernel::<crate::simd::avx2::Avx2>($($arg),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
            #[allow(clippy::too_many_arguments)]
            unsafe fn avx512($($arg: $type),*) $(-> $ret)? {
                // SAFETY: the caller's promises; the features are enabled.
                unsafe { $kernel::<crate::simd::avx512::Avx512>($($arg),*) }
            }
            match cpu.tier() {
                #[cfg(target_arch = "x86_64")]
                // SAFETY: a `Cpu` of this tier exists only where its features do.
                crate::dispatch::Tier::Avx2 => unsafe { avx2($($arg),*) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: as above.
                crate::dispatch::Tier::Avx512 | crate::dispatch::Tier::Amx => unsafe { avx512($($arg),*) },
                // SAFETY: the portable tier needs no features; the rest is the caller's promise.
                _ => unsafe { $kernel::<crate::simd::portable::Portable>($($arg),*) },
            }
        }
    };
}
pub(crate) use tiered;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::Cpu;

    /// Every operation on 16 lanes, results one after another.
    #[inline(always)]
    unsafe fn everything<S: Simd>(a: *const f32, b: *const f32, out: *mut f32, halves: *mut u16) {
        // SAFETY: the test passes 16 lanes, room for 21 * 16 results and 16 halves.
        unsafe {
            let (x, y) = (S::load(a), S::load(b));
            S::store_f16(halves, x);
            let results = [
                S::add(x, y),
                S::sub(x, y),
                S::mul(x, y),
                S::div(x, y),
                S::max(x, y),
                S::min(x, y),
                S::abs(x),
                S::fma(x, y, S::splat(0.3)),
                S::fnma(x, y, S::splat(0.3)),
                S::round(x),
                exp::<S>(x),
                S::load_f16(halves),
                S::load_bf16(halves),
                S::keep_below(x, 5, 9.0),
                S::keep_below(x, 0, 9.0),
                S::keep_below(x, 16, 9.0),
                S::splat(S::sum(x)),
                S::splat(S::max_lane(x)),
                S::exp2_int(S::round(S::min(S::max(x, S::splat(-126.0)), S::splat(127.0)))),
                exp2::<S>(S::min(x, S::splat(88.0))),
            ];
            for (i, &v) in results.iter().enumerate() {
                S::store(out.add(i * 16), v);
            }
            let bytes = S::round(S::min(S::max(x, S::splat(-128.0)), S::splat(127.0)));
            S::store_i8(out.add(20 * 16).cast(), bytes);
        }
    }

    tiered! { fn everything_on(a: *const f32, b: *const f32, out: *mut f32, halves: *mut u16) = everything; }

    fn run(cpu: Cpu, a: &[f32; 16], b: &[f32; 16]) -> (Vec<u32>, [u16; 16]) {
        let (mut out, mut halves) = (vec![0.0_f32; 21 * 16], [0_u16; 16]);
        // SAFETY: 16 lanes each, and the room that `everything` writes to.
        unsafe {
            everything_on(cpu, a.as_ptr(), b.as_ptr(), out.as_mut_ptr(), halves.as_mut_ptr());
        }
        (out.iter().map(|x| x.to_bits()).collect(), halves)
    }

    #[test]
    fn every_tier_gives_the_portable_bits() {
        let mut rng = crate::test_random::Random::new(7);
        let portable = Cpu::available()[0];
        for round in 0..4000 {
            let scale = [1.0, 100.0, 1e5, 1e-5, 1e-7][round % 5];
            let (mut a, mut b) = ([0.0; 16], [0.0; 16]);
            for lane in 0..16 {
                a[lane] = rng.normal() * scale;
                b[lane] = rng.normal();
            }
            if round % 7 == 0 {
                a[3] = 2.5;
                a[4] = -0.5;
                a[5] = 0.0;
            }
            let expected = run(portable, &a, &b);
            for cpu in Cpu::available() {
                assert_eq!(run(cpu, &a, &b), expected, "{:?} {a:?} {b:?}", cpu.tier());
            }
        }
    }

    #[test]
    fn exp_is_close_to_the_truth() {
        for i in -870..=880 {
            let x = i as f32 / 10.0;
            let (bits, _) = run(Cpu::available()[0], &[x; 16], &[1.0; 16]);
            let got = f64::from(f32::from_bits(bits[10 * 16]));
            let truth = f64::from(x).exp();
            assert!((got - truth).abs() <= 2e-7 * truth, "exp({x}) = {got}, not {truth}");
        }
    }

    #[test]
    fn exp2_is_close_to_the_truth_and_exact_for_0() {
        let of = |x: f32| {
            let (bits, _) = run(Cpu::available()[0], &[x; 16], &[1.0; 16]);
            f64::from(f32::from_bits(bits[19 * 16]))
        };
        for i in -12_600..=8_800 {
            let x = i as f32 / 100.0;
            let (got, truth) = (of(x), f64::from(x).exp2());
            assert!((got - truth).abs() <= 2e-7 * truth, "exp2({x}) = {got}, not {truth}");
        }
        assert_eq!(of(0.0).to_bits(), 1.0_f64.to_bits());
        for x in [-126.0, -127.5, -1e30, f32::NEG_INFINITY] {
            assert_eq!(of(x).to_bits(), (-126.0_f64).exp2().to_bits(), "{x}");
        }
    }
}
