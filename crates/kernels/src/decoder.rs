//! The forward pass of a pre-norm decoder with a gated MLP, from packed weights: what the Llama
//! family's layers have in common, as plain data.
//!
//! A layer is five parallel regions, each ending where every thread needs what the others made:
//! ```text
//! norm, quantise -> Q, K, V | rotate, append -> attention | quantise -> O, residual
//!                | norm, quantise -> gate, up, silu * up, quantise | down, residual
//! ```
//! Where a batch has rows of fast products (the last ones), their matrix products are bf16 (see
//! `matmul/amx_bf16.rs`); everything else, attention and the head's logits among it, is the same.
//!
//! The work between regions is a microsecond for one row, so the caller does it; from
//! [`PARALLEL_ROWS`] rows on it is split by rows. Nothing a row's numbers depend on changes with
//! the number of rows, their order, or the threads.

use std::cell::RefCell;

use crate::attention::{Batch, Scratch, append, attend};
use crate::bf16::{Bf16Tiles, Operand};
use crate::dispatch::Cpu;
use crate::elementwise::{self, RopePairs, angles};
use crate::error::{KernelError, expect_size};
use crate::head::{LogitSummary, logits, logits_of};
use crate::lines::Lines;
use crate::matmul::{Cut, Input, Stack, Upcoming, fast_product, multiply, product};
use crate::pages::{KvAccess, KvElement, KvShape};
use crate::pool::ThreadPool;
use crate::shared::Shared;
use crate::tiles::{BLOCK_COLUMNS, Matrix, MatrixId, TILE_ROWS, Weights};

thread_local! {
    /// Products of fast rows that are used up at once: a thread writes them where it wrote the ones
    /// before, so that they stay in its cache.
    static USED_UP: RefCell<[Lines; 2]> = RefCell::default();
}

/// Rows from which on the work between products is split among threads.
const PARALLEL_ROWS: usize = 8;

/// The sizes and constants of a decoder.
#[derive(Debug, Clone, PartialEq)]
pub struct DecoderShape {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides the query heads.
    pub kv_heads: usize,
    /// Elements of a head, a multiple of 16.
    pub head_dim: usize,
    /// Width of the feed-forward layer.
    pub ffn: usize,
    /// Added to the mean square in norms.
    pub epsilon: f32,
    /// How a head's elements are paired by the rotation.
    pub pairs: RopePairs,
    /// Radians per position of each pair: `head_dim / 2`.
    pub frequencies: Vec<f64>,
}

/// One layer. Matrices are `[outputs][inputs]`.
#[derive(Debug, Clone)]
pub struct DecoderLayer {
    /// `[hidden]`
    pub attention_norm: Vec<f32>,
    /// `[heads * head_dim][hidden]`
    pub q: MatrixId,
    /// `[kv_heads * head_dim][hidden]`
    pub k: MatrixId,
    /// `[kv_heads * head_dim][hidden]`
    pub v: MatrixId,
    /// Biases of Q, K and V.
    pub qkv_bias: Option<[Vec<f32>; 3]>,
    /// `[hidden][heads * head_dim]`
    pub output: MatrixId,
    /// `[hidden]`
    pub ffn_norm: Vec<f32>,
    /// `[ffn][hidden]`
    pub gate: MatrixId,
    /// `[ffn][hidden]`
    pub up: MatrixId,
    /// `[hidden][ffn]`
    pub down: MatrixId,
}

/// A decoder whose parts fit each other.
#[derive(Debug)]
pub struct Decoder {
    shape: DecoderShape,
    weights: Weights,
    layers: Vec<DecoderLayer>,
    /// `[hidden]`
    final_norm: Vec<f32>,
    /// `[vocabulary][hidden]`
    head: MatrixId,
}

/// A decoder's buffers, kept from step to step.
#[derive(Debug, Default)]
pub struct Workspace {
    angles: Vec<f32>,
    normed: Lines,
    q: Lines,
    k: Lines,
    v: Lines,
    gate: Lines,
    up: Lines,
    product: Lines,
    acts: Operand,
    gated: Operand,
    attention: Scratch,
}

