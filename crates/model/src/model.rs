//! The reference forward pass: f32 throughout, on the CPU.
//!
//! It is what every faster path is measured against. Weights are dequantised once (exactly, by
//! candle); every sum is taken in an order that the call does not influence ([`crate::matrix`],
//! [`crate::attention`]), so **the logits after a position depend on the tokens up to it and on
//! nothing else**: not on how they were cut into calls, on what else was in the batch, on which
//! pages hold the past, or on the number of threads. Tests hold the bits equal.
//!
//! Cost: 4 bytes of memory per weight, all of which a step reads once (a decode step is as fast as
//! memory), and some 60 bytes per row and unit of width for activations.

use std::sync::atomic::{AtomicU64, Ordering};

use pulp::Arch;
use rayon::{ThreadPool, ThreadPoolBuilder};
use tinyllm_kernels::{KvAccess, KvElement, KvPool, KvShape};

use crate::attention::attend;
use crate::batch::{Feed, Logits};
use crate::norm::{add, add_to_rows, rms_norm, silu_times};
use crate::outputs::Outputs;
use crate::rope::{Angles, Rope};
use crate::weights::{Layer, Weights};
use crate::{Device, Gguf, ModelError, ModelSpec};

/// A loaded model. Steps may be called from any thread; each runs on the model's own threads.
#[derive(Debug)]
pub struct Model {
    spec: ModelSpec,
    weights: Weights,
    rope: Rope,
    arch: Arch,
    threads: ThreadPool,
    forward_tokens: AtomicU64,
}

impl Model {
    /// Loads a model with as many threads as the machine runs at once.
    pub fn load(gguf: &Gguf, device: Device) -> Result<Self, ModelError> {
        Self::load_with_threads(gguf, device, 0)
    }

