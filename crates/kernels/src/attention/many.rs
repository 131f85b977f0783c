//! A chunk with many queries, as in prefill, where multiplying is most of the work.
//!
//! Sixteen positions' keys (or sixteen elements of all values) at a time are widened to single
//! precision, into a buffer that stays in the first-level cache while all of a unit's queries use
//! it. A conversion takes the place of a multiplication, so that one for each few queries costs a
//! third more where few queries fit the registers; with AVX-512, where twelve do, it costs less than
//! the buffer.

use std::mem::MaybeUninit;

use super::chunks;
use super::kernel::{PANEL, Part, Rows, Target, UNIT_QUERIES, Unit};
use super::softmax::{Factors, Softmax, weights};
use crate::dispatch::{Cpu, Tier};
use crate::pages::PAGE_POSITIONS;
use crate::simd::{LANES, ROW_STRIDE, Simd};

/// From how many queries on widening once is worth a buffer.
const FEWEST: usize = 12;
/// Queries that are multiplied together: what two registers a query leaves free of sixteen.
const TOGETHER: usize = 6;
/// Rows of the buffer: elements of keys, or positions of values.
const WIDE_ROWS: usize = if PANEL > chunks::POSITIONS { PANEL } else { chunks::POSITIONS };
/// Vectors of queries.
const QUERY_VECTORS: usize = UNIT_QUERIES / LANES;

/// Whether this is the faster way.
pub(super) fn pays(cpu: Cpu, queries: usize) -> bool {
    queries >= FEWEST && matches!(cpu.tier(), Tier::Portable | Tier::Avx2)
}

/// Every part is written before it is read.
#[repr(align(64))]
struct Scratch {
    /// Queries, scaled.
    queries: Rows<UNIT_QUERIES>,
    /// Scores, later weights.
    scores: Rows<UNIT_QUERIES>,
    wide: [f32; WIDE_ROWS * LANES],
}

