//! Quantising blocks: sixteen at a time, so that their reductions and divisions are shared.
//!
//! What one block needs from its 32 elements (the largest magnitude, the sum of squares, sums of
//! integers) are single numbers; a batch turns sixteen such reductions into one tree whose result is
//! a vector, and computes scales as vectors. Blocks with outliers and those that cannot be scaled are
//! done again, one by one; so is a short rest. A batch gives the bits that its blocks alone have.

use std::sync::atomic::{AtomicU16, Ordering};

use super::{FINE, GROUP, OUTLIER, Pairs};
use crate::simd::{LANES, Simd, tiered};
use crate::tiles::BLOCK_COLUMNS;

/// A rest of as few blocks is not worth a batch.
const FEW: usize = 3;

/// Part of a group's rows, some blocks of each. Everything but the masks is `[block][stride]`, from
/// the first block's first row on, ints with 32 elements to each.
pub(super) struct Part<'a> {
    /// Rows and blocks to write.
    pub(super) rows: usize,
    pub(super) blocks: usize,
    pub(super) stride: usize,
    pub(super) ints: *mut i8,
    pub(super) fine: *mut i8,
    /// One mask for each block.
    pub(super) outliers: &'a [AtomicU16],
    /// The first row's bit in the masks.
    pub(super) bit: u16,
    pub(super) scales: *mut f32,
    pub(super) sums: *mut f32,
    pub(super) totals: *mut i32,
    pub(super) lows: *mut i32,
    pub(super) pairs: *mut Pairs,
}

