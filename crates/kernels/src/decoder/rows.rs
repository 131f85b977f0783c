//! A step whose rows are divided: a thread takes some of them through all of a layer's products.
//!
//! What a layer makes of a row (norms, integers, gate and up) is used up where it was made, in one
//! core's cache, and threads wait for each other twice a layer, before and after attention. The
//! price is that every block of rows reads all weights, which from some tens of rows on is little
//! next to what is computed with them.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::OnceLock;

use super::{DecoderLayer, Run, Workspace};
use crate::activations::{Activations, GROUP};
use crate::attention::{Batch, append_rows, attend};
use crate::elementwise;
use crate::error::{KernelError, expect_size};
use crate::lines::Lines;
use crate::matmul::{Input, Upcoming, product};
use crate::pages::{KvAccess, Pages};
use crate::shared::Shared;
use crate::tiles::{BLOCK_COLUMNS, Matrix, TILE_ROWS};

/// Rows of a block at most: as many as a product's loop takes in one pass.
const BLOCK_ROWS: usize = 64;
/// Rows for each thread from which on rows are divided. With fewer, reading and unpacking the
/// weights once for each thread costs more than waiting.
const FEWEST: usize = 32;
/// Tiles whose products are made before they are used up: whole blocks of activations, in the
/// first-level cache.
const STRIP: usize = 4;

/// What a block of rows is computed in. A thread keeps its own, so that it stays in its cache.
#[derive(Default)]
struct Own {
    /// Of all rows if a matrix of floats reads them, otherwise of a group's.
    normed: Lines,
    acts: Activations,
    k: Lines,
    v: Lines,
    strips: [Lines; 2],
    /// Of all rows if a matrix of floats reads them.
    gated_floats: Lines,
    gated: Activations,
}

thread_local! {
    static OWN: RefCell<Own> = RefCell::default();
}

/// The blocks of a step's rows, if these are to be divided. Blocks start at groups.
pub(super) fn blocks(run: &Run<'_>) -> Option<Vec<Range<usize>>> {
    let threads = run.pool.threads();
    if run.exact < run.rows || run.rows < threads * FEWEST {
        return None;
    }
    let groups = run.rows.div_ceil(GROUP);
    let blocks = run.rows.div_ceil(BLOCK_ROWS).next_multiple_of(threads);
    let edge = |block: usize| (groups * block / blocks * GROUP).min(run.rows);
    Some((0..blocks).map(|block| edge(block)..edge(block + 1)).collect())
}

/// Takes the step's rows, `x`, through all layers. `space.q` and `space.attended` have room for them.
pub(super) fn forward(
    run: &Run<'_>,
    blocks: &[Range<usize>],
    space: &mut Workspace,
    access: &mut KvAccess<'_>,
    batch: &Batch<'_>,
    x: &mut [f32],
) -> Result<(), KernelError> {
    let shape = &run.decoder.shape;
    let q_width = shape.heads * shape.head_dim;
    expect_size("embeddings", run.rows * shape.hidden, x.len())?;
    let Workspace { q, attended, attention, angles, .. } = space;
    let layers = &run.decoder.layers;
    for index in 0..=layers.len() {
        if index < layers.len() {
            batch.check(access, index)?;
        }
        let pages = access.pages_mut();
        let (x_rows, q_rows) = (Shared::new(x), Shared::new(q));
        let failed = OnceLock::new();
        run.pool.run(blocks.len(), &|block| {
            let rows = blocks[block].clone();
            // SAFETY: blocks are disjoint.
            let (x, q) = unsafe {
                let part = |rows: &Range<usize>, width| (rows.start * width, rows.len() * width);
                let ((x, x_len), (q, q_len)) = (part(&rows, shape.hidden), part(&rows, q_width));
                (x_rows.part(x, x_len), q_rows.part(q, q_len))
            };
            let result = OWN.with_borrow_mut(|own| {
                let mut rows = Block { run, rows, own, x };
                if let Some(layer) = index.checked_sub(1).map(|before| &layers[before]) {
                    rows.after_attention(layer, attended)?;
                }
                if let Some(layer) = layers.get(index) {
                    rows.before_attention(layer, q, angles)?;
                    rows.append(index, &pages, batch);
                }
                Ok(())
            });
            if let Err(error) = result {
                // The first one is as good as any other.
                let _ = failed.set(error);
            }
        })?;
        if let Some(error) = failed.into_inner() {
            return Err(error);
        }
        if index < layers.len() {
            let heads = shape.heads;
            attend(run.cpu, run.pool, access, batch, index, heads, q, attended, attention)?;
        }
    }
    Ok(())
}

