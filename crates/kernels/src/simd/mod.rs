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

use crate::activations::Pairs;

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
    /// Which lanes of `a` are larger than those of `b`, a bit for each.
    #[inline(always)]
    unsafe fn exceeds(a: Self::F, b: Self::F) -> u16 {
        let (mut x, mut y) = ([0.0; LANES], [0.0; LANES]);
        // SAFETY: the tier's features are there; 16 elements each.
        unsafe {
            Self::store(x.as_mut_ptr(), a);
            Self::store(y.as_mut_ptr(), b);
        }
        x.iter().zip(y).rev().fold(0, |bits, (&x, y)| bits << 1 | u16::from(x > y))
    }
    /// In lane i, what [`sum`](Self::sum) says of vector i.
    #[inline(always)]
    unsafe fn sums(v: &[Self::F; LANES]) -> Self::F {
        // SAFETY: the tier's features are there; 16 elements.
        unsafe { Self::load(v.map(|v| Self::sum(v)).as_ptr()) }
    }
    /// In lane i, what [`max_lane`](Self::max_lane) says of vector i (without NaN).
    #[inline(always)]
    unsafe fn max_lanes(v: &[Self::F; LANES]) -> Self::F {
        // SAFETY: the tier's features are there; 16 elements.
        unsafe { Self::load(v.map(|v| Self::max_lane(v)).as_ptr()) }
    }
    /// Multiplies 16 blocks of 32 elements with a factor each, rounds them to nearest, ties to even,
    /// and stores them as bytes. Returns the blocks' sums, also in `totals`; those of their first
    /// halves are in `lows`. A block of which some product is not between -127.5 and 127.5 has bytes
    /// and sums that mean nothing.
    ///
    /// # Safety
    /// Each of `from` is valid for 32 elements, each of `to` for 32 bytes.
    #[inline(always)]
    unsafe fn store_blocks(
        to: &[*mut i8; LANES],
        from: &[*const f32; LANES],
        factors: &[f32; LANES],
        lows: &mut [i32; LANES],
        totals: &mut [i32; LANES],
    ) -> Self::F {
        // SAFETY: the contract above.
        unsafe {
            for i in 0..LANES {
                let factor = Self::splat(factors[i]);
                let low = Self::round(Self::mul(Self::load(from[i]), factor));
                let high = Self::round(Self::mul(Self::load(from[i].add(LANES)), factor));
                Self::store_i8(to[i], low);
                Self::store_i8(to[i].add(LANES), high);
                lows[i] = Self::sum(low) as i32;
                totals[i] = lows[i] + Self::sum(high) as i32;
            }
            Self::load(totals.map(|total| total as f32).as_ptr())
        }
    }
    /// The [`Pairs`] of a block.
    ///
    /// # Safety
    /// `ints` is valid for 32 bytes.
    #[inline(always)]
    unsafe fn pairs(ints: *const i8) -> Pairs {
        let mut halves = Pairs::default();
        for (half, pairs) in halves.iter_mut().enumerate() {
            for i in 0..16 {
                // SAFETY: the contract above.
                pairs[i / 2 % 2] += i16::from(unsafe { *ints.add(half * 16 + i) });
            }
        }
        let [[a, b], [c, d]] = halves;
        [[a, b], [a + c, b + d]]
    }
    /// Asks for a cache line; any address will do.
    unsafe fn prefetch(at: *const u8);

    /// `sums[r][v] += a[r][i] * b[i][v]` for i from 0 to `n`, in this order, fused; a matrix
    /// product's innermost loop. Rows of `a` are [`ROW_STRIDE`] f32 apart, rows of `b` `step`
    /// halves. Asks for a line of `ahead` for each that a row of `b` has.
    ///
    /// # Safety
    /// `a` is valid for `n` elements of `R` rows, `b` for `V * 16` elements of `n` rows.
    #[inline(always)]
    unsafe fn accumulate<const R: usize, const V: usize>(
        sums: &mut [[Self::F; V]; R],
        a: *const f32,
        (b, step): (*const u16, usize),
        n: usize,
        ahead: &mut Ahead,
    ) {
        // SAFETY: the contract above.
        unsafe { accumulate::<Self, R, V>(sums, a, (b, step), n, ahead) };
    }
}

/// Streams of [`Ahead`].
pub(crate) const STREAMS: usize = 4;

/// Cache lines to ask for before they are needed: one of each of four streams by turns. What comes
/// from memory then comes half as fast again as from one stream after another, because the hardware,
/// which looks ahead in a stream only as far as its page goes, does so in all four.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ahead {
    /// The next line of each stream, in the order of their turns.
    at: [*const u8; STREAMS],
    /// From a stream's line to its next, in bytes.
    step: usize,
    /// Lines that have yet to be asked for.
    left: usize,
}

