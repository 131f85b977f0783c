//! The packed forward pass: the same model as [`Model`](crate::Model), on kernels of our own.
//!
//! Weights stay quantised and are repacked at load; activations are quantised to int8 as they are
//! used, keys and values are halves. Logits therefore differ from the reference's by a mean square
//! error below a thousandth of their mean square; what does not differ is the promise: a position's
//! logits depend on the tokens up to it and on nothing else, bit for bit, and not on the CPU either
//! (but see [`PackedModel::with_fast_prefill`]).
//!
//! To candle a step is one operation, [`ForwardStep`]: token ids in, logits out. A tensor operation
//! per layer would cost a fifth of a small model's token. The logits go where the caller keeps them
//! ([`Outputs`]), since a tensor would own them; the operation's own result is how many rows there are.
//!
//! Cost: the packed weights (as large as the file's), read once per step. An embedding that is not
//! the head's matrix stays in the file, which is read as long as the model lives.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use candle_core::{CpuStorage, CustomOp1, Layout, Shape, Tensor};
use tinyllm_kernels::{
    Batch, Bf16Tiles, Cpu, Decoder, DecoderLayer, DecoderShape, KernelError, KvPool, KvShape,
    MatrixId, RopePairs, Segment, ThreadPool, WeightPlan, WeightType, Weights, Workspace,
    dequantize,
};

use crate::batch::{Feed, Logits};
use crate::dequantise;
use crate::gguf::KeptData;
use crate::outputs::Outputs;
use crate::rope::Rope;
use crate::{Gguf, ModelError, ModelSpec, RopeStyle, TensorInfo, TensorType};

/// Where the rows of tokens are looked up.
#[derive(Debug)]
enum Embedding {
    /// In the head, whose matrix it is.
    Head(MatrixId),
    /// In the file, which stays mapped: a step reads one row a token, so a packed copy would hold
    /// memory and gain nothing.
    File { kind: WeightType, row_bytes: usize, data: KeptData },
}

impl Embedding {
    fn row(&self, weights: &Weights, token: usize, out: &mut [f32]) -> Result<(), KernelError> {
        match self {
            Embedding::Head(id) => weights.row(*id, token, out),
            Embedding::File { kind, row_bytes, data } => {
                // The caller's tokens are below the vocabulary's size, so the row is there; an
                // empty one is an error.
                let row = data.bytes().chunks_exact(*row_bytes).nth(token);
                dequantize(*kind, row.unwrap_or_default(), out)
            }
        }
    }
}

/// A model with packed weights. Steps may be called from any thread; one runs at a time.
#[derive(Debug)]
pub struct PackedModel {
    spec: ModelSpec,
    decoder: Decoder,
    embedding: Embedding,
    cpu: Cpu,
    /// There if prompts have fast products.
    fast: Option<Bf16Tiles>,
    pool: ThreadPool,
    space: Mutex<Workspace>,
    forward_tokens: AtomicU64,
}

/// The kernels' name of a tensor type, if there are kernels for it.
fn weight_type(kind: TensorType) -> Option<WeightType> {
    Some(match kind {
        TensorType::F32 => WeightType::F32,
        TensorType::F16 => WeightType::F16,
        TensorType::BF16 => WeightType::Bf16,
        TensorType::Q4_0 => WeightType::Q4_0,
        TensorType::Q4_1 => WeightType::Q4_1,
        TensorType::Q5_0 => WeightType::Q5_0,
        TensorType::Q5_1 => WeightType::Q5_1,
        TensorType::Q8_0 => WeightType::Q8_0,
        TensorType::Q4_K => WeightType::Q4K,
        TensorType::Q5_K => WeightType::Q5K,
        TensorType::Q6_K => WeightType::Q6K,
        _ => return None,
    })
}

/// Collects the matrices of a file in the order in which they are packed.
struct Packer<'a> {
    gguf: &'a Gguf,
    plan: WeightPlan,
    sources: Vec<&'a [u8]>,
}

