//! The inner loops of attention. See the parent module for what is fixed about their order.
//!
//! Both products, of queries with keys and of weights with values, are [`Simd::accumulate`]: some
//! queries at a time against rows of 32 (or 64) halves. Scores and weights of a chunk stay in the
//! first-level cache.

use std::mem::MaybeUninit;

use super::chunks::{self, CHUNK_PAGES};
use crate::pages::{PAGE_POSITIONS, PageId, Pages};
use crate::simd::{LANES, ROW_STRIDE, Simd, exp2, tiered};

/// Queries of a unit at most.
pub(super) const UNIT_QUERIES: usize = 64;
/// Queries that are processed together at most, on any tier.
const TOGETHER: usize = 12;
/// Elements of a query that are multiplied in one go.
const PANEL: usize = 256;
/// The vectors of a page's positions.
const PAGE_VECTORS: usize = PAGE_POSITIONS / LANES;
/// Blocks (a page's keys or values) between the one in use and the one that is asked for.
const AHEAD: usize = 2;

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
    /// Where the keys and the values start that are needed after this unit.
    pub(super) next: [*const u16; AHEAD],
}

impl Unit<'_> {
    fn queries(&self) -> usize {
        self.rows * self.heads
    }

    /// From the first query to query `index`, in elements, in the input and the output.
    #[inline(always)]
    fn offset(&self, index: usize) -> usize {
        index / self.heads * self.width + index % self.heads * self.dim
    }

    /// The keys of a page; its values follow.
    ///
    /// # Safety
    /// The unit's contract; `index` is in the table.
    #[inline(always)]
    unsafe fn keys(&self, index: usize) -> *const u16 {
        // SAFETY: layer and head exist.
        unsafe { self.pages.head(self.table[index], self.layer, self.kv_head).cast() }
    }
}

/// Rows as [`Simd::accumulate`] takes them, at a cache line's boundary.
#[repr(align(64))]
struct Rows<const R: usize>([[f32; ROW_STRIDE]; R]);

/// What is known of some queries' softmax over the positions so far.
#[repr(align(64))]
struct Softmax {
    /// The largest score.
    most: [f32; LANES],
    /// The sum of the weights.
    sum: [f32; LANES],
}

/// The states of a unit's queries after one chunk, as [`partial`] leaves them: `lanes` maxima (one
/// a query, the number of queries rounded up to whole vectors), as many sums, then the weighted
/// sums of values, `dim` a query.
pub(super) fn state_size(queries: usize, dim: usize) -> usize {
    2 * queries.next_multiple_of(LANES) + queries * dim
}

