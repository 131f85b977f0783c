//! Activations quantised to int8, in blocks of 32: the other factor of the integer products.
//!
//! `x` becomes `scale * int` with `scale = max |x| / 127` over the block, integers rounded to
//! nearest, ties to even. Where a block has an outlier (its largest magnitude is more than
//! [`OUTLIER`] times its root mean square, and the others would lose most of their bits), the
//! integers have sixteen bits: a second plane of *fine* integers holds what the rounding left, and
//! `x` becomes `scale * (256 * int + fine)` with `scale = max |x| / 127 / 256`. Without them the
//! mean squared error of a small model's logits is ten times larger; a sixth of its blocks or less
//! needs them. The sums that offsets and minima of weights multiply are taken once here: of the
//! block's integers, and of those of its first half.
//!
//! Rows are kept in groups of 16 (the last one may be shorter), inside a group by block and then by
//! row, so that a kernel that multiplies a tile with up to 16 rows reads everything front to back.
//! A row's numbers do not depend on its place or on its neighbours.

use std::sync::atomic::{AtomicU16, Ordering};

use crate::dispatch::Cpu;
use crate::error::{KernelError, expect_size};
use crate::pool::ThreadPool;
use crate::shared::Shared;
use crate::simd::{LANES, Simd, tiered};
use crate::tiles::BLOCK_COLUMNS;

/// Rows of a group.
pub(crate) const GROUP: usize = 16;

/// How far a block's largest magnitude exceeds its root mean square to be an outlier (at most
/// sqrt(32) = 5.7; about 2.2 where the elements are alike).
const OUTLIER: f32 = 4.8;

/// Steps of the fine integers in one of the others.
const FINE: f32 = 256.0;

/// A cache line of integers, for the alignment.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
struct Line([i8; 64]);

/// A quantised matrix `[rows][columns]`; its buffers are kept when it is filled again.
#[derive(Debug, Default)]
pub struct Activations {
    rows: usize,
    columns: usize,
    ints: Vec<Line>,
    /// Laid out like `ints`; of a block without an outlier they are not set. Both are followed by
    /// a group's worth of a block's integers that mean nothing: AMX kernels read whole groups.
    fine: Vec<Line>,
    /// Of each group, by block: which rows have fine integers.
    outliers: Vec<AtomicU16>,
    /// By block: the scale; followed by a group's worth that mean nothing, like `ints`.
    scales: Vec<f32>,
    /// By block: the sum of the dequantised elements.
    sums: Vec<f32>,
    /// By block: the sum of the integers (`256 * int + fine` where there are fine ones), and of the
    /// first 16 of them.
    totals: Vec<i32>,
    lows: Vec<i32>,
}

/// Where a group's numbers start, for a kernel. Everything is `[block][stride]`, ints with 32
/// elements to each.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Group {
    pub(crate) ints: *const i8,
    pub(crate) fine: *const i8,
    /// Not by row: one mask for a block, bit `first + r` for row r from here on.
    pub(crate) outliers: *const AtomicU16,
    pub(crate) first: usize,
    pub(crate) scales: *const f32,
    pub(crate) sums: *const f32,
    pub(crate) totals: *const i32,
    pub(crate) lows: *const i32,
    /// Rows of the group.
    pub(crate) stride: usize,
}

impl Group {
    /// The same from row `row` of the group on.
    ///
    /// # Safety
    /// `row < self.stride`.
    #[inline(always)]
    pub(crate) unsafe fn starting_at(self, row: usize) -> Group {
        // SAFETY: inside the group's first block.
        unsafe {
            Group {
                ints: self.ints.add(row * BLOCK_COLUMNS),
                fine: self.fine.add(row * BLOCK_COLUMNS),
                outliers: self.outliers,
                first: self.first + row,
                scales: self.scales.add(row),
                sums: self.sums.add(row),
                totals: self.totals.add(row),
                lows: self.lows.add(row),
                stride: self.stride,
            }
        }
    }
}

