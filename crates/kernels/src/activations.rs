//! Activations quantised to int8, in blocks of 32: the other factor of the integer products.
//!
//! `x` becomes `scale * int` with `scale = max |x| / 127` over the block, integers rounded to
//! nearest, ties to even. The sums that offsets and minima of weights multiply are taken once here:
//! of the block's integers, and of those of its first half.
//!
//! Rows are kept in groups of 16 (the last one may be shorter), inside a group by block and then by
//! row, so that a kernel that multiplies a tile with up to 16 rows reads everything front to back.
//! A row's numbers do not depend on its place or on its neighbours.

use crate::dispatch::Cpu;
use crate::error::{KernelError, expect_size};
use crate::pool::ThreadPool;
use crate::shared::Shared;
use crate::simd::{LANES, Simd, tiered};
use crate::tiles::BLOCK_COLUMNS;

/// Rows of a group.
pub(crate) const GROUP: usize = 16;

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
    /// By block: the scale.
    scales: Vec<f32>,
    /// By block: scale * sum of the integers.
    sums: Vec<f32>,
    /// By block: the sum of the integers, and of the first 16 of them.
    totals: Vec<i32>,
    lows: Vec<i32>,
}

/// Where a group's numbers start, for a kernel. Everything is `[block][stride]`, ints with 32
/// elements to each.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Group {
    pub(crate) ints: *const i8,
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
        self.ints.resize(blocks.div_ceil(2), Line([0; 64]));
        self.scales.resize(blocks, 0.0);
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
        let blocks = self.scales.len();
        // SAFETY: a line is 64 bytes without padding; all of them are initialised.
        let ints = unsafe {
            std::slice::from_raw_parts_mut(
                self.ints.as_mut_ptr().cast::<i8>(),
                self.ints.len() * 64,
            )
        };
        Writer {
            rows: self.rows,
            blocks: blocks.checked_div(self.rows).unwrap_or(0),
            ints: Shared::new(ints),
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
            scales: self.scales[at..].as_ptr(),
            sums: self.sums[at..].as_ptr(),
            totals: self.totals[at..].as_ptr(),
            lows: self.lows[at..].as_ptr(),
            stride: GROUP.min(self.rows - first),
        }
    }
}

/// Writes rows of an [`Activations`] from several threads.
pub(crate) struct Writer<'a> {
    rows: usize,
    /// Blocks of a row.
    blocks: usize,
    ints: Shared<'a, i8>,
    scales: Shared<'a, f32>,
    sums: Shared<'a, f32>,
    totals: Shared<'a, i32>,
    lows: Shared<'a, i32>,
}

impl Writer<'_> {
    /// Quantises `x`, whole blocks of row `row`, from block `first` on.
    ///
    /// # Safety
    /// No two threads write the same block of the same row at a time.
    pub(crate) unsafe fn write(&self, cpu: Cpu, row: usize, first: usize, x: &[f32]) {
        let count = x.len() / BLOCK_COLUMNS;
        assert!(row < self.rows && first + count <= self.blocks, "a block beyond the activations");
        let group = row / GROUP * GROUP;
        let stride = GROUP.min(self.rows - group);
        let at = group * self.blocks + first * stride + row - group;
        // SAFETY: the asserted bounds put every block, `stride` apart from the next, inside the
        // buffers; exclusive by the caller's promise; the tier is there by `cpu`.
        unsafe {
            quantize_on(
                cpu,
                x.as_ptr(),
                count,
                stride,
                self.ints.at(at * BLOCK_COLUMNS),
                self.scales.at(at),
                self.sums.at(at),
                self.totals.at(at),
                self.lows.at(at),
            );
        }
    }
}

tiered! {
    fn quantize_on(
        x: *const f32,
        blocks: usize,
        stride: usize,
        ints: *mut i8,
        scales: *mut f32,
        sums: *mut f32,
        totals: *mut i32,
        lows: *mut i32,
    ) = quantize_blocks;
}

/// # Safety
/// `x` has `blocks` blocks; the rest has room for as many, `stride` apart.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
unsafe fn quantize_blocks<S: Simd>(
    x: *const f32,
    blocks: usize,
    stride: usize,
    ints: *mut i8,
    scales: *mut f32,
    sums: *mut f32,
    totals: *mut i32,
    lows: *mut i32,
) {
    for b in 0..blocks {
        // SAFETY: the contract above.
        unsafe {
            let low = S::load(x.add(b * BLOCK_COLUMNS));
            let high = S::load(x.add(b * BLOCK_COLUMNS + LANES));
            let largest = S::max_lane(S::max(S::abs(low), S::abs(high)));
            // A block whose scale would be too small to invert (or that is not finite) is zero.
            let usable = largest > 1e-30 && largest < f32::MAX;
            let inverse = S::splat(if usable { 127.0 / largest } else { 0.0 });
            let scale = if usable { largest / 127.0 } else { 0.0 };
            let at = b * stride;
            let to = ints.add(at * BLOCK_COLUMNS);
            if usable {
                S::store_i8(to, S::round(S::mul(low, inverse)));
                S::store_i8(to.add(LANES), S::round(S::mul(high, inverse)));
            } else {
                to.write_bytes(0, BLOCK_COLUMNS);
            }
            let mut halves = [0_i32; 2];
            for (half, sum) in halves.iter_mut().enumerate() {
                for i in 0..LANES {
                    *sum += i32::from(*to.add(half * LANES + i));
                }
            }
            let total = halves[0] + halves[1];
            *scales.add(at) = scale;
            *sums.add(at) = scale * total as f32;
            *totals.add(at) = total;
            *lows.add(at) = halves[0];
        }
    }
}