/// Some rows of a step, on one thread.
struct Block<'a> {
    run: &'a Run<'a>,
    rows: Range<usize>,
    own: &'a mut Own,
    /// `[rows][hidden]`
    x: &'a mut [f32],
}

impl Block<'_> {
    /// Norm, Q, K and V, rotation.
    fn before_attention(
        &mut self,
        layer: &DecoderLayer,
        q: &mut [f32],
        angles: &[f32],
    ) -> Result<(), KernelError> {
        let run = self.run;
        let (shape, rows) = (&run.decoder.shape, self.rows.len());
        let (dim, kv_width) = (shape.head_dim, shape.kv_heads * shape.head_dim);
        let [first, second, third] = run.qkv(layer)?.matrices;
        let floats = [first, second, third].iter().any(Matrix::is_float);
        self.norm(&layer.attention_norm, floats)?;
        let Own { normed, acts, k, v, .. } = &mut *self.own;
        k.resize(rows * kv_width);
        v.resize(rows * kv_width);
        let input = if floats { Input::new(normed, acts)? } else { Input::of_integers(acts) };
        multiply(run, &first, input, q, Upcoming::of(&second, 0))?;
        multiply(run, &second, input, k, Upcoming::of(&third, 0))?;
        multiply(run, &third, input, v, Upcoming::NONE)?;
        let angles = angles[self.rows.start * dim..].chunks_exact(dim);
        let keys = k.chunks_exact_mut(kv_width).zip(v.chunks_exact_mut(kv_width));
        for ((q, (k, v)), angles) in q.chunks_exact_mut(shape.heads * dim).zip(keys).zip(angles) {
            run.rotate(layer, q, k, v, angles);
        }
        Ok(())
    }

    /// Stores the keys and values.
    fn append(&self, layer: usize, pages: &Pages<'_>, batch: &Batch<'_>) {
        let (run, own) = (self.run, &*self.own);
        let stride = run.decoder.shape.kv_heads * run.decoder.shape.head_dim;
        let (keys, values) = (&own.k[..], &own.v[..]);
        // SAFETY: `forward` has checked the pages and the layer, and divides the rows.
        unsafe {
            append_rows(run.cpu, pages, batch, layer, self.rows.clone(), (keys, values), stride);
        }
    }

    /// O and its residual, norm, the feed-forward layer and its residual.
    fn after_attention(
        &mut self,
        layer: &DecoderLayer,
        attended: &[f32],
    ) -> Result<(), KernelError> {
        let run = self.run;
        let (shape, rows) = (&run.decoder.shape, self.rows.len());
        let (width, ffn) = (shape.heads * shape.head_dim, shape.ffn);
        let attended = &attended[self.rows.start * width..self.rows.end * width];
        let [output, gate] = [run.matrix(layer.output)?, run.matrix(layer.gate)?];
        let [up, down] = [run.matrix(layer.up)?, run.matrix(layer.down)?];
        let Own { acts, strips, .. } = &mut *self.own;
        acts.resize(rows, width)?;
        // SAFETY: `acts` is this thread's alone; `attended` is `[rows][width]`.
        unsafe {
            let (to, blocks) = (acts.writer(), width / BLOCK_COLUMNS);
            to.write_rows(run.cpu, 0..rows, 0, blocks, attended.as_ptr(), width);
        }
        let input = Input::new(attended, acts)?;
        add_product(run, &output, input, &mut strips[0], self.x, Upcoming::of(&gate, 0))?;

        let floats = [gate, up].iter().any(Matrix::is_float);
        self.norm(&layer.ffn_norm, floats)?;
        let Own { normed, acts, strips, gated, gated_floats, .. } = &mut *self.own;
        let input = if floats { Input::new(normed, acts)? } else { Input::of_integers(acts) };
        gated.resize(rows, ffn)?;
        let floats = down.is_float();
        if floats {
            gated_floats.resize(rows * ffn);
        }
        let to = gated.writer();
        for first in (0..gate.tiles()).step_by(STRIP) {
            let tiles = first..gate.tiles().min(first + STRIP);
            let (first, count) = (tiles.start * TILE_ROWS, tiles.len() * TILE_ROWS);
            let [gate_strip, up_strip] = &mut *strips;
            let then = Upcoming::of(&up, tiles.start);
            strip(run, &gate, input, tiles.clone(), gate_strip, then)?;
            let then = if tiles.end < gate.tiles() {
                Upcoming::of(&gate, tiles.end)
            } else {
                Upcoming::of(&down, 0)
            };
            strip(run, &up, input, tiles, up_strip, then)?;
            let strips = gate_strip.chunks_exact_mut(count).zip(up_strip.chunks_exact(count));
            for (row, (gate, up)) in strips.enumerate() {
                // SAFETY: both have `count` elements, a multiple of 32, as `ffn` is.
                unsafe { elementwise::silu_mul(run.cpu, gate.as_mut_ptr(), up.as_ptr(), count) }
                if floats {
                    gated_floats[row * ffn + first..][..count].copy_from_slice(gate);
                }
            }
            // SAFETY: `gated` is this thread's alone, and each block is written once; the strip is
            // `[rows][count]`.
            unsafe {
                let (first, blocks) = (first / BLOCK_COLUMNS, count / BLOCK_COLUMNS);
                to.write_rows(run.cpu, 0..rows, first, blocks, gate_strip.as_ptr(), count);
            }
        }
        let input =
            if floats { Input::new(gated_floats, gated)? } else { Input::of_integers(gated) };
        add_product(run, &down, input, &mut strips[0], self.x, Upcoming::NONE)
    }

    /// Norms the rows and quantises them, and keeps the norms if they are read as floats.
    fn norm(&mut self, weight: &[f32], floats: bool) -> Result<(), KernelError> {
        let (run, hidden, rows) = (self.run, weight.len(), self.rows.len());
        let Own { normed, acts, .. } = &mut *self.own;
        normed.resize(if floats { rows } else { rows.min(GROUP) } * hidden);
        acts.resize(rows, hidden)?;
        let to = acts.writer();
        for first in (0..rows).step_by(GROUP) {
            let group = first..rows.min(first + GROUP);
            let normed = &mut normed[if floats { first * hidden } else { 0 }..];
            let x = self.x[first * hidden..].chunks_exact(hidden);
            for (x, normed) in x.zip(normed.chunks_exact_mut(hidden)).take(group.len()) {
                run.norm_row(x, weight, normed);
            }
            // SAFETY: `acts` is this thread's alone, and each row is written once; `normed` is
            // `[rows][hidden]` from the group's first row on.
            unsafe {
                let blocks = hidden / BLOCK_COLUMNS;
                to.write_rows(run.cpu, group, 0, blocks, normed.as_ptr(), hidden);
            }
        }
        Ok(())
    }
}

