//! The crate's one error type.
//!
//! Every case has a stable `code()` that crosses the language border; what a caller may want to
//! act on (a position, a JSON pointer, the name of a limit) has an accessor, so nobody parses
//! messages. Messages of the strict subset are part of its specification and are kept exactly.

use thiserror::Error;

/// What went wrong, where, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConstrainError {
    /// The strict regex subset refuses this pattern.
    #[error("regex: {message} at position {position} in {pattern}")]
    Regex {
        /// What is wrong.
        message: String,
        /// Byte offset in the pattern.
        position: usize,
        /// The whole pattern.
        pattern: String,
    },
    /// The text is not JSON as this crate reads it.
    #[error("JSON: {message} at offset {offset}")]
    Json {
        /// What is wrong.
        message: String,
        /// Byte offset in the text.
        offset: usize,
    },
    /// The schema is malformed, contradicts itself, or lies outside the front end in use.
    #[error("{message}")]
    Schema {
        /// What is wrong.
        message: String,
        /// JSON pointer to the offending place (empty: the root).
        pointer: String,
    },
    /// The general front end knows the keyword but cannot enforce it exactly.
    #[error("schema keyword \"{keyword}\" at \"{pointer}\" cannot be enforced: {remedy}")]
    Unsupported {
        /// The keyword as written.
        keyword: String,
        /// JSON pointer to the keyword's place.
        pointer: String,
        /// What to write in its stead.
        remedy: String,
    },
    /// The grammar description itself is malformed.
    #[error("grammar description: {message} at \"{pointer}\"")]
    Grammar {
        /// What is wrong.
        message: String,
        /// JSON pointer into the description.
        pointer: String,
    },
    /// Compilation stopped at one of the [`Limits`](crate::Limits).
    #[error(
        "the grammar passes the limit {limit} = {value}{}; {advice}",
        if pointer.is_empty() { String::new() } else { format!(" at \"{pointer}\"") }
    )]
    Limit {
        /// Name of the field of [`Limits`](crate::Limits).
        limit: &'static str,
        /// The limit's value.
        value: u64,
        /// JSON pointer to the place in the schema that passed it; empty when unknown.
        pointer: String,
        /// How to stay below it.
        advice: &'static str,
    },
    /// The vocabulary cannot be used: an id out of range, too many tokens, a token too long.
    #[error("vocabulary: {message}")]
    Vocabulary {
        /// What is wrong.
        message: String,
    },
    /// A state, token or mask that does not fit the automaton it was given to.
    #[error("constraint: {message}")]
    Constraint {
        /// What is wrong.
        message: String,
    },
    /// The grammar needs bytes that no token of the vocabulary can spell.
    #[error("constraint: state {state} cannot go on: the vocabulary cannot spell {missing}")]
    Stuck {
        /// The state without an allowed token.
        state: u64,
        /// The bytes the grammar could take there, printed for a reader.
        missing: String,
    },
    /// Logits that no sampler can rank.
    #[error("logits: {message}")]
    Logits {
        /// What is wrong.
        message: String,
    },
}

impl ConstrainError {
    /// The stable code of this case.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Regex { .. } => "ERR_TINYLLM_REGEX",
            Self::Json { .. } => "ERR_TINYLLM_JSON",
            Self::Schema { .. } => "ERR_TINYLLM_SCHEMA",
            Self::Unsupported { .. } => "ERR_TINYLLM_SCHEMA_UNSUPPORTED",
            Self::Grammar { .. } => "ERR_TINYLLM_GRAMMAR",
            Self::Limit { .. } => "ERR_TINYLLM_GRAMMAR_LIMIT",
            Self::Vocabulary { .. } => "ERR_TINYLLM_VOCABULARY",
            Self::Constraint { .. } => "ERR_TINYLLM_CONSTRAINT",
            Self::Stuck { .. } => "ERR_TINYLLM_GRAMMAR_STUCK",
            Self::Logits { .. } => "ERR_TINYLLM_LOGITS",
        }
    }

    /// Byte offset in the pattern or JSON text, where there is one.
    pub fn position(&self) -> Option<usize> {
        match self {
            Self::Regex { position, .. } => Some(*position),
            Self::Json { offset, .. } => Some(*offset),
            _ => None,
        }
    }

    /// JSON pointer into the schema or description, where there is one.
    pub fn pointer(&self) -> Option<&str> {
        match self {
            Self::Schema { pointer, .. }
            | Self::Unsupported { pointer, .. }
            | Self::Grammar { pointer, .. }
            | Self::Limit { pointer, .. } => Some(pointer),
            _ => None,
        }
    }

    /// The keyword a schema error is about, where it is about one.
    pub fn keyword(&self) -> Option<&str> {
        match self {
            Self::Unsupported { keyword, .. } => Some(keyword),
            _ => None,
        }
    }

    /// The name of the limit that was passed.
    pub fn limit(&self) -> Option<&'static str> {
        match self {
            Self::Limit { limit, .. } => Some(limit),
            _ => None,
        }
    }

    /// The same error with a JSON pointer, when it is a limit that did not know its place.
    #[must_use]
    pub fn at(mut self, place: &str) -> Self {
        if let Self::Limit { pointer, .. } = &mut self
            && pointer.is_empty()
        {
            place.clone_into(pointer);
        }
        self
    }
}
