//! A chunk with few queries, as in decoding, where reading keys and values is most of the work.
//!
//! Both products, of queries with keys and of weights with values, are [`Simd::accumulate`]: some
//! queries at a time against rows of 32 (or 64) halves. Scores and weights of a chunk stay in the
//! first-level cache.

use std::mem::MaybeUninit;

use super::kernel::{AHEAD, PANEL, Part, Rows, Target, Unit};
use super::softmax::{Factors, Softmax, weights};
use crate::pages::PAGE_POSITIONS;
use crate::simd::{LANES, ROW_STRIDE, Simd};

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
