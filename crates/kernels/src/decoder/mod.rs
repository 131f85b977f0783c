//! The forward pass of a pre-norm decoder with a gated MLP, from packed weights: what the Llama
//! family's layers have in common, as plain data.
//!
//! ```text
//! norm, quantise -> Q, K, V -> rotate, append -> attention -> quantise -> O, residual
//!                -> norm, quantise -> gate, up, silu * up, quantise -> down, residual
//! ```
//! Threads divide a step in one of two ways, which give the same bits: a step of few rows by the
//! matrices' rows (`columns.rs`), so that every weight is read once; one of many by its own rows
//! (`rows.rs`), so that what a layer makes of a row stays in one core's cache.
//!
//! Where a batch has rows of fast products (the last ones), those of their matrices and of their
//! attention are bf16 (see `matmul/amx_bf16.rs` and `attention/fast.rs`); everything else, the head's
//! logits among it, is the same.

mod columns;
mod rows;

use crate::attention::{Batch, Scratch};
use crate::bf16::{Bf16Tiles, Operand};
use crate::dispatch::Cpu;
use crate::elementwise::{self, RopePairs, angles};
use crate::error::{KernelError, expect_size};
use crate::head::{LogitSummary, logits, logits_of};
use crate::lines::Lines;
use crate::matmul::{Input, Stack};
use crate::pages::{KvAccess, KvElement, KvShape};
use crate::pool::ThreadPool;
use crate::tiles::{BLOCK_COLUMNS, Matrix, MatrixId, Weights};

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
    q: Lines,
    attended: Lines,
    attention: Scratch,
    /// Of steps whose matrices are divided, and of the head.
    normed: Lines,
    k: Lines,
    v: Lines,
    gate: Lines,
    up: Lines,
    product: Lines,
    acts: Operand,
    gated: Operand,
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
        space.q.resize(rows * q_width);
        space.attended.resize(rows * q_width);
        space.angles.resize(rows * dim, 0.0);
        for (row, out) in space.angles.chunks_exact_mut(dim).enumerate() {
            angles(batch.position(row).unwrap_or(0), &self.shape.frequencies, out);
        }
        let (fast, exact) = batch.fast().map_or((None, rows), |(tiles, n)| (Some(tiles), rows - n));
        let run = Run { cpu, pool, decoder: self, rows, exact, fast };
        match rows::blocks(&run) {
            Some(blocks) => rows::forward(&run, &blocks, space, access, batch, x),
            None => columns::forward(&run, space, access, batch, x),
        }
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

    /// The matrices that a layer begins with.
    fn qkv(&self, layer: &DecoderLayer) -> Result<Stack<'a, 3>, KernelError> {
        let matrices = [self.matrix(layer.q)?, self.matrix(layer.k)?, self.matrix(layer.v)?];
        Ok(Stack { matrices })
    }

    /// Norms one row.
    fn norm_row(&self, x: &[f32], weight: &[f32], to: &mut [f32]) {
        assert!(x.len() == weight.len() && x.len() == to.len(), "a row of another width");
        assert!(x.len().is_multiple_of(BLOCK_COLUMNS), "parts of a block");
        let epsilon = self.decoder.shape.epsilon;
        let (x, weight, n) = (x.as_ptr(), weight.as_ptr(), x.len());
        // SAFETY: sizes as asserted.
        unsafe { elementwise::rms_norm(self.cpu, x, weight, n, epsilon, to.as_mut_ptr()) }
    }

    /// Adds the biases to one row's Q, K and V, and rotates Q and K by the row's angles.
    fn rotate(
        &self,
        layer: &DecoderLayer,
        q: &mut [f32],
        k: &mut [f32],
        v: &mut [f32],
        angles: &[f32],
    ) {
        let DecoderShape { head_dim: dim, heads, kv_heads, pairs, .. } = self.decoder.shape;
        let kv = kv_heads * dim;
        let sizes = [q.len(), k.len(), v.len(), angles.len()];
        assert_eq!(sizes, [heads * dim, kv, kv, dim], "a row of other widths");
        let scale = 1.0 / (dim as f32).sqrt();
        // SAFETY: sizes as asserted; biases were compared in `Decoder::new`; widths are multiples
        // of 16.
        unsafe {
            if let Some([q_bias, k_bias, v_bias]) = &layer.qkv_bias {
                elementwise::add(self.cpu, q.as_mut_ptr(), q_bias.as_ptr(), q.len());
                elementwise::add(self.cpu, k.as_mut_ptr(), k_bias.as_ptr(), kv);
                elementwise::add(self.cpu, v.as_mut_ptr(), v_bias.as_ptr(), kv);
            }
            let angles = angles.as_ptr();
            elementwise::rotate(self.cpu, q.as_mut_ptr(), heads, dim, angles, scale, pairs);
            elementwise::rotate(self.cpu, k.as_mut_ptr(), kv_heads, dim, angles, 1.0, pairs);
        }
    }
}

#[cfg(test)]
mod tests;