impl Decoder {
    /// Puts a decoder together.
    ///
    /// # Errors
    /// A matrix or vector whose size does not fit `shape`, sizes that no kernel handles.
    pub fn new(
        shape: DecoderShape,
        weights: Weights,
        layers: Vec<DecoderLayer>,
        final_norm: Vec<f32>,
        head: MatrixId,
    ) -> Result<Decoder, KernelError> {
        let unsupported =
            |what, found, requirement| Err(KernelError::Unsupported { what, found, requirement });
        if shape.head_dim == 0 || !shape.head_dim.is_multiple_of(16) {
            return unsupported("the head size", shape.head_dim, "it must be a multiple of 16");
        }
        if shape.kv_heads == 0 || !shape.heads.is_multiple_of(shape.kv_heads) || shape.heads == 0 {
            return unsupported("the heads", shape.heads, "it must be a multiple of the KV heads");
        }
        let (hidden, ffn) = (shape.hidden, shape.ffn);
        let q = shape.heads * shape.head_dim;
        let kv = shape.kv_heads * shape.head_dim;
        for (what, size) in [("the width", hidden), ("the FFN width", ffn), ("the query width", q)]
        {
            if size == 0 || !size.is_multiple_of(BLOCK_COLUMNS) {
                return unsupported(what, size, "it must be a positive multiple of 32");
            }
        }
        expect_size("rotation frequencies", shape.head_dim / 2, shape.frequencies.len())?;
        expect_size("the final norm", hidden, final_norm.len())?;
        let check = |id, rows: Option<usize>, columns| -> Result<(), KernelError> {
            let what = "planned matrices";
            let missing = KernelError::Shape { what, expected: 1, found: 0 };
            let matrix = weights.matrix(id).ok_or(missing)?;
            expect_size("a matrix's columns", columns, matrix.columns())?;
            expect_size("a matrix's rows", rows.unwrap_or(matrix.rows()), matrix.rows())
        };
        check(head, None, hidden)?;
        for layer in &layers {
            expect_size("the attention norm", hidden, layer.attention_norm.len())?;
            expect_size("the FFN norm", hidden, layer.ffn_norm.len())?;
            check(layer.q, Some(q), hidden)?;
            check(layer.k, Some(kv), hidden)?;
            check(layer.v, Some(kv), hidden)?;
            check(layer.output, Some(hidden), q)?;
            check(layer.gate, Some(ffn), hidden)?;
            check(layer.up, Some(ffn), hidden)?;
            check(layer.down, Some(hidden), ffn)?;
            if let Some([q_bias, k_bias, v_bias]) = &layer.qkv_bias {
                expect_size("the bias of Q", q, q_bias.len())?;
                expect_size("the bias of K", kv, k_bias.len())?;
                expect_size("the bias of V", kv, v_bias.len())?;
            }
        }
        Ok(Decoder { shape, weights, layers, final_norm, head })
    }

    /// What the pages of this decoder's pools hold.
    pub fn kv_shape(&self) -> KvShape {
        KvShape {
            layers: self.layers.len(),
            kv_heads: self.shape.kv_heads,
            head_dim: self.shape.head_dim,
            element: KvElement::F16,
        }
    }

    /// The packed weights.
    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    /// Elements of a row of logits as [`logits`](Self::logits) lays them out: the vocabulary,
    /// padded to a multiple of 16.
    pub fn logit_stride(&self) -> usize {
        self.weights.matrix(self.head).map_or(0, |head| head.padded_rows())
    }

    /// Takes the embeddings of a batch's tokens, `x`: `[rows][hidden]`, through all layers, in
    /// place, and stores their keys and values.
    ///
    /// # Errors
    /// Sizes or a pool that do not fit, or a kernel's panic; the pages' contents at the batch's
    /// positions are unspecified then, earlier positions are untouched.
    pub fn forward(
        &self,
        cpu: Cpu,
        pool: &ThreadPool,
        space: &mut Workspace,
        access: &mut KvAccess<'_>,
        batch: &Batch<'_>,
        x: &mut [f32],
    ) -> Result<(), KernelError> {
        let (rows, dim) = (batch.rows(), self.shape.head_dim);
        expect_size("embeddings", rows * self.shape.hidden, x.len())?;
        let pages = access.pool().shape();
        if pages != self.kv_shape() {
            let (expected, found) = (self.layers.len(), pages.layers);
            return Err(KernelError::Shape { what: "the shape of KV pages", expected, found });
        }
        let q_width = self.shape.heads * dim;
        let kv_width = self.shape.kv_heads * dim;
        space.normed.resize(rows * self.shape.hidden);
        space.product.resize(rows * self.shape.hidden);
        space.q.resize(rows * q_width);
        space.k.resize(rows * kv_width);
        space.v.resize(rows * kv_width);
        space.gate.resize(rows * self.shape.ffn);
        space.up.resize(rows * self.shape.ffn);
        space.angles.resize(rows * dim, 0.0);
        for (row, out) in space.angles.chunks_exact_mut(dim).enumerate() {
            angles(batch.position(row).unwrap_or(0), &self.shape.frequencies, out);
        }
        let (fast, exact) = batch.fast().map_or((None, rows), |(tiles, n)| (Some(tiles), rows - n));
        let run = Run { cpu, pool, decoder: self, rows, exact, fast };
        for (index, layer) in self.layers.iter().enumerate() {
            run.attention_block(index, layer, space, access, batch, x)?;
            run.ffn_block(layer, self.layers.get(index + 1), space, x)?;
        }
        Ok(())
    }

    /// Logits of rows that have gone through the layers, `x`: `[rows][hidden]`; `out` is
    /// `[rows][logit_stride]`.
    pub fn logits(
        &self,
        cpu: Cpu,
        pool: &ThreadPool,
        space: &mut Workspace,
        x: &[f32],
        out: &mut [f32],
    ) -> Result<Vec<LogitSummary>, KernelError> {
        let head = self.head_input(cpu, pool, space, x)?;
        let input = Input::of(&space.normed, &space.acts, None)?;
        logits(cpu, pool, input, head, out)
    }

