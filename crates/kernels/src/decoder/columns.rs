//! A step whose matrices are divided: a thread takes some of a matrix's tiles times all rows.
//!
//! A layer is five parallel regions, each ending where every thread needs what the others made. The
//! work between them is a microsecond for one row, so the caller does it; from [`PARALLEL_ROWS`]
//! rows on it is split by rows.

use std::cell::RefCell;

use super::{DecoderLayer, Run, Workspace};
use crate::attention::{Batch, append, attend};
use crate::bf16::Operand;
use crate::elementwise;
use crate::error::{KernelError, expect_size};
use crate::lines::Lines;
use crate::matmul::{Cut, Input, Stack, Upcoming, fast_product, multiply, product};
use crate::pages::KvAccess;
use crate::shared::Shared;
use crate::tiles::{BLOCK_COLUMNS, Matrix, TILE_ROWS};

thread_local! {
    /// Products of fast rows that are used up at once: a thread writes them where it wrote the ones
    /// before, so that they stay in its cache.
    static USED_UP: RefCell<[Lines; 2]> = RefCell::default();
}

/// Elements between rows of gate and up: without them, rows of a size that a large power of two
/// divides would share a few of the first-level cache's sets.
const APART: usize = 16;

/// Rows from which on the work between products is split among threads.
const PARALLEL_ROWS: usize = 8;

/// Takes the step's rows, `x`, through all layers. `space.q` and `space.attended` have room for them.
pub(super) fn forward(
    run: &Run<'_>,
    space: &mut Workspace,
    access: &mut KvAccess<'_>,
    batch: &Batch<'_>,
    x: &mut [f32],
) -> Result<(), KernelError> {
    let shape = &run.decoder.shape;
    let kv_width = shape.kv_heads * shape.head_dim;
    space.normed.resize(run.rows * shape.hidden);
    space.product.resize(run.rows * shape.hidden);
    space.k.resize(run.rows * kv_width);
    space.v.resize(run.rows * kv_width);
    space.gate.resize(run.rows * (shape.ffn + APART));
    space.up.resize(run.rows * (shape.ffn + APART));
    let layers = &run.decoder.layers;
    for (index, layer) in layers.iter().enumerate() {
        run.attention_block(index, layer, space, access, batch, x)?;
        run.ffn_block(layer, layers.get(index + 1), space, x)?;
    }
    Ok(())
}

