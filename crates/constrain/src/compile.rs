//! Compiled grammars: what all requests with one grammar and one tokenizer share.
//!
//! A compiled grammar is an NFA in which every state is alive, and a cache: the deterministic
//! states, transitions and masks that outputs have needed so far. Compiling is linear in the
//! grammar; no state is made before an output reaches it, so there is no blow-up to wait for.
//!
//! The cache is bounded by [`Limits::cache_bytes`]: when it is full, an operation that needs
//! something new starts it afresh. The constraint that does so takes its own state along; others
//! find theirs again by replaying their tokens, without keeping the states between. What one token
//! may make is bounded by [`Limits::mask_work`]; a grammar that needs more (patterns with many ways
//! to count nested repetitions) fails there, with an error that names the limit. A warm mask is a
//! read lock and a shared handle.

use crate::budget::{self, Budget, Closing};
use crate::constraint::{ConstraintOptions, TokenConstraint};
use crate::determinize::{Determinizer, State};
use crate::distance::Distances;
use crate::error::ConstrainError;
use crate::grammar::Grammar;
use crate::limits::Limits;
use crate::lower::lower;
use crate::mask::Mask;
use crate::masks;
use crate::nfa::{Counting, Nfa};
use crate::runtime::Runtime;
use crate::vocabulary::Vocabulary;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// A grammar for one vocabulary.
#[derive(Debug)]
pub struct CompiledGrammar {
    pub(crate) nfa: Nfa,
    pub(crate) vocabulary: Arc<Vocabulary>,
    pub(crate) limits: Limits,
    cache: RwLock<Cache>,
    /// Whether whoever has the cache to write gives a long walk up; a walk that is given up clears it.
    pub(crate) hurried: AtomicBool,
    distances: OnceLock<Distances>,
}

/// What was made on demand.
#[derive(Debug)]
pub(crate) struct Cache {
    /// Counts the times the cache was emptied: states of another epoch mean nothing.
    pub(crate) epoch: u64,
    pub(crate) automaton: Determinizer,
    /// By state.
    masks: Vec<Option<Mask>>,
    mask_bytes: usize,
    masks_made: u64,
    budget: Budget,
}

/// Compiles a grammar for a vocabulary.
pub fn compile(
    grammar: &Grammar,
    vocabulary: &Arc<Vocabulary>,
    limits: &Limits,
) -> Result<Arc<CompiledGrammar>, ConstrainError> {
    let node = lower(grammar, limits)?;
    let Some(nfa) = Nfa::build(&node, Counting::Counters, limits)? else {
        return Err(ConstrainError::Grammar {
            message: "no output can follow this grammar".to_owned(),
            pointer: String::new(),
        });
    };
    let cache = Cache::new(&nfa, 0);
    let compiled = CompiledGrammar {
        nfa,
        vocabulary: Arc::clone(vocabulary),
        limits: limits.clone(),
        cache: RwLock::new(cache),
        hurried: AtomicBool::new(false),
        distances: OnceLock::new(),
    };
    // Where a token spells every step byte by byte, no state is without a token.
    if !compiled.nfa.always_takes(&vocabulary.singles) {
        masks::find_stuck(&compiled)?;
    }
    Ok(Arc::new(compiled))
}

impl CompiledGrammar {
    /// A constraint at the start of an output.
    pub fn constraint(self: &Arc<Self>, options: ConstraintOptions) -> Box<dyn TokenConstraint> {
        Box::new(Runtime::new(Arc::clone(self), options))
    }

    /// Bytes of memory held at present.
    pub fn memory_bytes(&self) -> usize {
        let distances = self.distances.get().map_or(0, Distances::memory_bytes);
        self.nfa.memory_bytes() + distances + self.read().bytes()
    }

    /// Masks made so far; asking again for a known one makes none.
    pub fn masks_made(&self) -> u64 {
        self.read().masks_made
    }

    /// The vocabulary.
    pub fn vocabulary(&self) -> &Arc<Vocabulary> {
        &self.vocabulary
    }

