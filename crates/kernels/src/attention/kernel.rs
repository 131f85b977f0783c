//! The inner loops of attention. See the parent module for what is fixed about their order.
//!
//! A unit's queries go through a chunk in three passes: scores, weights, weighted values. With few
//! queries (`few.rs`), what a page holds is widened as it is used; with many (`many.rs`), once for
//! all of them. Both follow the same sequence of operations for each query.

use std::mem::MaybeUninit;

use super::chunks::{self, CHUNK_PAGES};
use super::softmax::Softmax;
use super::{few, many};
use crate::dispatch::Cpu;
use crate::pages::{PAGE_POSITIONS, PageId, Pages};
use crate::simd::{Ahead, LANES, ROW_STRIDE, STREAMS, Simd, tiered};

/// Queries of a unit at most.
pub(super) const UNIT_QUERIES: usize = 64;
/// Elements of a query that are multiplied in one go.
pub(super) const PANEL: usize = 256;

/// The queries of some rows and heads with one KV head of one layer.
///
/// The rows see the same chunks (though not the same positions of the last one).
pub(super) struct Unit<'a> {
    pub(super) pages: &'a Pages<'a>,
    pub(super) table: &'a [PageId],
    pub(super) layer: usize,
    pub(super) kv_head: usize,
    /// Query heads, of those that share the KV head.
    pub(super) heads: usize,
    pub(super) dim: usize,
    /// The first row's first query; its heads are `dim` apart, rows `width`.
    pub(super) queries: *const f32,
    pub(super) width: usize,
    /// Position of the first row.
    pub(super) start: usize,
    pub(super) rows: usize,
    /// The blocks that are needed after this unit.
    pub(super) next: [*const u16; STREAMS],
}

impl Unit<'_> {
    pub(super) fn queries(&self) -> usize {
        self.rows * self.heads
    }

    /// From the first query to query `index`, in elements, in the input and the output.
    #[inline(always)]
    pub(super) fn offset(&self, index: usize) -> usize {
        index / self.heads * self.width + index % self.heads * self.dim
    }

    /// The keys of a page; its values follow.
    ///
    /// # Safety
    /// The unit's contract; `index` is in the table.
    #[inline(always)]
    pub(super) unsafe fn keys(&self, index: usize) -> *const u16 {
        // SAFETY: layer and head exist.
        unsafe { self.pages.head(self.table[index], self.layer, self.kv_head).cast() }
    }
}

/// Rows as [`Simd::accumulate`] takes them, at a cache line's boundary.
#[repr(align(64))]
pub(super) struct Rows<const R: usize>(pub(super) [[f32; ROW_STRIDE]; R]);

/// The states of a unit's queries after one chunk, as [`partial`] leaves them: `lanes` maxima (one
/// a query, the number of queries rounded up to whole vectors), as many sums, then the weighted
/// sums of values, `dim` a query.
pub(super) fn state_size(queries: usize, dim: usize) -> usize {
    2 * queries.next_multiple_of(LANES) + queries * dim
}

/// All chunks of a unit; row r's head g goes to `out + r * width + g * dim`.
///
/// # Safety
/// The unit has 1 to [`UNIT_QUERIES`] queries; its table reaches its last position, with pages
/// whose contents are stored up to it; `queries` and `out` are valid for its rows; nobody
/// writes any of it meanwhile.
pub(super) unsafe fn finished(cpu: Cpu, unit: &Unit<'_>, out: *mut f32) {
    let run = if many::pays(cpu, unit.queries()) { finished_many } else { finished_few };
    // SAFETY: the contract above.
    unsafe { run(cpu, unit, out) };
}

/// One chunk of a unit, left at `state`.
///
/// # Safety
/// As for [`finished`], and the rows see the chunk; `state` is valid for [`state_size`]
/// elements.
pub(super) unsafe fn partial(cpu: Cpu, unit: &Unit<'_>, chunk: usize, state: *mut f32) {
    let run = if many::pays(cpu, unit.queries()) { partial_many } else { partial_few };
    // SAFETY: the contract above.
    unsafe { run(cpu, unit, chunk, state) };
}

