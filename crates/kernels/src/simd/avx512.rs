//! AVX-512: a vector is one register.

use std::arch::asm;
use std::arch::x86_64::*;

use super::{Ahead, LANES, ROW_STRIDE, Simd, avx2};
use crate::activations::Pairs;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx512;

type F = __m512;

macro_rules! op {
    ($value:expr) => {
        // SAFETY: the trait's contract: the features are there, and pointers are valid.
        unsafe { $value }
    };
}

/// Sixteen vectors to one: lanes are combined with those 8, 4, 2 and 1 further on, as in a sum.
macro_rules! tree {
    ($v:ident, $op:ident) => {{
        // Of two vectors at a time: halves, quarters, pairs, single lanes.
        macro_rules! halves {
            ($i:expr) => {{
                let (a, b) = ($v[$i], $v[$i + 4]);
                $op(_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xee>(a, b))
            }};
        }
        macro_rules! quarters {
            ($i:literal) => {{
                let (a, b) = (halves!($i), halves!($i + 8));
                $op(_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xdd>(a, b))
            }};
        }
        macro_rules! pairs {
            ($i:literal, $j:literal) => {{
                let (a, b) = (_mm512_castps_pd(quarters!($i)), _mm512_castps_pd(quarters!($j)));
                let (x, y) = (_mm512_unpacklo_pd(a, b), _mm512_unpackhi_pd(a, b));
                $op(_mm512_castpd_ps(x), _mm512_castpd_ps(y))
            }};
        }
        let (a, b) = (pairs!(0, 1), pairs!(2, 3));
        $op(_mm512_shuffle_ps::<0x88>(a, b), _mm512_shuffle_ps::<0xdd>(a, b))
    }};
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
    unsafe fn exceeds(a: F, b: F) -> u16 {
        op!(_mm512_cmp_ps_mask::<_CMP_GT_OQ>(a, b))
    }
    #[inline(always)]
    unsafe fn sums(v: &[F; LANES]) -> F {
        op!(tree!(v, _mm512_add_ps))
    }
    #[inline(always)]
    unsafe fn max_lanes(v: &[F; LANES]) -> F {
        op!(tree!(v, _mm512_max_ps))
    }
    #[inline(always)]
    unsafe fn store_blocks(
        to: &[*mut i8; LANES],
        from: &[*const f32; LANES],
        factors: &[f32; LANES],
        lows: &mut [i32; LANES],
        totals: &mut [i32; LANES],
    ) -> F {
        op!({
            // Packing works inside quarters of a register.
            let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
            macro_rules! words {
                ($block:expr) => {{
                    let factor = _mm512_set1_ps(factors[$block]);
                    let low = _mm512_mul_ps(_mm512_loadu_ps(from[$block]), factor);
                    let high = _mm512_mul_ps(_mm512_loadu_ps(from[$block].add(16)), factor);
                    _mm512_packs_epi32(_mm512_cvtps_epi32(low), _mm512_cvtps_epi32(high))
                }};
            }
            let mut eights = [_mm512_setzero_si512(); 2];
            for (eight, eights) in eights.iter_mut().enumerate() {
                let mut sums = [_mm512_setzero_si512(); 4];
                for (i, sums) in sums.iter_mut().enumerate() {
                    let (a, b) = (eight * 8 + i, eight * 8 + i + 4);
                    let bytes = _mm512_packs_epi16(words!(a), words!(b));
                    let bytes = _mm512_permutexvar_epi32(order, bytes);
                    _mm256_storeu_si256(to[a].cast(), _mm512_castsi512_si256(bytes));
                    _mm256_storeu_si256(to[b].cast(), _mm512_extracti64x4_epi64::<1>(bytes));
                    let zero = _mm512_setzero_si512();
                    *sums = _mm512_dpbusd_epi32(zero, _mm512_set1_epi8(1), bytes);
                }
                // Now the first halves' sums of four blocks, their second halves', and so the others.
                let [a, b, c, d] = sums;
                let ab = _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
                let cd = _mm512_add_epi32(_mm512_unpacklo_epi64(c, d), _mm512_unpackhi_epi64(c, d));
                let (ab, cd) = (_mm512_castsi512_ps(ab), _mm512_castsi512_ps(cd));
                *eights = _mm512_add_epi32(
                    _mm512_castps_si512(_mm512_shuffle_ps::<0x88>(ab, cd)),
                    _mm512_castps_si512(_mm512_shuffle_ps::<0xdd>(ab, cd)),
                );
            }
            let [a, b] = eights;
            let low = _mm512_shuffle_i32x4::<0x88>(a, b);
            let total = _mm512_add_epi32(low, _mm512_shuffle_i32x4::<0xdd>(a, b));
            _mm512_storeu_si512(lows.as_mut_ptr().cast(), low);
            _mm512_storeu_si512(totals.as_mut_ptr().cast(), total);
            _mm512_cvtepi32_ps(total)
        })
    }
    #[inline(always)]
    unsafe fn accumulate<const R: usize, const V: usize>(
        sums: &mut [[F; V]; R],
        a: *const f32,
        (b, step): (*const u16, usize),
        n: usize,
        ahead: &mut Ahead,
    ) {
        if R == 12 && V == 2 && n > 0 {
            // SAFETY: the trait's contract; that many sums.
            op!(accumulate_12(&mut *sums.as_mut_ptr().cast(), a, (b, step), n, ahead));
        } else {
            op!(super::accumulate::<Self, R, V>(sums, a, (b, step), n, ahead));
        }
    }
    #[inline(always)]
    unsafe fn pairs(ints: *const i8) -> Pairs {
        // SAFETY: the trait's contract; the tier has AVX2.
        unsafe { avx2::pairs(ints) }
    }
    #[inline(always)]
    unsafe fn prefetch(at: *const u8) {
        // SAFETY: prefetching may name any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
    }
}