    /// Logits of some tokens for one row, in the order of `ids`: bit-equal to the same entries of
    /// [`logits`](Self::logits).
    pub fn logits_of(
        &self,
        cpu: Cpu,
        pool: &ThreadPool,
        space: &mut Workspace,
        x: &[f32],
        ids: &[u32],
    ) -> Result<Vec<f32>, KernelError> {
        let head = self.head_input(cpu, pool, space, x)?;
        let input = Input::of(&space.normed, &space.acts, None)?;
        logits_of(cpu, pool, input, head, ids)
    }

    /// Norms and quantises the head's input into the workspace.
    fn head_input<'a>(
        &'a self,
        cpu: Cpu,
        pool: &'a ThreadPool,
        space: &mut Workspace,
        x: &[f32],
    ) -> Result<Matrix<'a>, KernelError> {
        let rows = x.len() / self.shape.hidden;
        expect_size("rows for the head", rows * self.shape.hidden, x.len())?;
        let run = Run { cpu, pool, decoder: self, rows, exact: rows, fast: None };
        space.normed.resize(x.len());
        run.norm(x, &self.final_norm, &mut space.normed, &mut space.acts)?;
        run.matrix(self.head)
    }
}

/// One step's constants.
struct Run<'a> {
    cpu: Cpu,
    pool: &'a ThreadPool,
    decoder: &'a Decoder,
    rows: usize,
    /// Rows before those of fast products, of which there are none without the proof that they run.
    exact: usize,
    fast: Option<Bf16Tiles>,
}

impl<'a> Run<'a> {
    fn matrix(&self, id: MatrixId) -> Result<Matrix<'a>, KernelError> {
        let missing = KernelError::Shape { what: "planned matrices", expected: 1, found: 0 };
        self.decoder.weights.matrix(id).ok_or(missing)
    }

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
    fn norm(
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
            // SAFETY: a row of x, the weight and the row of `to` have `hidden` elements, a
            // multiple of 32; each row is written by one call.
            unsafe {
                let to = to.part(row * hidden, hidden);
                let epsilon = self.decoder.shape.epsilon;
                let (x, weight) = (x.as_ptr(), weight.as_ptr());
                elementwise::rms_norm(self.cpu, x, weight, hidden, epsilon, to.as_mut_ptr());
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

    /// The matrices that a layer begins with.
    fn qkv(&self, layer: &DecoderLayer) -> Result<Stack<'a, 3>, KernelError> {
        let matrices = [self.matrix(layer.q)?, self.matrix(layer.k)?, self.matrix(layer.v)?];
        Ok(Stack { matrices })
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
        let scale = 1.0 / (dim as f32).sqrt();
        self.each_row(&|row| {
            // SAFETY: rows of the widths that `forward` made room for; each row is changed by one
            // call. Widths are multiples of 16.
            unsafe {
                let (q, k) = (q.part(row * q_width, q_width), k.part(row * kv_width, kv_width));
                let v = v.part(row * kv_width, kv_width);
                if let Some([q_bias, k_bias, v_bias]) = &layer.qkv_bias {
                    elementwise::add(self.cpu, q.as_mut_ptr(), q_bias.as_ptr(), q_width);
                    elementwise::add(self.cpu, k.as_mut_ptr(), k_bias.as_ptr(), kv_width);
                    elementwise::add(self.cpu, v.as_mut_ptr(), v_bias.as_ptr(), kv_width);
                }
                let angles = angles[row * dim..][..dim].as_ptr();
                let (q, k) = (q.as_mut_ptr(), k.as_mut_ptr());
                elementwise::rotate(self.cpu, q, heads, dim, angles, scale, shape.pairs);
                elementwise::rotate(self.cpu, k, kv_heads, dim, angles, 1.0, shape.pairs);
            }
        })?;
        let (k, v) = (&space.k[..], &space.v[..]);
        append(self.cpu, self.pool, access, batch, index, (k, v), kv_width)?;
        // Attention's output takes the place of `gate`, which is not in use yet.
        space.gate.resize(self.rows * q_width.max(shape.ffn));
        let attended = &mut space.gate[..self.rows * q_width];
        attend(
            self.cpu,
            self.pool,
            access,
            batch,
            index,
            heads,
            &space.q,
            attended,
            &mut space.attention,
        )?;
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
        space.gate.resize(self.rows * ffn);
        self.resize(&mut space.gated, ffn)?;
        let gated = space.gated.writer(self.fast);
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
                product(self.cpu, &gate, exact, tiles.clone(), gate_to.at(0), ffn, then);
                product(self.cpu, &up, exact, tiles.clone(), up_to.at(0), ffn, next);
                for row in 0..self.exact {
                    let at = row * ffn + first;
                    let gate = gate_to.part(at, count);
                    elementwise::silu_mul(self.cpu, gate.as_mut_ptr(), up_to.at(at), count);
                    gated.write(self.cpu, row, first / BLOCK_COLUMNS, gate);
                }
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
        let input = Input::of(&space.gate, &space.gated, self.fast)?;
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