// Functions of their own, because those for many queries have large frames.
tiered! { fn finished_few(unit: &Unit<'_>, out: *mut f32) = finished_few_with; }
tiered! { fn finished_many(unit: &Unit<'_>, out: *mut f32) = finished_many_with; }
tiered! { fn partial_few(unit: &Unit<'_>, chunk: usize, state: *mut f32) = partial_few_with; }
tiered! { fn partial_many(unit: &Unit<'_>, chunk: usize, state: *mut f32) = partial_many_with; }

tiered! {
    /// Merges a unit's `count` states, which lie one after another, into `out`, laid out as
    /// [`finished`] does.
    ///
    /// # Safety
    /// The states are valid, `out` is for the unit's rows.
    pub(super) fn merged(unit: &Unit<'_>, states: *const f32, count: usize, out: *mut f32)
        = merged_with;
}

#[inline(always)]
unsafe fn finished_few_with<S: Simd>(unit: &Unit<'_>, out: *mut f32) {
    // SAFETY: the contract of `finished`.
    unsafe { finished_with::<S, false>(unit, out) };
}

#[inline(always)]
unsafe fn finished_many_with<S: Simd>(unit: &Unit<'_>, out: *mut f32) {
    // SAFETY: the contract of `finished`.
    unsafe { finished_with::<S, true>(unit, out) };
}

#[inline(always)]
unsafe fn partial_few_with<S: Simd>(unit: &Unit<'_>, chunk: usize, state: *mut f32) {
    // SAFETY: the contract of `partial`.
    unsafe {
        let part = Part::new(unit, chunk, true);
        few::all_queries::<S>(unit, &part, &Target::State(state));
    }
}

#[inline(always)]
unsafe fn partial_many_with<S: Simd>(unit: &Unit<'_>, chunk: usize, state: *mut f32) {
    // SAFETY: the contract of `partial`.
    unsafe {
        let part = Part::new(unit, chunk, true);
        many::all_queries::<S>(unit, &part, &Target::State(state));
    }
}

#[inline(always)]
unsafe fn finished_with<S: Simd, const MANY: bool>(unit: &Unit<'_>, out: *mut f32) {
    let chunks = chunks::count(unit.start + unit.rows);
    // Groups have two queries or more, or are the last; each total is written before it is read.
    let mut totals = [const { MaybeUninit::<Softmax>::uninit() }; UNIT_QUERIES / 2 + 1];
    let totals = totals.as_mut_ptr().cast::<Softmax>();
    for chunk in 0..chunks {
        let (first, last) = (chunk == 0, chunk + 1 == chunks);
        let to = Target::Output { out, totals, first, last };
        // SAFETY: the contract of `finished`.
        unsafe {
            let part = Part::new(unit, chunk, last);
            if MANY {
                many::all_queries::<S>(unit, &part, &to);
            } else {
                few::all_queries::<S>(unit, &part, &to);
            }
        }
    }
}

#[inline(always)]
unsafe fn merged_with<S: Simd>(unit: &Unit<'_>, states: *const f32, count: usize, out: *mut f32) {
    let queries = unit.queries();
    let (size, dim) = (state_size(queries, unit.dim), unit.dim);
    let lanes = queries.next_multiple_of(LANES);
    for first in (0..queries).step_by(LANES) {
        let some = (queries - first).min(LANES);
        // SAFETY: the contract of `merged`; lanes beyond the queries are computed and not used.
        unsafe {
            let mut total = Softmax { most: [0.0; LANES], sum: [0.0; LANES] };
            for chunk in 0..count {
                let state = states.add(chunk * size);
                let new = Softmax {
                    most: state.add(first).cast::<[f32; LANES]>().read(),
                    sum: state.add(lanes + first).cast::<[f32; LANES]>().read(),
                };
                let factors = total.merge::<S>(&new, chunk == 0, chunk + 1 == count);
                for query in 0..some {
                    let from = state.add(2 * lanes + (first + query) * dim);
                    let to = out.add(unit.offset(first + query));
                    for d in (0..dim).step_by(LANES) {
                        let sum = S::load(from.add(d));
                        factors.store::<S>(query, sum, to.add(d));
                    }
                }
            }
        }
    }
}

/// Where a chunk's results go.
pub(super) enum Target {
    /// Merged into the output at once, with a total for each group of queries.
    Output { out: *mut f32, totals: *mut Softmax, first: bool, last: bool },
    /// Kept for [`merged`].
    State(*mut f32),
}

/// Halves of a cache line.
const LINE: usize = 32;

/// The first blocks from a chunk on, where so many pages are left: keys, then values (and these
/// again, of a single page).
#[inline(always)]
pub(super) fn first_blocks(
    pages: usize,
    dim: usize,
    keys: impl Fn(usize) -> *const u16,
) -> [*const u16; STREAMS] {
    std::array::from_fn(|block| {
        let values = block / pages % 2 * dim * PAGE_POSITIONS;
        keys(block % pages).wrapping_add(values)
    })
}

/// One chunk of a unit. Its blocks are the keys, or the values, of one page.
pub(super) struct Part {
    /// Position at which the chunk starts.
    pub(super) start: usize,
    /// Pages that the unit's last row sees.
    pub(super) pages: usize,
    /// Keys of all pages, values of all pages, and what is needed next.
    pub(super) blocks: [*const u16; 2 * CHUNK_PAGES + STREAMS],
}

impl Part {
    /// # Safety
    /// The contract of [`finished`]; the last row sees the chunk.
    #[inline(always)]
    unsafe fn new(unit: &Unit<'_>, chunk: usize, last: bool) -> Part {
        let positions = chunks::positions(chunk);
        let end = (unit.start + unit.rows).min(positions.end);
        let first = positions.start / PAGE_POSITIONS;
        let pages = end.div_ceil(PAGE_POSITIONS) - first;
        let mut blocks = [unit.next[0]; 2 * CHUNK_PAGES + STREAMS];
        // SAFETY: the table reaches the last row's position.
        unsafe {
            for i in 0..pages {
                let keys = unit.keys(first + i);
                blocks[i] = keys;
                blocks[pages + i] = keys.add(unit.dim * PAGE_POSITIONS);
            }
            let next = if last {
                unit.next
            } else {
                let seen = (unit.start + unit.rows).div_ceil(PAGE_POSITIONS);
                let next = first + pages;
                first_blocks(seen - next, unit.dim, |page| unit.keys(next + page))
            };
            blocks[2 * pages..][..STREAMS].copy_from_slice(&next);
        }
        Part { start: positions.start, pages, blocks }
    }

    /// What to ask for while the elements `from` to `from + count` of four blocks, from `block` on,
    /// are in use: the same of the four that follow. Where fewer are left, as many.
    #[inline(always)]
    pub(super) fn ahead(&self, block: usize, (from, count): (usize, usize)) -> Ahead {
        let left = 2 * self.pages - block;
        let lines = |block: usize, line: usize| -> *const u8 {
            self.blocks[block].wrapping_add((from + line) * LINE).cast()
        };
        if left >= STREAMS {
            let at = std::array::from_fn(|i| lines(block + STREAMS + i, 0));
            return Ahead::new(at, STREAMS * count);
        }
        // Two are left, as a chunk has as many keys as values; each is two streams. The first two
        // of the next chunk are known by then, unless this one has but a single page.
        let next = if block == 0 { left } else { block + STREAMS };
        let half = count / 2;
        let at = [lines(next, 0), lines(next + 1, 0), lines(next, half), lines(next + 1, half)];
        Ahead::new(at, 2 * count)
    }
}
