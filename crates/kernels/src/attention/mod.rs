//! Attention over KV pages, for decoding and prefill alike.
//!
//! A query at position p sees positions 0 to p of its sequence. They are taken in chunks of 256 at
//! absolute places: a chunk's scores first, then their maximum, the weights and their sum, then
//! the weighted values, position by position; chunks are merged in ascending order. This sequence
//! of operations is the same for every query, whether it is one row of a decoding step (whose
//! chunks may run on several threads) or one of a prefill chunk's many (whose chunks run one after
//! the other), so the result has the same bits.
//!
//! Queries of the heads that share a KV head, and neighbouring rows of a prefill, are processed
//! together: every key and value is loaded and widened once for several of them.
//!
//! The rows of prompts under `prefill: 'fast'` have another sequence of operations, with the same
//! chunks and no less fixed: `fast.rs`.

mod chunks;
#[cfg(target_arch = "x86_64")]
mod fast;
mod few;
mod kernel;
mod many;
mod plan;
mod softmax;

use std::ops::Range;

use crate::bf16::Bf16Tiles;
use crate::dispatch::Cpu;
use crate::elementwise;
use crate::error::{KernelError, expect_size};
use crate::pages::{KvAccess, KvElement, KvPool, KvShape, PAGE_POSITIONS, PageId, Pages};
use crate::pool::ThreadPool;
use crate::shared::Shared;
use crate::simd::LANES;

use kernel::Unit;
use plan::{Item, Plan};

/// Consecutive positions of one sequence in a batch.
#[derive(Debug, Clone, Copy)]
pub struct Segment<'a> {
    /// The sequence's pages, up to its last position of this step at least.
    pub table: &'a [PageId],
    /// The first position.
    pub start: usize,
    /// How many positions.
    pub rows: usize,
}

impl Segment<'_> {
    /// Positions that the last row sees.
    fn end(&self) -> usize {
        self.start + self.rows
    }
}

/// The rows of one step: segments one after another, checked against the pool once.
///
/// Invariants: every page up to a segment's end is one of the pool's, those that are written are
/// in use by one owner, and no page is written by two segments.
#[derive(Debug)]
pub struct Batch<'a> {
    pool: &'a KvPool,
    segments: Vec<Segment<'a>>,
    /// The first row of each segment.
    first_rows: Vec<usize>,
    /// Position of each row, and its segment.
    rows: Vec<(usize, usize)>,
    /// How many of the last rows have fast products, if some do.
    fast: Option<(Bf16Tiles, usize)>,
}

impl<'a> Batch<'a> {
    /// Checks the segments.
    ///
    /// # Errors
    /// A table too short, a page that is free or shared where it is written, one page written by
    /// two segments, an element type other than f16, a head size that is no multiple of 16.
    pub fn new(pool: &'a KvPool, segments: &[Segment<'a>]) -> Result<Batch<'a>, KernelError> {
        let shape = pool.shape();
        if shape.element != KvElement::F16 || !shape.head_dim.is_multiple_of(LANES) {
            let requirement = "it must be a multiple of 16, and elements must be halves";
            let found = shape.head_dim;
            return Err(KernelError::Unsupported { what: "the KV head size", found, requirement });
        }
        let mut rows = Vec::new();
        let mut first_rows = Vec::with_capacity(segments.len());
        let mut written = Vec::new();
        for (index, segment) in segments.iter().enumerate() {
            let end = segment.start.saturating_add(segment.rows);
            let pages = end.div_ceil(PAGE_POSITIONS);
            let Some(table) = segment.table.get(..pages) else {
                let what = "pages in a block table";
                let found = segment.table.len();
                return Err(KernelError::Shape { what, expected: pages, found });
            };
            for (number, &page) in table.iter().enumerate() {
                let writes = segment.rows > 0 && number >= segment.start / PAGE_POSITIONS;
                match pool.references(page) {
                    0 => return Err(KernelError::PageNotInUse { page }),
                    1 => {}
                    _ if writes => return Err(KernelError::PageShared { page }),
                    _ => {}
                }
                if writes {
                    written.push(page);
                }
            }
            first_rows.push(rows.len());
            rows.extend((segment.start..end).map(|position| (position, index)));
        }
        written.sort_unstable();
        if let Some(pair) = written.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(KernelError::PageShared { page: pair[0] });
        }
        Ok(Batch { pool, segments: segments.to_vec(), first_rows, rows, fast: None })
    }

    /// The same, with the last `rows` rows' products in bf16, those of matrices and of attention.
    ///
    /// # Errors
    /// More rows than there are, or a part of a segment.
    pub fn with_fast(mut self, tiles: Bf16Tiles, rows: usize) -> Result<Batch<'a>, KernelError> {
        let starts = self.first_rows.iter().map(|first| self.rows() - first);
        if rows > 0 && !starts.clone().any(|left| left == rows) {
            let expected = starts.filter(|&left| left < rows).max().unwrap_or(0);
            let what = "rows of whole segments with fast products";
            return Err(KernelError::Shape { what, expected, found: rows });
        }
        self.fast = Some((tiles, rows)).filter(|_| rows > 0);
        Ok(self)
    }

    /// Whether a segment's rows have fast products.
    fn is_fast(&self, segment: usize) -> bool {
        let fast = self.fast.map_or(0, |(_, rows)| rows);
        self.first_rows[segment] >= self.rows() - fast
    }

    /// The last rows whose products are fast.
    pub(crate) fn fast(&self) -> Option<(Bf16Tiles, usize)> {
        self.fast
    }

    /// Rows of all segments.
    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// The position of a row in its sequence.
    pub fn position(&self, row: usize) -> Option<usize> {
        self.rows.get(row).map(|&(position, _)| position)
    }

    /// The checks that every kernel on pages makes.
    pub(crate) fn check(
        &self,
        access: &KvAccess<'_>,
        layer: usize,
    ) -> Result<KvShape, KernelError> {
        let shape = self.pool.shape();
        if !std::ptr::eq(self.pool, access.pool()) {
            let (expected, found) = (self.pool.capacity(), access.pool().capacity());
            return Err(KernelError::Shape { what: "the batch's KV pool", expected, found });
        }
        if layer >= shape.layers {
            let what = "layers of a KV page";
            return Err(KernelError::Shape { what, expected: shape.layers, found: layer + 1 });
        }
        Ok(shape)
    }
}