impl Activations {
    /// An empty matrix.
    pub fn new() -> Activations {
        Activations::default()
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Makes room for `[rows][columns]`; contents are unspecified.
    pub(crate) fn resize(&mut self, rows: usize, columns: usize) -> Result<(), KernelError> {
        if !columns.is_multiple_of(BLOCK_COLUMNS) {
            let requirement = "it must be a multiple of 32";
            let what = "the columns of activations";
            return Err(KernelError::Unsupported { what, found: columns, requirement });
        }
        let blocks = rows * columns / BLOCK_COLUMNS;
        self.rows = rows;
        self.columns = columns;
        // A kernel may read a whole group's rows where the last group has fewer.
        let lines = blocks.div_ceil(2) + GROUP * BLOCK_COLUMNS / 64;
        self.ints.resize(lines, Line([0; 64]));
        self.fine.resize(lines, Line([0; 64]));
        self.outliers.clear();
        let masks = rows.div_ceil(GROUP) * (columns / BLOCK_COLUMNS);
        self.outliers.resize_with(masks, AtomicU16::default);
        self.scales.resize(blocks + GROUP, 0.0);
        self.sums.resize(blocks, 0.0);
        self.totals.resize(blocks, 0);
        self.lows.resize(blocks, 0);
        Ok(())
    }

    /// Quantises `x`, `[rows][columns]`.
    pub fn quantize(
        &mut self,
        cpu: Cpu,
        pool: &ThreadPool,
        x: &[f32],
        rows: usize,
    ) -> Result<(), KernelError> {
        let columns = x.len().checked_div(rows).unwrap_or(0);
        expect_size("activations", rows * columns, x.len())?;
        self.resize(rows, columns)?;
        let to = self.writer();
        pool.run(rows.div_ceil(GROUP), &|group| {
            for row in group * GROUP..rows.min((group + 1) * GROUP) {
                // SAFETY: each row is written by one chunk.
                unsafe { to.write(cpu, row, 0, &x[row * columns..][..columns]) };
            }
        })
    }

    /// For writing from several threads.
    pub(crate) fn writer(&mut self) -> Writer<'_> {
        Writer {
            rows: self.rows,
            blocks: self.columns / BLOCK_COLUMNS,
            ints: Shared::new(as_ints(&mut self.ints)),
            fine: Shared::new(as_ints(&mut self.fine)),
            outliers: &self.outliers,
            scales: Shared::new(&mut self.scales),
            sums: Shared::new(&mut self.sums),
            totals: Shared::new(&mut self.totals),
            lows: Shared::new(&mut self.lows),
        }
    }

    /// The group that starts at row `first`, a multiple of [`GROUP`] below `rows`.
    pub(crate) fn group(&self, first: usize) -> Group {
        let blocks = self.columns / BLOCK_COLUMNS;
        let at = first * blocks;
        Group {
            ints: self.ints[at / 2..].as_ptr().cast(),
            fine: self.fine[at / 2..].as_ptr().cast(),
            outliers: self.outliers[first / GROUP * blocks..].as_ptr(),
            first: 0,
            scales: self.scales[at..].as_ptr(),
            sums: self.sums[at..].as_ptr(),
            totals: self.totals[at..].as_ptr(),
            lows: self.lows[at..].as_ptr(),
            stride: GROUP.min(self.rows - first),
        }
    }
}

/// The integers of some cache lines.
fn as_ints(lines: &mut [Line]) -> &mut [i8] {
    // SAFETY: a line is 64 bytes without padding, and all of them are initialised.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast::<i8>(), lines.len() * 64) }
}

/// Writes rows of an [`Activations`] from several threads.
pub(crate) struct Writer<'a> {
    rows: usize,
    /// Blocks of a row.
    blocks: usize,
    ints: Shared<'a, i8>,
    fine: Shared<'a, i8>,
    outliers: &'a [AtomicU16],
    scales: Shared<'a, f32>,
    sums: Shared<'a, f32>,
    totals: Shared<'a, i32>,
    lows: Shared<'a, i32>,
}

