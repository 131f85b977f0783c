//! Products of packed weights with activations: the bulk of a model's work.
//!
//! For a row r of the matrix and a row m of the input, blocks b ascending:
//! ```text
//! int  = sum over the block of (stored - offset) * a            exact, in i32
//! acc  = fma(f32(int), f32(scale[r][b]) * a_scale[m][b], acc)
//! low  = fma(f32(min[r][b]), a_sum[m][b], low)                  formats with minima
//! ```
//! and then `acc + low`. (Formats with two scales: the first line once for each half of the block;
//! float formats: one fma for each column, ascending. `a` has sixteen bits where an activation is an
//! outlier, see `activations.rs`: the sum is then `256 * sum of a's high bytes + sum of its low
//! ones`.) Every tier and every number of input rows does exactly these operations in this order, so
//! M decides which loop runs, never the numbers: a token's result depends neither on its batch
//! mates, nor on whether it is prefilled or decoded, nor on threads or CPU.
//!
//! Loops: one or two input rows take several tiles in step (that many sequential streams through
//! the weights: decoding is bound by memory, and one stream does not fill the bus); more rows take a
//! tile at a time, unpacked once for many of them. The streams are prefetched across the ends of
//! jobs, because a step's order is known ([`Upcoming`]): what a thread waits for at the start of
//! each of a step's regions, of which every layer has several, is a fifth of it otherwise.
//!
//! The rows of prompts under `prefill: 'fast'` are the exception to all of this: their products are
//! those of `amx_bf16.rs`.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod amx_bf16;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod float;
mod minima;
mod portable;

use std::ops::Range;

use crate::activations::{Activations, GROUP, Group};
use crate::bf16::{Bf16Rows, Bf16Tiles, Operand};
use crate::dispatch::{Cpu, Tier};
use crate::error::{KernelError, expect_size};
use crate::pool::ThreadPool;
use crate::shared::Shared;
use crate::tiles::{Matrix, TILE_ROWS, TileFormat, with_format};

/// The input of products: the same rows as f32 and quantised, because float weights multiply the
/// one and quantised weights the other; and after them perhaps rows of fast products, as bf16.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    floats: &'a [f32],
    quantized: &'a Activations,
    fast: Option<(Bf16Tiles, &'a Bf16Rows)>,
}

impl<'a> Input<'a> {
    /// `floats` is `[rows][columns]`, of the shape of `quantized`.
    pub fn new(floats: &'a [f32], quantized: &'a Activations) -> Result<Input<'a>, KernelError> {
        expect_size("an input", quantized.rows() * quantized.columns(), floats.len())?;
        Ok(Input { floats, quantized, fast: None })
    }

    /// For matrices of integers alone.
    pub(crate) fn of_integers(quantized: &'a Activations) -> Input<'a> {
        Input { floats: &[], quantized, fast: None }
    }

    /// `floats` is `[rows][columns]`, of the shape of `operand`, or nothing where no matrix of floats
    /// reads it; the operand's fast rows are multiplied if `tiles` is there.
    pub(crate) fn of(
        floats: &'a [f32],
        operand: &'a Operand,
        tiles: Option<Bf16Tiles>,
    ) -> Result<Input<'a>, KernelError> {
        let Operand { exact, fast } = operand;
        let rows = exact.rows() + if tiles.is_some() { fast.rows() } else { 0 };
        if !floats.is_empty() {
            expect_size("an input", rows * exact.columns(), floats.len())?;
        }
        expect_size("the columns of fast rows", exact.columns(), fast.columns())?;
        Ok(Input { floats, quantized: exact, fast: tiles.map(|tiles| (tiles, fast)) })
    }

    pub(crate) fn rows(&self) -> usize {
        self.quantized.rows() + self.fast.map_or(0, |(_, fast)| fast.rows())
    }

    /// The same without the rows of fast products.
    pub(crate) fn exact(self) -> Input<'a> {
        Input { fast: None, ..self }
    }

    /// Whether there are rows of fast products.
    pub(crate) fn is_fast(&self) -> bool {
        self.rows() > self.quantized.rows()
    }

    pub(crate) fn columns(&self) -> usize {
        self.quantized.columns()
    }
}

