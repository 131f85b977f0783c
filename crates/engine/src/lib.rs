//! Generations: many at once over one model, each as if it were alone.
//!
//! - [`Engine`] holds a model, its tokenizer and its chat template, and starts an [`EngineCore`].
//! - [`EngineCore`] is token ids in, text out: a thread that owns the forward pass, a scheduler, KV
//!   pages with a prefix cache, samplers, constraints and stop strings; beside it one that compiles
//!   grammars and one that finds masks that take long.
//! - [`Forward`] is the boundary to whatever computes logits.
//!
//! What a generation puts out depends on its request alone, bit for bit: not on what else runs, on
//! how prompts are cut, on what was cached, or on who had to give way.

mod compiler;
mod core;
mod engine;
mod error;
mod forward;
#[cfg(feature = "free-forward")]
mod free_forward;
mod grammar_cache;
mod held_back;
mod masks;
mod outbox;
mod prefix_cache;
mod promise;
mod request;
mod scheduler;
mod sequence;
mod stats;
mod step;
mod template_json;
mod token_table;

pub use crate::core::{EngineCore, EngineOptions, ForwardPath, Generation, Prefill};
pub use engine::{Engine, EngineInfo};
pub use error::{ERROR_CODES, EngineError};
pub use forward::Forward;
pub use outbox::Batch;
pub use promise::{Promise, Resolver, block_on, promise};
pub use request::{
    ContextOverflow, Finish, FinishReason, LOGPROBS_MAX, Logprobs, Request, STOPS_MAX,
};
pub use stats::Stats;
pub use token_table::TokenTable;
