//! Many rows: a tile is unpacked once, and its products with some rows at a time are made without
//! leaving the registers.
//!
//! Integers of four to six bits are unpacked to bytes, and the sums of a whole block (`Q6`: of each
//! half, which has a scale of its own) are made in 16 bits. Stored integers would overflow them:
//! of 5-bit ones, 16 products in a lane are up to 63,000. But without the offset, which is half of
//! their range, they are at most 16 * 16 * 127 = 32,512 (of 6-bit ones, 8 * 32 * 127 in half a
//! block), so additions may wrap: once the offset's part is taken away, modulo 2^16 as well, what is
//! left is the sum. That part is the offset times the sum of the lane's activations
//! ([`Pairs`]).
//!
//! Signed bytes have no room for that. They become words, as do the activations (with their fine
//! integers, if there are any, which then cost nothing more), and `vpmaddwd` sums in 32 bits.
//!
//! The sums are instructions of our own. LLVM, left alone with intrinsics, re-associates the
//! additions into trees and spills, or leaves the loop over a block's halves rolled: a third slower.

use std::arch::asm;
use std::arch::x86_64::*;
use std::cell::RefCell;
use std::sync::atomic::Ordering;

use crate::activations::{Activations, Group, Pairs};
use crate::matmul::minima::add_minima;
use crate::matmul::{Job, Lookahead, groups};
use crate::simd::avx2::{Avx2, pairs};
use crate::tiles::{BLOCK_COLUMNS, Format};

/// Rows at a time. Their sums, a group's weights and what is made of them leave four registers.
const ROWS: usize = 4;

/// What the sums need to know of a format.
struct Unpacked<F>(std::marker::PhantomData<F>);

impl<F: Format> Unpacked<F> {
    /// Bytes of an unpacked block: `[8 groups of columns][16 rows][4 columns]`, or, of words,
    /// `[even and odd columns][8 groups][16 rows][2 columns]`.
    const BLOCK: usize = if F::BYTES { 1024 } else { 512 };
    /// Bytes of a row's integers of a block.
    const ROW: usize = if F::BYTES { 64 } else { 32 };
    /// What is taken away from stored integers in 16 bits is two to the power of this; 0: nothing.
    const CENTRE_BITS: i32 = match F::HIGH_BITS {
        0 => F::OFFSET_BITS as i32,
        bits => 3 + bits as i32,
    };
    /// What was taken away that is not the format's offset is given back.
    const RESTORED: bool = Self::CENTRE_BITS != F::OFFSET_BITS as i32;
}

/// Buffers of a thread, kept between calls.
struct Scratch {
    /// An unpacked tile.
    panel: Vec<__m256i>,
    /// Activations as words, `[block][row][even and odd columns]` inside each group of rows.
    words: Vec<[__m256i; 2]>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> =
        const { RefCell::new(Scratch { panel: Vec::new(), words: Vec::new() }) };
}

/// One tile at a time times all rows, [`ROWS`] at a time.
///
/// # Safety
/// The contract of [`super::super::product`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn product<F: Format>(job: &Job, input: &Activations) {
    SCRATCH.with_borrow_mut(|scratch| {
        // SAFETY: the same contract.
        unsafe { product_with::<F>(job, input, scratch) }
    });
}

