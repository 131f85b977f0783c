//! A forward pass that costs nothing, for measuring what the engine itself costs.
//!
//! Its logits are the same in every step: a slope, so that sampled choices spread over the
//! vocabulary. What a real one finds out on its way (the likeliest token) is free; where a row is
//! asked for it is copied, which costs some ten microseconds that a real one does not have. With
//! `TINYLLM_FREE_FORWARD_US` set, a step sleeps so long first: then tokens come out one by one, as
//! from a real forward pass, and not as many at once as the reader finds.

use std::time::Duration;

use tinyllm_kernels::{KvElement, KvPool, KvShape};
use tinyllm_model::{Feed, Logits, ModelSpec, Outputs};

use crate::error::EngineError;
use crate::forward::Forward;

pub(crate) struct FreeForward {
    row: Vec<f32>,
    best: u32,
    pause: Duration,
    context: usize,
}

impl FreeForward {
    pub(crate) fn new(spec: &ModelSpec) -> Self {
        let row: Vec<f32> =
            (0..spec.vocab_size).map(|i| ((i * 7919) % 4096) as f32 / 256.0).collect();
        // 7919 * 1007 + 1 is a multiple of 4096.
        let best = 1007;
        let pause = std::env::var("TINYLLM_FREE_FORWARD_US").ok().and_then(|us| us.parse().ok());
        let pause = Duration::from_micros(pause.unwrap_or(0));
        Self { row, best, pause, context: spec.context_length }
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

    fn step(
        &mut self,
        feeds: &[Feed<'_>],
        _: &KvPool,
        outputs: &mut Outputs,
    ) -> Result<(), EngineError> {
        if !self.pause.is_zero() {
            std::thread::sleep(self.pause);
        }
        outputs.clear();
        let width = self.row.len();
        let wanted: Vec<Logits<'_>> = feeds
            .iter()
            .map(|feed| match feed.logits {
                Logits::Deferred(deferred) => deferred.logits(),
                wanted => wanted,
            })
            .collect();
        let rows = wanted.iter().filter(|w| matches!(w, Logits::Last)).count();
        for row in outputs.rows(rows, width).chunks_exact_mut(width) {
            row.copy_from_slice(&self.row);
        }
        for wanted in wanted {
            match wanted {
                Logits::Best => outputs.give_best(self.best),
                Logits::Last => outputs.give_row(wanted, width, None, None),
                Logits::Only(ids) => {
                    let few: Vec<f32> = ids.iter().map(|&id| self.row[id as usize]).collect();
                    outputs.give_few(&few);
                }
                // The engine asks for nothing else.
                Logits::None | Logits::All | Logits::Deferred(_) => outputs.give_nothing(),
            }
        }
        Ok(())
    }
}
