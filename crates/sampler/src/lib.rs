//! From a row of logits to a token.
//!
//! Sampling parameters, the random generator, sampling under a mask, log-probabilities. Knows
//! masks and nothing of models. The same seed, logits and parameters give the same token on every
//! machine.

// A function is compiled for the CPU's instruction set only where it is inlined into the function
// that pulp dispatches to.
#![allow(clippy::inline_always)]

mod constrained;
mod error;
mod params;
mod passes;
mod pcg;
mod ranking;
mod sampler;

pub use constrained::constrained_sample;
pub use error::SamplerError;
pub use params::SamplingParams;
pub use pcg::Pcg32;
pub use sampler::{Allowed, Sampled, Sampler, Wanted};
