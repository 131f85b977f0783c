//! What a model file says the model is: one description for the whole Llama family.
//!
//! The architectures differ in few points (which pairs of a head rotate together, whether Q, K and
//! V have biases, whether the head is the embedding), and each is a field here, so that the forward
//! pass asks the description and never the name. [`ModelSpec::from_gguf`] checks every
//! hyperparameter and the type and shape of every tensor; what it accepts can be computed, and what
//! it does not know, a tensor as much as a setting, is refused by name: leaving it out would give
//! numbers that look right and are not.

use crate::dequantise::is_computable;
use crate::{Gguf, ModelError, TensorInfo};

/// Longest head. Known models use 64 to 256.
const MAX_HEAD_DIM: usize = 1024;
/// Rotation base when the file names none, as in the first Llama models.
const DEFAULT_ROPE_BASE: f64 = 10_000.0;

/// Which elements of a head rotate together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopeStyle {
    /// Neighbours: elements `2i` and `2i + 1`. Files of the `llama` architecture have their Q and K
    /// rows permuted for it.
    Interleaved,
    /// Halves: elements `i` and `i + head_dim / 2`, also called NEOX.
    Halves,
}

/// The family's members that are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    /// Llama and its like, such as `SmolLM2` and Mistral.
    Llama,
    /// Qwen2 and Qwen2.5.
    Qwen2,
}

impl Architecture {
    /// The name in `general.architecture`, which prefixes the hyperparameters' keys.
    pub fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        [Self::Llama, Self::Qwen2].into_iter().find(|architecture| architecture.name() == name)
    }

    fn rope_style(self) -> RopeStyle {
        match self {
            Self::Llama => RopeStyle::Interleaved,
            Self::Qwen2 => RopeStyle::Halves,
        }
    }
}

/// The description of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelSpec {
    /// The family member.
    pub architecture: Architecture,
    /// `general.name`.
    pub name: Option<String>,
    /// Transformer layers.
    pub n_layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the feed-forward layer.
    pub ffn: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads; divides [`Self::n_heads`].
    pub n_kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Rows of the embedding and of the head. May exceed the tokenizer's vocabulary.
    pub vocab_size: usize,
    /// Positions the model was trained for.
    pub context_length: usize,
    /// Added to the mean square in every norm.
    pub rms_eps: f32,
    /// Which elements of a head rotate together.
    pub rope_style: RopeStyle,
    /// Pair `i` rotates by `position * rope_base^(-2i / head_dim)` radians, divided by the factor
    /// of the tensor `rope_freqs.weight` where there is one (how Llama 3 files say that their
    /// context was extended).
    pub rope_base: f64,
    /// Whether Q, K and V have biases.
    pub qkv_bias: bool,
    /// Whether the head's weights are the embedding's.
    pub tied_head: bool,
}

impl ModelSpec {
    /// Reads and checks the description.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, ModelError> {
        let reader = Reader { gguf, architecture: architecture(gguf)? };
        let architecture = reader.architecture;
        reader.refuse_what_is_not_computed()?;

