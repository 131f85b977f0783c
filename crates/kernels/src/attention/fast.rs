//! Attention of prompts' rows under `prefill: 'fast'`, with bf16 AMX tiles.
//!
//! A query goes through the same chunks as in the exact kernels, and these are merged by the same
//! arithmetic. Inside of a chunk:
//! - the query, times log2 e, and keys are rounded to bf16; a score takes its products in ascending
//!   order, a block of 32 elements at a time;
//! - weights (f32) are rounded to bf16, and **their sum is that of the rounded ones**, so that what
//!   comes out is a mean of values: 32 positions at a time, ascending from the chunk's start;
//! - values are rounded to bf16; their weighted sum takes 32 positions at a time, likewise.
//!
//! So a query's numbers depend on its position and on what is stored up to it, and on no other query
//! and no division of the work. Positions that it does not see have the weight 0 where the tile has
//! them for a later one. Adding such products changes no sum as long as they are 0, which is why
//! values are kept finite ([`finite`]), whatever a slot holds: another position's overflow, or what is
//! left of an earlier sequence. It may change a zero's sign, which is removed at the end.
//!
//! Keys and values of a chunk are packed once for all of a unit's queries, which take turns of
//! [`TOGETHER`]: tile instructions (scores), vector ones (weights), tile ones (values). Phases are
//! long, because for some forty nanoseconds after a tile instruction the core runs 512-bit arithmetic
//! on one port instead of two.

use std::arch::x86_64::*;
use std::cell::RefCell;

use super::chunks::{self, CHUNK_PAGES};
use super::kernel::{Rows, Unit};
use super::plan::FAST_QUERIES;
use super::softmax::Softmax;
use crate::bf16::Bf16Tiles;
use crate::bf16_tiles::{Block, Panel, configured, pair};
use crate::lines::Lines;
use crate::pages::PAGE_POSITIONS;
use crate::simd::avx512::Avx512;
use crate::simd::{LANES, ROW_STRIDE, Simd, exp2};

/// Queries that take a turn together.
const TOGETHER: usize = 64;
/// Queries that are multiplied together.
const PAIR: usize = 2 * SIDE;
/// Rows or columns of a tile.
const SIDE: usize = 16;
/// Elements of a tile's row: a page's positions, or as many elements of a head.
const BLOCK: usize = 32;

const _: () = assert!(SIDE == LANES && BLOCK == PAGE_POSITIONS, "a page is a block of positions");

/// What a thread keeps between units. Tiles of 16 queries lie one after the other.
struct Scratch {
    /// `[16 queries][block of elements]`
    queries: Vec<Panel>,
    /// Of a chunk: `[16 positions][block of elements]`
    keys: Vec<Panel>,
    /// Of a chunk: `[16 elements][page]`
    values: Vec<Panel>,
    scores: Box<Rows<TOGETHER>>,
    /// `[16 queries][page]`
    weights: Box<[[Panel; CHUNK_PAGES]; TOGETHER / SIDE]>,
    /// A chunk's sums of values.
    sums: Lines,
    /// Of 16 queries each.
    totals: [Softmax; FAST_QUERIES / SIDE],
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch {
        queries: Vec::new(),
        keys: Vec::new(),
        values: Vec::new(),
        scores: Box::new(Rows([[0.0; ROW_STRIDE]; TOGETHER])),
        weights: Box::new([[Panel::ZERO; CHUNK_PAGES]; TOGETHER / SIDE]),
        sums: Lines::default(),
        totals: [const { Softmax { most: [0.0; LANES], sum: [0.0; LANES] } }; FAST_QUERIES / SIDE],
    });
}

impl Scratch {
    /// Makes room for a unit, up to whole turns; what is beyond its queries means nothing.
    fn make_room(&mut self, unit: &Unit<'_>) {
        let blocks = unit.dim.div_ceil(BLOCK);
        let tiles = |tiles: &mut Vec<Panel>, count| {
            if tiles.len() < count {
                tiles.resize(count, Panel::ZERO);
            }
        };
        tiles(&mut self.queries, unit.queries().div_ceil(TOGETHER) * TOGETHER / SIDE * blocks);
        tiles(&mut self.keys, chunks::POSITIONS / SIDE * blocks);
        tiles(&mut self.values, unit.dim / SIDE * CHUNK_PAGES);
        self.sums.resize(TOGETHER * unit.dim);
    }
}