impl<'a> Packer<'a> {
    fn tensor(&self, name: &str) -> Result<&'a TensorInfo, ModelError> {
        self.gguf.tensor(name).ok_or_else(|| ModelError::Inconsistent {
            file: self.gguf.file().to_owned(),
            reason: format!("the tensor {name:?} is missing"),
        })
    }

    fn typed(&self, name: &str) -> Result<(&'a TensorInfo, WeightType), ModelError> {
        let tensor = self.tensor(name)?;
        let kind = weight_type(tensor.tensor_type()).ok_or_else(|| ModelError::Unsupported {
            file: self.gguf.file().to_owned(),
            reason: format!("no kernel for {} ({name:?})", tensor.tensor_type()),
        })?;
        Ok((tensor, kind))
    }

    fn matrix(&mut self, name: &str) -> Result<MatrixId, ModelError> {
        let (tensor, kind) = self.typed(name)?;
        let columns = tensor.row_elements();
        let id = self.plan.add(kind, tensor.elements() / columns, columns)?;
        self.sources.push(self.gguf.tensor_data(tensor));
        Ok(id)
    }

    fn vector(&self, name: &str) -> Result<Vec<f32>, ModelError> {
        dequantise::whole(self.gguf, self.tensor(name)?)
    }

    fn layer(&mut self, layer: usize, qkv_bias: bool) -> Result<DecoderLayer, ModelError> {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let qkv_bias = if qkv_bias {
            let bias = |part: &str| self.vector(&name(part));
            Some([bias("attn_q.bias")?, bias("attn_k.bias")?, bias("attn_v.bias")?])
        } else {
            None
        };
        Ok(DecoderLayer {
            attention_norm: self.vector(&name("attn_norm.weight"))?,
            q: self.matrix(&name("attn_q.weight"))?,
            k: self.matrix(&name("attn_k.weight"))?,
            v: self.matrix(&name("attn_v.weight"))?,
            qkv_bias,
            output: self.matrix(&name("attn_output.weight"))?,
            ffn_norm: self.vector(&name("ffn_norm.weight"))?,
            gate: self.matrix(&name("ffn_gate.weight"))?,
            up: self.matrix(&name("ffn_up.weight"))?,
            down: self.matrix(&name("ffn_down.weight"))?,
        })
    }
}

impl PackedModel {
    /// Why a model cannot be packed and takes the reference path; `None` when it can.
    pub fn unsupported(gguf: &Gguf, spec: &ModelSpec) -> Option<String> {
        for tensor in gguf.tensors().iter().filter(|tensor| tensor.dims().len() > 1) {
            let kind = tensor.tensor_type();
            let Some(known) = weight_type(kind) else {
                return Some(format!("no kernel for {kind} ({:?})", tensor.name()));
            };
            if known.row_bytes(tensor.row_elements()).is_err() {
                let length = tensor.row_elements();
                return Some(format!("no kernel for rows of {length} ({:?})", tensor.name()));
            }
        }
        let dim = spec.head_dim;
        if !dim.is_multiple_of(16) {
            return Some(format!("no kernel for heads of {dim} elements"));
        }
        None
    }

