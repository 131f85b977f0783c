use thiserror::Error;
use tinyllm_constrain::ConstrainError;

/// What the sampler refuses.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SamplerError {
    /// A sampling parameter is out of its range.
    #[error("sampling parameter {name}: {message}")]
    Parameter {
        /// The field of [`SamplingParams`](crate::SamplingParams).
        name: &'static str,
        /// What it must be.
        message: String,
    },
    /// The logits cannot be ranked: not a number, infinite, or none left to choose from.
    #[error("logits: {message}")]
    Logits {
        /// What is wrong.
        message: String,
    },
}

impl SamplerError {
    /// The stable code of this case.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Parameter { .. } => "ERR_TINYLLM_SAMPLING_PARAMETER",
            Self::Logits { .. } => "ERR_TINYLLM_LOGITS",
        }
    }
}

impl From<SamplerError> for ConstrainError {
    fn from(error: SamplerError) -> Self {
        match error {
            SamplerError::Parameter { .. } => Self::Constraint { message: error.to_string() },
            SamplerError::Logits { message } => Self::Logits { message },
        }
    }
}