        let hidden = reader.size("embedding_length")?;
        let n_heads = reader.size("attention.head_count")?;
        let n_kv_heads = reader.optional_size("attention.head_count_kv")?.unwrap_or(n_heads);
        if n_heads % n_kv_heads != 0 {
            return Err(reader.inconsistent(format!(
                "{n_heads} query heads cannot share {n_kv_heads} key and value heads"
            )));
        }
        let head_dim = match reader.optional_size("attention.key_length")? {
            Some(head_dim) => head_dim,
            None if hidden % n_heads == 0 => hidden / n_heads,
            None => {
                return Err(reader.inconsistent(format!(
                    "a width of {hidden} cannot be divided among {n_heads} heads"
                )));
            }
        };
        if head_dim % 2 != 0 || head_dim > MAX_HEAD_DIM {
            return Err(reader.inconsistent(format!(
                "a head of {head_dim} elements; an even number up to {MAX_HEAD_DIM} is accepted"
            )));
        }
        for key in ["attention.value_length", "rope.dimension_count"] {
            match reader.optional_size(key)? {
                Some(size) if size != head_dim => {
                    return Err(reader.unsupported(format!(
                        "{key} of {size} beside heads of {head_dim} elements"
                    )));
                }
                _ => {}
            }
        }
        let embedding = reader.tensor("token_embd.weight")?;
        let spec = Self {
            architecture,
            name: gguf.str("general.name")?.map(str::to_owned),
            n_layers: reader.size("block_count")?,
            hidden,
            ffn: reader.size("feed_forward_length")?,
            n_heads,
            n_kv_heads,
            head_dim,
            vocab_size: embedding.dims().get(1).copied().unwrap_or(1),
            context_length: reader.size("context_length")?,
            rms_eps: reader.float("attention.layer_norm_rms_epsilon", None, 0.0..1.0)? as f32,
            rope_style: architecture.rope_style(),
            rope_base: reader.float("rope.freq_base", Some(DEFAULT_ROPE_BASE), 1.0..1e12)?,
            qkv_bias: architecture == Architecture::Qwen2
                || gguf.tensor("blk.0.attn_q.bias").is_some(),
            tied_head: gguf.tensor("output.weight").is_none(),
        };
        spec.check_tensors(&reader)?;
        Ok(spec)
    }

    /// Elements of all query heads of a position.
    pub fn q_width(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Elements of all key heads (and of all value heads) of a position.
    pub fn kv_width(&self) -> usize {
        self.n_kv_heads * self.head_dim
    }

    /// Tensors outside of the layers, with their shapes, the length of a row first.
    fn outer_tensors(&self) -> Vec<(&'static str, Vec<usize>)> {
        let mut tensors = vec![
            ("token_embd.weight", vec![self.hidden, self.vocab_size]),
            ("output_norm.weight", vec![self.hidden]),
        ];
        if !self.tied_head {
            tensors.push(("output.weight", vec![self.hidden, self.vocab_size]));
        }
        tensors
    }

    /// Tensors of each layer by the part of their name behind `blk.N.`, with their shapes.
    fn layer_tensors(&self) -> Vec<(&'static str, Vec<usize>)> {
        let (q, kv) = (self.q_width(), self.kv_width());
        let mut tensors = vec![
            ("attn_norm.weight", vec![self.hidden]),
            ("attn_q.weight", vec![self.hidden, q]),
            ("attn_k.weight", vec![self.hidden, kv]),
            ("attn_v.weight", vec![self.hidden, kv]),
            ("attn_output.weight", vec![q, self.hidden]),
            ("ffn_norm.weight", vec![self.hidden]),
            ("ffn_gate.weight", vec![self.hidden, self.ffn]),
            ("ffn_up.weight", vec![self.hidden, self.ffn]),
            ("ffn_down.weight", vec![self.ffn, self.hidden]),
        ];
        if self.qkv_bias {
            tensors.extend([
                ("attn_q.bias", vec![q]),
                ("attn_k.bias", vec![kv]),
                ("attn_v.bias", vec![kv]),
            ]);
        }
        tensors
    }

    fn check_tensors(&self, reader: &Reader<'_>) -> Result<(), ModelError> {
        // Before anything is done per layer: a layer has tensors, so the file bounds their number.
        if self.n_layers > reader.gguf.tensors().len() {
            return Err(reader.inconsistent(format!(
                "{} layers from {} tensors",
                self.n_layers,
                reader.gguf.tensors().len()
            )));
        }
        let mut expected = 0;
        for (name, shape) in self.outer_tensors() {
            reader.check_tensor(name, &shape)?;
            expected += 1;
        }
        let layer_tensors = self.layer_tensors();
        for layer in 0..self.n_layers {
            for (part, shape) in &layer_tensors {
                reader.check_tensor(&format!("blk.{layer}.{part}"), shape)?;
                expected += 1;
            }
        }
        if reader.gguf.tensor("rope_freqs.weight").is_some() {
            reader.check_tensor("rope_freqs.weight", &[self.head_dim / 2])?;
            expected += 1;
        }
        if expected == reader.gguf.tensors().len() {
            return Ok(());
        }
        let stranger = reader.gguf.tensors().iter().find(|tensor| !self.has_tensor(tensor.name()));
        let name = stranger.map_or("?", TensorInfo::name);
        Err(reader.unsupported(format!("the tensor {name:?} has no place in this architecture")))
    }

    fn has_tensor(&self, name: &str) -> bool {
        if let Some((layer, part)) = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'))
        {
            let known = self.layer_tensors().iter().any(|(known, _)| *known == part);
            return known && layer.parse::<usize>().is_ok_and(|layer| layer < self.n_layers);
        }
        name == "rope_freqs.weight" || self.outer_tensors().iter().any(|(known, _)| *known == name)
    }
}

