//! A place in a compiled grammar.

use crate::budget::Closing;
use crate::compile::{Cache, CompiledGrammar};
use crate::constraint::{ConstraintOptions, TokenConstraint};
use crate::determinize::{DEAD_STATE, START, State};
use crate::error::ConstrainError;
use crate::mask::Mask;
use crate::masks;
use std::sync::{Arc, RwLockWriteGuard};

/// Most bytes that [`TokenConstraint::forced_bytes`] looks ahead.
const MOST_FORCED: usize = 4096;

/// How many times the work of one mask it may take to find a state again.
const REPLAY_WORK: u64 = 8;

/// The constraint over a compiled grammar.
#[derive(Debug, Clone)]
pub(crate) struct Runtime {
    grammar: Arc<CompiledGrammar>,
    options: ConstraintOptions,
    epoch: u64,
    /// The tokens taken, without the end token.
    tokens: Vec<u32>,
    /// The state before each token and the current one, from `known_from` on; of `epoch`.
    states: Vec<State>,
    known_from: usize,
    /// Of `epoch`.
    closing: Closing,
    complete: bool,
    ended: bool,
    /// The last mask under a budget left nothing: complete, without an end token to say so.
    over: bool,
}

impl Runtime {
    pub(crate) fn new(grammar: Arc<CompiledGrammar>, options: ConstraintOptions) -> Self {
        let cache = grammar.read();
        let (epoch, complete) = (cache.epoch, cache.automaton.accepts(START));
        drop(cache);
        let (tokens, states) = (Vec::new(), vec![START]);
        Self {
            grammar,
            options,
            epoch,
            tokens,
            states,
            known_from: 0,
            closing: Closing::default(),
            complete,
            ended: false,
            over: false,
        }
    }

    fn state(&self) -> State {
        // `states` always holds the start.
        self.states.last().copied().unwrap_or(START)
    }

    /// The state after the first `n` tokens, from the tokens themselves.
    fn replay(&self, cache: &mut Cache, n: usize) -> Result<State, ConstrainError> {
        let Self { grammar, tokens, .. } = self;
        let bytes = tokens[..n].iter().flat_map(|token| grammar.vocabulary.token(*token));
        let work = grammar.limits.mask_work.saturating_mul(REPLAY_WORK);
        masks::begin_operation(&mut cache.automaton, &grammar.limits, work);
        match cache.automaton.replay(&grammar.nfa, bytes.copied()) {
            Some(state) => Ok(state),
            None => Err(masks::overrun(&cache.automaton, &grammar.limits)),
        }
    }

    /// The cache to add to, with the current state in it. A full one starts afresh first.
    fn write<'g>(
        &mut self,
        grammar: &'g CompiledGrammar,
    ) -> Result<RwLockWriteGuard<'g, Cache>, ConstrainError> {
        let mut cache = grammar.write();
        let mut state = None;
        if cache.is_full(&grammar.limits) {
            let known = self.epoch == cache.epoch;
            let portable = known.then(|| cache.automaton.portable(self.state()));
            cache.renew(&grammar.nfa);
            state = portable.map(|state| cache.automaton.take_over(&grammar.nfa, &state));
        }
        if self.epoch != cache.epoch {
            let state = match state {
                Some(state) => state,
                None => self.replay(&mut cache, self.tokens.len())?,
            };
            self.epoch = cache.epoch;
            self.closing = Closing::default();
            self.is_at(state);
        }
        Ok(cache)
    }

    /// Sets the current state; those before it are unknown.
    fn is_at(&mut self, state: State) {
        self.known_from = self.tokens.len();
        if let Some(last) = self.states.last_mut() {
            *last = state;
        }
    }

    fn refuse(&self, token: u32, why: &str) -> ConstrainError {
        ConstrainError::Constraint {
            message: format!("token {token} {why} after {} tokens", self.tokens.len()),
        }
    }

    fn take(&mut self, next: State, complete: bool, token: u32) {
        self.states.push(next);
        self.tokens.push(token);
        self.complete = complete;
        self.over = false;
    }

    /// The budget, when it could matter: when some state is so far from an ending.
    fn budget(&self, remaining: Option<u32>) -> Option<u32> {
        let remaining = remaining.filter(|_| self.options.close_within_budget)?;
        let most = u64::from(self.grammar.distances().furthest) + 2;
        (u64::from(remaining) < most).then_some(remaining)
    }

    fn within(&mut self, remaining: u32) -> Result<Mask, ConstrainError> {
        let grammar = Arc::clone(&self.grammar);
        let mut cache = self.write(&grammar)?;
        let state = self.state();
        let mask = cache.mask_within(&grammar, &mut self.closing, state, remaining)?;
        self.over = mask.allowed() == 0;
        Ok(mask)
    }

    /// The plain mask of the current state when it was made before.
    fn known(&self) -> Option<Mask> {
        let cache = self.grammar.read();
        let known = (cache.epoch == self.epoch).then(|| cache.known_mask(self.state()))?;
        known.cloned()
    }

    /// The plain mask of the current state.
    fn plain(&mut self) -> Result<Mask, ConstrainError> {
        if let Some(mask) = self.known() {
            return Ok(mask);
        }
        let grammar = Arc::clone(&self.grammar);
        let mut cache = self.write(&grammar)?;
        let state = self.state();
        cache.mask(&grammar, state)
    }
}