    /// Distances to an ending, computed when the first budget asks for them.
    pub(crate) fn distances(&self) -> &Distances {
        self.distances.get_or_init(|| Distances::new(&self.nfa, &self.vocabulary.singles))
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Cache> {
        // A panic under the lock leaves at worst an unfinished row; rows are made again.
        self.cache.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The cache to add to; it may be full.
    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, Cache> {
        self.cache.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Cache {
    fn new(nfa: &Nfa, epoch: u64) -> Self {
        Self {
            epoch,
            automaton: Determinizer::new(nfa),
            masks: Vec::new(),
            mask_bytes: 0,
            masks_made: 0,
            budget: Budget::default(),
        }
    }

    /// Whether it holds so much that it should start afresh.
    pub(crate) fn is_full(&self, limits: &Limits) -> bool {
        self.bytes() > limits.cache_bytes
    }

    /// Starts afresh.
    pub(crate) fn renew(&mut self, nfa: &Nfa) {
        let masks_made = self.masks_made;
        *self = Self { masks_made, ..Self::new(nfa, self.epoch + 1) };
    }

    /// The mask of a state under a budget; `closing` is the output's own.
    pub(crate) fn mask_within(
        &mut self,
        grammar: &CompiledGrammar,
        closing: &mut Closing,
        state: State,
        remaining: u32,
    ) -> Result<Mask, ConstrainError> {
        let (automaton, budget) = (&mut self.automaton, &mut self.budget);
        match budget::mask(grammar, automaton, budget, closing, state, remaining)? {
            // Complete, and nothing that could follow ends in time: without an end token it is over.
            Some(mask) if mask.allowed() > 0 || automaton.accepts(state) => Ok(mask),
            _ => self.mask(grammar, state),
        }
    }

    /// The mask of a state when it is known or needs no long walk. What a walk made before it was
    /// given up stays.
    pub(crate) fn quick_mask(
        &mut self,
        grammar: &CompiledGrammar,
        state: State,
    ) -> Result<Option<Mask>, ConstrainError> {
        /// A walk that panics must not leave the next one in a hurry.
        struct Hurry<'a>(&'a AtomicBool);
        impl Drop for Hurry<'_> {
            fn drop(&mut self) {
                self.0.store(false, Ordering::Relaxed);
            }
        }
        grammar.hurried.store(true, Ordering::Relaxed);
        let _hurry = Hurry(&grammar.hurried);
        let made = self.mask(grammar, state);
        let finished = grammar.hurried.swap(false, Ordering::Relaxed);
        if finished { made.map(Some) } else { Ok(None) }
    }

    /// Bytes of memory held.
    pub(crate) fn bytes(&self) -> usize {
        self.automaton.bytes()
            + self.mask_bytes
            + size_of_val(&*self.masks)
            + self.budget.memory_bytes()
    }

    /// A mask made before.
    pub(crate) fn known_mask(&self, state: State) -> Option<&Mask> {
        self.masks.get(state as usize)?.as_ref()
    }

    /// The mask of a state.
    pub(crate) fn mask(
        &mut self,
        grammar: &CompiledGrammar,
        state: State,
    ) -> Result<Mask, ConstrainError> {
        if let Some(mask) = self.known_mask(state) {
            return Ok(mask.clone());
        }
        let shared = self.automaton.clamp(&grammar.nfa, state, grammar.vocabulary.longest);
        let mask = if let Some(mask) = self.known_mask(shared) {
            mask.clone()
        } else {
            let mask = masks::make(grammar, &mut self.automaton, shared)?;
            self.masks_made += 1;
            self.mask_bytes += mask.bytes();
            self.keep(shared, &mask);
            mask
        };
        self.keep(state, &mask);
        Ok(mask)
    }

    fn keep(&mut self, state: State, mask: &Mask) {
        if self.masks.len() <= state as usize {
            self.masks.resize(self.automaton.len(), None);
        }
        self.masks[state as usize] = Some(mask.clone());
    }
}
