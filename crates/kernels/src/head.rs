//! The product with a vocabulary's rows: logits, and what a greedy sampler asks of them.
//!
//! The head is a third of a small model's bytes, so its passes are saved where they can be: the
//! largest logit and the log of the sum of exponentials are taken while a part of the logits is in
//! the cache, and a few rows of the vocabulary cost a few tiles instead of all. The vocabulary is
//! cut into parts of 1,024 rows, merged in ascending order, so the sums do not depend on threads.

use std::ops::Range;

use crate::dispatch::Cpu;
use crate::error::{KernelError, expect_size};
use crate::matmul::{Input, Upcoming, product};
use crate::pool::ThreadPool;
use crate::shared::Shared;
use crate::simd::{LANES, Simd, exp, tiered};
use crate::tiles::{Matrix, TILE_ROWS};

/// Tiles of a part of the vocabulary.
const PART_TILES: usize = 64;

/// What a row of logits amounts to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LogitSummary {
    /// The token with the largest logit; the first of several.
    pub best: u32,
    /// Its logit.
    pub largest: f32,
    /// The logarithm of the sum of all logits' exponentials: a token's log-probability is its logit
    /// less this.
    pub log_sum_exp: f64,
}

/// Logits of every input row: `out` is `[rows][padded_rows]` of the head. Gives a summary of each.
pub(crate) fn logits(
    cpu: Cpu,
    pool: &ThreadPool,
    input: Input<'_>,
    head: Matrix<'_>,
    out: &mut [f32],
) -> Result<Vec<LogitSummary>, KernelError> {
    expect_size("the columns of an input", head.columns(), input.columns())?;
    let width = head.padded_rows();
    expect_size("logits", input.rows() * width, out.len())?;
    let parts = head.tiles().div_ceil(PART_TILES);
    let mut partial = vec![(0_u32, 0.0_f32, 0.0_f32); input.rows() * parts];
    let (out, summaries) = (Shared::new(out), Shared::new(&mut partial));
    pool.run(parts, &|part| {
        let tiles = part * PART_TILES..head.tiles().min((part + 1) * PART_TILES);
        let first = tiles.start * TILE_ROWS;
        let count = head.rows().min(tiles.end * TILE_ROWS) - first;
        // SAFETY: sizes were compared above; a part's columns and its summaries are its own.
        unsafe {
            let next = Upcoming::of(&head, tiles.end);
            product(cpu, &head, input, tiles, out.at(0), width, next);
            for row in 0..input.rows() {
                let (best, largest, sum) = summarize(cpu, out.at(row * width + first), count);
                let to = summaries.part(row * parts + part, 1);
                to[0] = ((first + best) as u32, largest, sum);
            }
        }
    })?;
    Ok(partial
        .chunks_exact(parts)
        .map(|parts| {
            let (mut best, mut largest, mut sum) = (0, f32::NEG_INFINITY, 0.0);
            for &(index, most, part) in parts {
                let total = largest.max(most);
                // Exponentials in f64 and in order: the parts' number is the vocabulary's alone.
                let keep = f64::from(largest - total).exp() * sum;
                sum = keep + f64::from(most - total).exp() * f64::from(part);
                if most > largest {
                    best = index;
                }
                largest = total;
            }
            LogitSummary { best, largest, log_sum_exp: f64::from(largest) + sum.ln() }
        })
        .collect())
}

/// Logits of some rows of the vocabulary for the only row of `input`, in the order of `ids`:
/// bit-equal to the same entries of [`logits`].
pub(crate) fn logits_of(
    cpu: Cpu,
    pool: &ThreadPool,
    input: Input<'_>,
    head: Matrix<'_>,
    ids: &[u32],
) -> Result<Vec<f32>, KernelError> {
    expect_size("the columns of an input", head.columns(), input.columns())?;
    expect_size("the rows of an input", 1, input.rows())?;
    if let Some(&id) = ids.iter().find(|&&id| id as usize >= head.rows()) {
        let what = "rows of the head";
        return Err(KernelError::Shape { what, expected: head.rows(), found: id as usize + 1 });
    }
    let mut tiles: Vec<usize> = ids.iter().map(|&id| id as usize / TILE_ROWS).collect();
    tiles.sort_unstable();
    tiles.dedup();
    let mut out = vec![0.0; tiles.len() * TILE_ROWS];
    let runs = runs(&tiles);
    let shared = Shared::new(&mut out);
    pool.run(runs.len(), &|run| {
        let (place, tiles) = &runs[run];
        // SAFETY: sizes were compared above; the run's tiles have their own places in `out`.
        // `product` writes tile t at t * 16 from the address it is given.
        unsafe {
            let to = shared.at(place * TILE_ROWS).wrapping_sub(tiles.start * TILE_ROWS);
            product(cpu, &head, input, tiles.clone(), to, 0, Upcoming::NONE);
        }
    })?;
    Ok(ids
        .iter()
        .map(|&id| {
            let tile = tiles.partition_point(|&tile| tile < id as usize / TILE_ROWS);
            out[tile * TILE_ROWS + id as usize % TILE_ROWS]
        })
        .collect())
}

