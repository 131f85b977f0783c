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

mod quantize;

use std::ops::Range;
use std::sync::atomic::AtomicU16;
#[cfg(test)]
use std::sync::atomic::Ordering;

use quantize::Part;

use crate::dispatch::Cpu;
use crate::error::{KernelError, expect_size};
use crate::pool::ThreadPool;
use crate::shared::Shared;
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
    /// By block: what kernels that subtract offsets in 16 bits need.
    pairs: Vec<Pairs>,
}

/// Sums of a block's integers (not of the fine ones) as `vpmaddubsw` adds products: of the first two
/// of every four columns, and of the others. First those of the block's first half, then of all.
pub(crate) type Pairs = [[i16; 2]; 2];

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
    pub(crate) pairs: *const Pairs,
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
                pairs: self.pairs.add(row),
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
        self.pairs.resize(blocks, Pairs::default());
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
            let first = group * GROUP;
            let rows = first..rows.min(first + GROUP);
            let x = &x[first * columns..];
            // SAFETY: each row is written by one chunk, and `x` has all of them.
            unsafe { to.write_rows(cpu, rows, 0, columns / BLOCK_COLUMNS, x.as_ptr(), columns) };
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
            pairs: Shared::new(&mut self.pairs),
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
            pairs: self.pairs[at..].as_ptr(),
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
    pairs: Shared<'a, Pairs>,
}

impl Writer<'_> {
    /// Quantises `x`, whole blocks of row `row`, from block `first` on.
    ///
    /// # Safety
    /// No two threads write the same block of the same row at a time, and nobody has written it
    /// since the activations were resized.
    pub(crate) unsafe fn write(&self, cpu: Cpu, row: usize, first: usize, x: &[f32]) {
        let count = x.len() / BLOCK_COLUMNS;
        // SAFETY: one row's blocks are all of `x`; the rest is the caller's promise.
        unsafe { self.write_rows(cpu, row..row + 1, first, count, x.as_ptr(), x.len()) }
    }

    /// Quantises `count` blocks of each of `rows`, from block `first` on; in `x`, rows start `width`
    /// elements apart. Whole groups of rows are the fastest.
    ///
    /// # Safety
    /// As for [`write`](Self::write), for each of these rows; `x` is valid for `count` blocks of
    /// each.
    pub(crate) unsafe fn write_rows(
        &self,
        cpu: Cpu,
        rows: Range<usize>,
        first: usize,
        count: usize,
        x: *const f32,
        width: usize,
    ) {
        assert!(rows.end <= self.rows && first + count <= self.blocks, "beyond the activations");
        let mut row = rows.start;
        while row < rows.end {
            let group = row / GROUP * GROUP;
            let stride = GROUP.min(self.rows - group);
            let part = rows.end.min(group + stride) - row;
            let at = group * self.blocks + first * stride + row - group;
            let to = Part {
                rows: part,
                blocks: count,
                stride,
                ints: self.ints.at(at * BLOCK_COLUMNS),
                fine: self.fine.at(at * BLOCK_COLUMNS),
                outliers: &self.outliers[row / GROUP * self.blocks + first..][..count],
                bit: 1 << (row - group),
                scales: self.scales.at(at),
                sums: self.sums.at(at),
                totals: self.totals.at(at),
                lows: self.lows.at(at),
                pairs: self.pairs.at(at),
            };
            // SAFETY: the asserted bounds put every block, `stride` apart from the next, inside the
            // buffers; `x` by the caller's promise, as is that nobody else writes here; the tier is
            // there by `cpu`.
            unsafe { quantize::quantize(cpu, x.add((row - rows.start) * width), width, &to) };
            row += part;
        }
    }
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

    /// A row's numbers: integers, fine ones of outliers, scale, sums, totals and lows of each block.
    fn numbers(acts: &Activations, row: usize) -> Vec<u32> {
        let group = acts.group(row / GROUP * GROUP);
        let r = row % GROUP;
        let mut numbers = Vec::new();
        for b in 0..acts.columns() / BLOCK_COLUMNS {
            let at = b * group.stride + r;
            // SAFETY: block b of a row of the group.
            unsafe {
                let outlier = (*group.outliers.add(b)).load(Ordering::Relaxed) >> r & 1;
                let of = |ints: *const i8| (0..32).map(move |i| *ints.add(at * 32 + i) as u32);
                numbers.extend(of(group.ints));
                numbers.extend(of(group.fine).map(|fine| fine * u32::from(outlier)));
                numbers.extend([u32::from(outlier), (*group.scales.add(at)).to_bits()]);
                numbers.push((*group.sums.add(at)).to_bits());
                numbers.extend([*group.totals.add(at) as u32, *group.lows.add(at) as u32]);
                numbers.extend((*group.pairs.add(at)).as_flattened().iter().map(|&x| x as u32));
            }
        }
        numbers
    }

    #[test]
    fn batches_give_the_bits_of_single_blocks() {
        let mut rng = Random::new(52);
        let pool = ThreadPool::new(1);
        let odd = [60.0, -60.0, 1e-39, -1e-31, 1e25, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
        for (rows, blocks) in [(1, 40), (3, 17), (7, 5), (16, 2), (21, 3), (37, 18), (48, 16)] {
            let columns = blocks * 32;
            let mut x = rng.normals(rows * columns);
            for block in x.chunks_exact_mut(32) {
                match rng.below(6) {
                    0 => block.fill([0.0, -0.0, 1e-40][rng.below(3)]),
                    1 => block.iter_mut().for_each(|x| *x *= 1e-38),
                    2 | 3 => {
                        for _ in 0..=rng.below(2) {
                            block[rng.below(32)] = odd[rng.below(odd.len())];
                        }
                    }
                    _ => {}
                }
            }
            let mut first = None;
            for cpu in Cpu::available() {
                // One block at a time, so none is part of a batch.
                let mut alone = Activations::new();
                alone.resize(rows, columns).expect("whole blocks");
                let to = alone.writer();
                for (i, x) in x.chunks_exact(32).enumerate() {
                    // SAFETY: one thread; each block once.
                    unsafe { to.write(cpu, i / blocks, i % blocks, x) };
                }
                // Rows, from the middle of a group, and parts of rows.
                let mut parts = Activations::new();
                parts.resize(rows, columns).expect("whole blocks");
                let to = parts.writer();
                let (row, block) = (rng.below(rows), rng.below(blocks));
                for rows in [0..row, row..rows] {
                    for (block, count) in [(0, block), (block, blocks - block)] {
                        let x = &x[(rows.start * columns + block * 32).min(x.len())..];
                        // SAFETY: one thread; each block once, and `x` has them.
                        unsafe {
                            to.write_rows(cpu, rows.clone(), block, count, x.as_ptr(), columns);
                        };
                    }
                }
                let mut whole = Activations::new();
                whole.quantize(cpu, &pool, &x, rows).expect("whole blocks");
                for row in 0..rows {
                    let expected = numbers(&alone, row);
                    assert_eq!(numbers(&whole, row), expected, "{:?} row {row}", cpu.tier());
                    assert_eq!(numbers(&parts, row), expected, "{:?} row {row}", cpu.tier());
                }
                let all: Vec<u32> = (0..rows).flat_map(|row| numbers(&alone, row)).collect();
                assert!(all == *first.get_or_insert(all.clone()), "{:?}", cpu.tier());
            }
        }
    }
}
