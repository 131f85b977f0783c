//! The boundary between scheduling and computing.
//!
//! A step computes several sequences' new positions at once. The scheduler owns the page
//! accounting; an implementation reads and writes the pages it is told to, and keeps no state of
//! its own per sequence. **A position's logits must not depend on what else is in the step**, on
//! how the positions before it were cut into steps, or on which pages hold them: that is what
//! makes batching, chunked prefill, the prefix cache and preemption invisible in the output.

use tinyllm_kernels::{KvPool, KvShape};
use tinyllm_model::{Feed, Model, Outputs, PackedModel};

use crate::error::EngineError;

/// Computes forward steps.
pub trait Forward: Send {
    /// Length of a row of logits.
    fn vocab_size(&self) -> usize;

    /// Positions the model was made for.
    fn context_length(&self) -> usize;

    /// What a page of the pool must hold.
    fn kv_shape(&self) -> KvShape;

    /// Computes the feeds and stores their keys and values. Clears `outputs`, then gives each feed
    /// what it asks for, in order; asks what is deferred when the layers are done.
    ///
    /// # Errors
    /// Whatever fails the whole step: all its sequences then end with the error.
    fn step(
        &mut self,
        feeds: &[Feed<'_>],
        pool: &KvPool,
        outputs: &mut Outputs,
    ) -> Result<(), EngineError>;
}

/// Both of the model crate's paths have the same methods.
macro_rules! forward {
    ($($model:ty),*) => {$(
        impl Forward for $model {
            fn vocab_size(&self) -> usize {
                <$model>::vocab_size(self)
            }

            fn context_length(&self) -> usize {
                <$model>::context_length(self)
            }

            fn kv_shape(&self) -> KvShape {
                <$model>::kv_shape(self)
            }

            fn step(
                &mut self,
                feeds: &[Feed<'_>],
                pool: &KvPool,
                outputs: &mut Outputs,
            ) -> Result<(), EngineError> {
                Ok(self.step_into(feeds, pool, outputs)?)
            }
        }
    )*};
}

forward!(Model, PackedModel);