/// A matrix times the rows; `next` is what is read after it.
fn multiply(
    run: &Run<'_>,
    matrix: &Matrix<'_>,
    input: Input<'_>,
    out: &mut [f32],
    next: Upcoming,
) -> Result<(), KernelError> {
    let width = matrix.padded_rows();
    expect_size("the columns of an input", matrix.columns(), input.columns())?;
    expect_size("a product", input.rows() * width, out.len())?;
    // SAFETY: sizes were compared; `out` is borrowed for this alone.
    unsafe { product(run.cpu, matrix, input, 0..matrix.tiles(), out.as_mut_ptr(), width, next) }
    Ok(())
}

/// Some tiles of a matrix times the rows, in rows of these tiles' elements.
fn strip(
    run: &Run<'_>,
    matrix: &Matrix<'_>,
    input: Input<'_>,
    tiles: Range<usize>,
    out: &mut Lines,
    next: Upcoming,
) -> Result<(), KernelError> {
    expect_size("the columns of an input", matrix.columns(), input.columns())?;
    let (first, count) = (tiles.start * TILE_ROWS, tiles.len() * TILE_ROWS);
    out.resize(input.rows() * count);
    let to = out.as_mut_ptr().wrapping_sub(first);
    // SAFETY: sizes were compared, and there is room for the tiles' elements.
    unsafe { product(run.cpu, matrix, input, tiles, to, count, next) }
    Ok(())
}

/// `x += matrix * input`, a strip at a time.
fn add_product(
    run: &Run<'_>,
    matrix: &Matrix<'_>,
    input: Input<'_>,
    space: &mut Lines,
    x: &mut [f32],
    next: Upcoming,
) -> Result<(), KernelError> {
    let width = matrix.rows();
    expect_size("a residual", input.rows() * matrix.padded_rows(), x.len())?;
    for first in (0..matrix.tiles()).step_by(STRIP) {
        let tiles = first..matrix.tiles().min(first + STRIP);
        let (first, count) = (tiles.start * TILE_ROWS, tiles.len() * TILE_ROWS);
        let next = if tiles.end < matrix.tiles() { Upcoming::of(matrix, tiles.end) } else { next };
        strip(run, matrix, input, tiles, space, next)?;
        for (x, product) in x.chunks_exact_mut(width).zip(space.chunks_exact(count)) {
            let x = &mut x[first..][..count];
            // SAFETY: both have `count` elements, a multiple of 16.
            unsafe { elementwise::add(run.cpu, x.as_mut_ptr(), product.as_ptr(), count) }
        }
    }
    Ok(())
}