/// Neighbouring tiles together, a part's worth at most: the place of the first, and which.
fn runs(tiles: &[usize]) -> Vec<(usize, Range<usize>)> {
    let mut runs: Vec<(usize, Range<usize>)> = Vec::new();
    for (place, &tile) in tiles.iter().enumerate() {
        match runs.last_mut() {
            Some((_, run)) if run.end == tile && run.len() < PART_TILES => run.end += 1,
            _ => runs.push((place, tile..tile + 1)),
        }
    }
    runs
}

tiered! {
    /// Place and value of the largest of `n` numbers, and the sum of exponentials less it.
    ///
    /// # Safety
    /// `x` is valid for `n` elements rounded up to a multiple of 16.
    fn summarize(x: *const f32, n: usize) -> (usize, f32, f32) = summarize_with;
}

#[inline(always)]
unsafe fn summarize_with<S: Simd>(x: *const f32, n: usize) -> (usize, f32, f32) {
    // SAFETY: the contract above.
    unsafe {
        let mut most = S::splat(f32::NEG_INFINITY);
        for i in (0..n).step_by(LANES) {
            let v = S::keep_below(S::load(x.add(i)), LANES.min(n - i), f32::NEG_INFINITY);
            most = S::max(most, v);
        }
        let largest = S::max_lane(most);
        let most = S::splat(largest);
        let mut sum = S::splat(0.0);
        for i in (0..n).step_by(LANES) {
            let e = exp::<S>(S::sub(S::load(x.add(i)), most));
            sum = S::add(sum, S::keep_below(e, LANES.min(n - i), 0.0));
        }
        let mut best = 0;
        while best + 1 < n && *x.add(best) != largest {
            best += 1;
        }
        (best, largest, S::sum(sum))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::activations::Activations;
    use crate::blocks::WeightType;
    use crate::test_random::Random;
    use crate::tiles::WeightPlan;

    #[test]
    fn summaries_and_single_rows_agree_with_the_dense_logits_on_every_tier_and_thread_count() {
        let mut rng = Random::new(31);
        let (vocabulary, columns, rows) = (2605, 64, 3);
        let source: Vec<u8> =
            rng.normals(vocabulary * columns).iter().flat_map(|x| x.to_le_bytes()).collect();
        let x = rng.normals(rows * columns);
        let mut first = None;
        for cpu in Cpu::available() {
            for threads in [1, 2] {
                let pool = ThreadPool::new(threads);
                let mut plan = WeightPlan::new();
                let id = plan.add(WeightType::F32, vocabulary, columns).expect("has kernels");
                let weights = plan.pack(&pool, &[&source]).expect("fits");
                let head = weights.matrix(id).expect("planned");
                let mut acts = Activations::new();
                acts.quantize(cpu, &pool, &x, rows).expect("whole blocks");
                let input = Input::new(&x, &acts).expect("one shape");
                let width = head.padded_rows();
                let mut out = vec![0.0; rows * width];
                let summaries = logits(cpu, &pool, input, head, &mut out).expect("fits");
                for (row, summary) in out.chunks_exact(width).zip(&summaries) {
                    let row = &row[..vocabulary];
                    let largest = row.iter().fold(f32::MIN, |a, &b| a.max(b));
                    assert_eq!(summary.largest, largest);
                    assert_eq!(row.iter().position(|&x| x == largest), Some(summary.best as usize));
                    let sum: f64 = row.iter().map(|&x| f64::from(x).exp()).sum();
                    assert!((summary.log_sum_exp - sum.ln()).abs() < 1e-6);
                }
                acts.quantize(cpu, &pool, &x[..columns], 1).expect("whole blocks");
                let input = Input::new(&x[..columns], &acts).expect("one shape");
                let ids = [2604, 0, 17, 17, 1024, 1023, 5];
                let some = logits_of(cpu, &pool, input, head, &ids).expect("fits");
                for (&id, logit) in ids.iter().zip(some) {
                    assert_eq!(logit.to_bits(), out[id as usize].to_bits(), "token {id}");
                }
                assert!(logits_of(cpu, &pool, input, head, &[2605]).is_err(), "no such token");
                assert_eq!(&summaries, first.get_or_insert(summaries.clone()));
            }
        }
    }
}
