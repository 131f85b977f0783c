//! Causal attention over paged keys and values, in one fixed order per query row.
//!
//! A row's result is a function of its query and of the positions up to its own, walked from the
//! first to the last: it does not matter how many rows are computed together, in which step the
//! earlier positions were written, or which thread does it. Keys and values come out of the pages
//! as f32 copies, once per task; a task is one KV head (with all query heads that share it) of at
//! most [`TASK_ROWS`] rows of one sequence.
//!
//! Cost per row and query head: `4 * head_dim` operations and one exponential per position.

use std::ops::Range;

use pulp::{Arch, NullaryFnOnce};
use rayon::prelude::*;
use tinyllm_kernels::KvAccess;

use crate::batch::Feed;
use crate::norm::dot;
use crate::{ModelError, ModelSpec};

/// Rows that share one copy of a head's keys and values: enough to make the copy cheap, few enough
/// to leave work for every thread in a prompt.
const TASK_ROWS: usize = 64;
/// Multiplications of keys from which a layer's attention is shared among threads.
const MIN_SHARED_WORK: usize = 1 << 16;

/// One head of some rows of a sequence.
struct Task<'a> {
    feed: &'a Feed<'a>,
    /// Rows within the batch.
    rows: Range<usize>,
    /// Position of the first of them.
    position: usize,
    kv_head: usize,
}

/// Attends with every row of the batch. `q` is `[rows][n_heads][head_dim]`, as is the result. The
/// layer's keys and values of the batch must be in the pages. Runs on the current pool.
pub(crate) fn attend(
    arch: Arch,
    spec: &ModelSpec,
    feeds: &[Feed<'_>],
    access: &KvAccess<'_>,
    layer: usize,
    q: &[f32],
) -> Result<Vec<f32>, ModelError> {
    let tasks = tasks(spec, feeds);
    // Rows times positions times width, summed over the batch: a short past is not worth sharing.
    let work: usize = feeds
        .iter()
        .map(|feed| feed.tokens.len() * (feed.position + feed.tokens.len()) * spec.q_width())
        .sum();
    let worth_sharing = if work < MIN_SHARED_WORK { tasks.len() } else { 1 };
    let parts: Vec<Vec<f32>> = tasks
        .par_iter()
        .with_min_len(worth_sharing)
        .map(|task| task.run(arch, spec, access, layer, q))
        .collect::<Result<_, _>>()?;
    let group = spec.n_heads / spec.n_kv_heads * spec.head_dim;
    let mut out = vec![0.0; q.len()];
    for (task, part) in tasks.iter().zip(&parts) {
        for (row, values) in task.rows.clone().zip(part.chunks_exact(group)) {
            let at = row * spec.q_width() + task.kv_head * group;
            out[at..at + group].copy_from_slice(values);
        }
    }
    Ok(out)
}

fn tasks<'a>(spec: &ModelSpec, feeds: &'a [Feed<'a>]) -> Vec<Task<'a>> {
    let mut tasks = Vec::new();
    let mut first_row = 0;
    for feed in feeds {
        let count = feed.tokens.len();
        for start in (0..count).step_by(TASK_ROWS) {
            let rows = first_row + start..first_row + count.min(start + TASK_ROWS);
            let position = feed.position + start;
            tasks.extend((0..spec.n_kv_heads).map(|kv_head| Task {
                feed,
                rows: rows.clone(),
                position,
                kv_head,
            }));
        }
        first_row += count;
    }
    tasks
}

impl Task<'_> {
    /// Gives `[rows][group][head_dim]`.
    fn run(
        &self,
        arch: Arch,
        spec: &ModelSpec,
        access: &KvAccess<'_>,
        layer: usize,
        q: &[f32],
    ) -> Result<Vec<f32>, ModelError> {
        let dim = spec.head_dim;
        let positions = self.position + self.rows.len();
        let mut keys = vec![0.0; positions * dim];
        let mut values = vec![0.0; positions * dim];
        access.gather(self.feed.pages, positions, layer, self.kv_head, &mut keys, &mut values)?;
        let group = spec.n_heads / spec.n_kv_heads;
        let mut out = vec![0.0; self.rows.len() * group * dim];
        let mut weights = vec![0.0; positions];
        let heads = out.chunks_exact_mut(dim).enumerate();
        for (index, out) in heads {
            let (row, head) = (self.rows.start + index / group, index % group);
            let at = row * spec.q_width() + (self.kv_head * group + head) * dim;
            let visible = self.position + index / group + 1;
            arch.dispatch(RowAttention {
                query: &q[at..at + dim],
                keys: &keys[..visible * dim],
                values: &values[..visible * dim],
                weights: &mut weights[..visible],
                out,
            });
        }
        Ok(out)
    }
}

/// One query head of one row.
struct RowAttention<'a> {
    query: &'a [f32],
    /// `[visible][head_dim]`, as are the values.
    keys: &'a [f32],
    values: &'a [f32],
    /// Scratch, `[visible]`.
    weights: &'a mut [f32],
    /// `[head_dim]`, zeroed.
    out: &'a mut [f32],
}

impl NullaryFnOnce for RowAttention<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { query, keys, values, weights, out } = self;
        let dim = query.len();
        let scale = 1.0 / (dim as f32).sqrt();
        let mut largest = f32::NEG_INFINITY;
        for (weight, key) in weights.iter_mut().zip(keys.chunks_exact(dim)) {
            *weight = dot(query, key) * scale;
            largest = largest.max(*weight);
        }
        let mut sum = 0.0;
        for weight in weights.iter_mut() {
            *weight = (*weight - largest).exp();
            sum += *weight;
        }
        for (weight, value) in weights.iter().zip(values.chunks_exact(dim)) {
            for (out, value) in out.iter_mut().zip(value) {
                *out += weight * value;
            }
        }
        for out in out.iter_mut() {
            *out /= sum;
        }
    }
}