/// [`product`] with some buffers.
///
/// # Safety
/// The same.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn product_with<F: Format>(job: &Job, input: &Activations, scratch: &mut Scratch) {
    let Scratch { panel, words } = scratch;
    let vectors = Unpacked::<F>::BLOCK / size_of::<__m256i>();
    if panel.len() < job.blocks * vectors {
        panel.resize(job.blocks * vectors, _mm256_setzero_si256());
    }
    if F::BYTES {
        words.clear();
        for (_, group) in groups(job, input) {
            // SAFETY: a group of the input, which has the job's blocks.
            unsafe { widen(group, job.blocks, words) }
        }
    }
    for tile in job.tiles.clone() {
        for (b, to) in panel[..job.blocks * vectors].chunks_exact_mut(vectors).enumerate() {
            // SAFETY: block b of the tile; `to` has the vectors of an unpacked one.
            unsafe { unpack::<F>(job.tile(tile).add(b * F::BLOCK), to) }
        }
        let panel = panel.as_ptr().cast::<u8>();
        let mut ahead = Lookahead::new(job, tile, job.blocks * job.rows.len().div_ceil(ROWS));
        for (row, group) in groups(job, input) {
            let ints = if F::BYTES {
                words[(row - job.rows.start) * job.blocks..].as_ptr().cast::<u8>()
            } else {
                group.ints.cast()
            };
            let mut done = 0;
            while done < group.stride {
                // SAFETY: rows `done` to `done + M` are the group's; the panel is the tile's.
                unsafe {
                    let rest = group.starting_at(done);
                    let ints = ints.add(done * Unpacked::<F>::ROW);
                    let row = row + done;
                    done += match group.stride - done {
                        1 => rows::<F, 1>(job, tile, panel, rest, ints, row, &mut ahead),
                        2 => rows::<F, 2>(job, tile, panel, rest, ints, row, &mut ahead),
                        3 => rows::<F, 3>(job, tile, panel, rest, ints, row, &mut ahead),
                        _ => rows::<F, 4>(job, tile, panel, rest, ints, row, &mut ahead),
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

/// Unpacks a block. Shifts are by numbers that the compiler sees: by others they take twice as long.
///
/// # Safety
/// `p` is a block of the format; `to` has [`Unpacked::BLOCK`] bytes.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn unpack<F: Format>(p: *const u8, to: &mut [__m256i]) {
    // SAFETY: the vector with number `i` of the block.
    let load = |i: usize| unsafe { _mm256_loadu_si256(p.add(i * 32).cast()) };
    if F::BYTES {
        for g in 0..8 {
            for upper in 0..2 {
                let bytes = load(g * 2 + upper);
                to[g * 2 + upper] = _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(bytes));
                to[16 + g * 2 + upper] = _mm256_srai_epi16::<8>(bytes);
            }
        }
        return;
    }
    let nibble = _mm256_set1_epi8(15);
    for upper in 0..2 {
        // The groups' bits above the nibble, in place.
        let mut above = [_mm256_setzero_si256(); 8];
        match F::HIGH_BITS {
            0 => {}
            1 => {
                let h = load(8 + upper);
                above = [
                    _mm256_slli_epi16::<4>(h),
                    _mm256_slli_epi16::<3>(h),
                    _mm256_slli_epi16::<2>(h),
                    _mm256_slli_epi16::<1>(h),
                    h,
                    _mm256_srli_epi16::<1>(h),
                    _mm256_srli_epi16::<2>(h),
                    _mm256_srli_epi16::<3>(h),
                ];
            }
            _ => {
                for half in 0..2 {
                    let h = load(8 + half * 2 + upper);
                    above[half * 4] = _mm256_slli_epi16::<4>(h);
                    above[half * 4 + 1] = _mm256_slli_epi16::<2>(h);
                    above[half * 4 + 2] = h;
                    above[half * 4 + 3] = _mm256_srli_epi16::<2>(h);
                }
            }
        }
        let mask = _mm256_set1_epi8(if F::HIGH_BITS == 1 { 16 } else { 48 });
        for g in 0..4 {
            let v = load(g * 2 + upper);
            let low = _mm256_and_si256(v, nibble);
            let high = _mm256_and_si256(_mm256_srli_epi16::<4>(v), nibble);
            for (g, v) in [(g, low), (g + 4, high)] {
                to[g * 2 + upper] = if F::HIGH_BITS == 0 {
                    v
                } else {
                    _mm256_or_si256(v, _mm256_and_si256(above[g], mask))
                };
            }
        }
    }
}

/// Appends the integers of a group's rows as words: `256 * int + fine` where there are fine ones.
///
/// # Safety
/// The group has `blocks` blocks.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn widen(group: Group, blocks: usize, to: &mut Vec<[__m256i; 2]>) {
    for b in 0..blocks {
        for m in 0..group.stride {
            let at = (b * group.stride + m) * BLOCK_COLUMNS;
            // SAFETY: block b of row m of the group.
            let (outliers, ints) = unsafe {
                let ints = _mm256_loadu_si256(group.ints.add(at).cast());
                ((*group.outliers.add(b)).load(Ordering::Relaxed), ints)
            };
            let words = |bytes: __m256i| {
                let even = _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(bytes));
                [even, _mm256_srai_epi16::<8>(bytes)]
            };
            to.push(if outliers >> (group.first + m) & 1 == 0 {
                words(ints)
            } else {
                // SAFETY: as above.
                let [even, odd] = words(unsafe { _mm256_loadu_si256(group.fine.add(at).cast()) });
                let upper = _mm256_set1_epi16(-256);
                [
                    _mm256_add_epi16(_mm256_slli_epi16::<8>(ints), even),
                    _mm256_add_epi16(_mm256_and_si256(ints, upper), odd),
                ]
            });
        }
    }
}

/// Adds the products of one group of columns with some rows to their sums, or begins the sums with
/// them. A row's integers are `$row` bytes apart from the next one's.
macro_rules! group {
    ($mul:literal $add:literal $row:literal begin $sums:ident, $panel:expr, $a:expr, $g:literal;
        $($m:literal $low:ident $high:ident)+) => {
        asm!(
            concat!("vmovdqa {w0}, [{panel} + 64*", $g, "]"),
            concat!("vmovdqa {w1}, [{panel} + 64*", $g, " + 32]"),
            $(
                concat!("vpbroadcastd {x}, [{a} + ", $row, "*", $m, " + 4*", $g, "]"),
                concat!($mul, " {", stringify!($low), "}, {w0}, {x}"),
                concat!($mul, " {", stringify!($high), "}, {w1}, {x}"),
            )+
            panel = in(reg) $panel,
            a = in(reg) $a,
            w0 = out(ymm_reg) _,
            w1 = out(ymm_reg) _,
            x = out(ymm_reg) _,
            $(
                $low = out(ymm_reg) $sums[$m][0],
                $high = out(ymm_reg) $sums[$m][1],
            )+
            options(pure, readonly, nostack, preserves_flags),
        )
    };
    ($mul:literal $add:literal $row:literal add $sums:ident, $panel:expr, $a:expr, $g:literal;
        $($m:literal $low:ident $high:ident)+) => {
        asm!(
            concat!("vmovdqa {w0}, [{panel} + 64*", $g, "]"),
            concat!("vmovdqa {w1}, [{panel} + 64*", $g, " + 32]"),
            $(
                concat!("vpbroadcastd {x}, [{a} + ", $row, "*", $m, " + 4*", $g, "]"),
                concat!($mul, " {y}, {w0}, {x}"),
                concat!($add, " {", stringify!($low), "}, {", stringify!($low), "}, {y}"),
                concat!($mul, " {x}, {w1}, {x}"),
                concat!($add, " {", stringify!($high), "}, {", stringify!($high), "}, {x}"),
            )+
            panel = in(reg) $panel,
            a = in(reg) $a,
            w0 = out(ymm_reg) _,
            w1 = out(ymm_reg) _,
            x = out(ymm_reg) _,
            y = out(ymm_reg) _,
            $(
                $low = inout(ymm_reg) $sums[$m][0],
                $high = inout(ymm_reg) $sums[$m][1],
            )+
            options(pure, readonly, nostack, preserves_flags),
        )
    };
}

/// The first of some groups begin the sums, the others are added.
macro_rules! groups_of {
    ($with:tt $sums:ident, $panel:expr, $a:expr; $first:literal $($more:literal)*) => {
        groups_of!(@rows begin $with $sums, $panel, $a, $first);
        $(groups_of!(@rows add $with $sums, $panel, $a, $more);)*
    };
    (@rows $kind:ident [$($with:literal)+] $sums:ident, $panel:expr, $a:expr, $g:literal) => {
        // SAFETY: reads a group of the panel and of `M` rows.
        unsafe {
            match M {
                1 => group!($($with)+ $kind $sums, $panel, $a, $g; 0 s0 s1),
                2 => group!($($with)+ $kind $sums, $panel, $a, $g; 0 s0 s1 1 s2 s3),
                3 => group!($($with)+ $kind $sums, $panel, $a, $g; 0 s0 s1 1 s2 s3 2 s4 s5),
                _ => group!($($with)+ $kind $sums, $panel, $a, $g; 0 s0 s1 1 s2 s3 2 s4 s5 3 s6 s7),
            }
        }
    };
}

/// Of `M` rows, the tile's lower and upper eight.
type Sums<const M: usize> = [[__m256i; 2]; M];

/// The sums of a block with `M` rows, without what [`Unpacked::CENTRE_BITS`] says; of both halves,
/// or in the first of the whole block if they share a scale.
///
/// # Safety
/// `panel` is an unpacked block, `a` valid for `M` rows of [`Unpacked::ROW`] bytes, which have
/// `pairs`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn sums<F: Format, const M: usize>(
    panel: *const u8,
    a: *const u8,
    pairs: *const Pairs,
) -> [Sums<M>; 2] {
    let zero = _mm256_setzero_si256();
    let mut halves = [[[zero; 2]; M]; 2];
    let mut sums = [[zero; 2]; ROWS];
    if F::BYTES {
        groups_of!(["vpmaddwd" "vpaddd" 64] sums, panel, a; 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
        halves[0].copy_from_slice(&sums[..M]);
        return halves;
    }
    // A row's sum of 32 bits from that of its columns' pairs.
    let whole = |sum: __m256i, offset: __m256i| {
        _mm256_madd_epi16(_mm256_sub_epi16(sum, offset), _mm256_set1_epi16(1))
    };
    // SAFETY: the contract.
    let offset = |m: usize, all: usize| unsafe {
        let pairs = _mm256_set1_epi32(pairs.add(m).cast::<i32>().add(all).read());
        _mm256_sll_epi16(pairs, _mm_cvtsi32_si128(Unpacked::<F>::CENTRE_BITS))
    };
    if F::HALVES {
        groups_of!(["vpmaddubsw" "vpaddw" 32] sums, panel, a; 0 1 2 3);
        for m in 0..M {
            halves[0][m] = sums[m].map(|sum| whole(sum, offset(m, 0)));
        }
        groups_of!(["vpmaddubsw" "vpaddw" 32] sums, panel, a; 4 5 6 7);
        for m in 0..M {
            let offset = _mm256_sub_epi16(offset(m, 1), offset(m, 0));
            halves[1][m] = sums[m].map(|sum| whole(sum, offset));
        }
    } else {
        groups_of!(["vpmaddubsw" "vpaddw" 32] sums, panel, a; 0 1 2 3 4 5 6 7);
        for m in 0..M {
            let offset = if Unpacked::<F>::CENTRE_BITS > 0 { offset(m, 1) } else { zero };
            halves[0][m] = sums[m].map(|sum| whole(sum, offset));
        }
    }
    halves
}

/// [`sums`] of one row's fine integers, out of the way of the loop: few blocks have any.
///
/// # Safety
/// `panel` is an unpacked block, `a` valid for 32 bytes.
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn fine_sums<F: Format>(panel: *const u8, a: *const i8) -> [Sums<1>; 2] {
    // SAFETY: the same contract.
    unsafe { sums::<F, 1>(panel, a.cast(), &pairs(a)) }
}

/// The unpacked tile times the first `M` rows of `acts`, which are the input's from `row` on and
/// whose integers begin at `ints`. What the minima give is left out. Returns `M`.
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
    ints: *const u8,
    row: usize,
    ahead: &mut Lookahead,
) -> usize {
    let mut acc = [[_mm256_setzero_ps(); 2]; M];
    // SAFETY: every address is inside of tile, panel, activations or output by the contract.
    unsafe {
        for b in 0..job.blocks {
            ahead.step();
            let panel = panel.add(b * Unpacked::<F>::BLOCK);
            let at = b * acts.stride;
            let ints = ints.add(at * Unpacked::<F>::ROW);
            let mut halves = sums::<F, M>(panel, ints, acts.pairs.add(at));
            let outliers = (*acts.outliers.add(b)).load(Ordering::Relaxed) >> acts.first;
            if !F::BYTES && outliers & ((1 << M) - 1) != 0 {
                for m in 0..M {
                    if outliers >> m & 1 == 0 {
                        continue;
                    }
                    let fine = fine_sums::<F>(panel, acts.fine.add((at + m) * BLOCK_COLUMNS));
                    for (sums, [fine]) in halves.iter_mut().zip(fine) {
                        for (sum, fine) in sums[m].iter_mut().zip(fine) {
                            *sum = _mm256_add_epi32(_mm256_slli_epi32::<8>(*sum), fine);
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
                    let by = _mm256_set1_ps(*acts.scales.add(at + m));
                    let to = &mut acc[m][upper];
                    let mut add = |sum: __m256i, scale: __m256| {
                        let scale = _mm256_mul_ps(scale, by);
                        *to = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), scale, *to);
                    };
                    let [mut sum, other] = halves.map(|sums| sums[m][upper]);
                    if Unpacked::<F>::RESTORED {
                        let total = *acts.totals.add(at + m) << Unpacked::<F>::CENTRE_BITS;
                        sum = _mm256_add_epi32(sum, _mm256_set1_epi32(total));
                    }
                    add(sum, first);
                    if F::HALVES {
                        add(other, second);
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
