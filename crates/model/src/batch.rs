//! What a forward step takes: the new tokens of some sequences and where their pages are.

use std::fmt::Debug;

use tinyllm_kernels::{PAGE_POSITIONS, PageId};

use crate::{ModelError, ModelSpec};

/// Which logits a step gives for a sequence.
#[derive(Debug, Clone, Copy)]
pub enum Logits<'a> {
    /// None: the tokens only enter the pages.
    None,
    /// None but which is the largest of those after the last token, which is known as soon as they
    /// are.
    Best,
    /// Those after the last token: `[vocab_size]`.
    Last,
    /// Those after every token: `[tokens][vocab_size]`.
    All,
    /// Those of some tokens of the vocabulary after the last token, in the order given. Bit-equal to
    /// the same entries of [`Logits::Last`], and as much cheaper as they are fewer.
    Only(&'a [u32]),
    /// What is said when the layers are done.
    Deferred(&'a dyn Deferred),
}

/// Says which logits are wanted when the layers are done, so that it can be found out meanwhile.
pub trait Deferred: Debug + Sync {
    /// Called once a step; waits if need be. Gives anything but [`Logits::Deferred`].
    fn logits(&self) -> Logits<'_>;
}

impl Logits<'_> {
    /// What is wanted, when the layers are done.
    pub(crate) fn settled(&self) -> Self {
        match self {
            Self::Deferred(deferred) => deferred.logits(),
            other => *other,
        }
    }

    /// Whether the tokens that are listed are there.
    pub(crate) fn check(&self, spec: &ModelSpec) -> Result<(), ModelError> {
        if let Self::Only(ids) = self { known(ids, spec) } else { Ok(()) }
    }
}

/// One sequence's share of a step.
#[derive(Debug, Clone, Copy)]
pub struct Feed<'a> {
    /// Tokens to compute, at positions `position..position + tokens.len()`; at least one.
    pub tokens: &'a [u32],
    /// Position of the first token: the number of positions that are in the pages already.
    pub position: usize,
    /// The sequence's block table, long enough for all of its positions. Pages that are written
    /// must belong to this sequence alone.
    pub pages: &'a [PageId],
    /// Which logits are wanted.
    pub logits: Logits<'a>,
    /// Whether all of the tokens are a prompt's: those a model with fast prefill computes that way.
    pub prompt: bool,
}

impl Feed<'_> {
    /// Everything about a feed that a model can check.
    pub(crate) fn check(&self, spec: &ModelSpec) -> Result<(), ModelError> {
        let fault = |reason| Err(ModelError::Input { reason });
        if self.tokens.is_empty() {
            return fault("a sequence has no tokens to compute".to_owned());
        }
        let needed = self.position.saturating_add(self.tokens.len());
        if needed > spec.context_length {
            return Err(ModelError::ContextLength { needed, available: spec.context_length });
        }
        if self.pages.len() * PAGE_POSITIONS < needed {
            return fault(format!("{} pages cannot hold {needed} positions", self.pages.len()));
        }
        known(self.tokens, spec)?;
        self.logits.check(spec)
    }
}

fn known(tokens: &[u32], spec: &ModelSpec) -> Result<(), ModelError> {
    match tokens.iter().find(|&&id| id as usize >= spec.vocab_size) {
        Some(id) => Err(ModelError::Input {
            reason: format!("there is no token {id}: there are {}", spec.vocab_size),
        }),
        None => Ok(()),
    }
}
