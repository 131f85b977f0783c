//! From a row of logits to a token.
//!
//! Sampling parameters, the random generator, sampling under a mask, log-probabilities. Knows
//! masks and nothing of models. The same seed, logits and parameters give the same token on
//! every machine whose `exp` rounds alike.

mod constrained;
mod error;
mod params;
mod pcg;
mod sampler;

pub use constrained::constrained_sample;
pub use error::SamplerError;
pub use params::SamplingParams;
pub use pcg::Pcg32;
pub use sampler::{Sampled, Sampler, Wanted};