/// Where weights lie that a thread will read soon: a tile's start, and the bytes to the next one's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Upcoming {
    at: *const u8,
    tile_bytes: usize,
}

// SAFETY: the address is prefetched, never read.
unsafe impl Sync for Upcoming {}
// SAFETY: as above.
unsafe impl Send for Upcoming {}

impl Upcoming {
    /// Nothing is known.
    pub(crate) const NONE: Upcoming = Upcoming { at: std::ptr::null(), tile_bytes: 0 };

    /// Its start; null if nothing is known.
    pub(crate) fn at(self) -> *const u8 {
        self.at
    }

    /// From tile `tile` of a matrix on.
    pub(crate) fn of(matrix: &Matrix<'_>, tile: usize) -> Upcoming {
        let at = matrix.bytes().as_ptr().wrapping_add(tile * matrix.tile_bytes());
        Upcoming { at, tile_bytes: matrix.tile_bytes() }
    }
}

/// Matrices with the same number of columns that are multiplied with the same input in one region,
/// as one sequence of tiles.
#[derive(Clone, Copy)]
pub(crate) struct Stack<'a, const N: usize> {
    pub(crate) matrices: [Matrix<'a>; N],
}

impl<const N: usize> Stack<'_, N> {
    pub(crate) fn tiles(&self) -> usize {
        self.matrices.iter().map(Matrix::tiles).sum()
    }

    /// What thread `thread` of `threads` reads first of it.
    pub(crate) fn start(&self, thread: usize, threads: usize) -> Upcoming {
        self.upcoming(self.tiles() * thread / threads)
    }

    /// Tile `tile` of the sequence.
    fn upcoming(&self, tile: usize) -> Upcoming {
        let (index, tiles) = self.parts(tile..tile + 1).next().unwrap_or((0, 0..1));
        Upcoming::of(&self.matrices[index], tiles.start)
    }

    /// Some tiles of the sequence, as tiles of the matrices.
    pub(crate) fn parts(&self, tiles: Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> {
        let mut first = 0;
        let counts = self.matrices.map(|matrix| matrix.tiles());
        counts.into_iter().enumerate().filter_map(move |(index, count)| {
            let from = tiles.start.max(first) - first;
            let to = tiles.end.clamp(first, first + count) - first;
            first += count;
            (from < to).then_some((index, from..to))
        })
    }
}

/// How a region's tiles are cut into chunks: each thread's share into a few neighbouring runs, so
/// that one who is held up leaves little undone.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cut {
    /// Units of the region: a unit of work is never divided.
    units: usize,
    threads: usize,
    /// Chunks of a share.
    pieces: usize,
    /// What a chunk's first unit is a multiple of.
    grain: usize,
}

impl Cut {
    /// `units` units, for an input of `rows` rows.
    pub(crate) fn new(units: usize, rows: usize, threads: usize) -> Cut {
        // Few rows: long reads. Many: each tile is work enough for a claim, and evenness counts.
        let pieces = match (threads, rows) {
            (1, _) => 1,
            (_, 0..=64) => 3,
            _ => 9,
        };
        Cut { units, threads, pieces: pieces.min(units.div_ceil(threads)).max(1), grain: 1 }
    }

    /// The tiles of a product: pairs of them where there are fast rows, in fewer and longer runs,
    /// because a run's activations are read once for all of its tiles.
    pub(crate) fn tiles(tiles: usize, input: &Input<'_>, threads: usize) -> Cut {
        let cut = Cut::new(tiles, input.rows(), threads);
        if input.is_fast() { Cut { pieces: cut.pieces.min(2), grain: 2, ..cut } } else { cut }
    }

    pub(crate) fn chunks(&self) -> usize {
        self.threads * self.pieces
    }