/// All chunks of a unit; row r's head g goes to `out + r * width + g * dim`.
///
/// # Safety
/// The contract of [`super::kernel::finished`], but that there may be [`FAST_QUERIES`] queries.
pub(super) unsafe fn finished(tiles: Bf16Tiles, unit: &Unit<'_>, out: *mut f32) {
    assert!(unit.queries() <= FAST_QUERIES, "a unit of too many queries");
    SCRATCH.with_borrow_mut(|scratch| {
        scratch.make_room(unit);
        // SAFETY: the contract above; there is room, and the token proves the features.
        configured(tiles, || unsafe { all_chunks(unit, scratch, out) });
    });
}

/// # Safety
/// The contract of [`finished`]; the scratch has room, tile registers are configured, and the CPU has
/// the features.
unsafe fn all_chunks(unit: &Unit<'_>, scratch: &mut Scratch, out: *mut f32) {
    // SAFETY: the contract above; the table reaches the last position.
    unsafe {
        pack_queries(unit, &mut scratch.queries);
        let end = unit.start + unit.rows;
        let count = chunks::count(end);
        for chunk in 0..count {
            let positions = chunks::positions(chunk);
            let first = positions.start / PAGE_POSITIONS;
            let pages = positions.end.min(end).div_ceil(PAGE_POSITIONS) - first;
            for page in 0..pages {
                let keys = unit.keys(first + page);
                pack_keys(keys, unit.dim, page, &mut scratch.keys);
                let values = keys.add(unit.dim * PAGE_POSITIONS);
                pack_values(values, unit.dim, page, &mut scratch.values);
            }
            let ends = (chunk == 0, chunk + 1 == count);
            for first in (0..unit.queries()).step_by(TOGETHER) {
                Turn::new(unit, first, positions.start).take(scratch, ends, out);
            }
        }
    }
}

/// Some of a unit's queries with a chunk.
struct Turn<'a> {
    unit: &'a Unit<'a>,
    /// The first query, and how many.
    first: usize,
    count: usize,
    /// The position at which the chunk starts.
    start: usize,
    /// Pages that the last query sees.
    pages: usize,
}