    /// Loads a model that computes with `threads` threads (0: as many as the machine runs at once).
    pub fn load_with_threads(
        gguf: &Gguf,
        device: Device,
        threads: usize,
    ) -> Result<Self, ModelError> {
        let Device::Cpu = device;
        let spec = ModelSpec::from_gguf(gguf)?;
        let threads = match threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        };
        let threads = ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|index| format!("tinyllm-model-{index}"))
            .build()
            .map_err(|error| ModelError::Threads { reason: error.to_string() })?;
        let weights = threads.install(|| Weights::load(gguf, &spec))?;
        let rope = Rope::new(&spec, weights.rope_factors.as_deref());
        Ok(Self {
            spec,
            weights,
            rope,
            arch: Arch::new(),
            threads,
            forward_tokens: AtomicU64::new(0),
        })
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
        KvShape {
            layers: self.spec.n_layers,
            kv_heads: self.spec.n_kv_heads,
            head_dim: self.spec.head_dim,
            element: KvElement::F32,
        }
    }

    /// Tokens that have gone through the layers since the model was loaded.
    pub fn forward_tokens(&self) -> u64 {
        self.forward_tokens.load(Ordering::Relaxed)
    }

    /// Computes some sequences' new tokens at once and stores their keys and values in `pages`.
    /// `outputs` then has the logits each feed asked for.
    ///
    /// # Errors
    /// A feed that does not fit the model or its pages, or pages of another shape. Nothing has been
    /// written then, except when a page turns out to be shared or free, or what was deferred does not
    /// fit: keys and values of this step's positions may have been written, earlier ones never are.
    pub fn step_into(
        &self,
        batch: &[Feed<'_>],
        pages: &KvPool,
        outputs: &mut Outputs,
    ) -> Result<(), ModelError> {
        outputs.clear();
        if pages.shape() != self.kv_shape() {
            return Err(ModelError::Input {
                reason: format!("the pages are {:?}, not {:?}", pages.shape(), self.kv_shape()),
            });
        }
        for feed in batch {
            feed.check(&self.spec)?;
        }
        if batch.is_empty() {
            return Ok(());
        }
        self.threads.install(|| self.compute(batch, &mut pages.access()?, outputs))
    }

    /// [`Self::step_into`] for those who keep no buffers: the logits, feed by feed.
    pub fn step(&self, batch: &[Feed<'_>], pages: &KvPool) -> Result<Vec<Vec<f32>>, ModelError> {
        let mut outputs = Outputs::default();
        self.step_into(batch, pages, &mut outputs)?;
        Ok((0..batch.len()).map(|feed| outputs.get(feed).to_vec()).collect())
    }

    fn compute(
        &self,
        batch: &[Feed<'_>],
        access: &mut KvAccess<'_>,
        outputs: &mut Outputs,
    ) -> Result<(), ModelError> {
        let tokens: Vec<u32> = batch.iter().flat_map(|feed| feed.tokens).copied().collect();
        let positions =
            batch.iter().flat_map(|feed| feed.position..feed.position + feed.tokens.len());
        let angles = self.rope.angles(positions);
        // `[rows][hidden]` from here on, all feeds' tokens one after the other.
        let mut x = self.weights.embed(&tokens, self.spec.hidden)?;
        for (index, layer) in self.weights.layers.iter().enumerate() {
            self.attention_block(&mut x, index, layer, &angles, batch, access)?;
            self.feed_forward_block(&mut x, layer);
        }
        self.forward_tokens.fetch_add(tokens.len() as u64, Ordering::Relaxed);
        self.logits(&x, batch, outputs)
    }

    fn attention_block(
        &self,
        x: &mut [f32],
        index: usize,
        layer: &Layer,
        angles: &Angles,
        batch: &[Feed<'_>],
        access: &mut KvAccess<'_>,
    ) -> Result<(), ModelError> {
        let normed = rms_norm(x, &layer.attn_norm, self.spec.rms_eps);
        let mut q = layer.q.multiply(self.arch, &normed);
        let mut k = layer.k.multiply(self.arch, &normed);
        let mut v = layer.v.multiply(self.arch, &normed);
        if let Some([q_bias, k_bias, v_bias]) = &layer.qkv_bias {
            add_to_rows(&mut q, q_bias);
            add_to_rows(&mut k, k_bias);
            add_to_rows(&mut v, v_bias);
        }
        self.rope.rotate(&mut q, angles);
        self.rope.rotate(&mut k, angles);
        let width = self.spec.kv_width();
        let mut rows = k.chunks_exact(width).zip(v.chunks_exact(width));
        for feed in batch {
            for (offset, (k, v)) in rows.by_ref().take(feed.tokens.len()).enumerate() {
                access.write(feed.pages, feed.position + offset, index, k, v)?;
            }
        }
        let attended = attend(self.arch, &self.spec, batch, access, index, &q)?;
        add(x, &layer.output.multiply(self.arch, &attended));
        Ok(())
    }

    fn feed_forward_block(&self, x: &mut [f32], layer: &Layer) {
        let normed = rms_norm(x, &layer.ffn_norm, self.spec.rms_eps);
        let mut gate = layer.gate.multiply(self.arch, &normed);
        let up = layer.up.multiply(self.arch, &normed);
        silu_times(&mut gate, &up);
        add(x, &layer.down.multiply(self.arch, &gate));
    }

    /// The logits asked for. Whole rows of all feeds share one pass over the head.
    fn logits(
        &self,
        x: &[f32],
        batch: &[Feed<'_>],
        outputs: &mut Outputs,
    ) -> Result<(), ModelError> {
        let hidden = self.spec.hidden;
        let head = &self.weights.head;
        let norm = |x: &[f32]| rms_norm(x, &self.weights.output_norm, self.spec.rms_eps);
        let mut dense = Vec::new();
        let mut rest = x;
        let mut shares = Vec::with_capacity(batch.len());
        for feed in batch {
            let (rows, others) = rest.split_at(feed.tokens.len() * hidden);
            rest = others;
            let last = &rows[rows.len() - hidden..];
            let wanted = feed.logits.settled();
            wanted.check(&self.spec)?;
            match wanted {
                Logits::Last | Logits::Best => dense.extend_from_slice(last),
                Logits::All => dense.extend_from_slice(rows),
                Logits::None | Logits::Only(_) | Logits::Deferred(_) => {}
            }
            shares.push((wanted, last, feed.tokens.len()));
        }
        let (count, width) = (dense.len() / hidden, head.outputs());
        outputs.rows(count, width).copy_from_slice(&head.multiply(self.arch, &norm(&dense)));
        for (wanted, last, rows) in shares {
            match wanted {
                Logits::Last | Logits::Best => outputs.give_row(wanted, width, None, None),
                Logits::All => outputs.give_rows(rows, width),
                Logits::Only(ids) => outputs.give_few(&head.multiply_only(&norm(last), ids)),
                Logits::None | Logits::Deferred(_) => outputs.give_nothing(),
            }
        }
        Ok(())
    }
}
