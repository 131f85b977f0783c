//! The inner loops of attention. See the parent module for what is fixed about their order.

use crate::pages::{PAGE_POSITIONS, PageId, Pages};
use crate::simd::{LANES, Simd, exp, tiered};

/// Pages of a chunk: 256 positions.
pub(super) const CHUNK_PAGES: usize = 8;

/// Floats of a query's state: the maximum, the sum of weights, (padding to a cache line,) the
/// weighted sum of values.
pub(super) fn state_size(dim: usize) -> usize {
    LANES + dim
}

/// The queries of some rows with one KV head of one layer.
pub(super) struct Unit<'a> {
    pub(super) pages: &'a Pages<'a>,
    pub(super) table: &'a [PageId],
    pub(super) layer: usize,
    pub(super) kv_head: usize,
    /// Query heads of the KV head.
    pub(super) group: usize,
    pub(super) dim: usize,
    /// The first row's first query; the group's are `dim` apart, rows `width`.
    pub(super) queries: *const f32,
    pub(super) width: usize,
    /// Position of the first row.
    pub(super) start: usize,
    pub(super) rows: usize,
}

tiered! {
    /// All chunks of all rows of a unit; row r's head g goes to `out + r * width + g * dim`.
    ///
    /// # Safety
    /// The unit's table reaches its last position, with pages whose contents are stored up to it;
    /// `queries` and `out` are valid for its rows; nobody writes any of it meanwhile.
    pub(super) fn finished(unit: &Unit<'_>, out: *mut f32) = finished_with;
}

tiered! {
    /// Chunk `chunk` of all rows of a unit; the state of row r's head g goes to
    /// `states + r * stride + g * state_size`.
    ///
    /// # Safety
    /// As for [`finished`].
    pub(super) fn partial(unit: &Unit<'_>, chunk: usize, states: *mut f32, stride: usize) = chunk_with;
}

tiered! {
    /// Merges `count` states that lie `stride` apart and writes the weighted mean.
    ///
    /// # Safety
    /// The states are valid, and `out` is for `dim` elements.
    pub(super) fn merged(states: *const f32, stride: usize, count: usize, dim: usize, out: *mut f32)
        = merged_with;
}

#[inline(always)]
unsafe fn finished_with<S: Simd>(unit: &Unit<'_>, out: *mut f32) {
    let size = state_size(unit.dim);
    let count = unit.rows * unit.group;
    let mut total = vec![0.0_f32; count * size];
    let mut states = vec![0.0_f32; count * size];
    let chunk_positions = CHUNK_PAGES * PAGE_POSITIONS;
    for chunk in 0..(unit.start + unit.rows).div_ceil(chunk_positions) {
        // SAFETY: the caller's contract; rows that do not see this chunk are not merged.
        unsafe {
            let to = if chunk == 0 { &mut total } else { &mut states };
            chunk_with::<S>(unit, chunk, to.as_mut_ptr(), unit.group * size);
            if chunk > 0 {
                for row in 0..unit.rows {
                    if unit.start + row < chunk * chunk_positions {
                        continue;
                    }
                    for g in 0..unit.group {
                        let at = (row * unit.group + g) * size;
                        let (into, from) = (total[at..].as_mut_ptr(), states[at..].as_ptr());
                        merge::<S>(into, from, unit.dim);
                    }
                }
            }
        }
    }
    for row in 0..unit.rows {
        for g in 0..unit.group {
            let state = total[(row * unit.group + g) * size..].as_ptr();
            // SAFETY: a state, and the output row of the contract.
            unsafe { normalize::<S>(state, unit.dim, out.add(row * unit.width + g * unit.dim)) }
        }
    }
}

#[inline(always)]
unsafe fn merged_with<S: Simd>(
    states: *const f32,
    stride: usize,
    count: usize,
    dim: usize,
    out: *mut f32,
) {
    // SAFETY: the contract of `merged`.
    unsafe {
        let mut total = std::slice::from_raw_parts(states, state_size(dim)).to_vec();
        for i in 1..count {
            merge::<S>(total.as_mut_ptr(), states.add(i * stride), dim);
        }
        normalize::<S>(total.as_ptr(), dim, out);
    }
}

/// Merges a later chunk's state into the one of all chunks before it.
#[inline(always)]
unsafe fn merge<S: Simd>(into: *mut f32, from: *const f32, dim: usize) {
    // SAFETY: two states.
    unsafe {
        let (a, b) = (*into, *from);
        let most = if a > b { a } else { b };
        let (x, y) = (exp_one::<S>(a - most), exp_one::<S>(b - most));
        *into = most;
        *into.add(1) = (*into.add(1)).mul_add(x, *from.add(1) * y);
        let (x, y) = (S::splat(x), S::splat(y));
        for i in (LANES..LANES + dim).step_by(LANES) {
            let added = S::mul(S::load(from.add(i)), y);
            S::store(into.add(i), S::fma(S::load(into.add(i)), x, added));
        }
    }
}

#[inline(always)]
unsafe fn normalize<S: Simd>(state: *const f32, dim: usize, out: *mut f32) {
    // SAFETY: a state, and `dim` elements.
    unsafe {
        let factor = S::splat(1.0 / *state.add(1));
        for i in (0..dim).step_by(LANES) {
            S::store(out.add(i), S::mul(S::load(state.add(LANES + i)), factor));
        }
    }
}

#[inline(always)]
unsafe fn exp_one<S: Simd>(x: f32) -> f32 {
    let mut lanes = [0.0; LANES];
    // SAFETY: sixteen lanes.
    unsafe { S::store(lanes.as_mut_ptr(), exp::<S>(S::splat(x))) };
    lanes[0]
}

/// One chunk of all rows: pages in order, rows that see all of a page first, then row by row those
/// that see a part of it.
#[inline(always)]
unsafe fn chunk_with<S: Simd>(unit: &Unit<'_>, chunk: usize, states: *mut f32, stride: usize) {
    let size = state_size(unit.dim);
    let end = unit.start + unit.rows;
    let first = chunk * CHUNK_PAGES;
    let last = end.div_ceil(PAGE_POSITIONS).min(first + CHUNK_PAGES);
    // SAFETY: the contract of `partial`; pages below `last` are in the table.
    unsafe {
        for row in 0..unit.rows {
            for g in 0..unit.group {
                let state = states.add(row * stride + g * size);
                *state = f32::NEG_INFINITY;
                state.add(1).write_bytes(0, size - 1);
            }
        }
        for index in first..last {
            let page = |index: usize| {
                unit.pages
                    .head(unit.table[index], unit.layer, unit.kv_head)
                    .cast_const()
                    .cast::<u16>()
            };
            let keys = page(index);
            let next = if index + 1 < last { page(index + 1) } else { keys };
            let page_start = index * PAGE_POSITIONS;
            // Rows from `some` on see a part of the page, rows from `all` on all of it.
            let some = page_start.saturating_sub(unit.start).min(unit.rows);
            let all = (page_start + PAGE_POSITIONS - 1).saturating_sub(unit.start).min(unit.rows);
            for row in some..all {
                let seen = unit.start + row + 1 - page_start;
                queries::<S>(unit, keys, next, row..row + 1, seen, states, stride);
            }
            if all < unit.rows {
                queries::<S>(unit, keys, next, all..unit.rows, PAGE_POSITIONS, states, stride);
            }
        }
    }
}

/// All queries of some rows with the first `seen` positions of a page, several at a time.
#[inline(always)]
unsafe fn queries<S: Simd>(
    unit: &Unit<'_>,
    keys: *const u16,
    next: *const u16,
    rows: std::ops::Range<usize>,
    seen: usize,
    states: *mut f32,
    stride: usize,
) {
    let count = rows.len() * unit.group;
    let mut done = 0;
    while done < count {
        // SAFETY: queries `done` to `done + R` are the unit's.
        unsafe {
            let at = (rows.start, done);
            done += match count - done {
                1 => some::<S, 1>(unit, keys, next, at, seen, states, stride),
                4 if S::QUERIES > 3 => some::<S, 4>(unit, keys, next, at, seen, states, stride),
                2 | 4 => some::<S, 2>(unit, keys, next, at, seen, states, stride),
                n if n >= 6 && S::QUERIES > 3 => {
                    some::<S, 6>(unit, keys, next, at, seen, states, stride)
                }
                _ => some::<S, 3>(unit, keys, next, at, seen, states, stride),
            };
        }
    }
}

/// `R` queries with a page: scores, running maximum, weights, weighted values. Returns `R`.
#[inline(always)]
unsafe fn some<S: Simd, const R: usize>(
    unit: &Unit<'_>,
    keys: *const u16,
    next: *const u16,
    (first_row, first): (usize, usize),
    seen: usize,
    states: *mut f32,
    stride: usize,
) -> usize {
    let dim = unit.dim;
    let size = state_size(dim);
    let mut q = [unit.queries; R];
    let mut state = [states; R];
    let mut weights = [[0.0_f32; PAGE_POSITIONS]; R];
    // SAFETY: the contract of `partial`.
    unsafe {
        for r in 0..R {
            let (row, g) = (first_row + (first + r) / unit.group, (first + r) % unit.group);
            q[r] = unit.queries.add(row * unit.width + g * dim);
            state[r] = states.add(row * stride + g * size);
        }
        let mut scores = [[S::splat(0.0); 2]; R];
        for d in 0..dim {
            S::prefetch(next.wrapping_add(d * PAGE_POSITIONS).cast());
            let k = [
                S::load_f16(keys.add(d * PAGE_POSITIONS)),
                S::load_f16(keys.add(d * PAGE_POSITIONS + LANES)),
            ];
            for r in 0..R {
                let x = S::splat(*q[r].add(d));
                scores[r][0] = S::fma(k[0], x, scores[r][0]);
                scores[r][1] = S::fma(k[1], x, scores[r][1]);
            }
        }
        for r in 0..R {
            let mut s = scores[r];
            if seen < PAGE_POSITIONS {
                s[0] = S::keep_below(s[0], seen.min(LANES), f32::NEG_INFINITY);
                s[1] = S::keep_below(s[1], seen.saturating_sub(LANES), f32::NEG_INFINITY);
            }
            let most = S::max_lane(S::max(s[0], s[1]));
            if most > *state[r] {
                let factor = exp_one::<S>(*state[r] - most);
                *state[r] = most;
                *state[r].add(1) *= factor;
                let factor = S::splat(factor);
                for i in (LANES..size).step_by(LANES) {
                    let at = state[r].add(i);
                    S::store(at, S::mul(S::load(at), factor));
                }
            }
            let most = S::splat(*state[r]);
            let mut w = [exp::<S>(S::sub(s[0], most)), exp::<S>(S::sub(s[1], most))];
            if seen < PAGE_POSITIONS {
                w[0] = S::keep_below(w[0], seen.min(LANES), 0.0);
                w[1] = S::keep_below(w[1], seen.saturating_sub(LANES), 0.0);
            }
            *state[r].add(1) += S::sum(S::add(w[0], w[1]));
            S::store(weights[r].as_mut_ptr(), w[0]);
            S::store(weights[r].as_mut_ptr().add(LANES), w[1]);
        }
        let values = keys.add(dim * PAGE_POSITIONS);
        let next = next.wrapping_add(dim * PAGE_POSITIONS);
        let mut d = 0;
        while d < dim {
            d += match dim - d {
                n if n >= 64 && S::QUERIES > 3 => {
                    add_values::<S, R, 4>(values, next, dim, d, seen, &weights, &state)
                }
                n if n >= 32 => add_values::<S, R, 2>(values, next, dim, d, seen, &weights, &state),
                _ => add_values::<S, R, 1>(values, next, dim, d, seen, &weights, &state),
            };
        }
    }
    R
}

/// Adds weighted values, elements `d` to `d + V * 16`, to the states. Returns `V * 16`.
#[inline(always)]
unsafe fn add_values<S: Simd, const R: usize, const V: usize>(
    values: *const u16,
    next: *const u16,
    dim: usize,
    d: usize,
    seen: usize,
    weights: &[[f32; PAGE_POSITIONS]; R],
    state: &[*mut f32; R],
) -> usize {
    // SAFETY: the contract of `partial`.
    unsafe {
        let mut acc = [[S::splat(0.0); V]; R];
        for r in 0..R {
            for v in 0..V {
                acc[r][v] = S::load(state[r].add(LANES + d + v * LANES));
            }
        }
        for t in 0..seen {
            let row = values.add(t * dim + d);
            let ahead = next.wrapping_add(t * dim + d);
            for v in 0..V.div_ceil(2) {
                S::prefetch(ahead.wrapping_add(v * 2 * LANES).cast());
            }
            for v in 0..V {
                let value = S::load_f16(row.add(v * LANES));
                for r in 0..R {
                    let w = S::splat(*weights[r].as_ptr().add(t));
                    acc[r][v] = S::fma(value, w, acc[r][v]);
                }
            }
        }
        for r in 0..R {
            for v in 0..V {
                S::store(state[r].add(LANES + d + v * LANES), acc[r][v]);
            }
        }
    }
    V * LANES
}
