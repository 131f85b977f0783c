//! The one error of this crate. Every case has a stable code; a message says what was wrong, in
//! which file and where in it, and what to do when there is something to do.

use std::io;

/// What can go wrong between a path and a row of logits.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The file could not be opened or mapped.
    #[error("cannot open the model file {file}: {source}")]
    Open {
        /// The path as given.
        file: String,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The file is not a GGUF file that can be read: damaged, truncated, hostile, or of a version
    /// this reader does not know.
    #[error("{file}: byte {offset}: {reason}")]
    Gguf {
        /// The path as given.
        file: String,
        /// Where in the file the fault was found.
        offset: u64,
        /// What was found there and what was expected.
        reason: String,
    },
    /// A sound file that describes a model this crate does not compute: an unknown architecture,
    /// tensor type, rope scaling or tensor.
    #[error("{file}: unsupported model: {reason}")]
    Unsupported {
        /// The path as given.
        file: String,
        /// What is not supported, by name.
        reason: String,
    },
    /// A sound file whose parts do not fit together: a hyperparameter out of range, a tensor
    /// missing or of the wrong shape.
    #[error("{file}: the model does not fit together: {reason}")]
    Inconsistent {
        /// The path as given.
        file: String,
        /// Which part, what it is and what it must be.
        reason: String,
    },
    /// The device asked for is not one this build computes on.
    #[error("the device {device:?} is not available: this build computes on \"cpu\" only")]
    Device {
        /// The name as given.
        device: String,
    },
    /// More positions than the cache has room for.
    #[error("the context is full: {needed} positions are needed and there is room for {available}")]
    ContextLength {
        /// Positions the call would have used, the cached ones included.
        needed: usize,
        /// Positions there are.
        available: usize,
    },
    /// A token id that is not in the vocabulary, or a malformed batch.
    #[error("invalid input to the forward pass: {reason}")]
    Input {
        /// What was wrong.
        reason: String,
    },
    /// The operating system gave no threads.
    #[error("cannot start the model's threads: {reason}")]
    Threads {
        /// Its reason.
        reason: String,
    },
    /// The pages of keys and values were refused or ran out.
    #[error(transparent)]
    Pages(#[from] tinyllm_kernels::KernelError),
    /// The tensor library failed; a defect here, since shapes are checked at load.
    #[error("the forward pass failed: {0}")]
    Compute(#[from] candle_core::Error),
}

impl ModelError {
    /// The stable code of this case.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Open { .. } => "ERR_TINYLLM_MODEL_OPEN",
            Self::Gguf { .. } => "ERR_TINYLLM_GGUF",
            Self::Unsupported { .. } => "ERR_TINYLLM_MODEL_UNSUPPORTED",
            Self::Inconsistent { .. } => "ERR_TINYLLM_MODEL_INCONSISTENT",
            Self::Device { .. } => "ERR_TINYLLM_DEVICE",
            Self::ContextLength { .. } => "ERR_TINYLLM_CONTEXT_LENGTH",
            Self::Input { .. } => "ERR_TINYLLM_MODEL_INPUT",
            Self::Threads { .. } => "ERR_TINYLLM_THREADS",
            Self::Pages(error) => error.code(),
            Self::Compute(_) => "ERR_TINYLLM_COMPUTE",
        }
    }
}
