//! What the scheduler must know of a vocabulary, whatever tokenizer it came from.

use std::sync::{Arc, OnceLock};

use tinyllm_constrain::{ConstrainError, Vocabulary};
use tinyllm_model::Outputs;

/// A vocabulary as the engine sees it.
#[derive(Debug)]
pub struct TokenTable {
    /// Bytes each token adds to the text; empty for control tokens. Index: token id.
    bytes: Vec<Vec<u8>>,
    /// The same for grammars: `None` for tokens no grammar may produce.
    grammar_bytes: Vec<Option<Vec<u8>>>,
    /// Tokens that end a generation, the first the one that grammars end with.
    ends: Vec<u32>,
    /// Tokens that are never produced: unknown and unused ones. Padding rows of the head are
    /// beyond the table, and never produced either.
    never: Vec<u32>,
    /// Trie and tables for grammars, built on first use: they cost some 10 ms per 50,000 tokens.
    vocabulary: OnceLock<Result<Arc<Vocabulary>, ConstrainError>>,
}

impl TokenTable {
    /// `bytes[id]` is what token `id` adds to the text; `special[id]` tells which tokens no
    /// grammar may produce.
    pub fn new(
        bytes: Vec<Vec<u8>>,
        special: impl Fn(u32) -> bool,
        ends: Vec<u32>,
        never: Vec<u32>,
    ) -> Self {
        let grammar_bytes = bytes
            .iter()
            .zip(0..)
            .map(|(bytes, id)| (!special(id) && !ends.contains(&id)).then(|| bytes.clone()))
            .collect();
        Self { bytes, grammar_bytes, ends, never, vocabulary: OnceLock::new() }
    }

    /// What a token adds to the text.
    pub fn bytes(&self, token: u32) -> &[u8] {
        self.bytes.get(token as usize).map_or(&[], Vec::as_slice)
    }

    /// Tokens; the rows of a model's head may be more.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether there is no token at all.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Whether a token ends a generation.
    pub fn is_end(&self, token: u32) -> bool {
        self.ends.contains(&token)
    }

    /// Tokens that end a generation.
    pub fn ends(&self) -> &[u32] {
        &self.ends
    }

    /// Buffers for a step's logits.
    pub(crate) fn outputs(&self) -> Outputs {
        Outputs::new(self.never.clone(), self.len())
    }

    /// The vocabulary for grammars.
    pub(crate) fn vocabulary(&self) -> Result<Arc<Vocabulary>, ConstrainError> {
        self.vocabulary
            .get_or_init(|| Vocabulary::new(self.grammar_bytes.clone(), self.ends.first().copied()))
            .clone()
    }
}