    /// The units of a chunk; there may be none.
    pub(crate) fn units(&self, chunk: usize) -> Range<usize> {
        let share = chunk / self.pieces;
        let [first, end] = [share, share + 1].map(|share| self.units * share / self.threads);
        let piece = chunk % self.pieces;
        let [from, to] =
            [piece, piece + 1].map(|piece| first + (end - first) * piece / self.pieces);
        let grain = |at| if at == self.units { at } else { at / self.grain * self.grain };
        grain(from)..grain(to)
    }

    /// The thread whose share a chunk belongs to, if it is the last one of it.
    pub(crate) fn ends_share(&self, chunk: usize) -> Option<usize> {
        (chunk % self.pieces == self.pieces - 1).then_some(chunk / self.pieces)
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
    matrix: Matrix<'_>,
    out: &mut [f32],
) -> Result<(), KernelError> {
    multiply(cpu, pool, input, &Stack { matrices: [matrix] }, [out], &|_| Upcoming::NONE)
}

/// The same of several matrices in one region; `next` says what a thread reads after it.
pub(crate) fn multiply<const N: usize>(
    cpu: Cpu,
    pool: &ThreadPool,
    input: Input<'_>,
    stack: &Stack<'_, N>,
    outs: [&mut [f32]; N],
    next: &(dyn Fn(usize) -> Upcoming + Sync),
) -> Result<(), KernelError> {
    for (matrix, out) in stack.matrices.iter().zip(&outs) {
        expect_size("the columns of an input", matrix.columns(), input.columns())?;
        expect_size("a product", input.rows() * matrix.padded_rows(), out.len())?;
    }
    let outs = outs.map(Shared::new);
    let cut = Cut::tiles(stack.tiles(), &input, pool.threads());
    pool.run_before(cut.chunks(), &|thread| next(thread).at(), &|chunk| {
        let tiles = cut.units(chunk);
        for (index, part) in stack.parts(tiles.clone()) {
            let matrix = &stack.matrices[index];
            let after = stack.matrices[..index].iter().map(Matrix::tiles).sum::<usize>() + part.end;
            let next = match cut.ends_share(chunk) {
                Some(thread) if after == tiles.end => next(thread),
                _ if after < stack.tiles() => stack.upcoming(after),
                _ => Upcoming::NONE,
            };
            let stride = matrix.padded_rows();
            // SAFETY: sizes were compared above; chunks have disjoint tiles, and so disjoint columns.
            unsafe { product(cpu, matrix, input, part, outs[index].at(0), stride, next) }
        }
    })
}

/// The product of some of a matrix's tiles with all rows of the input. Element (m, r) goes to
/// `out[m * stride + r]`. `next` is what this thread will probably read afterwards.
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
    next: Upcoming,
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
        next,
    };
    // As many rows at a time as stay in the second-level cache beside the tiles.
    let block = (ROWS_BYTES / input.columns()).next_multiple_of(GROUP).clamp(GROUP, ROWS);
    let exact = input.quantized.rows();
    for first in (0..exact).step_by(block) {
        let rows = first..exact.min(first + block);
        // SAFETY: the same contract.
        unsafe { product_of_rows(cpu, matrix.format(), &Job { rows, ..job.clone() }, input) }
    }
    let Job { tiles, .. } = job;
    // SAFETY: the same contract.
    unsafe { fast_product(matrix, input, tiles, out.wrapping_add(exact * stride), stride) }
}

