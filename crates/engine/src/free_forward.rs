//! A forward pass that costs nothing, for measuring what the engine itself costs.
//!
//! Its logits are the same in every step: a slope, so that greedy choices are cheap to predict and
//! sampled ones spread over the vocabulary.

use tinyllm_kernels::{KvElement, KvPool, KvShape};
use tinyllm_model::{Feed, Logits, ModelSpec};

use crate::error::EngineError;
use crate::forward::Forward;

pub(crate) struct FreeForward {
    row: Vec<f32>,
    context: usize,
}

impl FreeForward {
    pub(crate) fn new(spec: &ModelSpec) -> Self {
        let row = (0..spec.vocab_size).map(|i| ((i * 7919) % 4096) as f32 / 256.0).collect();
        Self { row, context: spec.context_length }
    }
}

impl Forward for FreeForward {
    fn vocab_size(&self) -> usize {
        self.row.len()
    }

    fn context_length(&self) -> usize {
        self.context
    }

    fn kv_shape(&self) -> KvShape {
        KvShape { layers: 1, kv_heads: 1, head_dim: 16, element: KvElement::F16 }
    }

    fn step(&mut self, feeds: &[Feed<'_>], _: &KvPool) -> Result<Vec<Vec<f32>>, EngineError> {
        let logits = feeds.iter().map(|feed| match feed.logits {
            Logits::None => Vec::new(),
            Logits::Only(ids) => ids.iter().map(|&id| self.row[id as usize]).collect(),
            Logits::Last | Logits::All => self.row.clone(),
        });
        Ok(logits.collect())
    }
}
