//! The crate's one error type; errors of the crates below pass through with their own codes.

use std::sync::Arc;

use thiserror::Error;
use tinyllm_constrain::ConstrainError;
use tinyllm_model::ModelError;
use tinyllm_tokenizer::TokenizerError;

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
    #[error(
        "the prompt has {prompt_tokens} tokens{}, the context holds {limit}; shorten the prompt, lower maxTokens or \
         load the model with a larger contextLength",
        max_tokens.map_or_else(String::new, |n| format!(" and maxTokens is {n}"))
    )]
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
    /// The vocabulary or the chat template was refused.
    #[error(transparent)]
    Tokenizer(Arc<TokenizerError>),
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
            Self::Tokenizer(e) => e.code(),
        }
    }

    pub(crate) fn invalid(param: &'static str, message: impl Into<String>) -> Self {
        Self::InvalidRequest { param, message: message.into() }
    }
}

impl From<ModelError> for EngineError {
    fn from(error: ModelError) -> Self {
        Self::Model(Arc::new(error))
    }
}

impl From<TokenizerError> for EngineError {
    fn from(error: TokenizerError) -> Self {
        Self::Tokenizer(Arc::new(error))
    }
}