/// The product of some of a matrix's tiles with the fast rows of the input, if there are any. Element
/// (m, r), m counted from the first of them, goes to `out[m * stride + r]`.
///
/// # Safety
/// The contract of [`product`].
pub(crate) unsafe fn fast_product(
    matrix: &Matrix<'_>,
    input: Input<'_>,
    tiles: Range<usize>,
    out: *mut f32,
    stride: usize,
) {
    let Some((proof, fast)) = input.fast.filter(|(_, fast)| fast.rows() > 0) else { return };
    let job = Job {
        weights: matrix.bytes().as_ptr(),
        blocks: matrix.blocks(),
        tile_bytes: matrix.tile_bytes(),
        tiles,
        rows: 0..fast.rows(),
        out,
        stride,
        next: Upcoming::NONE,
    };
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the same contract.
    unsafe {
        amx_bf16::product(proof, matrix.format(), &job, fast);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (proof, job);
}

/// Bytes of quantised activations that a pass over the tiles should not exceed.
const ROWS_BYTES: usize = 192 << 10;
/// Rows that it should not exceed: their integers then stay in the first-level cache, and each is
/// written to another page of memory, of which a core remembers about a hundred.
const ROWS: usize = 64;

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
        let size = input.rows() * input.columns();
        assert!(input.floats.len() >= size, "a matrix of floats needs an input of floats");
        // SAFETY: the same contract; `[rows][columns]` floats, as asserted.
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
    /// What this thread will probably read afterwards.
    next: Upcoming,
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

    /// Where tile `tile` lies, or what follows the job.
    #[inline(always)]
    fn upcoming(&self, tile: usize) -> Upcoming {
        if tile < self.tiles.end {
            let at = self.weights.wrapping_add(tile * self.tile_bytes);
            Upcoming { at, tile_bytes: self.tile_bytes }
        } else {
            self.next
        }
    }

    /// Where the products of a tile with input row `row` go.
    #[inline(always)]
    fn to(&self, tile: usize, row: usize) -> *mut f32 {
        // Wrapping, because `out` may stand for a tile 0 that is not part of the output.
        self.out.wrapping_add(row * self.stride + tile * TILE_ROWS)
    }
}

/// Asks for weights while tiles are multiplied one at a time: during four tiles, for the next four.
///
/// Lines of the four are asked for in turn, because the hardware's own prefetching follows each of
/// them then: a thread reads half as much again from memory as with one stream. They are asked for
/// a few at a time: requests in a burst would hold up the loads that follow them.
#[cfg(target_arch = "x86_64")]
struct Lookahead {
    tiles: [*const u8; STREAMS],
    /// The next line, counted over all four, and where this tile's share of them ends.
    line: usize,
    end: usize,
    /// Lines of a step.
    lines: usize,
}

/// Tiles that are asked for in turn.
#[cfg(target_arch = "x86_64")]
const STREAMS: usize = 4;

#[cfg(target_arch = "x86_64")]
impl Lookahead {
    /// For what is asked for during tile `tile`, which takes `steps` steps.
    fn new(job: &Job, tile: usize, steps: usize) -> Lookahead {
        let place = tile - job.tiles.start;
        let first = job.tiles.start + place / STREAMS * STREAMS;
        let after = job.tiles.end.min(first + STREAMS);
        let tiles = std::array::from_fn(|i| {
            let own = job.tiles.end - after;
            if i < own {
                job.weights.wrapping_add((after + i) * job.tile_bytes)
            } else {
                job.next.at.wrapping_add((i - own) * job.next.tile_bytes)
            }
        });
        let all = STREAMS * job.tile_bytes.div_ceil(64);
        let [line, end] = [0, 1].map(|i| all * (place % STREAMS + i) / (after - first));
        Lookahead { tiles, line, end, lines: (end - line).div_ceil(steps.max(1)) }
    }

    #[inline(always)]
    fn step(&mut self) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let end = self.end.min(self.line + self.lines);
        while self.line < end {
            let at = self.tiles[self.line % STREAMS].wrapping_add(self.line / STREAMS * 64);
            // SAFETY: every x86-64 can, and any address will do.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
            self.line += 1;
        }
    }
}

/// The groups of the job's input rows: the first row of each, and where it starts.
fn groups(job: &Job, input: &Activations) -> impl Iterator<Item = (usize, Group)> {
    job.rows.clone().step_by(GROUP).map(|first| (first, input.group(first)))
}

#[cfg(test)]
mod tests;