/// Rows that a thread appends at least: fewer are done before another one has begun.
const APPEND_ROWS: usize = 4;

/// Stores the keys and values of all rows of a batch in one layer; both are
/// `[rows][stride >= kv_heads * head_dim]`.
pub(crate) fn append(
    cpu: Cpu,
    pool: &ThreadPool,
    access: &mut KvAccess<'_>,
    batch: &Batch<'_>,
    layer: usize,
    (keys, values): (&[f32], &[f32]),
    stride: usize,
) -> Result<(), KernelError> {
    let shape = batch.check(access, layer)?;
    expect_size("keys", batch.rows() * stride, keys.len())?;
    expect_size("values", batch.rows() * stride, values.len())?;
    if stride < shape.row() {
        let what = "a row of keys";
        return Err(KernelError::Shape { what, expected: shape.row(), found: stride });
    }
    let pages = access.pages_mut();
    // Runs of rows of about the same size, whole pages of a prefill from a page's start.
    let rows = batch.rows();
    let run = rows.div_ceil(pool.threads()).clamp(APPEND_ROWS, PAGE_POSITIONS);
    let job = |chunk: usize| {
        let some = chunk * run..rows.min((chunk + 1) * run);
        let (keys, values) = (&keys[some.start * stride..], &values[some.start * stride..]);
        // SAFETY: the pool and the layer were checked; runs have their own rows.
        unsafe { append_rows(cpu, &pages, batch, layer, some, (keys, values), stride) }
    };
    let runs = rows.div_ceil(run);
    if runs < 2 {
        (0..runs).for_each(job);
        return Ok(());
    }
    pool.run(runs, &job)
}

/// Stores some rows' keys and values, `[rows][stride]` from the first of them on.
///
/// # Safety
/// [`Batch::check`] has passed for these pages and this layer; nobody else stores these rows, or
/// reads their slots, meanwhile.
pub(crate) unsafe fn append_rows(
    cpu: Cpu,
    pages: &Pages<'_>,
    batch: &Batch<'_>,
    layer: usize,
    rows: Range<usize>,
    (keys, values): (&[f32], &[f32]),
    stride: usize,
) {
    let shape = batch.pool.shape();
    let size = rows.len() * stride;
    assert!(shape.row() <= stride && size <= keys.len().min(values.len()), "keys of other sizes");
    let mut row = rows.start;
    while row < rows.end {
        let (position, segment) = batch.rows[row];
        let (number, slot) = (position / PAGE_POSITIONS, position % PAGE_POSITIONS);
        let page = batch.segments[segment].table[number];
        let left = batch.first_rows[segment] + batch.segments[segment].rows - row;
        let count = (PAGE_POSITIONS - slot).min(left).min(rows.end - row);
        for head in 0..shape.kv_heads {
            let at = (row - rows.start) * stride + head * shape.head_dim;
            let (keys, values) = (keys[at..].as_ptr(), values[at..].as_ptr());
            // SAFETY: `count` rows lie in the inputs, as asserted, and in the page. Layer and head exist, and the page is the pool's (`Batch`). Each slot is
            // written by one row: a segment's positions differ, and segments write different
            // pages. `access` keeps everybody else out.
            unsafe {
                let to = pages.head(page, layer, head).cast::<u16>();
                let to_values = to.add((PAGE_POSITIONS + slot) * shape.head_dim);
                let (dim, to_keys) = (shape.head_dim, to.add(slot));
                elementwise::append(cpu, keys, values, stride, count, dim, to_keys, to_values);
            }
        }
        row += count;
    }
}

