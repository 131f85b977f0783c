//! A chunk with few queries, as in decoding, where reading keys and values is most of the work.
//!
//! Both products, of queries with keys and of weights with values, are [`Simd::accumulate`]: some
//! queries at a time against rows of 32 (or 64) halves. Scores and weights of a chunk stay in the
//! first-level cache.
//!
//! Keys and values of a long sequence come from memory. A chunk's blocks (all pages' keys, then their
//! values) are used four at a time, and meanwhile the next four asked for, a line of each by turns
//! ([`Ahead`]). That is why sums of values leave the registers after four pages where these have no
//! room for all elements: what is used and what is next share the first-level cache.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::kernel::{PANEL, Part, Rows, Target, Unit};
use super::softmax::{Factors, Softmax, weights};
use crate::pages::PAGE_POSITIONS;
use crate::simd::{Ahead, LANES, ROW_STRIDE, STREAMS, Simd};

/// Queries that are processed together at most, on any tier.
const TOGETHER: usize = 12;
/// The vectors of a page's positions.
const PAGE_VECTORS: usize = PAGE_POSITIONS / LANES;

/// All queries of a unit with one chunk, as many at a time as fit the registers.
#[inline(always)]
pub(super) unsafe fn all_queries<S: Simd>(unit: &Unit<'_>, part: &Part, to: &Target) {
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
    let ahead = |block: usize, elements| {
        if first > 0 {
            return Ahead::nothing(part.blocks[block].cast());
        }
        part.ahead(block, elements)
    };
    let mut asked = ahead(0, (0, 0));
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
                if page % STREAMS == 0 {
                    asked = ahead(page, (from, count));
                }
                let keys = ((*blocks.add(page)).add(from * PAGE_POSITIONS), PAGE_POSITIONS);
                S::accumulate::<R, PAGE_VECTORS>(&mut sums, panel, keys, count, &mut asked);
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
                Factors::NONE
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
        let values = Values {
            part,
            dim,
            scores,
            sums: panel,
            factors: &factors,
            targets: &targets,
            first,
            seen: (seen(0), seen(R - 1)),
        };
        for from in (0..dim).step_by(PANEL) {
            let end = dim.min(from + PANEL);
            let mut page = 0;
            while page < part.pages {
                // Four blocks at a time, or what the keys left of four.
                let block = part.pages + page;
                if block.is_multiple_of(STREAMS) {
                    asked.finish::<S>();
                    asked = ahead(block, (from, end - from));
                }
                let some = page..part.pages.min(page + STREAMS - block % STREAMS);
                page = some.end;
                let mut d = from;
                while d < end {
                    let (some, place) = (some.clone(), (d, d - from));
                    d += match end - d {
                        n if n >= 64 && S::ROWS >= R * 2 => {
                            values.add::<S, 4>(unit, some, place, &mut asked)
                        }
                        n if n >= 32 => values.add::<S, 2>(unit, some, place, &mut asked),
                        _ => values.add::<S, 1>(unit, some, place, &mut asked),
                    };
                }
            }
            asked.finish::<S>();
        }
    }
    R
}

/// The second product: weights with values.
struct Values<'a, const R: usize> {
    part: &'a Part,
    dim: usize,
    /// Weights by now.
    scores: *const f32,
    /// Room for a panel of sums.
    sums: *mut f32,
    factors: &'a Factors,
    targets: &'a [*mut f32; R],
    /// The first query's number.
    first: usize,
    /// Positions that the first of the queries sees, and the last.
    seen: (usize, usize),
}

impl<const R: usize> Values<'_, R> {
    /// Adds elements `d` to `d + V * 16` of some pages to sums, at place `to` of a panel, and after the
    /// last page brings these to where they belong. Returns `V * 16`.
    #[inline(always)]
    unsafe fn add<S: Simd, const V: usize>(
        &self,
        unit: &Unit<'_>,
        pages: Range<usize>,
        (d, to): (usize, usize),
        asked: &mut Ahead,
    ) -> usize {
        let Values { part, dim, scores, seen: (fewest, most), .. } = *self;
        let values = part.blocks[part.pages..].as_ptr();
        let kept = |r: usize, v: usize| self.sums.wrapping_add(r * ROW_STRIDE + to + v * LANES);
        // SAFETY: the contract of `finished`; positions that a query sees have weights.
        unsafe {
            let mut sums = [[S::splat(0.0); V]; R];
            if pages.start > 0 {
                for r in 0..R {
                    for v in 0..V {
                        sums[r][v] = S::load(kept(r, v));
                    }
                }
            }
            for page in pages.clone() {
                let start = page * PAGE_POSITIONS;
                let count = fewest.saturating_sub(start).min(PAGE_POSITIONS);
                let rows = ((*values.add(page)).add(d), dim);
                S::accumulate::<R, V>(&mut sums, scores.add(start), rows, count, asked);
            }
            if pages.end < part.pages {
                for r in 0..R {
                    for v in 0..V {
                        S::store(kept(r, v), sums[r][v]);
                    }
                }
                return V * LANES;
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
                    let row = (*values.add(t / PAGE_POSITIONS)).add(t % PAGE_POSITIONS * dim + d);
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
