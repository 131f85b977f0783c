//! Text to tokens and back, for one model file.
//!
//! - [`Tokenizer`]: byte-level BPE over the vocabulary and merges of a GGUF file ([`VocabSpec`]),
//!   with the pre-tokenizer the file names. Encoding is linear in the text apart from the merges of
//!   one word, which are `n log n`; no input is quadratic.
//! - [`Decoder`]: tokens' bytes to text, a piece at a time, never splitting a character.
//! - [`ChatTemplate`]: a conversation to the text a model was trained on, by the Jinja template in
//!   its file. The template is untrusted code, so it runs on fuel that bounds time and memory; the
//!   messages are untrusted text, so nothing in them can become a control token ([`Segment`]).
//!
//! Whose text may become which token: a *control* token (`<|im_start|>`) comes from a template, or
//! from a caller that asks for it; a *user-defined* one (`<tool_call>`) is ordinary vocabulary for
//! everybody; *unknown* and *unused* tokens are never produced.
//!
//! Everything here is plain values in and out: the crate opens no file and knows no model.

mod bytelevel;
mod control;
mod decoder;
mod error;
mod pretokenize;
mod template;
mod tokenizer;
mod vocab;

pub use decoder::Decoder;
pub use error::{TemplateError, TokenizerError};
pub use template::{ChatTemplate, Rendered, TemplateLimits, TemplateTokens};
pub use tokenizer::{Segment, Tokenizer};
pub use vocab::{TokenKind, VocabSpec};