    /// Packs a file's weights for `cpu`; steps run on `threads` threads (0: as many as the machine
    /// runs at once).
    pub fn load(gguf: &Gguf, cpu: Cpu, threads: usize) -> Result<Self, ModelError> {
        let spec = ModelSpec::from_gguf(gguf)?;
        if let Some(reason) = Self::unsupported(gguf, &spec) {
            return Err(ModelError::Unsupported { file: gguf.file().to_owned(), reason });
        }
        let threads = match threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        };
        let pool = ThreadPool::new(threads);
        let mut packer = Packer { gguf, plan: WeightPlan::new(), sources: Vec::new() };
        let layers = (0..spec.n_layers)
            .map(|layer| packer.layer(layer, spec.qkv_bias))
            .collect::<Result<Vec<_>, _>>()?;
        let embedding = "token_embd.weight";
        let head = packer.matrix(if spec.tied_head { embedding } else { "output.weight" })?;
        let embedding = if spec.tied_head {
            Embedding::Head(head)
        } else {
            let (tensor, kind) = packer.typed(embedding)?;
            let row_bytes = kind.row_bytes(tensor.row_elements())?;
            Embedding::File { kind, row_bytes, data: gguf.kept_data(tensor) }
        };
        let final_norm = packer.vector("output_norm.weight")?;
        let factors = match gguf.tensor("rope_freqs.weight") {
            Some(factors) => Some(dequantise::whole(gguf, factors)?),
            None => None,
        };
        let rope = Rope::new(&spec, factors.as_deref());
        let shape = DecoderShape {
            hidden: spec.hidden,
            heads: spec.n_heads,
            kv_heads: spec.n_kv_heads,
            head_dim: spec.head_dim,
            ffn: spec.ffn,
            epsilon: spec.rms_eps,
            pairs: match spec.rope_style {
                RopeStyle::Interleaved => RopePairs::Interleaved,
                RopeStyle::Halves => RopePairs::Halves,
            },
            frequencies: rope.frequencies().to_vec(),
        };
        let weights = packer.plan.pack(&pool, &packer.sources)?;
        gguf.let_go();
        Ok(Self {
            decoder: Decoder::new(shape, weights, layers, final_norm, head)?,
            spec,
            embedding,
            cpu,
            fast: None,
            pool,
            space: Mutex::default(),
            forward_tokens: AtomicU64::new(0),
        })
    }

    /// The same model, which computes prompts (see [`Feed::prompt`]) with bf16 products: faster, and
    /// with other bits than one token at a time. A position's logits then depend on the tokens up to
    /// it and on which of them were fed as a prompt's, and still on nothing else.
    ///
    /// # Errors
    /// A CPU or tier without bf16 tiles.
    pub fn with_fast_prefill(mut self) -> Result<Self, ModelError> {
        self.fast = Some(self.cpu.fast_prefill()?);
        Ok(self)
    }

    /// The model's description.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// Length of a row of logits.
    pub fn vocab_size(&self) -> usize {
        self.spec.vocab_size
    }

    /// Positions the model was trained for; more are refused.
    pub fn context_length(&self) -> usize {
        self.spec.context_length
    }

    /// What the pages of this model's pools hold.
    pub fn kv_shape(&self) -> KvShape {
        self.decoder.kv_shape()
    }

    /// Bytes of the packed weights.
    pub fn weight_bytes(&self) -> usize {
        self.decoder.weights().bytes()
    }

    /// Tokens that have gone through the layers since the model was loaded.
    pub fn forward_tokens(&self) -> u64 {
        self.forward_tokens.load(Ordering::Relaxed)
    }

    /// Computes some sequences' new tokens at once and stores their keys and values in `pages`.
    /// `outputs` then has the logits each feed asked for.
    ///
    /// # Errors
    /// A feed that does not fit the model or its pages, pages of another shape, pages that are free
    /// or shared: nothing has been written then. What was deferred does not fit, or a kernel failed:
    /// the step's positions may have been written, earlier ones never are.
    pub fn step_into(
        &self,
        batch: &[Feed<'_>],
        pages: &KvPool,
        outputs: &mut Outputs,
    ) -> Result<(), ModelError> {
        outputs.clear();
        for feed in batch {
            feed.check(&self.spec)?;
        }
        let tokens: Vec<u32> = batch.iter().flat_map(|feed| feed.tokens).copied().collect();
        if tokens.is_empty() {
            return Ok(());
        }
        let count = tokens.len();
        let tokens = Tensor::from_vec(tokens, count, &candle_core::Device::Cpu)?;
        let (outputs, failure) = (Mutex::new(outputs), Mutex::new(None));
        let step = ForwardStep { model: self, batch, pages, outputs, failure };
        match tokens.apply_op1_no_bwd(&step) {
            Ok(_) => Ok(()),
            Err(error) => {
                // candle's errors carry text; ours is the one to report.
                let failure = step.failure.into_inner().unwrap_or_else(PoisonError::into_inner);
                Err(failure.unwrap_or_else(|| error.into()))
            }
        }
    }

    /// [`Self::step_into`] for those who keep no buffers: the logits, feed by feed.
    pub fn step(&self, batch: &[Feed<'_>], pages: &KvPool) -> Result<Vec<Vec<f32>>, ModelError> {
        let mut outputs = Outputs::default();
        self.step_into(batch, pages, &mut outputs)?;
        Ok((0..batch.len()).map(|feed| outputs.get(feed).to_vec()).collect())
    }
}

/// One forward step as an operation of candle's: `[tokens]` of u32 to `outputs`, and to the number of
/// whole rows in it.
struct ForwardStep<'a> {
    model: &'a PackedModel,
    batch: &'a [Feed<'a>],
    pages: &'a KvPool,
    outputs: Mutex<&'a mut Outputs>,
    /// The reason when the operation fails.
    failure: Mutex<Option<ModelError>>,
}

