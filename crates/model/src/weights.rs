//! A model's weights in f32, as the forward pass reads them.

use rayon::prelude::*;

use crate::dequantise;
use crate::gguf::Mapping;
use crate::matrix::Matrix;
use crate::{Gguf, ModelError, ModelSpec, TensorInfo, TensorType};

/// One transformer layer.
#[derive(Debug)]
pub(crate) struct Layer {
    /// `[hidden]`
    pub(crate) attn_norm: Vec<f32>,
    /// `hidden` to `n_heads * head_dim`
    pub(crate) q: Matrix,
    /// `hidden` to `n_kv_heads * head_dim`, as is [`Self::v`]
    pub(crate) k: Matrix,
    pub(crate) v: Matrix,
    /// Biases of Q, K and V.
    pub(crate) qkv_bias: Option<[Vec<f32>; 3]>,
    /// `n_heads * head_dim` to `hidden`
    pub(crate) output: Matrix,
    /// `[hidden]`
    pub(crate) ffn_norm: Vec<f32>,
    /// `hidden` to `ffn`, as is [`Self::up`]
    pub(crate) gate: Matrix,
    pub(crate) up: Matrix,
    /// `ffn` to `hidden`
    pub(crate) down: Matrix,
}

/// All weights.
#[derive(Debug)]
pub(crate) struct Weights {
    pub(crate) layers: Vec<Layer>,
    /// `[hidden]`
    pub(crate) output_norm: Vec<f32>,
    /// `hidden` to `vocab_size`
    pub(crate) head: Matrix,
    /// The embedding where it is not the head.
    pub(crate) embedding: Option<RowTable>,
    /// `[head_dim / 2]`
    pub(crate) rope_factors: Option<Vec<f32>>,
}

impl Weights {
    /// Dequantises tensor by tensor, each in parallel on the current pool; the peak is the result
    /// and a few rows.
    pub(crate) fn load(gguf: &Gguf, spec: &ModelSpec) -> Result<Self, ModelError> {
        let loader = Loader { gguf };
        let layers = (0..spec.n_layers)
            .map(|layer| loader.layer(layer, spec.qkv_bias))
            .collect::<Result<_, _>>()?;
        let (head, embedding) = if spec.tied_head {
            (loader.matrix("token_embd.weight")?, None)
        } else {
            let embedding = RowTable::load(gguf, loader.tensor("token_embd.weight")?)?;
            (loader.matrix("output.weight")?, Some(embedding))
        };
        let factors = gguf.tensor("rope_freqs.weight");
        Ok(Self {
            layers,
            output_norm: loader.vector("output_norm.weight")?,
            head,
            embedding,
            rope_factors: factors.map(|factors| dequantise::whole(gguf, factors)).transpose()?,
        })
    }

    /// The embeddings of some tokens, `[tokens][hidden]`.
    pub(crate) fn embed(&self, tokens: &[u32], hidden: usize) -> Result<Vec<f32>, ModelError> {
        let mut rows = vec![0.0; tokens.len() * hidden];
        rows.par_chunks_exact_mut(hidden).zip(tokens).with_min_len(8).try_for_each(
            |(row, &token)| {
                match &self.embedding {
                    Some(table) => row.copy_from_slice(&table.row(token as usize)?),
                    None => {
                        for (value, weight) in row.iter_mut().zip(self.head.row(token as usize)) {
                            *value = weight;
                        }
                    }
                }
                Ok::<_, ModelError>(())
            },
        )?;
        Ok(rows)
    }
}

struct Loader<'a> {
    gguf: &'a Gguf,
}

impl Loader<'_> {
    fn tensor(&self, name: &str) -> Result<&TensorInfo, ModelError> {
        self.gguf.tensor(name).ok_or_else(|| ModelError::Inconsistent {
            file: self.gguf.file().to_owned(),
            reason: format!("the tensor {name:?} is missing"),
        })
    }

    fn matrix(&self, name: &str) -> Result<Matrix, ModelError> {
        Matrix::load(self.gguf, self.tensor(name)?)
    }

    fn vector(&self, name: &str) -> Result<Vec<f32>, ModelError> {
        dequantise::whole(self.gguf, self.tensor(name)?)
    }

    fn layer(&self, layer: usize, qkv_bias: bool) -> Result<Layer, ModelError> {
        let matrix = |part: &str| self.matrix(&format!("blk.{layer}.{part}.weight"));
        let vector = |part: &str| self.vector(&format!("blk.{layer}.{part}"));
        let qkv_bias = if qkv_bias {
            Some([vector("attn_q.bias")?, vector("attn_k.bias")?, vector("attn_v.bias")?])
        } else {
            None
        };
        Ok(Layer {
            attn_norm: vector("attn_norm.weight")?,
            q: matrix("attn_q")?,
            k: matrix("attn_k")?,
            v: matrix("attn_v")?,
            qkv_bias,
            output: matrix("attn_output")?,
            ffn_norm: vector("ffn_norm.weight")?,
            gate: matrix("ffn_gate")?,
            up: matrix("ffn_up")?,
            down: matrix("ffn_down")?,
        })
    }
}

/// A table of which single rows are looked up, kept as the file stores it: dequantising a row per
/// token costs nothing beside the layers, and the table of a large vocabulary would be hundreds of
/// MB in f32. A copy, so that the file need not stay open.
#[derive(Debug)]
pub(crate) struct RowTable {
    data: Mapping,
    kind: TensorType,
    row_elements: usize,
    row_bytes: usize,
}

impl RowTable {
    fn load(gguf: &Gguf, tensor: &TensorInfo) -> Result<Self, ModelError> {
        let data = Mapping::copy_of(gguf.tensor_data(tensor))
            .map_err(|source| ModelError::Open { file: gguf.file().to_owned(), source })?;
        let (kind, row_elements) = (tensor.tensor_type(), tensor.row_elements());
        let row_bytes = row_elements / kind.block_elements() * kind.block_bytes();
        Ok(Self { data, kind, row_elements, row_bytes })
    }

    fn row(&self, index: usize) -> Result<Vec<f32>, ModelError> {
        let data = &self.data.bytes()[index * self.row_bytes..(index + 1) * self.row_bytes];
        dequantise::decode(self.kind, data, self.row_elements)
    }
}