/// Scratch of [`attend`], kept between calls.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    plan: Plan,
    states: Vec<f32>,
}

/// Attention of all rows in one layer: `queries` (rotated, scaled by 1/sqrt(head size)) and `out`
/// are `[rows][heads * head_dim]`.
#[allow(clippy::too_many_arguments)]
pub(crate) fn attend(
    cpu: Cpu,
    pool: &ThreadPool,
    access: &mut KvAccess<'_>,
    batch: &Batch<'_>,
    layer: usize,
    heads: usize,
    queries: &[f32],
    out: &mut [f32],
    scratch: &mut Scratch,
) -> Result<(), KernelError> {
    let shape = batch.check(access, layer)?;
    let dim = shape.head_dim;
    let width = heads * dim;
    expect_size("queries", batch.rows() * width, queries.len())?;
    expect_size("attention's output", batch.rows() * width, out.len())?;
    if heads == 0 || !heads.is_multiple_of(shape.kv_heads) {
        let requirement = "it must be a multiple of the KV heads";
        return Err(KernelError::Unsupported { what: "the heads", found: heads, requirement });
    }
    let Scratch { plan, states } = scratch;
    plan.make(batch, (heads, shape.kv_heads, dim), pool.threads());
    if states.len() < plan.states {
        states.resize(plan.states, 0.0);
    }
    let made = plan;
    let (plan, states, out) = (&*made, Shared::new(states), Shared::new(out));
    let pages = access.pages_mut();
    let group = heads / shape.kv_heads;
    // The blocks with which an item begins.
    let begins = |item: &Item| {
        let block = &plan.blocks[item.block];
        let segment = &batch.segments[block.segment];
        let first = chunks::positions(item.chunk).start / PAGE_POSITIONS;
        let end = segment.start + block.row + block.rows;
        kernel::first_blocks(end.div_ceil(PAGE_POSITIONS) - first, dim, |page| {
            let page = segment.table[first + page];
            // SAFETY: layer and head exist; nothing is written there.
            unsafe { pages.head(page, layer, block.head / group).cast_const().cast() }
        })
    };
    let run = |item: usize| {
        let Item { block, chunk } = plan.items[item];
        let block = &plan.blocks[block];
        let segment = &batch.segments[block.segment];
        let first = (batch.first_rows[block.segment] + block.row) * width + block.head * dim;
        let unit = Unit {
            pages: &pages,
            table: segment.table,
            layer,
            kv_head: block.head / group,
            heads: block.heads,
            dim,
            queries: queries[first..].as_ptr(),
            width,
            start: segment.start + block.row,
            rows: block.rows,
            next: begins(plan.items.get(item + 1).unwrap_or(&plan.items[item])),
        };
        let to = out.at(first);
        // SAFETY: a block's rows and heads of `queries`, whose size was compared, and of `out`
        // belong to it alone. The table reaches the segment's end, its pages are the pool's, and
        // nobody writes them. Each chunk has a state of its own; whoever closes the last chunk
        // sees all of them, and is the only one to use them and `out` then.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            if let Some((tiles, _)) = batch.fast.filter(|_| block.fast) {
                return fast::finished(tiles, &unit, to);
            }
            let Some(split) = block.split else {
                return kernel::finished(cpu, &unit, to);
            };
            let size = kernel::state_size(block.rows * block.heads, dim);
            kernel::partial(cpu, &unit, chunk, states.at(split.states + chunk * size));
            if plan.close(split) {
                kernel::merged(cpu, &unit, states.at(split.states), split.chunks, to);
            }
        }
    };
    if !plan.parallel {
        (0..plan.items.len()).for_each(run);
        return Ok(());
    }
    let result = pool.run(plan.pieces(), &|piece| plan.piece(piece).for_each(run));
    if result.is_err() {
        made.forget();
    }
    result
}

#[cfg(test)]
mod tests;
