//! Attention over KV pages, for decoding and prefill alike.
//!
//! A query at position p sees positions 0 to p of its sequence. They are taken in chunks of 256
//! positions, at absolute places: inside a chunk pages go by in order, with a running maximum and
//! one rescaling a page; chunks are merged in ascending order. This sequence of operations is the
//! same for every query, whether it is one row of a decoding step (whose chunks may run on several
//! threads) or one of a prefill chunk's many (whose chunks run one after the other), so the result
//! has the same bits.
//!
//! Queries of the heads that share a KV head, and neighbouring rows of a prefill, are processed
//! together: every key and value is loaded and widened once for several of them.

mod kernel;

use std::ops::Range;

use crate::dispatch::Cpu;
use crate::elementwise;
use crate::error::{KernelError, expect_size};
use crate::pages::{KvAccess, KvElement, KvPool, KvShape, PAGE_POSITIONS, PageId};
use crate::pool::ThreadPool;
use crate::shared::Shared;
use crate::simd::LANES;

use kernel::{CHUNK_PAGES, Unit, state_size};

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

    fn chunks(&self) -> usize {
        self.end().div_ceil(CHUNK_PAGES * PAGE_POSITIONS)
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
    /// Position of each row, and its segment.
    rows: Vec<(usize, usize)>,
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
            rows.extend((segment.start..end).map(|position| (position, index)));
        }
        written.sort_unstable();
        if let Some(pair) = written.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(KernelError::PageShared { page: pair[0] });
        }
        Ok(Batch { pool, segments: segments.to_vec(), rows })
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
    fn check(&self, access: &KvAccess<'_>, layer: usize) -> Result<KvShape, KernelError> {
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
    const ROWS: usize = 32;
    pool.run(batch.rows().div_ceil(ROWS), &|chunk| {
        let first = chunk * ROWS;
        for row in first..batch.rows().min(first + ROWS) {
            let (position, segment) = batch.rows[row];
            let page = batch.segments[segment].table[position / PAGE_POSITIONS];
            let slot = position % PAGE_POSITIONS;
            for head in 0..shape.kv_heads {
                let at = row * stride + head * shape.head_dim;
                let (key, value) = (&keys[at..][..shape.head_dim], &values[at..][..shape.head_dim]);
                // SAFETY: layer and head exist, and the page is the pool's (`Batch`). Each slot is
                // written by one row: a segment's positions differ, and segments write different
                // pages. `access` keeps everybody else out.
                unsafe {
                    let to_key = pages.head(page, layer, head).cast::<u16>().add(slot);
                    let to_value = to_key
                        .add(PAGE_POSITIONS * shape.head_dim - slot)
                        .add(slot * shape.head_dim);
                    let (key, value) = (key.as_ptr(), value.as_ptr());
                    elementwise::append(cpu, key, value, shape.head_dim, to_key, to_value);
                }
            }
        }
    })
}

/// Scratch of [`attend`], kept between calls.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    partial: Vec<f32>,
}

/// What one chunk of the parallel region does.
enum Work {
    /// Some rows of a segment, all chunks, finished: (segment, KV head, rows of the segment).
    Rows(usize, usize, Range<usize>),
    /// All rows of a segment, one chunk, left as partial states: (segment, KV head, chunk, place
    /// of the segment's partial states).
    Partial(usize, usize, usize, usize),
}

/// Rows of a prefill that are processed together.
const ROW_BLOCK: usize = 16;
/// Rows up to which a segment's chunks may run on several threads.
const SPLIT_ROWS: usize = 4;
/// Multiplications below which a second thread costs more than it saves.
const SERIAL_WORK: usize = 150_000;

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
    let width = heads * shape.head_dim;
    expect_size("queries", batch.rows() * width, queries.len())?;
    expect_size("attention's output", batch.rows() * width, out.len())?;
    if heads == 0 || !heads.is_multiple_of(shape.kv_heads) {
        let requirement = "it must be a multiple of the KV heads";
        return Err(KernelError::Unsupported { what: "the heads", found: heads, requirement });
    }
    let group = heads / shape.kv_heads;
    let state = state_size(shape.head_dim);
    let multiplications: usize =
        batch.segments.iter().map(|s| s.rows * s.end() * width).fold(0, usize::saturating_add);
    let parallel = pool.threads() > 1 && multiplications > SERIAL_WORK;
    let mut work = Vec::new();
    let mut merges = Vec::new();
    let mut partial = 0;
    let mut first_rows = Vec::with_capacity(batch.segments.len());
    let mut first_row = 0;
    for (index, segment) in batch.segments.iter().enumerate() {
        first_rows.push(first_row);
        first_row += segment.rows;
        let split = parallel && segment.rows <= SPLIT_ROWS && segment.chunks() > 1;
        if split {
            // [chunk][row][head][state]
            for head in 0..shape.kv_heads {
                for chunk in 0..segment.chunks() {
                    work.push(Work::Partial(index, head, chunk, partial));
                }
            }
            merges.push((index, partial));
            partial += segment.chunks() * segment.rows * heads * state;
        } else {
            for first in (0..segment.rows).step_by(ROW_BLOCK) {
                for head in 0..shape.kv_heads {
                    let rows = first..segment.rows.min(first + ROW_BLOCK);
                    work.push(Work::Rows(index, head, rows));
                }
            }
        }
    }
    if scratch.partial.len() < partial {
        scratch.partial.resize(partial, 0.0);
    }
    let pages = access.pages_mut();
    let partial = Shared::new(&mut scratch.partial);
    let out = Shared::new(out);
    let run = |chunk: usize| {
        let (index, kv_head, rows) = match &work[chunk] {
            Work::Rows(index, head, rows) => (*index, *head, rows.clone()),
            Work::Partial(index, head, ..) => (*index, *head, 0..batch.segments[*index].rows),
        };
        let segment = &batch.segments[index];
        let first = (first_rows[index] + rows.start) * width + kv_head * group * shape.head_dim;
        let unit = Unit {
            pages: &pages,
            table: segment.table,
            layer,
            kv_head,
            group,
            dim: shape.head_dim,
            // SAFETY-relevant: within `queries`, whose size was compared above.
            queries: queries[first..].as_ptr(),
            width,
            start: segment.start + rows.start,
            rows: rows.len(),
        };
        match work[chunk] {
            Work::Rows(..) => {
                // SAFETY: the unit's rows and heads of `out` belong to this chunk alone; the table
                // reaches the segment's end, its pages are the pool's, and nobody writes them.
                unsafe { kernel::finished(cpu, &unit, out.at(first)) }
            }
            Work::Partial(_, _, number, place) => {
                let place = place + (number * segment.rows * heads + kv_head * group) * state;
                // SAFETY: as above; this chunk's states of these heads are its own.
                unsafe { kernel::partial(cpu, &unit, number, partial.at(place), heads * state) }
            }
        }
    };
    if parallel {
        pool.run(work.len(), &run)?;
    } else {
        (0..work.len()).for_each(run);
    }
    for (index, place) in merges {
        let segment = &batch.segments[index];
        for row in 0..segment.rows {
            for head in 0..heads {
                let from = place + (row * heads + head) * state;
                let to = (first_rows[index] + row) * width + head * shape.head_dim;
                let visible = (segment.start + row + 1).div_ceil(CHUNK_PAGES * PAGE_POSITIONS);
                // SAFETY: `visible` chunks of this row were computed into `partial`; nobody else
                // uses either buffer any more.
                unsafe {
                    let stride = segment.rows * heads * state;
                    let (from, to) = (partial.at(from), out.at(to));
                    kernel::merged(cpu, from, stride, visible, shape.head_dim, to);
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