impl Writer<'_> {
    /// Quantises `x`, whole blocks of row `row`, from block `first` on.
    ///
    /// # Safety
    /// No two threads write the same block of the same row at a time, and nobody has written it
    /// since the activations were resized.
    pub(crate) unsafe fn write(&self, cpu: Cpu, row: usize, first: usize, x: &[f32]) {
        let count = x.len() / BLOCK_COLUMNS;
        assert!(row < self.rows && first + count <= self.blocks, "a block beyond the activations");
        let group = row / GROUP * GROUP;
        let stride = GROUP.min(self.rows - group);
        let at = group * self.blocks + first * stride + row - group;
        let to = Blocks {
            stride,
            ints: self.ints.at(at * BLOCK_COLUMNS),
            fine: self.fine.at(at * BLOCK_COLUMNS),
            outliers: &self.outliers[row / GROUP * self.blocks + first..][..count],
            bit: 1 << (row - group),
            scales: self.scales.at(at),
            sums: self.sums.at(at),
            totals: self.totals.at(at),
            lows: self.lows.at(at),
        };
        // SAFETY: the asserted bounds put every block, `stride` apart from the next, inside the
        // buffers; exclusive by the caller's promise; the tier is there by `cpu`.
        unsafe { quantize_on(cpu, x.as_ptr(), &to) }
    }
}

/// Where the blocks of a row go: block b is `b * stride` on.
struct Blocks<'a> {
    stride: usize,
    ints: *mut i8,
    fine: *mut i8,
    /// One mask for each block.
    outliers: &'a [AtomicU16],
    /// The row's in the masks.
    bit: u16,
    scales: *mut f32,
    sums: *mut f32,
    totals: *mut i32,
    lows: *mut i32,
}

