//! The crate's two errors: one for vocabularies and encoding, one for templates.

use thiserror::Error;

/// Why a vocabulary was refused or a text could not be encoded.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// A sound file whose kind of tokenizer is not implemented.
    #[error("the tokenizer's {what} {name:?} is not supported; supported are {supported}")]
    Unsupported {
        /// `model` or `pre-tokenizer`.
        what: &'static str,
        /// The name in the file.
        name: String,
        /// The names that would do.
        supported: String,
    },
    /// The vocabulary contradicts itself.
    #[error("vocabulary: {list}[{index}]: {reason}")]
    Malformed {
        /// Which list or id is wrong: `tokens`, `kinds`, `merges`, `eos`, …
        list: &'static str,
        /// The entry of the list; for an id, the id.
        index: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// The vocabulary is larger than any honest one.
    #[error("vocabulary: {what} is {value}, at most {limit} are allowed")]
    TooLarge {
        /// What was counted.
        what: &'static str,
        /// The count.
        value: usize,
        /// The cap.
        limit: usize,
    },
    /// The merge model refused a word. A defect of this crate: it is built so that it cannot.
    #[error("the text could not be encoded: {reason}")]
    Encode {
        /// The merge model's reason.
        reason: String,
    },
}

impl TokenizerError {
    /// The stable code of this case.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Unsupported { .. } | Self::Encode { .. } => "ERR_TINYLLM_TOKENIZER",
            Self::Malformed { .. } | Self::TooLarge { .. } => "ERR_TINYLLM_VOCABULARY",
        }
    }

    /// The entry of the list that is wrong, where there is one.
    pub fn index(&self) -> Option<usize> {
        match self {
            Self::Malformed { index, .. } => Some(*index),
            _ => None,
        }
    }
}

/// Why a chat template did not give a prompt.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// The template is not Jinja, or not the part of it that chat templates use.
    #[error("the chat template is malformed, line {line}: {message}")]
    Syntax {
        /// Line in the template, from 1.
        line: usize,
        /// What is wrong there.
        message: String,
    },
    /// The template refused the conversation through `raise_exception`.
    #[error("the chat template refused the conversation, line {line}: {message}")]
    Raised {
        /// Line in the template, from 1.
        line: usize,
        /// The template's own words.
        message: String,
    },
    /// The template failed on this conversation.
    #[error("the chat template failed, line {line}: {message}")]
    Render {
        /// Line in the template, from 1.
        line: usize,
        /// What went wrong there.
        message: String,
    },
    /// The template did not end within [`TemplateLimits`](crate::TemplateLimits).
    #[error("the chat template passes the limit {limit} = {value}, line {line}")]
    Limit {
        /// Name of the field of `TemplateLimits`.
        limit: &'static str,
        /// The limit's value.
        value: u64,
        /// Line in the template, from 1; 0 when it never ran.
        line: usize,
    },
    /// The messages or tools are not what a template can be given.
    #[error("the conversation cannot be rendered: {message}")]
    Input {
        /// What is wrong.
        message: String,
    },
    /// The conversation holds text of control tokens, and the template does something with it that
    /// makes the template's own control tokens indistinguishable from the conversation's.
    #[error(
        "a message or tool holds the text of a control token or a part of one ({token:?}), and the \
         chat template changes what it writes because of it; remove that text"
    )]
    Foreign {
        /// One of the texts in question.
        token: String,
    },
    /// The operating system gave no thread to render on.
    #[error("no thread to render the chat template on: {reason}")]
    Thread {
        /// The operating system's reason.
        reason: String,
    },
}

impl TemplateError {
    /// The stable code of every case.
    pub fn code(&self) -> &'static str {
        "ERR_TINYLLM_TEMPLATE"
    }

    /// The template's line, where the error has one.
    pub fn line(&self) -> Option<usize> {
        match self {
            Self::Syntax { line, .. }
            | Self::Raised { line, .. }
            | Self::Render { line, .. }
            | Self::Limit { line, .. } => Some(*line).filter(|line| *line > 0),
            _ => None,
        }
    }
}