/// Calls `$function::<$S, R>(first, …)` for all queries, parts of about the same size at a time.
macro_rules! in_groups {
    ($function:ident::<$S:ident>, $queries:expr, $arguments:tt) => {
        in_groups!(@ $function::<$S>, $queries, $arguments, 6 5 4 3 2)
    };
    (@ $function:ident::<$S:ident>, $queries:expr, $arguments:tt, $($count:literal)*) => {
        let mut first = 0;
        while first < $queries {
            let left = $queries - first;
            first += match left.div_ceil(left.div_ceil(TOGETHER)) {
                $($count => {
                    in_groups!(# $function::<$S, $count>, first, $arguments);
                    $count
                })*
                _ => {
                    in_groups!(# $function::<$S, 1>, first, $arguments);
                    1
                }
            };
        }
    };
    (# $function:ident::<$S:ident, $count:literal>, $first:expr, ($($argument:expr),*)) => {
        $function::<$S, $count>($first, $($argument),*)
    };
}

/// All queries of a unit with one chunk.
#[inline(always)]
pub(super) unsafe fn all_queries<S: Simd>(unit: &Unit<'_>, part: &Part, to: &Target) {
    let mut scratch = MaybeUninit::<Scratch>::uninit();
    let scratch = scratch.as_mut_ptr();
    // SAFETY: the contract of `finished`, and of the scratch.
    unsafe {
        let scores = (&raw mut (*scratch).scores).cast::<f32>();
        let wide = (&raw mut (*scratch).wide).cast::<f32>();
        let queries = (&raw mut (*scratch).queries).cast::<f32>();
        let mut from = 0;
        while from < unit.dim {
            let count = (unit.dim - from).min(PANEL);
            scale::<S>(unit, from, count, queries);
            all_scores::<S>(unit, part, (from, count), queries, wide, scores);
            from += count;
        }
        let factors = all_weights::<S>(unit, part, to, scores);
        for d in (0..unit.dim).step_by(LANES) {
            all_values::<S>(unit, part, to, d, scores, wide, &factors);
        }
    }
}

/// Elements `from` to `from + count` of all queries, as exponents of 2 want them.
#[inline(always)]
unsafe fn scale<S: Simd>(unit: &Unit<'_>, from: usize, count: usize, to: *mut f32) {
    // SAFETY: the contract of `all_queries`; `to` has a row for each query.
    unsafe {
        for query in 0..unit.queries() {
            let values = unit.queries.add(unit.offset(query) + from);
            for d in (0..count).step_by(LANES) {
                let q = S::mul(S::load(values.add(d)), S::splat(std::f32::consts::LOG2_E));
                S::store(to.add(query * ROW_STRIDE + d), q);
            }
        }
    }
}

/// Positions of the chunk that a query's row sees.
#[inline(always)]
fn seen(unit: &Unit<'_>, part: &Part, query: usize) -> usize {
    let end = part.pages * PAGE_POSITIONS;
    (unit.start + query / unit.heads + 1 - part.start).min(end)
}

/// Widens a vector of each of `rows` rows, `stride` apart, and asks for as many of what is next.
#[inline(always)]
unsafe fn widen<S: Simd>(
    (from, stride): (*const u16, usize),
    rows: usize,
    next: *const u16,
    to: *mut f32,
) {
    for row in 0..rows {
        // SAFETY: the caller's rows; `to` is the scratch's buffer, or the rest of it.
        unsafe {
            S::prefetch(next.wrapping_add(row * stride).cast());
            S::store(to.add(row * LANES), S::load_f16(from.add(row * stride)));
        }
    }
}

/// `sums[r] += a[r][i] * b[i]` for i from 0 to `n`, in this order, fused: the innermost loop. Rows of
/// `a` are [`ROW_STRIDE`] apart, those of `b` one vector each.
#[inline(always)]
unsafe fn accumulate<S: Simd, const R: usize>(
    sums: &mut [S::F; R],
    a: *const f32,
    b: *const f32,
    n: usize,
) {
    for i in 0..n {
        // SAFETY: `a` is valid for `n` elements of `R` rows, `b` for `n` rows.
        unsafe {
            let value = S::load(b.add(i * LANES));
            for r in 0..R {
                sums[r] = S::fma(value, S::splat(*a.add(r * ROW_STRIDE + i)), sums[r]);
            }
        }
    }
}

/// Adds the products of `count` elements from `from` on to all scores.
#[inline(always)]
unsafe fn all_scores<S: Simd>(
    unit: &Unit<'_>,
    part: &Part,
    (from, count): (usize, usize),
    queries: *const f32,
    wide: *mut f32,
    scores: *mut f32,
) {
    let all = unit.queries();
    for position in (0..seen(unit, part, all - 1)).step_by(LANES) {
        let (page, slot) = (position / PAGE_POSITIONS, position % PAGE_POSITIONS);
        let at = from * PAGE_POSITIONS + slot;
        // SAFETY: the contract of `all_queries`.
        unsafe {
            let keys = part.blocks[page].add(at);
            let next = part.blocks[page + 1].wrapping_add(at);
            widen::<S>((keys, PAGE_POSITIONS), count, next, wide);
            let scores = scores.add(position);
            in_groups!(add_scores::<S>, all, (queries, wide, count, from > 0, scores));
        }
    }
}

/// The products of `R` queries with a vector of positions.
#[inline(always)]
unsafe fn add_scores<S: Simd, const R: usize>(
    first: usize,
    queries: *const f32,
    wide: *const f32,
    count: usize,
    more: bool,
    scores: *mut f32,
) {
    // SAFETY: the contract of `all_scores`.
    unsafe {
        let (queries, scores) = (queries.add(first * ROW_STRIDE), scores.add(first * ROW_STRIDE));
        let mut sums = [S::splat(0.0); R];
        if more {
            for r in 0..R {
                sums[r] = S::load(scores.add(r * ROW_STRIDE));
            }
        }
        accumulate::<S, R>(&mut sums, queries, wide, count);
        for r in 0..R {
            S::store(scores.add(r * ROW_STRIDE), sums[r]);
        }
    }
}

/// Turns all scores into weights. Returns what sums of values are multiplied with.
#[inline(always)]
unsafe fn all_weights<S: Simd>(
    unit: &Unit<'_>,
    part: &Part,
    to: &Target,
    scores: *mut f32,
) -> [Factors; QUERY_VECTORS] {
    let all = unit.queries();
    let mut factors = [const { Factors::NONE }; QUERY_VECTORS];
    for first in (0..all).step_by(LANES) {
        let mut new = Softmax { most: [0.0; LANES], sum: [0.0; LANES] };
        // SAFETY: the contract of `all_queries`.
        unsafe {
            for r in 0..LANES.min(all - first) {
                let row = scores.add((first + r) * ROW_STRIDE);
                (new.most[r], new.sum[r]) = weights::<S>(row, seen(unit, part, first + r));
            }
            match to {
                Target::Output { totals, first: start, last, .. } => {
                    let total = &mut *totals.add(first / LANES);
                    factors[first / LANES] = total.merge::<S>(&new, *start, *last);
                }
                Target::State(state) => {
                    let sums = state.add(all.next_multiple_of(LANES));
                    state.add(first).cast::<[f32; LANES]>().write(new.most);
                    sums.add(first).cast::<[f32; LANES]>().write(new.sum);
                }
            }
        }
    }
    factors
}

/// Elements `d` to `d + 16` of all queries' sums of values.
#[inline(always)]
unsafe fn all_values<S: Simd>(
    unit: &Unit<'_>,
    part: &Part,
    to: &Target,
    d: usize,
    weights: *const f32,
    wide: *mut f32,
    factors: &[Factors; QUERY_VECTORS],
) {
    let all = unit.queries();
    let positions = seen(unit, part, all - 1);
    // SAFETY: the contract of `all_queries`.
    unsafe {
        for start in (0..positions).step_by(PAGE_POSITIONS) {
            let page = part.pages + start / PAGE_POSITIONS;
            let rows = (part.blocks[page].add(d), unit.dim);
            let next = part.blocks[page + 1].wrapping_add(d);
            let count = (positions - start).min(PAGE_POSITIONS);
            widen::<S>(rows, count, next, wide.add(start * LANES));
        }
        in_groups!(add_values::<S>, all, (unit, part, to, d, weights, wide, factors));
    }
}

/// The same of `R` queries.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
unsafe fn add_values<S: Simd, const R: usize>(
    first: usize,
    unit: &Unit<'_>,
    part: &Part,
    to: &Target,
    d: usize,
    weights: *const f32,
    wide: *const f32,
    factors: &[Factors; QUERY_VECTORS],
) {
    // SAFETY: the contract of `all_values`; positions that a query sees have weights.
    unsafe {
        let weights = weights.add(first * ROW_STRIDE);
        let fewest = seen(unit, part, first);
        let mut sums = [S::splat(0.0); R];
        accumulate::<S, R>(&mut sums, weights, wide, fewest);
        for r in 0..R {
            let query = first + r;
            // Later rows see a few positions more.
            for t in fewest..seen(unit, part, query) {
                let weight = S::splat(*weights.add(r * ROW_STRIDE + t));
                sums[r] = S::fma(S::load(wide.add(t * LANES)), weight, sums[r]);
            }
            let target = match to {
                Target::Output { out, .. } => out.add(unit.offset(query)),
                Target::State(state) => {
                    state.add(2 * unit.queries().next_multiple_of(LANES) + query * unit.dim)
                }
            };
            factors[query / LANES].store::<S>(query % LANES, sums[r], target.add(d));
        }
    }
}