tiered! { fn quantize_on(x: *const f32, to: &Blocks<'_>) = quantize_blocks; }

/// # Safety
/// `x` has as many blocks as `to` has masks; the rest of `to` has room for as many.
#[inline(always)]
unsafe fn quantize_blocks<S: Simd>(x: *const f32, to: &Blocks<'_>) {
    for (b, mask) in to.outliers.iter().enumerate() {
        // SAFETY: the contract above.
        unsafe {
            let low = S::load(x.add(b * BLOCK_COLUMNS));
            let high = S::load(x.add(b * BLOCK_COLUMNS + LANES));
            let largest = S::max_lane(S::max(S::abs(low), S::abs(high)));
            let squares = S::sum(S::fma(low, low, S::mul(high, high)));
            // A block whose scale would be too small to invert (or that is not finite) is zero.
            let usable = largest > 1e-30 && largest < f32::MAX;
            let scale = if usable { largest / 127.0 } else { 0.0 };
            let inverse = S::splat(if usable { 127.0 / largest } else { 0.0 });
            let at = b * to.stride;
            let ints = to.ints.add(at * BLOCK_COLUMNS);
            if !usable {
                ints.write_bytes(0, BLOCK_COLUMNS);
                *to.scales.add(at) = 0.0;
                *to.sums.add(at) = 0.0;
                *to.totals.add(at) = 0;
                *to.lows.add(at) = 0;
                continue;
            }
            let rounded = [bounded::<S>(S::mul(low, inverse)), bounded::<S>(S::mul(high, inverse))];
            S::store_i8(ints, rounded[0]);
            S::store_i8(ints.add(LANES), rounded[1]);
            // Sums of small integers are exact in floats too.
            let (mut first, mut second) = (S::sum(rounded[0]), S::sum(rounded[1]));
            let mut scale = scale;
            if largest * largest > OUTLIER * OUTLIER / BLOCK_COLUMNS as f32 * squares {
                let inverse = S::splat(FINE / scale);
                let scale_all = S::splat(scale);
                let rest = [
                    bounded::<S>(S::mul(S::fnma(rounded[0], scale_all, low), inverse)),
                    bounded::<S>(S::mul(S::fnma(rounded[1], scale_all, high), inverse)),
                ];
                let fine = to.fine.add(at * BLOCK_COLUMNS);
                S::store_i8(fine, rest[0]);
                S::store_i8(fine.add(LANES), rest[1]);
                first = first * FINE + S::sum(rest[0]);
                second = second * FINE + S::sum(rest[1]);
                scale /= FINE;
                mask.fetch_or(to.bit, Ordering::Relaxed);
            }
            let total = first + second;
            *to.scales.add(at) = scale;
            *to.sums.add(at) = scale * total;
            *to.totals.add(at) = total as i32;
            *to.lows.add(at) = first as i32;
        }
    }
}

/// Rounded to nearest, between -127 and 127.
#[inline(always)]
unsafe fn bounded<S: Simd>(x: S::F) -> S::F {
    // SAFETY: the tier's features are there.
    unsafe { S::min(S::max(S::round(x), S::splat(-127.0)), S::splat(127.0)) }
}

#[cfg(test)]
impl Activations {
    /// The values that the integers stand for.
    pub(crate) fn dequantized(&self, row: usize) -> Vec<f64> {
        let group = self.group(row / GROUP * GROUP);
        let r = row % GROUP;
        let mut values = Vec::new();
        for b in 0..self.columns / BLOCK_COLUMNS {
            let at = b * group.stride + r;
            for i in 0..BLOCK_COLUMNS {
                // SAFETY: block b of a row of the group.
                unsafe {
                    let scale = *group.scales.add(at);
                    let mut int = f64::from(*group.ints.add(at * BLOCK_COLUMNS + i));
                    if (*group.outliers.add(b)).load(Ordering::Relaxed) >> r & 1 == 1 {
                        let fine = f64::from(*group.fine.add(at * BLOCK_COLUMNS + i));
                        int = int * f64::from(FINE) + fine;
                    }
                    values.push(f64::from(scale) * int);
                }
            }
        }
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_random::Random;

    #[test]
    fn blocks_with_outliers_keep_the_others_bits_and_rows_do_not_meet() {
        let mut rng = Random::new(51);
        let pool = ThreadPool::new(2);
        let (rows, columns) = (37, 96);
        let mut x = rng.normals(rows * columns);
        for row in (0..rows).step_by(3) {
            x[row * columns + 40] = 60.0;
        }
        x[columns..columns + 32].fill(0.0);
        x[5 * columns] = f32::INFINITY;
        for cpu in Cpu::available() {
            let mut acts = Activations::new();
            acts.quantize(cpu, &pool, &rng.normals(columns), 1).expect("whole blocks");
            acts.quantize(cpu, &pool, &x, rows).expect("whole blocks");
            for row in 0..rows {
                let got = acts.dequantized(row);
                let x = &x[row * columns..][..columns];
                for (x, got) in x.chunks_exact(32).zip(got.chunks_exact(32)) {
                    let largest = x.iter().fold(0.0_f32, |a, x| a.max(x.abs()));
                    if !largest.is_finite() {
                        assert!(got.iter().all(|&got| got == 0.0));
                        continue;
                    }
                    // Half a step; a fine integer that would be 128 becomes 127, half a step more.
                    let step = f64::from(largest) / 127.0;
                    let most = if largest == 60.0 { step / 256.0 } else { step * 0.5001 };
                    for (&x, got) in x.iter().zip(got) {
                        let error = (f64::from(x) - got).abs();
                        assert!(error <= most, "{:?} row {row}: {x} {got}", cpu.tier());
                    }
                }
                let mut alone = Activations::new();
                alone.quantize(cpu, &pool, x, 1).expect("whole blocks");
                assert_eq!(alone.dequantized(0), got);
            }
        }
    }
}
