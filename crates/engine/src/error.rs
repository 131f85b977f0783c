//! The crate's one error type; errors of the crates below pass through with their own codes.

use std::sync::Arc;

use thiserror::Error;
use tinyllm_constrain::ConstrainError;
use tinyllm_kernels::KernelError;
use tinyllm_model::ModelError;
use tinyllm_sampler::SamplerError;
use tinyllm_tokenizer::{TemplateError, TokenizerError};

/// Every code an error of this project's Rust side can have.
pub const ERROR_CODES: &[&str] = &[
    "ERR_TINYLLM_ABORTED",
    "ERR_TINYLLM_COMPUTE",
    "ERR_TINYLLM_CONSTRAINT",
    "ERR_TINYLLM_CONTEXT_LENGTH",
    "ERR_TINYLLM_CPU",
    "ERR_TINYLLM_DEVICE",
    "ERR_TINYLLM_ENGINE_CLOSED",
    "ERR_TINYLLM_GGUF",
    "ERR_TINYLLM_GRAMMAR",
    "ERR_TINYLLM_GRAMMAR_LIMIT",
    "ERR_TINYLLM_GRAMMAR_STUCK",
    "ERR_TINYLLM_INTERNAL",
    "ERR_TINYLLM_INVALID_REQUEST",
    "ERR_TINYLLM_JSON",
    "ERR_TINYLLM_KERNEL_SHAPE",
    "ERR_TINYLLM_LOGITS",
    "ERR_TINYLLM_MODEL_INCONSISTENT",
    "ERR_TINYLLM_MODEL_INPUT",
    "ERR_TINYLLM_MODEL_OPEN",
    "ERR_TINYLLM_MODEL_UNSUPPORTED",
    "ERR_TINYLLM_OUT_OF_MEMORY",
    "ERR_TINYLLM_OUT_OF_PAGES",
    "ERR_TINYLLM_OVERLOADED",
    "ERR_TINYLLM_REGEX",
    "ERR_TINYLLM_SAMPLING_PARAMETER",
    "ERR_TINYLLM_SCHEMA",
    "ERR_TINYLLM_SCHEMA_UNSUPPORTED",
    "ERR_TINYLLM_TEMPLATE",
    "ERR_TINYLLM_THREADS",
    "ERR_TINYLLM_TOKENIZER",
    "ERR_TINYLLM_VOCABULARY",
];

/// Why a request, or the loading of an engine, failed.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum EngineError {
    /// A member of the request is out of range.
    #[error("{param}: {message}")]
    InvalidRequest {
        /// The member, as the Node API spells it.
        param: &'static str,
        /// What is wrong and what would be right.
        message: String,
    },
    /// Prompt and budget do not fit the context.
    #[error("{}", context_length(*prompt_tokens, *max_tokens, *limit))]
    ContextLength {
        /// Tokens in the prompt.
        prompt_tokens: usize,
        /// The budget asked for, if one was.
        max_tokens: Option<usize>,
        /// Positions in the context.
        limit: usize,
    },
    /// Too many requests are waiting.
    #[error("{limit} requests are running or waiting already; try again later")]
    Overloaded {
        /// Requests the engine holds at most.
        limit: usize,
    },
    /// The engine was closed.
    #[error("the engine is closed")]
    Closed,
    /// The request was cancelled.
    #[error("the generation was cancelled")]
    Cancelled,
    /// A defect: a step panicked or broke an invariant.
    #[error("internal error: {0}")]
    Internal(String),
    /// A grammar was refused, or a constraint failed.
    #[error(transparent)]
    Constrain(#[from] ConstrainError),
    /// The model file was refused, or a forward pass failed.
    #[error(transparent)]
    Model(Arc<ModelError>),
    /// The KV pages could not be had.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// Logits could not be sampled from.
    #[error(transparent)]
    Sampler(#[from] SamplerError),
    /// The vocabulary was refused.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The chat template was refused, or refused its conversation.
    #[error(transparent)]
    Template(#[from] TemplateError),
}

impl EngineError {
    /// The stable code of this case.
    pub fn code(&self) -> &'static str {
        match self {
            Self::InvalidRequest { .. } => "ERR_TINYLLM_INVALID_REQUEST",
            Self::ContextLength { .. } => "ERR_TINYLLM_CONTEXT_LENGTH",
            Self::Overloaded { .. } => "ERR_TINYLLM_OVERLOADED",
            Self::Closed => "ERR_TINYLLM_ENGINE_CLOSED",
            Self::Cancelled => "ERR_TINYLLM_ABORTED",
            Self::Internal(_) => "ERR_TINYLLM_INTERNAL",
            Self::Constrain(e) => e.code(),
            Self::Model(e) => e.code(),
            Self::Kernel(e) => e.code(),
            Self::Sampler(e) => e.code(),
            Self::Tokenizer(e) => e.code(),
            Self::Template(e) => e.code(),
        }
    }

    pub(crate) fn invalid(param: &'static str, message: impl Into<String>) -> Self {
        Self::InvalidRequest { param, message: message.into() }
    }
}

fn context_length(prompt: usize, max_tokens: Option<usize>, limit: usize) -> String {
    let load = "load the model with a larger contextLength";
    match max_tokens {
        _ if prompt > limit => format!(
            "the prompt has {prompt} tokens and the context holds {limit}; shorten the prompt or {load}"
        ),
        _ if prompt == limit => format!(
            "the prompt has {prompt} tokens and fills the context, which leaves no room for an answer; \
             shorten the prompt or {load}"
        ),
        max_tokens => format!(
            "the prompt has {prompt} tokens and maxTokens is {}, the context holds {limit}; shorten the \
             prompt, lower maxTokens or {load}",
            max_tokens.unwrap_or(0)
        ),
    }
}

impl From<ModelError> for EngineError {
    fn from(error: ModelError) -> Self {
        Self::Model(Arc::new(error))
    }
}

#[cfg(test)]
mod tests {
    use super::ERROR_CODES;
    use std::collections::BTreeSet;
    use std::path::Path;

    #[test]
    fn every_crates_codes_are_listed() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a folder of crates");
        let mut found = BTreeSet::new();
        for entry in std::fs::read_dir(crates).expect("readable") {
            let file = entry.expect("readable").path().join("src/error.rs");
            let Ok(text) = std::fs::read_to_string(file) else { continue };
            let quoted = text.split('"').filter(|piece| piece.starts_with("ERR_TINYLLM_"));
            // What is matched on here is no code.
            let codes = quoted.filter(|code| code.len() > "ERR_TINYLLM_".len());
            found.extend(codes.map(str::to_owned));
        }
        let listed: BTreeSet<String> = ERROR_CODES.iter().map(|code| (*code).to_owned()).collect();
        assert_eq!(found, listed);
    }
}