impl<'a> Turn<'a> {
    fn new(unit: &'a Unit<'a>, first: usize, start: usize) -> Turn<'a> {
        let count = (unit.queries() - first).min(TOGETHER);
        let turn = Turn { unit, first, count, start, pages: 0 };
        Turn { pages: turn.seen(count - 1).div_ceil(PAGE_POSITIONS), ..turn }
    }

    /// Positions of the chunk that a query sees: not none, as a unit's rows see the same chunks.
    fn seen(&self, query: usize) -> usize {
        let position = self.unit.start + (self.first + query) / self.unit.heads;
        (position + 1 - self.start).min(chunks::POSITIONS)
    }

    /// Scores, weights, values, the merge; `ends`: whether the chunk is the first one, and the last.
    ///
    /// # Safety
    /// The contract of [`all_chunks`], whose scratch has the chunk's keys and values.
    unsafe fn take(&self, scratch: &mut Scratch, ends: (bool, bool), out: *mut f32) {
        let (dim, blocks) = (self.unit.dim, self.unit.dim.div_ceil(BLOCK));
        let queries = &scratch.queries[self.first / SIDE * blocks..];
        let scores = (&raw mut scratch.scores.0).cast::<f32>();
        for (page, keys) in scratch.keys.chunks_exact(2 * blocks).take(self.pages).enumerate() {
            let b = pair_of(keys, blocks);
            for first in (0..self.count).step_by(PAIR) {
                let a = pair_of(&queries[first / SIDE * blocks..], blocks);
                let to = scores.wrapping_add(first * ROW_STRIDE + page * PAGE_POSITIONS);
                let more = self.count - first > SIDE;
                // SAFETY: tiles of the queries and of a page's keys; there is room for the scores.
                unsafe { Block { a, b, blocks, to, stride: ROW_STRIDE }.multiply(more, true) };
            }
        }
        let groups = self.count.div_ceil(SIDE);
        let mut new =
            [const { Softmax { most: [0.0; LANES], sum: [0.0; LANES] } }; TOGETHER / SIDE];
        for group in 0..groups {
            let scores = &scratch.scores.0[group * SIDE..][..SIDE];
            // SAFETY: the CPU has the features.
            new[group] = unsafe { self.weights(group, scores, &mut scratch.weights[group]) };
        }
        let sums = scratch.sums.as_mut_ptr();
        for d in (0..dim).step_by(2 * SIDE) {
            let b = pair_of(&scratch.values[d / SIDE * CHUNK_PAGES..], CHUNK_PAGES);
            for first in (0..self.count).step_by(PAIR) {
                let a = pair_of(scratch.weights[first / SIDE..].as_flattened(), CHUNK_PAGES);
                let to = sums.wrapping_add(first * dim + d);
                let more = self.count - first > SIDE;
                let product = Block { a, b, blocks: self.pages, to, stride: dim };
                // SAFETY: tiles of the weights and of the pages' values; there is room for the sums.
                unsafe { product.multiply(more, dim - d > SIDE) };
            }
        }
        for group in 0..groups {
            let total = &mut scratch.totals[self.first / SIDE + group];
            // SAFETY: the CPU has the features, and `out` is valid for the queries.
            unsafe { self.merge(group, &new[group], total, ends, &scratch.sums, out) };
        }
    }

    /// Queries of a group.
    fn queries(&self, group: usize) -> usize {
        (self.count - group * SIDE).min(SIDE)
    }

    /// Turns a group's scores (exponents of 2) into weights. Lanes beyond its queries mean nothing.
    ///
    /// # Safety
    /// The CPU has the features.
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,avx2,fma,f16c"
    )]
    unsafe fn weights(
        &self,
        group: usize,
        scores: &[[f32; ROW_STRIDE]],
        to: &mut [Panel; CHUNK_PAGES],
    ) -> Softmax {
        let mut new = Softmax { most: [0.0; LANES], sum: [0.0; LANES] };
        let (lowest, zero) = (f32::NEG_INFINITY, _mm512_setzero_ps());
        // SAFETY: the features are there. Scores have room for the positions of a chunk, weights for
        // its pages.
        unsafe {
            let mut most = [Avx512::splat(lowest); LANES];
            for query in 0..self.queries(group) {
                let (row, seen) = (scores[query].as_ptr(), self.seen(group * SIDE + query));
                let (whole, mut here) = (seen / LANES * LANES, most[query]);
                for i in (0..whole).step_by(LANES) {
                    here = Avx512::max(here, Avx512::load(row.add(i)));
                }
                if whole < seen {
                    let last = Avx512::load(row.add(whole));
                    here = Avx512::max(here, Avx512::keep_below(last, seen - whole, lowest));
                }
                most[query] = here;
            }
            Avx512::store(new.most.as_mut_ptr(), Avx512::max_lanes(&most));
            let mut sums = [zero; LANES];
            let ones = numbers(_mm512_set1_epi16(0x3f80));
            for query in 0..self.queries(group) {
                let (row, seen) = (scores[query].as_ptr(), self.seen(group * SIDE + query));
                let (shift, mut sum) = (Avx512::splat(new.most[query]), zero);
                let to = to.as_mut_ptr().cast::<u16>().add(query * BLOCK);
                let to = |page| to.add(page * SIDE * BLOCK).cast();
                let whole = seen / BLOCK;
                for page in 0..whole {
                    let both = exponential(row.add(page * BLOCK), shift);
                    _mm512_store_si512(to(page), both);
                    sum = _mm512_dpbf16_ps(sum, numbers(both), ones);
                }
                for page in whole..self.pages {
                    let mut both = _mm512_setzero_si512();
                    if page * BLOCK < seen {
                        let keep = (1 << (seen % BLOCK)) - 1;
                        both = exponential(row.add(page * BLOCK), shift);
                        both = _mm512_maskz_mov_epi16(keep, both);
                        sum = _mm512_dpbf16_ps(sum, numbers(both), ones);
                    }
                    _mm512_store_si512(to(page), both);
                }
                sums[query] = sum;
            }
            Avx512::store(new.sum.as_mut_ptr(), Avx512::sums(&sums));
        }
        new
    }

    /// Merges a group's sums of values, `[queries of the turn][dim]`, into the output.
    ///
    /// # Safety
    /// The CPU has the features; `out` is valid for the unit's queries.
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,avx2,fma,f16c"
    )]
    unsafe fn merge(
        &self,
        group: usize,
        new: &Softmax,
        total: &mut Softmax,
        (first, last): (bool, bool),
        sums: &[f32],
        out: *mut f32,
    ) {
        let dim = self.unit.dim;
        // SAFETY: the contract above; rows of `dim`, whole vectors.
        unsafe {
            let factors = total.merge::<Avx512>(new, first, last);
            for query in 0..self.queries(group) {
                let number = group * SIDE + query;
                let from = sums[number * dim..][..dim].as_ptr();
                let to = out.add(self.unit.offset(self.first + number));
                for d in (0..dim).step_by(LANES) {
                    // Without the sign of a zero.
                    let sum = Avx512::add(Avx512::load(from.add(d)), Avx512::splat(0.0));
                    factors.store::<Avx512>(query, sum, to.add(d));
                }
            }
        }
    }
}

/// The first of some tiles, and the one `span` tiles further on, if there is one.
fn pair_of(tiles: &[Panel], span: usize) -> [*const u8; 2] {
    let first = tiles.as_ptr();
    [first.cast(), first.wrapping_add(span).cast()]
}

