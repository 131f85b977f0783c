//! How attention's work is divided among threads. It decides nothing about the numbers.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::kernel::{UNIT_QUERIES, state_size};
use super::{Batch, Segment, chunks};

/// Rows of a block at most. Blocks lie at multiples of a power of two, so that their rows see the
/// same chunks.
const BLOCK_ROWS: usize = 16;
/// Rows up to which a segment's chunks may run on several threads.
const SPLIT_ROWS: usize = 4;
/// Multiplications below which a second thread costs more than it saves.
const SERIAL_WORK: usize = 40_000;
/// Pieces of work for a thread.
const PIECES: usize = 2;
/// Queries and rows of a block at most, of segments with fast products: keys and values are packed
/// once for all of them.
pub(super) const FAST_QUERIES: usize = 256;
const FAST_ROWS: usize = 64;
/// Blocks of fast rows that a thread should have, if that leaves them [`BLOCK_ROWS`].
const FAST_BLOCKS: usize = 4;
/// How many times as long other segments take for the same.
const EXACT_COST: usize = 4;

/// The queries of some rows of a segment and some heads that share a KV head.
#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    pub(super) segment: usize,
    /// The first row, counted from the segment's.
    pub(super) row: usize,
    pub(super) rows: usize,
    pub(super) head: usize,
    pub(super) heads: usize,
    pub(super) split: Option<Split>,
    /// Whether its products are fast.
    pub(super) fast: bool,
}

/// A block whose chunks are computed one by one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Split {
    /// Place of the first chunk's state; the others follow.
    pub(super) states: usize,
    pub(super) chunks: usize,
    /// Place of the count of open chunks.
    open: usize,
}

/// A block, or one chunk of one that is split.
#[derive(Debug, Clone, Copy)]
pub(super) struct Item {
    pub(super) block: usize,
    pub(super) chunk: usize,
}

/// What a plan depends on.
#[derive(Debug, Default)]
struct Question {
    /// Heads, KV heads, elements of a head, threads.
    sizes: [usize; 4],
    /// The first position and the rows of each segment, and whether its products are fast.
    segments: Vec<(usize, usize, bool)>,
}

/// The division of a batch's attention. Kept from layer to layer: what other threads have in their
/// caches of it stays there, and making one allocates nothing.
#[derive(Debug, Default)]
pub(super) struct Plan {
    question: Question,
    pub(super) blocks: Vec<Block>,
    /// In an order in which neighbours read the same pages, or neighbouring ones.
    pub(super) items: Vec<Item>,
    /// Where the pieces of `items` end; pieces take about the same time.
    ends: Vec<usize>,
    /// Chunks of each split block that nobody has finished yet.
    open: Vec<AtomicUsize>,
    /// Elements of all states.
    pub(super) states: usize,
    /// Whether a second thread is worth it.
    pub(super) parallel: bool,
}

impl Plan {
    /// Divides a batch's work, unless that is what it is; `heads` is a multiple of `kv_heads`.
    pub(super) fn make(
        &mut self,
        batch: &Batch<'_>,
        (heads, kv_heads, dim): (usize, usize, usize),
        threads: usize,
    ) {
        let sizes = [heads, kv_heads, dim, threads];
        let segments = batch.segments.iter().enumerate();
        let segments = segments.map(|(i, segment)| (segment.start, segment.rows, batch.is_fast(i)));
        let known = &self.question.segments;
        if self.question.sizes == sizes && segments.clone().eq(known.iter().copied()) {
            return;
        }
        self.question.sizes = sizes;
        self.question.segments.clear();
        self.question.segments.extend(segments);
        self.blocks.clear();
        self.items.clear();
        self.ends.clear();
        self.open.clear();
        self.states = 0;
        let work = |segment: &Segment<'_>| segment.rows * segment.end();
        let total = batch.segments.iter().map(work).fold(0, usize::saturating_add);
        self.parallel = threads > 1 && total.saturating_mul(heads * dim) > SERIAL_WORK;
        let group = heads / kv_heads;
        let together = group.min(UNIT_QUERIES);
        let most_rows = |queries, rows| 1 << usize::min(queries / together, rows).ilog2();
        let exact_rows = most_rows(UNIT_QUERIES, BLOCK_ROWS);
        let fast_share =
            batch.fast().map_or(0, |(_, rows)| rows * kv_heads / threads / FAST_BLOCKS);
        let fast_rows = most_rows(FAST_QUERIES, fast_share.clamp(BLOCK_ROWS, FAST_ROWS));
        for (index, segment) in batch.segments.iter().enumerate() {
            let fast = batch.is_fast(index);
            let most_rows = if fast { fast_rows } else { exact_rows };
            // What is small next to a thread's share need not be divided further.
            let split = self.parallel
                && !fast
                && segment.rows <= SPLIT_ROWS
                && work(segment).saturating_mul(threads * PIECES) > total;
            for first in (0..heads).step_by(group) {
                for head in (first..first + group).step_by(together) {
                    let heads = together.min(first + group - head);
                    let mut row = 0;
                    while row < segment.rows {
                        let start = segment.start + row;
                        let rows = (most_rows - start % most_rows).min(segment.rows - row);
                        let block =
                            Block { segment: index, row, rows, head, heads, split: None, fast };
                        self.add(block, if split { chunks::count(start + rows) } else { 1 }, dim);
                        row += rows;
                    }
                }
            }
        }
        self.cut(batch, if self.parallel { threads * PIECES } else { 1 });
    }

    /// Adds a block as so many items.
    fn add(&mut self, mut block: Block, chunks: usize, dim: usize) {
        let number = self.blocks.len();
        if chunks > 1 {
            block.split = Some(Split { states: self.states, chunks, open: self.open.len() });
            self.states += chunks * state_size(block.rows * block.heads, dim);
            self.open.push(AtomicUsize::new(chunks));
        }
        self.items.extend((0..chunks).map(|chunk| Item { block: number, chunk }));
        self.blocks.push(block);
    }

    /// Cuts the items into at most `most` pieces.
    fn cut(&mut self, batch: &Batch<'_>, most: usize) {
        let cost = |item: &Item| {
            let block = &self.blocks[item.block];
            let end = batch.segments[block.segment].start + block.row + block.rows;
            let positions = match block.split {
                Some(_) => chunks::positions(item.chunk),
                None => 0..end,
            };
            let each = if block.fast { 1 } else { EXACT_COST };
            block.rows * block.heads * (positions.end.min(end) - positions.start) * each
        };
        let total: usize = self.items.iter().map(cost).sum();
        let mut before = 0;
        for (index, item) in self.items.iter().enumerate() {
            before += cost(item);
            if before * most >= total * (self.ends.len() + 1) {
                self.ends.push(index + 1);
            }
        }
    }

    pub(super) fn pieces(&self) -> usize {
        self.ends.len()
    }

    /// The items of a piece.
    pub(super) fn piece(&self, piece: usize) -> Range<usize> {
        (if piece == 0 { 0 } else { self.ends[piece - 1] })..self.ends[piece]
    }

    /// Notes that a chunk of a split block is done; whether it was the last one, so that the
    /// caller can see what all of them wrote.
    pub(super) fn close(&self, split: Split) -> bool {
        let open = &self.open[split.open];
        let last = open.fetch_sub(1, Ordering::AcqRel) == 1;
        if last {
            // For the next layer, which starts after this region's end.
            open.store(split.chunks, Ordering::Relaxed);
        }
        last
    }

    /// Makes the next call of [`make`](Self::make) start afresh: after chunks that were never
    /// computed, which would be waited for.
    pub(super) fn forget(&mut self) {
        self.question = Question::default();
    }
}