tiered! {
    /// All chunks of a unit; row r's head g goes to `out + r * width + g * dim`.
    ///
    /// # Safety
    /// The unit has 1 to [`UNIT_QUERIES`] queries; its table reaches its last position, with pages
    /// whose contents are stored up to it; `queries` and `out` are valid for its rows; nobody
    /// writes any of it meanwhile.
    pub(super) fn finished(unit: &Unit<'_>, out: *mut f32) = finished_with;
}

tiered! {
    /// One chunk of a unit, left at `state`.
    ///
    /// # Safety
    /// As for [`finished`], and the rows see the chunk; `state` is valid for [`state_size`]
    /// elements.
    pub(super) fn partial(unit: &Unit<'_>, chunk: usize, state: *mut f32) = partial_with;
}

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
unsafe fn finished_with<S: Simd>(unit: &Unit<'_>, out: *mut f32) {
    let chunks = chunks::count(unit.start + unit.rows);
    // Groups have two queries or more, or are the last; each total is written before it is read.
    let mut totals = [const { MaybeUninit::<Softmax>::uninit() }; UNIT_QUERIES / 2 + 1];
    let totals = totals.as_mut_ptr().cast::<Softmax>();
    for chunk in 0..chunks {
        let (first, last) = (chunk == 0, chunk + 1 == chunks);
        let to = Target::Output { out, totals, first, last };
        // SAFETY: the contract of `finished`.
        unsafe { all_queries::<S>(unit, &Part::new(unit, chunk, last), &to) };
    }
}

#[inline(always)]
unsafe fn partial_with<S: Simd>(unit: &Unit<'_>, chunk: usize, state: *mut f32) {
    // SAFETY: the contract of `partial`.
    unsafe { all_queries::<S>(unit, &Part::new(unit, chunk, true), &Target::State(state)) };
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

/// What the sums so far and those of a new chunk are multiplied with.
struct Factors {
    old: [f32; LANES],
    new: [f32; LANES],
    /// For the last chunk: one over the sum of weights.
    mean: [f32; LANES],
    first: bool,
    last: bool,
}

impl Softmax {
    /// Takes in a later chunk's.
    #[inline(always)]
    unsafe fn merge<S: Simd>(&mut self, new: &Softmax, first: bool, last: bool) -> Factors {
        let (old, mean) = ([0.0; LANES], [0.0; LANES]);
        let mut factors = Factors { old, new: old, mean, first, last };
        // SAFETY: all are vectors.
        unsafe {
            let (most, sum) = (S::load(new.most.as_ptr()), S::load(new.sum.as_ptr()));
            let sum = if first {
                S::store(self.most.as_mut_ptr(), most);
                sum
            } else {
                let before = S::load(self.most.as_ptr());
                let both = S::max(before, most);
                let (x, y) = (exp2::<S>(S::sub(before, both)), exp2::<S>(S::sub(most, both)));
                S::store(self.most.as_mut_ptr(), both);
                S::store(factors.old.as_mut_ptr(), x);
                S::store(factors.new.as_mut_ptr(), y);
                S::fma(S::load(self.sum.as_ptr()), x, S::mul(sum, y))
            };
            S::store(self.sum.as_mut_ptr(), sum);
            if last {
                S::store(factors.mean.as_mut_ptr(), S::div(S::splat(1.0), sum));
            }
        }
        factors
    }
}

impl Factors {
    /// Merges a new chunk's sums of values into the output.
    #[inline(always)]
    unsafe fn store<S: Simd>(&self, query: usize, mut sum: S::F, to: *mut f32) {
        // SAFETY: `to` is a vector of the output.
        unsafe {
            if !self.first {
                let new = S::mul(sum, S::splat(self.new[query]));
                sum = S::fma(S::load(to), S::splat(self.old[query]), new);
            }
            if self.last {
                sum = S::mul(sum, S::splat(self.mean[query]));
            }
            S::store(to, sum);
        }
    }
}

/// Where a chunk's results go.
enum Target {
    /// Merged into the output at once, with a total for each group of queries.
    Output { out: *mut f32, totals: *mut Softmax, first: bool, last: bool },
    /// Kept for [`merged`].
    State(*mut f32),
}

/// One chunk of a unit.
struct Part {
    /// Position at which the chunk starts.
    start: usize,
    /// Pages that the unit's last row sees.
    pages: usize,
    /// Keys of all pages, values of all pages, and what is needed next.
    blocks: [*const u16; 2 * CHUNK_PAGES + AHEAD],
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
        let mut blocks = [unit.next[0]; 2 * CHUNK_PAGES + AHEAD];
        // SAFETY: the table reaches the last row's position.
        unsafe {
            for i in 0..pages {
                let keys = unit.keys(first + i);
                blocks[i] = keys;
                blocks[pages + i] = keys.add(unit.dim * PAGE_POSITIONS);
            }
            let next = &mut blocks[2 * pages..][..AHEAD];
            next.copy_from_slice(&unit.next);
            if !last {
                next[0] = unit.keys(first + pages);
                let after = first + pages + 1;
                let seen = (unit.start + unit.rows).div_ceil(PAGE_POSITIONS);
                next[1] = if after < seen {
                    unit.keys(after)
                } else {
                    next[0].add(unit.dim * PAGE_POSITIONS)
                };
            }
        }
        Part { start: positions.start, pages, blocks }
    }
}

/// All queries of a unit with one chunk, as many at a time as fit the registers.
#[inline(always)]
unsafe fn all_queries<S: Simd>(unit: &Unit<'_>, part: &Part, to: &Target) {
    let (mut first, mut group) = (0, 0);
    macro_rules! take {
        ($($count:literal)*) => {
            match together::<S>(unit.queries() - first) {
                $($count if $count <= S::ROWS => {
                    // SAFETY: the contract of `finished`; the queries are the unit's.
                    unsafe { queries::<S, $count>(unit, part, (first, group), to) }
                })*
                // SAFETY: as above.
                _ => unsafe { queries::<S, 1>(unit, part, (first, group), to) },
            }
        };
    }
    while first < unit.queries() {
        first += take!(12 8 7 6 5 4 3 2);
        group += 1;
    }
}

/// How many of `count` queries are processed together: parts of about the same size.
#[inline(always)]
fn together<S: Simd>(count: usize) -> usize {
    if S::ROWS < TOGETHER {
        return match count {
            4 => 2,
            _ => count.min(3),
        };
    }
    match count {
        17.. | 12 => 12,
        13..=16 => 8,
        9..=11 => count.div_ceil(2),
        _ => count,
    }
}

/// `R` queries with one chunk: all scores, their maximum, weights, weighted values.
#[inline(always)]
unsafe fn queries<S: Simd, const R: usize>(
    unit: &Unit<'_>,
    part: &Part,
    (first, group): (usize, usize),
    to: &Target,
) -> usize {
    let dim = unit.dim;
    let blocks = part.blocks.as_ptr();
    // Only the first queries ask for what follows: the others find it in the cache.
    let ahead = |block: usize| if first == 0 { block + AHEAD } else { block };
    let mut scores = MaybeUninit::<Rows<R>>::uninit();
    let scores = scores.as_mut_ptr().cast::<f32>();
    let mut panel = MaybeUninit::<Rows<R>>::uninit();
    let panel = panel.as_mut_ptr().cast::<f32>();
    // SAFETY: the contract of `finished`. `scores` is written for all positions of the chunk's
    // pages before it is read, `panel` for the elements that are multiplied.
    unsafe {
        let mut from = 0;
        while from < dim {
            let count = (dim - from).min(PANEL);
            for r in 0..R {
                let query = unit.queries.add(unit.offset(first + r) + from);
                for d in (0..count).step_by(LANES) {
                    // Scores are exponents of 2.
                    let q = S::mul(S::load(query.add(d)), S::splat(std::f32::consts::LOG2_E));
                    S::store(panel.add(r * ROW_STRIDE + d), q);
                }
            }
            for page in 0..part.pages {
                let to = scores.add(page * PAGE_POSITIONS);
                let mut sums = [[S::splat(0.0); PAGE_VECTORS]; R];
                if from > 0 {
                    for r in 0..R {
                        for v in 0..PAGE_VECTORS {
                            sums[r][v] = S::load(to.add(r * ROW_STRIDE + v * LANES));
                        }
                    }
                }
                let keys = (*blocks.add(page)).add(from * PAGE_POSITIONS);
                let next = (*blocks.add(ahead(page))).wrapping_add(from * PAGE_POSITIONS);
                let (keys, next) = ((keys, PAGE_POSITIONS), (next.cast(), PAGE_POSITIONS * 2));
                S::accumulate::<R, PAGE_VECTORS>(&mut sums, panel, keys, count, next);
                for r in 0..R {
                    for v in 0..PAGE_VECTORS {
                        S::store(to.add(r * ROW_STRIDE + v * LANES), sums[r][v]);
                    }
                }
            }
            from += count;
        }

        // Positions of the chunk that a query's row sees.
        let end = part.pages * PAGE_POSITIONS;
        let seen = |r: usize| (unit.start + (first + r) / unit.heads + 1 - part.start).min(end);
        let mut new = Softmax { most: [0.0; LANES], sum: [0.0; LANES] };
        for r in 0..R {
            let row = scores.add(r * ROW_STRIDE);
            (new.most[r], new.sum[r]) = weights::<S>(row, seen(r));
        }

        let factors = match to {
            Target::Output { totals, first, last, .. } => {
                (*totals.add(group)).merge::<S>(&new, *first, *last)
            }
            Target::State(state) => {
                let lanes = unit.queries().next_multiple_of(LANES);
                for r in 0..R {
                    *state.add(first + r) = new.most[r];
                    *state.add(lanes + first + r) = new.sum[r];
                }
                let zeros = [0.0; LANES];
                Factors { old: zeros, new: zeros, mean: zeros, first: true, last: false }
            }
        };
        let mut targets = [std::ptr::null_mut(); R];
        for r in 0..R {
            targets[r] = match to {
                Target::Output { out, .. } => out.add(unit.offset(first + r)),
                Target::State(state) => {
                    state.add(2 * unit.queries().next_multiple_of(LANES) + (first + r) * dim)
                }
            };
        }
        let sums = Values { part, dim, scores, factors: &factors, targets: &targets, first };
        let seen = (seen(0), seen(R - 1));
        let mut d = 0;
        while d < dim {
            d += match dim - d {
                n if n >= 64 && S::ROWS >= R * 2 => sums.add::<S, 4>(unit, seen, d),
                n if n >= 32 => sums.add::<S, 2>(unit, seen, d),
                _ => sums.add::<S, 1>(unit, seen, d),
            };
        }
    }
    R
}

/// Turns the first `seen` scores of a query (exponents of 2) into weights. Returns the largest
/// score and the sum of the weights.
#[inline(always)]
unsafe fn weights<S: Simd>(scores: *mut f32, seen: usize) -> (f32, f32) {
    let whole = seen / LANES * LANES;
    // SAFETY: a row of scores, up to whole pages.
    unsafe {
        let mut most = S::splat(f32::NEG_INFINITY);
        for i in (0..whole).step_by(LANES) {
            most = S::max(most, S::load(scores.add(i)));
        }
        if whole < seen {
            let last = S::load(scores.add(whole));
            most = S::max(most, S::keep_below(last, seen - whole, f32::NEG_INFINITY));
        }
        let most = S::max_lane(most);
        let shift = S::splat(most);
        let mut sum = S::splat(0.0);
        for i in (0..whole).step_by(LANES) {
            let w = exp2::<S>(S::sub(S::load(scores.add(i)), shift));
            S::store(scores.add(i), w);
            sum = S::add(sum, w);
        }
        if whole < seen {
            let w = exp2::<S>(S::sub(S::load(scores.add(whole)), shift));
            S::store(scores.add(whole), w);
            sum = S::add(sum, S::keep_below(w, seen - whole, 0.0));
        }
        (most, S::sum(sum))
    }
}

/// The second product: weights with values.
struct Values<'a, const R: usize> {
    part: &'a Part,
    dim: usize,
    /// Weights by now.
    scores: *const f32,
    factors: &'a Factors,
    targets: &'a [*mut f32; R],
    /// The first query's number.
    first: usize,
}

impl<const R: usize> Values<'_, R> {
    /// Elements `d` to `d + V * 16` of all positions. Returns `V * 16`.
    #[inline(always)]
    unsafe fn add<S: Simd, const V: usize>(
        &self,
        unit: &Unit<'_>,
        (fewest, most): (usize, usize),
        d: usize,
    ) -> usize {
        let Values { part, dim, scores, .. } = *self;
        let blocks = part.blocks.as_ptr();
        let values = part.pages;
        // SAFETY: the contract of `finished`; positions that a query sees have weights.
        unsafe {
            let mut sums = [[S::splat(0.0); V]; R];
            for page in 0..part.pages {
                let start = page * PAGE_POSITIONS;
                let count = fewest.saturating_sub(start).min(PAGE_POSITIONS);
                let rows = ((*blocks.add(values + page)).add(d), dim);
                let next = if self.first > 0 {
                    (rows.0, dim)
                } else if page + AHEAD < part.pages {
                    ((*blocks.add(values + page + AHEAD)).wrapping_add(d), dim)
                } else if d + V * LANES < dim && part.pages >= AHEAD {
                    let page = page + AHEAD - part.pages;
                    ((*blocks.add(values + page)).wrapping_add(d + V * LANES), dim)
                } else {
                    (*blocks.add(values + page + AHEAD), V * LANES)
                };
                let next = (next.0.cast(), next.1 * 2);
                S::accumulate::<R, V>(&mut sums, scores.add(start), rows, count, next);
            }
            if fewest == most {
                for r in 0..R {
                    for v in 0..V {
                        self.factors.store::<S>(r, sums[r][v], self.targets[r].add(d + v * LANES));
                    }
                }
                return V * LANES;
            }
            // Later rows see a few positions more.
            let mut kept = [[0.0_f32; LANES]; V];
            for r in 0..R {
                for v in 0..V {
                    S::store(kept[v].as_mut_ptr(), sums[r][v]);
                }
                let seen = (unit.start + (self.first + r) / unit.heads + 1 - part.start)
                    .min(part.pages * PAGE_POSITIONS);
                for t in fewest..seen {
                    let weight = S::splat(*scores.add(r * ROW_STRIDE + t));
                    let row = (*blocks.add(values + t / PAGE_POSITIONS))
                        .add(t % PAGE_POSITIONS * dim + d);
                    for v in 0..V {
                        let sum = S::load(kept[v].as_ptr());
                        let sum = S::fma(S::load_f16(row.add(v * LANES)), weight, sum);
                        S::store(kept[v].as_mut_ptr(), sum);
                    }
                }
                for v in 0..V {
                    let sum = S::load(kept[v].as_ptr());
                    self.factors.store::<S>(r, sum, self.targets[r].add(d + v * LANES));
                }
            }
        }
        V * LANES
    }
}
