//! Products of packed weights with activations: the bulk of a model's work.
//!
//! For a row r of the matrix and a row m of the input, blocks b ascending:
//! ```text
//! int  = sum over the block of (stored - offset) * a            exact, in i32
//! acc  = fma(f32(int), f32(scale[r][b]) * a_scale[m][b], acc)
//! acc  = fma(f32(min[r][b]), a_sum[m][b], acc)                  formats with minima
//! ```
//! (formats with two scales: once for each half of the block; float formats: one fma for each
//! column, ascending), and then, blocks ascending, those that have fine integers (`activations.rs`):
//! ```text
//! acc  = fma(f32(fine int), f32(scale[r][b]) * (a_scale[m][b] / 254), acc)
//! ```
//! Every tier and every number of input rows does exactly these operations in
//! this order, so M decides which loop runs, never the numbers: a token's result depends neither on
//! its batch mates, nor on whether it is prefilled or decoded, nor on threads or CPU.
//!
//! Loops: up to four input rows take several tiles in step (that many sequential streams through
//! the weights: decoding is bound by memory, and one stream does not fill the bus); more rows take a
//! tile at a time, which then stays in the first-level cache for all of them.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod float;
mod portable;

use std::ops::Range;

use crate::activations::{Activations, GROUP, Group};
use crate::dispatch::{Cpu, Tier};
use crate::error::{KernelError, expect_size};
use crate::pool::ThreadPool;
use crate::shared::Shared;
use crate::tiles::{Matrix, TILE_ROWS, TileFormat, with_format};

/// The input of products: the same rows as f32 and quantised, because float weights multiply the
/// one and quantised weights the other.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    floats: &'a [f32],
    quantized: &'a Activations,
}

impl<'a> Input<'a> {
    /// `floats` is `[rows][columns]`, of the shape of `quantized`.
    pub fn new(floats: &'a [f32], quantized: &'a Activations) -> Result<Input<'a>, KernelError> {
        expect_size("an input", quantized.rows() * quantized.columns(), floats.len())?;
        Ok(Input { floats, quantized })
    }

    pub(crate) fn rows(&self) -> usize {
        self.quantized.rows()
    }

    pub(crate) fn columns(&self) -> usize {
        self.quantized.columns()
    }
}

