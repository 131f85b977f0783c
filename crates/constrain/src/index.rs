//! Token masks over a canonical automaton.
//!
//! [`TokenIndex`] is a table with a vocabulary: a mask per state, made on first use by one walk
//! of the trie and kept. [`Constraint`] is a place in it. Decoding in the engine goes through
//! [`CompiledGrammar`](crate::CompiledGrammar), which gives the same masks without the table.

use crate::ast::ByteSet;
use crate::dfa::{DEAD, Dfa};
use crate::error::ConstrainError;
use crate::mask::{Mask, allow};
use crate::vocabulary::Vocabulary;
use crate::walk::{Automaton, walk};
use std::sync::{Arc, OnceLock};

/// An automaton over a vocabulary.
#[derive(Debug)]
pub struct TokenIndex {
    /// The automaton.
    pub dfa: Dfa,
    /// Number of tokens.
    pub vocab_size: usize,
    /// The token that ends the output.
    pub eos_id: Option<u32>,
    vocabulary: Vocabulary,
    masks: Vec<OnceLock<Mask>>,
}

impl TokenIndex {
    /// The index of an automaton and the bytes of each token; `None` is a special token. An end
    /// token outside the vocabulary is an error.
    pub fn new(
        dfa: Dfa,
        vocab: &[Option<Vec<u8>>],
        eos_id: Option<u32>,
    ) -> Result<Self, ConstrainError> {
        let vocabulary = Vocabulary::build(vocab, eos_id)?;
        let masks = (0..dfa.n_states).map(|_| OnceLock::new()).collect();
        Ok(Self { dfa, vocab_size: vocab.len(), eos_id, vocabulary, masks })
    }

    /// Which tokens may come next in a state. [`DEAD`] is no state.
    pub fn mask(&self, state: i32) -> Result<Vec<bool>, ConstrainError> {
        let mask = self.mask_bits(state)?;
        Ok((0..self.vocab_size as u32).map(|token| mask.is_allowed(token)).collect())
    }

    /// [`TokenIndex::mask`] as a shared handle.
    pub fn mask_bits(&self, state: i32) -> Result<Mask, ConstrainError> {
        self.dfa.check(state)?;
        let slot = &self.masks[state as usize];
        if let Some(mask) = slot.get() {
            return Ok(mask.clone());
        }
        let mut words = vec![0; self.vocabulary.mask_words()];
        walk(&self.vocabulary.trie, &mut Table(&self.dfa), state, |tokens, _| {
            for &token in tokens {
                allow(&mut words, token);
            }
        })?;
        if let Some(eos) = self.eos_id
            && self.dfa.accept[state as usize]
        {
            allow(&mut words, eos);
        }
        Ok(slot.get_or_init(|| Mask::new(words)).clone())
    }

    /// The state after a token. The end token keeps an accepting state and kills any other; so
    /// do special and empty tokens. An id past the vocabulary or a state outside the automaton
    /// is an error.
    pub fn next_state(&self, state: i32, token_id: u32) -> Result<i32, ConstrainError> {
        if token_id as usize >= self.vocab_size {
            return Err(ConstrainError::Constraint {
                message: format!(
                    "token {token_id} is outside a vocabulary of {} tokens",
                    self.vocab_size
                ),
            });
        }
        if state == DEAD {
            return Ok(DEAD);
        }
        self.dfa.check(state)?;
        if self.eos_id == Some(token_id) {
            return Ok(if self.dfa.accept[state as usize] { state } else { DEAD });
        }
        match self.vocabulary.token(token_id) {
            [] => Ok(DEAD),
            bytes => self.dfa.step(state, bytes),
        }
    }
}

struct Table<'d>(&'d Dfa);

impl Automaton for Table<'_> {
    type State = i32;

    #[inline]
    fn step(&mut self, state: i32, byte: u8) -> Option<i32> {
        let target = self.0.trans[state as usize * 256 + byte as usize];
        (target != DEAD).then_some(target)
    }

    fn live(&self, state: i32) -> ByteSet {
        let mut live = ByteSet::EMPTY;
        let row = &self.0.trans[state as usize * 256..][..256];
        for (byte, _) in row.iter().enumerate().filter(|(_, target)| **target != DEAD) {
            live.insert(byte as u8);
        }
        live
    }

    fn check(&mut self) -> Result<(), ConstrainError> {
        Ok(())
    }
}

/// An output in the making.
#[derive(Debug, Clone)]
pub struct Constraint {
    /// The automaton and its vocabulary.
    pub index: Arc<TokenIndex>,
    /// The state after the tokens taken so far.
    pub state: i32,
    /// Whether the end token was taken.
    pub done: bool,
}

impl Constraint {
    /// At the start.
    pub fn new(index: Arc<TokenIndex>) -> Self {
        Self { index, state: 0, done: false }
    }

    /// Which tokens may come next; none after the end token.
    pub fn mask(&self) -> Result<Vec<bool>, ConstrainError> {
        if self.done { Ok(vec![false; self.index.vocab_size]) } else { self.index.mask(self.state) }
    }

    /// Takes a token. A token that is not allowed is an error and changes nothing.
    pub fn advance(&mut self, token_id: u32) -> Result<(), ConstrainError> {
        if self.done {
            return Err(ConstrainError::Constraint {
                message: format!("token {token_id} after the end of the output"),
            });
        }
        let next = self.index.next_state(self.state, token_id)?;
        if next == DEAD {
            return Err(ConstrainError::Constraint {
                message: format!("token {token_id} is not allowed in state {}", self.state),
            });
        }
        self.state = next;
        self.done = self.index.eos_id == Some(token_id);
        Ok(())
    }

    /// Whether the output so far is a whole string of the language.
    pub fn is_complete(&self) -> bool {
        usize::try_from(self.state).is_ok_and(|s| self.index.dfa.accept.get(s) == Some(&true))
    }
}

/// The logits with every token that is not allowed at minus infinity. A mask of another length,
/// or one that allows nothing, is an error.
pub fn apply_mask(logits: &[f32], mask: &[bool]) -> Result<Vec<f32>, ConstrainError> {
    if logits.len() != mask.len() {
        return Err(ConstrainError::Constraint {
            message: format!("a mask of {} tokens for {} logits", mask.len(), logits.len()),
        });
    }
    if !mask.contains(&true) {
        return Err(ConstrainError::Constraint { message: "the mask allows no token".to_owned() });
    }
    Ok(logits
        .iter()
        .zip(mask)
        .map(|(logit, allowed)| if *allowed { *logit } else { f32::NEG_INFINITY })
        .collect())
}