impl CustomOp1 for ForwardStep<'_> {
    fn name(&self) -> &'static str {
        "packed-forward-step"
    }

    fn cpu_fwd(
        &self,
        storage: &CpuStorage,
        layout: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let tokens = match layout.contiguous_offsets() {
            Some((start, end)) => &storage.as_slice::<u32>()?[start..end],
            None => candle_core::bail!("token ids must be contiguous"),
        };
        let mut outputs = self.outputs.lock().unwrap_or_else(PoisonError::into_inner);
        match self.compute(tokens, &mut outputs) {
            Ok(rows) => Ok((CpuStorage::U32(vec![rows as u32]), Shape::from(1))),
            Err(error) => {
                let text = error.to_string();
                *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                candle_core::bail!("{text}")
            }
        }
    }
}

impl ForwardStep<'_> {
    fn compute(&self, tokens: &[u32], outputs: &mut Outputs) -> Result<usize, ModelError> {
        let PackedModel { spec, decoder, cpu, fast, pool, .. } = self.model;
        let hidden = spec.hidden;
        // Rows with fast products come last.
        let is_fast = |feed: &Feed<'_>| fast.is_some() && feed.prompt;
        let mut order: Vec<usize> = (0..self.batch.len()).collect();
        order.sort_by_key(|&feed| is_fast(&self.batch[feed]));
        let mut first_rows = vec![0; self.batch.len()];
        let (mut segments, mut count, mut exact) = (Vec::with_capacity(order.len()), 0, 0);
        for &index in &order {
            let feed = &self.batch[index];
            let rows = feed.tokens.len();
            segments.push(Segment { table: feed.pages, start: feed.position, rows });
            first_rows[index] = count;
            count += rows;
            exact += if is_fast(feed) { 0 } else { rows };
        }
        let mut batch = Batch::new(self.pages, &segments)?;
        if let Some(tiles) = fast {
            batch = batch.with_fast(*tiles, count - exact)?;
        }
        let mut access = self.pages.access()?;
        // A step that panicked left nothing in the workspace that the next one reads.
        let mut space = self.model.space.lock().unwrap_or_else(PoisonError::into_inner);
        let mut x = vec![0.0; tokens.len() * hidden];
        let mut fed = tokens.iter();
        for (feed, &first) in self.batch.iter().zip(&first_rows) {
            let rows = x[first * hidden..].chunks_exact_mut(hidden).take(feed.tokens.len());
            for (row, &token) in rows.zip(fed.by_ref()) {
                self.model.embedding.row(decoder.weights(), token as usize, row)?;
            }
        }
        decoder.forward(*cpu, pool, &mut space, &mut access, &batch, &mut x)?;
        self.model.forward_tokens.fetch_add(tokens.len() as u64, Ordering::Relaxed);

        // All whole rows of logits in one pass over the head.
        let mut dense = Vec::new();
        let mut shares = Vec::with_capacity(self.batch.len());
        for (feed, row) in self.batch.iter().zip(first_rows) {
            let end = row + feed.tokens.len();
            let last = &x[(end - 1) * hidden..end * hidden];
            let wanted = feed.logits.settled();
            wanted.check(spec)?;
            match wanted {
                Logits::Last | Logits::Best => dense.extend_from_slice(last),
                Logits::All => dense.extend_from_slice(&x[row * hidden..end * hidden]),
                Logits::None | Logits::Only(_) | Logits::Deferred(_) => {}
            }
            shares.push((wanted, last, feed.tokens.len()));
        }
        let (rows, width) = (dense.len() / hidden, spec.vocab_size);
        let mut summaries = Vec::new();
        if rows > 0 {
            let to = outputs.rows(rows, decoder.logit_stride());
            summaries = decoder.logits(*cpu, pool, &mut space, &dense, to)?;
        }
        let mut summaries = summaries.iter();
        for (wanted, last, rows) in shares {
            match wanted {
                Logits::Last | Logits::Best => {
                    let summary = summaries.next();
                    let best = summary.map(|summary| summary.best);
                    let sum = summary.map(|summary| summary.log_sum_exp);
                    outputs.give_row(wanted, width, best, sum);
                }
                Logits::All => {
                    summaries.by_ref().take(rows).for_each(drop);
                    outputs.give_rows(rows, width);
                }
                Logits::Only(ids) => {
                    outputs.give_few(&decoder.logits_of(*cpu, pool, &mut space, last, ids)?);
                }
                Logits::None | Logits::Deferred(_) => outputs.give_nothing(),
            }
        }
        Ok(rows)
    }
}