/// `out[m][r] = sum over k of matrix[r][k] * input[m][k]`, for every matrix; `out` has
/// [`Matrix::padded_rows`] elements a row, of which those beyond the matrix are unspecified.
///
/// # Errors
/// Sizes that do not fit each other.
pub fn matmul(
    cpu: Cpu,
    pool: &ThreadPool,
    input: Input<'_>,
    matrices: &mut [(Matrix<'_>, &mut [f32])],
) -> Result<(), KernelError> {
    for (matrix, out) in matrices.iter() {
        expect_size("the columns of an input", matrix.columns(), input.columns())?;
        expect_size("a product", input.rows() * matrix.padded_rows(), out.len())?;
    }
    let jobs: Vec<(Matrix<'_>, Shared<'_, f32>)> =
        matrices.iter_mut().map(|(matrix, out)| (*matrix, Shared::new(out))).collect();
    let chunks: Vec<(usize, Range<usize>)> = jobs
        .iter()
        .enumerate()
        .flat_map(|(job, (matrix, _))| {
            split(matrix.tiles(), pool.threads()).map(move |tiles| (job, tiles))
        })
        .collect();
    pool.run(chunks.len(), &|chunk| {
        let (job, tiles) = &chunks[chunk];
        let (matrix, out) = &jobs[*job];
        // SAFETY: sizes were compared above; chunks have disjoint tiles, and so disjoint columns.
        unsafe { product(cpu, matrix, input, tiles.clone(), out.at(0), matrix.padded_rows()) }
    })
}

/// Cuts `tiles` into ranges for `threads` threads: some ranges to each, so that one who is held up
/// leaves little undone, but of several tiles, so that each is a long read.
pub(crate) fn split(tiles: usize, threads: usize) -> impl Iterator<Item = Range<usize>> {
    const STREAMS: usize = 4;
    let chunks = if threads == 1 { 1 } else { threads * 3 };
    let size = tiles.div_ceil(chunks).next_multiple_of(STREAMS);
    (0..tiles).step_by(size).map(move |first| first..tiles.min(first + size))
}

/// The product of some of a matrix's tiles with all rows of the input. Element (m, r) goes to
/// `out[m * stride + r]`.
///
/// # Safety
/// The input has the matrix' columns; `tiles` are tiles of the matrix; `out` is valid for these
/// elements, padding included, and nobody else uses them meanwhile.
pub(crate) unsafe fn product(
    cpu: Cpu,
    matrix: &Matrix<'_>,
    input: Input<'_>,
    tiles: Range<usize>,
    out: *mut f32,
    stride: usize,
) {
    debug_assert!(tiles.end <= matrix.tiles() && input.columns() == matrix.columns());
    let job = Job {
        weights: matrix.bytes().as_ptr(),
        blocks: matrix.blocks(),
        tile_bytes: matrix.tile_bytes(),
        tiles,
        rows: 0..0,
        out,
        stride,
    };
    // As many rows at a time as stay in the second-level cache beside the tiles.
    let block = (ROWS_BYTES / input.columns()).next_multiple_of(GROUP);
    for first in (0..input.rows()).step_by(block) {
        let rows = first..input.rows().min(first + block);
        // SAFETY: the same contract.
        unsafe { product_of_rows(cpu, matrix.format(), &Job { rows, ..job.clone() }, input) }
    }
}

/// Bytes of quantised activations that a pass over the tiles should not exceed.
const ROWS_BYTES: usize = 192 << 10;

/// # Safety
/// The contract of [`product`]; the job's rows start at a group.
unsafe fn product_of_rows(cpu: Cpu, format: TileFormat, job: &Job, input: Input<'_>) {
    // SAFETY: `job` describes what the contract promises; `cpu` proves the tier.
    with_format!(format, F => unsafe {
        match cpu.tier() {
            #[cfg(target_arch = "x86_64")]
            Tier::Avx2 => avx2::product::<F>(job, input.quantized),
            #[cfg(target_arch = "x86_64")]
            Tier::Avx512 => avx512::product::<F>(job, input.quantized),
            #[cfg(target_arch = "x86_64")]
            Tier::Amx => amx::product::<F>(job, input.quantized),
            _ => portable::product::<F>(job, input.quantized),
        }
    }, _ => {
        // SAFETY: the same contract; `Input` holds `[rows][columns]` floats.
        unsafe { float::product(cpu, format, job, input.floats.as_ptr()) }
    });
}

/// A run of tiles and where their products go.
#[derive(Debug, Clone)]
struct Job {
    weights: *const u8,
    /// Blocks of a tile.
    blocks: usize,
    tile_bytes: usize,
    tiles: Range<usize>,
    /// Input rows, from the start of a group on.
    rows: Range<usize>,
    out: *mut f32,
    /// Elements from one output row to the next.
    stride: usize,
}

impl Job {
    /// A tile's weights.
    ///
    /// # Safety
    /// `tile` is one of the matrix's.
    #[inline(always)]
    unsafe fn tile(&self, tile: usize) -> *const u8 {
        // SAFETY: inside the matrix.
        unsafe { self.weights.add(tile * self.tile_bytes) }
    }

    /// Where the products of a tile with input row `row` go.
    #[inline(always)]
    fn to(&self, tile: usize, row: usize) -> *mut f32 {
        // Wrapping, because `out` may stand for a tile 0 that is not part of the output.
        self.out.wrapping_add(row * self.stride + tile * TILE_ROWS)
    }
}

/// The groups of the job's input rows: the first row of each, and where it starts.
fn groups(job: &Job, input: &Activations) -> impl Iterator<Item = (usize, Group)> {
    job.rows.clone().step_by(GROUP).map(|first| (first, input.group(first)))
}

#[cfg(test)]
mod tests;