impl Ahead {
    /// So many lines in all.
    #[inline(always)]
    pub(crate) fn new(at: [*const u8; STREAMS], lines: usize) -> Ahead {
        Ahead { at, step: 64, left: lines }
    }

    /// Nothing but `at`, which is in the cache: for loops that ask for lines in any case.
    #[inline(always)]
    pub(crate) fn nothing(at: *const u8) -> Ahead {
        Ahead { at: [at; STREAMS], step: 0, left: 0 }
    }

    /// Asks for the next line.
    #[inline(always)]
    unsafe fn line<S: Simd>(&mut self) {
        let [first, rest @ ..] = self.at;
        // SAFETY: the caller's promise that the tier's features are there.
        unsafe { S::prefetch(first) };
        self.at = [rest[0], rest[1], rest[2], first.wrapping_add(self.step)];
    }

    /// Asks for a line of each stream.
    #[inline(always)]
    unsafe fn turn<S: Simd>(&mut self) {
        for at in &mut self.at {
            // SAFETY: the caller's promise that the tier's features are there.
            unsafe { S::prefetch(*at) };
            *at = at.wrapping_add(self.step);
        }
    }

    /// Asks for the lines that are left.
    #[inline(always)]
    pub(crate) unsafe fn finish<S: Simd>(&mut self) {
        for _ in 0..std::mem::take(&mut self.left) {
            // SAFETY: the caller's promise that the tier's features are there.
            unsafe { self.line::<S>() };
        }
    }
}

/// What [`Simd::accumulate`] does, where the compiler keeps the sums in registers.
#[inline(always)]
unsafe fn accumulate<S: Simd, const R: usize, const V: usize>(
    sums: &mut [[S::F; V]; R],
    a: *const f32,
    (b, step): (*const u16, usize),
    n: usize,
    ahead: &mut Ahead,
) {
    macro_rules! row {
        ($i:expr) => {{
            let mut values = [S::splat(0.0); V];
            for v in 0..V {
                values[v] = S::load_f16(b.add($i * step + v * LANES));
            }
            for r in 0..R {
                let factor = S::splat(*a.add(r * ROW_STRIDE + $i));
                for v in 0..V {
                    sums[r][v] = S::fma(values[v], factor, sums[r][v]);
                }
            }
        }};
    }
    let lines = V.div_ceil(2);
    let rows = STREAMS / lines;
    // In registers.
    let mut asked = *ahead;
    let mut i = 0;
    // SAFETY: the contract of `Simd::accumulate`.
    unsafe {
        while i + rows <= n {
            asked.turn::<S>();
            for row in 0..rows {
                row!(i + row);
            }
            i += rows;
        }
        while i < n {
            for _ in 0..lines {
                asked.line::<S>();
            }
            row!(i);
            i += 1;
        }
    }
    asked.left = asked.left.saturating_sub(n * lines);
    *ahead = asked;
}

/// Distance of the rows of [`Simd::accumulate`]'s left side: 256 elements, and a cache line that
/// keeps rows from competing for the same part of the cache.
pub(crate) const ROW_STRIDE: usize = 256 + LANES;

/// 1.5 * 2^23: adding it rounds to an integer, which is then found in the lowest bits.
pub(crate) const SHIFTER: f32 = 12_582_912.0;

/// Two to the power of each lane, up to 88; from -126 downwards always 2^-126. Relative error
/// below 2e-7, and exactly 1 for 0.
#[inline(always)]
pub(crate) unsafe fn exp2<S: Simd>(x: S::F) -> S::F {
    // SAFETY: the caller's promise that the tier's features are there.
    unsafe {
        let x = S::max(x, S::splat(-126.0));
        let shifted = S::add(x, S::splat(SHIFTER));
        let r = S::sub(x, S::sub(shifted, S::splat(SHIFTER)));
        let p = exp2_fraction::<S>(r);
        S::scale(p, shifted)
    }
}

/// Two to the power of lanes between -1/2 and 1/2.
// The fitted coefficient of r is not ln 2, though close.
#[allow(clippy::approx_constant)]
#[inline(always)]
unsafe fn exp2_fraction<S: Simd>(r: S::F) -> S::F {
    // SAFETY: the caller's promise that the tier's features are there.
    unsafe {
        let mut p = S::splat(1.326_472_7e-3);
        p = S::fma(p, r, S::splat(9.671_513e-3));
        p = S::fma(p, r, S::splat(5.550_733_6e-2));
        p = S::fma(p, r, S::splat(0.240_222_42));
        p = S::fma(p, r, S::splat(0.693_147));
        p = S::fma(p, r, S::splat(1.0));
        p
    }
}