impl Run<'_> {
    /// Runs `job` for every row, on all threads when there are enough rows.
    fn each_row(&self, job: &(dyn Fn(usize) + Sync)) -> Result<(), KernelError> {
        if self.rows < PARALLEL_ROWS {
            (0..self.rows).for_each(job);
            return Ok(());
        }
        let chunk = self.rows.div_ceil(self.pool.threads() * 4);
        self.pool.run(self.rows.div_ceil(chunk), &|index| {
            (index * chunk..self.rows.min((index + 1) * chunk)).for_each(job);
        })
    }

    /// Makes room for the step's rows.
    fn resize(&self, acts: &mut Operand, columns: usize) -> Result<(), KernelError> {
        acts.resize(self.exact, self.rows - self.exact, columns)
    }

    /// Norms every row of `x` into `normed`, and quantises it into `acts`.
    pub(super) fn norm(
        &self,
        x: &[f32],
        weight: &[f32],
        normed: &mut [f32],
        acts: &mut Operand,
    ) -> Result<(), KernelError> {
        let hidden = weight.len();
        self.resize(acts, hidden)?;
        let (to, acts) = (Shared::new(normed), acts.writer(self.fast));
        self.each_row(&|row| {
            let x = &x[row * hidden..][..hidden];
            // SAFETY: each row is written by one call.
            unsafe {
                let to = to.part(row * hidden, hidden);
                self.norm_row(x, weight, to);
                acts.write(self.cpu, row, 0, to);
            }
        })
    }

    /// `x += matrix * input`, through `space`; `next` says what a thread reads after it.
    fn add_product(
        &self,
        matrix: Matrix<'_>,
        input: Input<'_>,
        space: &mut [f32],
        x: &mut [f32],
        next: &(dyn Fn(usize) -> Upcoming + Sync),
    ) -> Result<(), KernelError> {
        let width = matrix.rows();
        expect_size("the columns of an input", matrix.columns(), input.columns())?;
        expect_size("a product", self.rows * width, space.len())?;
        expect_size("a residual", self.rows * width, x.len())?;
        let cut = Cut::tiles(matrix.tiles(), &input, self.pool.threads());
        let (product_to, x) = (Shared::new(space), Shared::new(x));
        self.pool.run_before(cut.chunks(), &|thread| next(thread).at(), &|chunk| {
            let tiles = cut.units(chunk);
            let (first, count) = (tiles.start * TILE_ROWS, tiles.len() * TILE_ROWS);
            let next = cut.ends_share(chunk).map_or(Upcoming::of(&matrix, tiles.end), next);
            // SAFETY: sizes were compared above (`width` is a multiple of 32, so nothing is
            // padded); chunks have their own columns of both. Fast rows go to the thread's own
            // buffer, which has room for their elements of these tiles.
            unsafe {
                let exact = input.exact();
                product(self.cpu, &matrix, exact, tiles.clone(), product_to.at(0), width, next);
                for row in 0..self.exact {
                    let at = row * width + first;
                    elementwise::add(self.cpu, x.at(at), product_to.at(at), count);
                }
                USED_UP.with_borrow_mut(|[out, _]| {
                    out.resize((self.rows - self.exact) * count);
                    let to = out.as_mut_ptr().wrapping_sub(first);
                    fast_product(&matrix, input, tiles, to, count);
                    for (row, out) in (self.exact..self.rows).zip(out.chunks_exact(count.max(1))) {
                        elementwise::add(self.cpu, x.at(row * width + first), out.as_ptr(), count);
                    }
                });
            }
        })
    }

    fn attention_block(
        &self,
        index: usize,
        layer: &DecoderLayer,
        space: &mut Workspace,
        access: &mut KvAccess<'_>,
        batch: &Batch<'_>,
        x: &mut [f32],
    ) -> Result<(), KernelError> {
        let shape = &self.decoder.shape;
        let (dim, heads, kv_heads) = (shape.head_dim, shape.heads, shape.kv_heads);
        let (q_width, kv_width) = (heads * dim, kv_heads * dim);
        self.norm(x, &layer.attention_norm, &mut space.normed, &mut space.acts)?;
        let input = Input::of(&space.normed, &space.acts, self.fast)?;
        let threads = self.pool.threads();
        let output = self.matrix(layer.output)?;
        let next = |thread| Stack { matrices: [output] }.start(thread, threads);
        let outputs = [&mut space.q[..], &mut space.k[..], &mut space.v[..]];
        multiply(self.cpu, self.pool, input, &self.qkv(layer)?, outputs, &next)?;
        let (q, k) = (Shared::new(&mut space.q), Shared::new(&mut space.k));
        let v = Shared::new(&mut space.v);
        let angles = &space.angles;
        self.each_row(&|row| {
            // SAFETY: each row is changed by one call.
            unsafe {
                let (q, k) = (q.part(row * q_width, q_width), k.part(row * kv_width, kv_width));
                let v = v.part(row * kv_width, kv_width);
                self.rotate(layer, q, k, v, &angles[row * dim..][..dim]);
            }
        })?;
        let (k, v) = (&space.k[..], &space.v[..]);
        append(self.cpu, self.pool, access, batch, index, (k, v), kv_width)?;
        let Workspace { q, attended, attention, .. } = space;
        attend(self.cpu, self.pool, access, batch, index, heads, q, attended, attention)?;
        self.resize(&mut space.acts, q_width)?;
        let acts = space.acts.writer(self.fast);
        self.each_row(&|row| {
            // SAFETY: each row is written by one call.
            unsafe { acts.write(self.cpu, row, 0, &attended[row * q_width..][..q_width]) }
        })?;
        let input = Input::of(attended, &space.acts, self.fast)?;
        let gate = self.matrix(layer.gate)?;
        let next = |thread| Upcoming::of(&gate, gate.tiles() / 2 * thread / threads * 2);
        self.add_product(output, input, &mut space.product, x, &next)
    }

    fn ffn_block(
        &self,
        layer: &DecoderLayer,
        following: Option<&DecoderLayer>,
        space: &mut Workspace,
        x: &mut [f32],
    ) -> Result<(), KernelError> {
        let ffn = self.decoder.shape.ffn;
        self.norm(x, &layer.ffn_norm, &mut space.normed, &mut space.acts)?;
        let input = Input::of(&space.normed, &space.acts, self.fast)?;
        let (gate, up) = (self.matrix(layer.gate)?, self.matrix(layer.up)?);
        let down = Stack { matrices: [self.matrix(layer.down)?] };
        let threads = self.pool.threads();
        self.resize(&mut space.gated, ffn)?;
        let gated = space.gated.writer(self.fast);
        // A matrix of floats reads them as a whole.
        let floats = down.matrices[0].is_float();
        let stride = ffn + if floats { 0 } else { APART };
        let (gate_to, up_to) = (Shared::new(&mut space.gate), Shared::new(&mut space.up));
        // A unit is a block of the gated activations: two tiles of each.
        let cut = Cut::new(gate.tiles() / 2, self.rows, threads);
        let after = |thread| down.start(thread, threads).at();
        self.pool.run_before(cut.chunks(), &after, &|chunk| {
            let units = cut.units(chunk);
            let tiles = units.start * 2..units.end * 2;
            let (first, count) = (tiles.start * TILE_ROWS, tiles.len() * TILE_ROWS);
            let next = Upcoming::of(&gate, tiles.end);
            let next = cut.ends_share(chunk).map_or(next, |thread| down.start(thread, threads));
            let then = Upcoming::of(&up, tiles.start);
            // SAFETY: `Decoder::new` compared the sizes; chunks have their own columns of both
            // products, and `ffn` is a multiple of 32, so these are whole blocks of a row. Fast rows
            // go to the thread's own buffers, which have room for their elements of these tiles.
            unsafe {
                let exact = input.exact();
                product(self.cpu, &gate, exact, tiles.clone(), gate_to.at(0), stride, then);
                product(self.cpu, &up, exact, tiles.clone(), up_to.at(0), stride, next);
                for row in 0..self.exact {
                    let at = row * stride + first;
                    elementwise::silu_mul(self.cpu, gate_to.at(at), up_to.at(at), count);
                }
                let blocks = count / BLOCK_COLUMNS;
                let from = gate_to.at(first);
                gated.write_exact(self.cpu, first / BLOCK_COLUMNS, blocks, from, stride);
                USED_UP.with_borrow_mut(|[gate_out, up_out]| {
                    for (matrix, out) in [(&gate, &mut *gate_out), (&up, &mut *up_out)] {
                        out.resize((self.rows - self.exact) * count);
                        let to = out.as_mut_ptr().wrapping_sub(first);
                        fast_product(matrix, input, tiles.clone(), to, count);
                    }
                    let gates = gate_out.chunks_exact_mut(count.max(1));
                    let both = gates.zip(up_out.chunks_exact(count.max(1)));
                    for (row, (gate, up)) in (self.exact..self.rows).zip(both) {
                        elementwise::silu_mul(self.cpu, gate.as_mut_ptr(), up.as_ptr(), count);
                        gated.write(self.cpu, row, first / BLOCK_COLUMNS, gate);
                    }
                });
            }
        })?;
        let gate = if floats { &space.gate[..self.rows * ffn] } else { &[] };
        let input = Input::of(gate, &space.gated, self.fast)?;
        let [down] = down.matrices;
        if let Some(layer) = following {
            let qkv = self.qkv(layer)?;
            let next = |thread| qkv.start(thread, threads);
            self.add_product(down, input, &mut space.product, x, &next)
        } else {
            let head = Stack { matrices: [self.matrix(self.decoder.head)?] };
            let next = |thread| head.start(thread, threads);
            self.add_product(down, input, &mut space.product, x, &next)
        }
    }
}