/// [`Simd::accumulate`] of 12 rows of two vectors, at least once. As assembly, because the compiler,
/// left alone with 24 sums, keeps some of them in memory in some of its callers.
///
/// # Safety
/// As there.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn accumulate_12(
    sums: &mut [F; 24],
    a: *const f32,
    (b, step): (*const u16, usize),
    n: usize,
    ahead: &mut Ahead,
) {
    ahead.left = ahead.left.saturating_sub(n);
    macro_rules! row {
        ($row:literal, $first:literal, $second:literal) => {
            concat!(
                "vbroadcastss zmm26, [{a} + {stride} * ",
                $row,
                "]\nvfmadd231ps zmm",
                $first,
                ", zmm24, zmm26\nvfmadd231ps zmm",
                $second,
                ", zmm25, zmm26"
            )
        };
    }
    // SAFETY: reads what the contract says is there, `n` times; prefetching may name any address.
    unsafe {
        asm!(
            "2:",
            "vcvtph2ps zmm24, [{b}]",
            "vcvtph2ps zmm25, [{b} + 32]",
            "prefetcht0 [{first}]",
            "add {first}, {ahead_step}",
            "mov {asked}, {first}",
            "mov {first}, {second}",
            "mov {second}, {third}",
            "mov {third}, {fourth}",
            "mov {fourth}, {asked}",
            row!("0", "0", "1"),
            row!("1", "2", "3"),
            row!("2", "4", "5"),
            row!("3", "6", "7"),
            row!("4", "8", "9"),
            row!("5", "10", "11"),
            row!("6", "12", "13"),
            row!("7", "14", "15"),
            row!("8", "16", "17"),
            row!("9", "18", "19"),
            row!("10", "20", "21"),
            row!("11", "22", "23"),
            "add {a}, 4",
            "add {b}, {step}",
            "dec {n}",
            "jnz 2b",
            stride = const ROW_STRIDE * size_of::<f32>(),
            a = inout(reg) a => _,
            b = inout(reg) b => _,
            step = in(reg) step * size_of::<u16>(),
            first = inout(reg) ahead.at[0],
            second = inout(reg) ahead.at[1],
            third = inout(reg) ahead.at[2],
            fourth = inout(reg) ahead.at[3],
            asked = out(reg) _,
            ahead_step = in(reg) ahead.step,
            n = inout(reg) n => _,
            inout("zmm0") sums[0],
            inout("zmm1") sums[1],
            inout("zmm2") sums[2],
            inout("zmm3") sums[3],
            inout("zmm4") sums[4],
            inout("zmm5") sums[5],
            inout("zmm6") sums[6],
            inout("zmm7") sums[7],
            inout("zmm8") sums[8],
            inout("zmm9") sums[9],
            inout("zmm10") sums[10],
            inout("zmm11") sums[11],
            inout("zmm12") sums[12],
            inout("zmm13") sums[13],
            inout("zmm14") sums[14],
            inout("zmm15") sums[15],
            inout("zmm16") sums[16],
            inout("zmm17") sums[17],
            inout("zmm18") sums[18],
            inout("zmm19") sums[19],
            inout("zmm20") sums[20],
            inout("zmm21") sums[21],
            inout("zmm22") sums[22],
            inout("zmm23") sums[23],
            out("zmm24") _,
            out("zmm25") _,
            out("zmm26") _,
            options(nostack, readonly)
        );
    }
}