/// `1 + e^-x` of each lane, for x between -88 and 87 (beyond them, as for these); relative error
/// below 2e-7.
#[inline(always)]
pub(crate) unsafe fn one_plus_exp_minus<S: Simd>(x: S::F) -> S::F {
    // SAFETY: the caller's promise that the tier's features are there.
    unsafe {
        let x = S::min(S::max(x, S::splat(-88.0)), S::splat(87.0));
        // The lowest bits of `shifted` are a float's exponent as it is stored.
        let shifter = S::splat(SHIFTER + 127.0);
        let log2_e = S::splat(std::f32::consts::LOG2_E);
        let shifted = S::fnma(x, log2_e, shifter);
        let r = S::fnma(x, log2_e, S::sub(shifter, shifted));
        // What rounding took from log2 e.
        let r = S::fnma(x, S::splat(1.925_963e-8), r);
        let power = S::scale(S::splat(0.0), shifted);
        S::fma(exp2_fraction::<S>(r), power, S::splat(1.0))
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

    /// Sixteen blocks: sums, largest lanes and comparisons of their first halves; bytes and sums.
    #[inline(always)]
    unsafe fn blocks<S: Simd>(x: &[f32; 512], factors: &[f32; 16], to: &mut Blocks) {
        // SAFETY: 16 blocks of 32 elements, and as many bytes.
        unsafe {
            let (mut from, mut bytes, mut first) =
                ([x.as_ptr(); 16], [to.bytes.as_mut_ptr(); 16], [S::splat(0.0); 16]);
            for i in 0..16 {
                from[i] = from[i].add(i * 32);
                // In another order, so that a block's place is its own.
                bytes[i] = bytes[i].add(i * 7 % 16 * 32);
                first[i] = S::load(from[i]);
            }
            S::store(to.sums.as_mut_ptr(), S::sums(&first));
            S::store(to.largest.as_mut_ptr(), S::max_lanes(&first));
            for i in 0..16 {
                to.exceeding[i] = S::exceeds(first[i], S::load(from[i].add(16)));
                to.alone[i] = [S::sum(first[i]), S::max_lane(first[i])];
            }
            let sums = S::store_blocks(&bytes, &from, factors, &mut to.lows, &mut to.totals);
            S::store(to.floats.as_mut_ptr(), sums);
        }
    }

    #[derive(Debug, PartialEq)]
    struct Blocks {
        sums: [f32; 16],
        largest: [f32; 16],
        alone: [[f32; 2]; 16],
        exceeding: [u16; 16],
        bytes: [i8; 512],
        lows: [i32; 16],
        totals: [i32; 16],
        floats: [f32; 16],
    }

    tiered! { fn blocks_on(x: &[f32; 512], factors: &[f32; 16], to: &mut Blocks) = blocks; }

    #[test]
    fn sixteen_reductions_are_those_of_each_vector() {
        let mut rng = crate::test_random::Random::new(8);
        for round in 0..200 {
            let scale = [1.0, 1e5, 1e-5][round % 3];
            let x: [f32; 512] = std::array::from_fn(|_| rng.signed() * scale);
            let mut factors: [f32; 16] = std::array::from_fn(|_| rng.signed() * 127.4 / scale);
            factors[round % 16] = 0.0;
            for cpu in Cpu::available() {
                let mut got = Blocks {
                    sums: [0.0; 16],
                    largest: [0.0; 16],
                    alone: [[0.0; 2]; 16],
                    exceeding: [0; 16],
                    bytes: [0; 512],
                    lows: [0; 16],
                    totals: [0; 16],
                    floats: [0.0; 16],
                };
                // SAFETY: the sizes are in the types.
                unsafe { blocks_on(cpu, &x, &factors, &mut got) };
                for (i, x) in x.chunks_exact(32).enumerate() {
                    assert_eq!([got.sums[i], got.largest[i]], got.alone[i], "{:?}", cpu.tier());
                    let larger = |lane: usize| u16::from(x[lane] > x[lane + 16]) << lane;
                    assert_eq!(got.exceeding[i], (0..16).map(larger).sum(), "{:?}", cpu.tier());
                    let ints: Vec<i32> =
                        x.iter().map(|x| (x * factors[i]).round_ties_even() as i32).collect();
                    let bytes = &got.bytes[i * 7 % 16 * 32..][..32];
                    assert!(bytes.iter().zip(&ints).all(|(&a, &b)| i32::from(a) == b), "{i}");
                    let total = ints.iter().sum();
                    let low = ints[..16].iter().sum();
                    assert_eq!((got.lows[i], got.totals[i]), (low, total), "{:?}", cpu.tier());
                    assert_eq!(got.floats[i], total as f32);
                }
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