tiered! {
    /// Quantises `to.rows` rows of `to.blocks` blocks; the rows of `x` are `width` elements apart.
    ///
    /// # Safety
    /// `x` is valid for all of that, and so is `to`, exclusively.
    pub(super) fn quantize(x: *const f32, width: usize, to: &Part<'_>) = quantize_part;
}

#[inline(always)]
unsafe fn quantize_part<S: Simd>(x: *const f32, width: usize, to: &Part<'_>) {
    // SAFETY: the contract above; a line stays inside the part.
    unsafe {
        if to.rows == GROUP || to.rows > to.blocks {
            for block in 0..to.blocks {
                let line = Line { first: (0, block), step: (1, 0), len: to.rows };
                quantize_line::<S>(x, width, to, &line);
            }
        } else {
            for row in 0..to.rows {
                let line = Line { first: (row, 0), step: (0, 1), len: to.blocks };
                quantize_line::<S>(x, width, to, &line);
            }
        }
    }
}

/// Blocks of one row, or of one column of blocks: (row, block) and the step to the next.
struct Line {
    first: (usize, usize),
    step: (usize, usize),
    len: usize,
}

impl Line {
    #[inline(always)]
    fn at(&self, i: usize) -> (usize, usize) {
        (self.first.0 + i * self.step.0, self.first.1 + i * self.step.1)
    }
}

/// # Safety
/// As for [`quantize`]; the line is inside the part.
#[inline(always)]
unsafe fn quantize_line<S: Simd>(x: *const f32, width: usize, to: &Part<'_>, line: &Line) {
    let mut done = 0;
    // SAFETY: the contract above.
    unsafe {
        while done + FEW < line.len {
            let count = LANES.min(line.len - done);
            let mut again = quantize_batch::<S>(x, width, to, line, done, count);
            while again != 0 {
                let at = line.at(done + again.trailing_zeros() as usize);
                quantize_block::<S>(x, width, to, at);
                again &= again - 1;
            }
            done += count;
        }
        for i in done..line.len {
            quantize_block::<S>(x, width, to, line.at(i));
        }
    }
}

/// Quantises `count` blocks of a line, at most 16, from `done` on, and says which of them must be
/// done alone. A batch that is not full has its last block several times.
///
/// # Safety
/// As for [`quantize_line`]; `0 < count <= line.len - done`.
#[inline(always)]
unsafe fn quantize_batch<S: Simd>(
    x: *const f32,
    width: usize,
    to: &Part<'_>,
    line: &Line,
    done: usize,
    count: usize,
) -> u16 {
    let (row, block) = line.at(done);
    let at = block * to.stride + row;
    let step = line.step.0 + line.step.1 * to.stride;
    let from_step = line.step.0 * width + line.step.1 * BLOCK_COLUMNS;
    let mut from = [x.wrapping_add(row * width + block * BLOCK_COLUMNS); LANES];
    let mut ints = [to.ints.wrapping_add(at * BLOCK_COLUMNS); LANES];
    for lane in 1..LANES {
        let more = lane < count;
        from[lane] = from[lane - 1].wrapping_add(if more { from_step } else { 0 });
        ints[lane] = ints[lane - 1].wrapping_add(if more { step * BLOCK_COLUMNS } else { 0 });
    }
    // SAFETY: the contract above: every address is that of a block of the part.
    unsafe {
        let mut each = [S::splat(0.0); LANES];
        for lane in 0..LANES {
            let (low, high) = (S::load(from[lane]), S::load(from[lane].add(LANES)));
            each[lane] = S::max(S::abs(low), S::abs(high));
        }
        let largest = S::max_lanes(&each);
        for lane in 0..LANES {
            let (low, high) = (S::load(from[lane]), S::load(from[lane].add(LANES)));
            each[lane] = S::fma(low, low, S::mul(high, high));
        }
        let squares = S::sums(&each);
        // A block with an element that is not finite has no finite squares.
        let usable =
            S::exceeds(largest, S::splat(SMALLEST)) & S::exceeds(S::splat(f32::INFINITY), squares);
        let bound = S::mul(S::splat(OUTLIER * OUTLIER / BLOCK_COLUMNS as f32), squares);
        let outliers = S::exceeds(S::mul(largest, largest), bound);

        let scale = S::div(largest, S::splat(127.0));
        let mut inverses = [0.0; LANES];
        S::store(inverses.as_mut_ptr(), S::div(S::splat(127.0), largest));
        let (mut lows, mut totals) = ([0; LANES], [0; LANES]);
        let total = S::store_blocks(&ints, &from, &inverses, &mut lows, &mut totals);
        let sum = S::mul(scale, total);

        let mut scales = [0.0; LANES];
        S::store(scales.as_mut_ptr(), scale);
        if step == 1 && count == LANES {
            S::store(to.scales.add(at), scale);
            S::store(to.sums.add(at), sum);
            to.totals.add(at).cast::<[i32; LANES]>().write_unaligned(totals);
            to.lows.add(at).cast::<[i32; LANES]>().write_unaligned(lows);
        } else {
            let mut sums = [0.0; LANES];
            S::store(sums.as_mut_ptr(), sum);
            for i in 0..count {
                let at = at + i * step;
                *to.scales.add(at) = scales[i];
                *to.sums.add(at) = sums[i];
                *to.totals.add(at) = totals[i];
                *to.lows.add(at) = lows[i];
            }
        }
        for (i, &ints) in ints[..count].iter().enumerate() {
            *to.pairs.add(at + i * step) = S::pairs(ints);
        }
        let present = u16::MAX >> (LANES - count);
        let mut refined = outliers & usable & present;
        while refined != 0 {
            let i = refined.trailing_zeros() as usize;
            let (low, high) = (S::load(from[i]), S::load(from[i].add(LANES)));
            let halves = (lows[i] as f32, (totals[i] - lows[i]) as f32);
            refine::<S>((low, high), scales[i], inverses[i], halves, to, line.at(done + i));
            refined &= refined - 1;
        }
        !usable & present
    }
}

/// A block whose largest magnitude is no more has a scale too small to invert: it is zero.
const SMALLEST: f32 = 1e-30;

/// Quantises one block, given as (row, block).
///
/// # Safety
/// As for [`quantize`]; the block is inside the part.
#[inline(always)]
unsafe fn quantize_block<S: Simd>(
    x: *const f32,
    width: usize,
    to: &Part<'_>,
    (row, block): (usize, usize),
) {
    // SAFETY: the contract above.
    unsafe {
        let x = x.add(row * width + block * BLOCK_COLUMNS);
        let (low, high) = (S::load(x), S::load(x.add(LANES)));
        let largest = S::max_lane(S::max(S::abs(low), S::abs(high)));
        let squares = S::sum(S::fma(low, low, S::mul(high, high)));
        // One that is not finite is zero as well.
        let usable = largest > SMALLEST && largest < f32::MAX;
        let at = block * to.stride + row;
        let ints = to.ints.add(at * BLOCK_COLUMNS);
        if !usable {
            ints.write_bytes(0, BLOCK_COLUMNS);
            *to.scales.add(at) = 0.0;
            *to.sums.add(at) = 0.0;
            *to.totals.add(at) = 0;
            *to.lows.add(at) = 0;
            *to.pairs.add(at) = Pairs::default();
            return;
        }
        let (scale, inverse) = (largest / 127.0, 127.0 / largest);
        let all = S::splat(inverse);
        let rounded = [bounded::<S>(S::mul(low, all)), bounded::<S>(S::mul(high, all))];
        S::store_i8(ints, rounded[0]);
        S::store_i8(ints.add(LANES), rounded[1]);
        // Sums of small integers are exact in floats too.
        let (first, second) = (S::sum(rounded[0]), S::sum(rounded[1]));
        let total = first + second;
        *to.scales.add(at) = scale;
        *to.sums.add(at) = scale * total;
        *to.totals.add(at) = total as i32;
        *to.lows.add(at) = first as i32;
        *to.pairs.add(at) = S::pairs(ints);
        if largest * largest > OUTLIER * OUTLIER / BLOCK_COLUMNS as f32 * squares {
            refine::<S>((low, high), scale, inverse, (first, second), to, (row, block));
        }
    }
}

/// Gives a block, of which all but this is written, fine integers. `halves` are the sums of its
/// integers.
///
/// # Safety
/// As for [`quantize_block`].
#[inline(always)]
unsafe fn refine<S: Simd>(
    (low, high): (S::F, S::F),
    scale: f32,
    inverse: f32,
    halves: (f32, f32),
    to: &Part<'_>,
    (row, block): (usize, usize),
) {
    // SAFETY: the contract above.
    unsafe {
        let inverse = S::splat(inverse);
        let rounded = [bounded::<S>(S::mul(low, inverse)), bounded::<S>(S::mul(high, inverse))];
        let (all, inverse) = (S::splat(scale), S::splat(FINE / scale));
        let rest = [
            bounded::<S>(S::mul(S::fnma(rounded[0], all, low), inverse)),
            bounded::<S>(S::mul(S::fnma(rounded[1], all, high), inverse)),
        ];
        let at = block * to.stride + row;
        let fine = to.fine.add(at * BLOCK_COLUMNS);
        S::store_i8(fine, rest[0]);
        S::store_i8(fine.add(LANES), rest[1]);
        let first = halves.0 * FINE + S::sum(rest[0]);
        let total = first + (halves.1 * FINE + S::sum(rest[1]));
        let scale = scale / FINE;
        *to.scales.add(at) = scale;
        *to.sums.add(at) = scale * total;
        *to.totals.add(at) = total as i32;
        *to.lows.add(at) = first as i32;
        to.outliers[block].fetch_or(to.bit << row, Ordering::Relaxed);
    }
}

/// Rounded to nearest, between -127 and 127.
#[inline(always)]
unsafe fn bounded<S: Simd>(x: S::F) -> S::F {
    // SAFETY: the tier's features are there.
    unsafe { S::min(S::max(S::round(x), S::splat(-127.0)), S::splat(127.0)) }
}