fn architecture(gguf: &Gguf) -> Result<Architecture, ModelError> {
    let Some(name) = gguf.str("general.architecture")? else {
        return Err(ModelError::Inconsistent {
            file: gguf.file().to_owned(),
            reason: "the metadata has no \"general.architecture\"".to_owned(),
        });
    };
    Architecture::from_name(name).ok_or_else(|| ModelError::Unsupported {
        file: gguf.file().to_owned(),
        reason: format!("the architecture {name:?}; \"llama\" and \"qwen2\" are computed"),
    })
}

/// Access to one architecture's hyperparameters.
struct Reader<'a> {
    gguf: &'a Gguf,
    architecture: Architecture,
}

impl Reader<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture.name())
    }

    fn unsupported(&self, reason: String) -> ModelError {
        ModelError::Unsupported { file: self.gguf.file().to_owned(), reason }
    }

    fn inconsistent(&self, reason: String) -> ModelError {
        ModelError::Inconsistent { file: self.gguf.file().to_owned(), reason }
    }

    /// A positive size. It fits 32 bits, so that products of two cannot overflow.
    fn optional_size(&self, name: &str) -> Result<Option<usize>, ModelError> {
        let key = self.key(name);
        if self.gguf.is_array(&key) {
            return Err(self.unsupported(format!("{key} differs between layers")));
        }
        match self.gguf.u32(&key)? {
            Some(0) => Err(self.inconsistent(format!("{key} is 0"))),
            size => Ok(size.map(|size| size as usize)),
        }
    }

    fn size(&self, name: &str) -> Result<usize, ModelError> {
        self.optional_size(name)?
            .ok_or_else(|| self.inconsistent(format!("the metadata has no {:?}", self.key(name))))
    }

    fn float(
        &self,
        name: &str,
        default: Option<f64>,
        range: std::ops::Range<f64>,
    ) -> Result<f64, ModelError> {
        let key = self.key(name);
        match self.gguf.f64(&key)?.or(default) {
            Some(value) if range.contains(&value) => Ok(value),
            Some(value) => Err(self.inconsistent(format!(
                "{key} is {value}; {} to {} is accepted",
                range.start, range.end
            ))),
            None => Err(self.inconsistent(format!("the metadata has no {key:?}"))),
        }
    }

    /// Settings that change the numbers in ways the forward pass does not follow.
    fn refuse_what_is_not_computed(&self) -> Result<(), ModelError> {
        let scaling_key = self.key("rope.scaling.type");
        let scaling = self.gguf.str(&scaling_key)?;
        match scaling {
            None | Some("none") => {}
            Some(scaling) => return Err(self.unsupported(format!("the rope scaling {scaling:?}"))),
        }
        // Without a type a factor means linear scaling; older files have only that key.
        for key in ["rope.scaling.factor", "rope.scale_linear"] {
            match self.gguf.f64(&self.key(key))? {
                Some(factor) if scaling.is_none() && factor != 0.0 && factor != 1.0 => {
                    let reason = format!("the rope scaling \"linear\" (by {factor})");
                    return Err(self.unsupported(reason));
                }
                _ => {}
            }
        }
        for (key, what) in [
            ("expert_count", "a mixture of experts"),
            ("attention.sliding_window", "sliding-window attention"),
        ] {
            let key = self.key(key);
            if self.gguf.u32(&key)?.is_some_and(|value| value > 0) {
                return Err(self.unsupported(format!("{what} ({key})")));
            }
        }
        Ok(())
    }

    fn tensor(&self, name: &str) -> Result<&TensorInfo, ModelError> {
        self.gguf
            .tensor(name)
            .ok_or_else(|| self.inconsistent(format!("the tensor {name:?} is missing")))
    }

    fn check_tensor(&self, name: &str, shape: &[usize]) -> Result<(), ModelError> {
        let tensor = self.tensor(name)?;
        if tensor.dims() != shape {
            return Err(self.inconsistent(format!(
                "the tensor {name:?} has the shape {:?}, not {shape:?}",
                tensor.dims()
            )));
        }
        if !is_computable(tensor.tensor_type()) {
            return Err(
                self.unsupported(format!("the tensor type {} of {name:?}", tensor.tensor_type()))
            );
        }
        Ok(())
    }
}