/// A unit's queries as exponents of 2 want them, rounded.
///
/// # Safety
/// The unit's queries are valid, `to` has room for them, and the CPU has the features.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,avx2,fma,f16c")]
unsafe fn pack_queries(unit: &Unit<'_>, to: &mut [Panel]) {
    let blocks = unit.dim.div_ceil(BLOCK);
    for query in 0..unit.queries() {
        let tiles = &mut to[query / SIDE * blocks..][..blocks];
        for (block, tile) in tiles.iter_mut().enumerate() {
            let d = block * BLOCK;
            // SAFETY: the contract above: `dim` elements, whole vectors; a row of the tile.
            unsafe {
                let from = unit.queries.add(unit.offset(query) + d);
                let log2_e = Avx512::splat(std::f32::consts::LOG2_E);
                let low = Avx512::mul(Avx512::load(from), log2_e);
                let mut high = Avx512::splat(0.0);
                if d + LANES < unit.dim {
                    high = Avx512::mul(Avx512::load(from.add(LANES)), log2_e);
                }
                let both = bits(_mm512_cvtne2ps_pbh(high, low));
                _mm512_store_si512(tile.0.as_mut_ptr().add(query % SIDE * BLOCK).cast(), both);
            }
        }
    }
}

/// A page's keys, `[dim][32 positions]`, rounded, in pairs of elements; those beyond `dim` are 0.
///
/// # Safety
/// `keys` are valid, `to` has room for the chunk's, and the CPU has the features.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,avx2,fma,f16c")]
unsafe fn pack_keys(keys: *const u16, dim: usize, page: usize, to: &mut [Panel]) {
    let blocks = dim.div_ceil(BLOCK);
    let (first, second) = to[page * 2 * blocks..][..2 * blocks].split_at_mut(blocks);
    for (d, half) in (0..blocks * BLOCK).step_by(2).flat_map(|d| [(d, 0), (d, 1)]) {
        let tile = if half == 0 { &mut first[d / BLOCK] } else { &mut second[d / BLOCK] };
        // SAFETY: two of `dim` rows, which is even; a row of the tile.
        unsafe {
            let mut both = _mm512_setzero_si512();
            if d < dim {
                let from = keys.add(d * PAGE_POSITIONS + half * SIDE);
                let next = Avx512::load_f16(from.add(PAGE_POSITIONS));
                both = pair(Avx512::load_f16(from), next);
            }
            _mm512_store_si512(tile.0.as_mut_ptr().add(d % BLOCK * SIDE).cast(), both);
        }
    }
}

/// A page's values, `[32 positions][dim]`, rounded, in pairs of positions.
///
/// # Safety
/// `values` are valid, `to` has room for the chunk's, and the CPU has the features.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,avx2,fma,f16c")]
unsafe fn pack_values(values: *const u16, dim: usize, page: usize, to: &mut [Panel]) {
    for (column, tiles) in to.chunks_exact_mut(CHUNK_PAGES).take(dim / SIDE).enumerate() {
        let tile = tiles[page].0.as_mut_ptr();
        for position in (0..PAGE_POSITIONS).step_by(2) {
            // SAFETY: two of 32 rows of `dim` elements; a row of the tile.
            unsafe {
                let from = values.add(position * dim + column * SIDE);
                let next = finite(Avx512::load_f16(from.add(dim)));
                let both = pair(finite(Avx512::load_f16(from)), next);
                _mm512_store_si512(tile.add(position * SIDE).cast(), both);
            }
        }
    }
}

/// Two to the power of a block of scores less `shift`, rounded.
///
/// # Safety
/// `scores` is valid for a block, and the CPU has the features.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,avx2,fma,f16c")]
unsafe fn exponential(scores: *const f32, shift: __m512) -> __m512i {
    // SAFETY: the contract above.
    unsafe {
        let low = Avx512::sub(Avx512::load(scores), shift);
        let high = Avx512::sub(Avx512::load(scores.add(LANES)), shift);
        bits(_mm512_cvtne2ps_pbh(exp2::<Avx512>(high), exp2::<Avx512>(low)))
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn bits(numbers: __m512bh) -> __m512i {
    // SAFETY: both are 64 bytes without padding.
    unsafe { std::mem::transmute(numbers) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn numbers(bits: __m512i) -> __m512bh {
    // SAFETY: both are 64 bytes without padding.
    unsafe { std::mem::transmute(bits) }
}

/// Infinities become the largest half with their sign, as do what is no number.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,avx2,fma,f16c")]
fn finite(x: __m512) -> __m512 {
    // The smaller magnitude of two numbers (or the number), with the sign of the first.
    _mm512_range_ps::<0b0010>(x, _mm512_set1_ps(65504.0))
}