impl TokenConstraint for Runtime {
    fn mask(&mut self, remaining: Option<u32>) -> Result<Mask, ConstrainError> {
        if self.ended {
            return Ok(Mask::new(vec![0; self.grammar.vocabulary.mask_words()]));
        }
        match self.budget(remaining) {
            Some(remaining) => self.within(remaining),
            None => self.plain(),
        }
    }

    fn quick_mask(&mut self, remaining: Option<u32>) -> Result<Option<Mask>, ConstrainError> {
        if self.ended || self.budget(remaining).is_some() {
            return self.mask(remaining).map(Some);
        }
        if let Some(mask) = self.known() {
            return Ok(Some(mask));
        }
        let grammar = Arc::clone(&self.grammar);
        let mut cache = self.write(&grammar)?;
        let state = self.state();
        cache.quick_mask(&grammar, state)
    }

    fn advance(&mut self, token: u32) -> Result<(), ConstrainError> {
        if self.ended {
            return Err(self.refuse(token, "cannot follow the end token"));
        }
        let grammar = Arc::clone(&self.grammar);
        if grammar.vocabulary.eos() == Some(token) {
            if !self.complete {
                return Err(self.refuse(token, "ends an output that is not complete"));
            }
            self.ended = true;
            return Ok(());
        }
        let bytes = grammar.vocabulary.token(token);
        if bytes.is_empty() {
            return Err(self.refuse(token, "is special, empty or unknown"));
        }
        let nfa = &grammar.nfa;
        let cache = grammar.read();
        if cache.epoch == self.epoch {
            let mut state = Some(self.state());
            for &byte in bytes {
                let class = nfa.classes.of[byte as usize];
                state = match state {
                    Some(DEAD_STATE) => return Err(self.refuse(token, "is not allowed")),
                    Some(known) => cache.automaton.known(known, class),
                    None => break,
                };
            }
            match state {
                Some(DEAD_STATE) => return Err(self.refuse(token, "is not allowed")),
                Some(state) => {
                    let complete = cache.automaton.accepts(state);
                    drop(cache);
                    self.take(state, complete, token);
                    return Ok(());
                }
                None => {}
            }
        }
        drop(cache);
        let mut cache = self.write(&grammar)?;
        let mut state = self.state();
        masks::begin_operation(&mut cache.automaton, &grammar.limits, grammar.limits.mask_work);
        for &byte in bytes {
            state = cache.automaton.step(nfa, state, nfa.classes.of[byte as usize]);
            if state == DEAD_STATE {
                masks::end_operation(&mut cache.automaton, &grammar.limits)?;
                return Err(self.refuse(token, "is not allowed"));
            }
        }
        self.take(state, cache.automaton.accepts(state), token);
        Ok(())
    }

    fn rollback(&mut self, n: usize) -> Result<(), ConstrainError> {
        let taken = self.tokens.len() + usize::from(self.ended);
        if n > taken {
            return Err(ConstrainError::Constraint {
                message: format!("{n} tokens to take back, but only {taken} were taken"),
            });
        }
        if n == 0 {
            return Ok(());
        }
        let kept = self.tokens.len() - (n - usize::from(self.ended));
        let grammar = Arc::clone(&self.grammar);
        let mut cache = self.write(&grammar)?;
        let unknown = kept < self.known_from;
        let state = if unknown { Some(self.replay(&mut cache, kept)?) } else { None };
        self.ended = false;
        self.over = false;
        self.tokens.truncate(kept);
        self.states.truncate(kept + 1);
        if let Some(state) = state {
            self.is_at(state);
        }
        self.complete = cache.automaton.accepts(self.state());
        Ok(())
    }

    fn fork(&self) -> Box<dyn TokenConstraint> {
        Box::new(self.clone())
    }

    fn is_complete(&self) -> bool {
        self.complete
    }

    fn is_done(&self) -> bool {
        if self.ended || self.over {
            return true;
        }
        // With an end token, a complete output can always take it.
        if !self.complete || self.grammar.vocabulary.eos().is_some() {
            return false;
        }
        self.clone().plain().is_ok_and(|mask| mask.allowed() == 0)
    }

    fn forced_bytes(&self) -> Vec<u8> {
        let mut forced = Vec::new();
        if self.ended {
            return forced;
        }
        let grammar = &self.grammar;
        let mut cache = grammar.write();
        let here = if self.epoch == cache.epoch {
            Ok(self.state())
        } else {
            self.replay(&mut cache, self.tokens.len())
        };
        let Ok(mut state) = here else {
            return forced;
        };
        masks::begin_operation(&mut cache.automaton, &grammar.limits, grammar.limits.mask_work);
        while forced.len() < MOST_FORCED && !cache.automaton.accepts(state) {
            let live = cache.automaton.live(&grammar.nfa, state);
            let (1, Some(byte)) = (live.len(), live.iter().next()) else {
                break;
            };
            let class = grammar.nfa.classes.of[byte as usize];
            state = cache.automaton.step(&grammar.nfa, state, class);
            if state == DEAD_STATE {
                // Too much work to look further.
                break;
            }
            forced.push(byte);
        }
        forced
    }
}
