//! Closing within a budget: masks that keep only tokens after which the output can still end.
//!
//! Distances are counted in tokens, the end token included. A distance in bytes that are tokens by
//! themselves bounds it from above and settles nearly every case: far from the end of the budget
//! nothing is computed at all. In the last stretch the exact distance is found by a search
//! over states, token by token, with what it finds kept.
//!
//! When the search runs out of fuel, a token counts as one that cannot finish unless its bytes
//! say otherwise. When no token can finish, those that come closest are kept: the output ends cut
//! off, but it would have anyway. Only where it is complete already and has no end token to say so
//! is nothing kept, and it is over.
//!
//! What was found is kept with the output it was found for, and fuel is counted as if nobody else
//! had searched: a mask depends on its own output's history, also where the fuel runs out. Only the
//! walks that the search needs are shared.

use crate::compile::CompiledGrammar;
use crate::determinize::{Determinizer, State};
use crate::distance::Distances;
use crate::error::ConstrainError;
use crate::mask::{Mask, allow};
use crate::masks::{self, Lazy};
use crate::walk::walk;
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

/// States whose tokens are looked at for one mask, at most.
const MOST_EXPANDED: usize = 256;

/// How many times the work of one mask the search may take.
const SEARCH_WORK: u64 = 8;

/// What walks found out about an epoch's states.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    /// The states that one token leads to, in the order of the trie.
    successors: FxHashMap<State, Arc<[State]>>,
    /// Most bytes to an ending after any allowed token.
    reach: FxHashMap<State, u32>,
}

/// What one output's searches know about an epoch's states.
#[derive(Debug, Clone, Default)]
pub(crate) struct Closing {
    /// Fewest tokens to a whole string.
    exact: FxHashMap<State, u32>,
    /// More tokens than this are needed.
    above: FxHashMap<State, u32>,
    /// States whose tokens were looked at.
    expanded: FxHashSet<State>,
}

/// The search for one mask.
struct Search<'a> {
    grammar: &'a CompiledGrammar,
    distances: &'a Distances,
    automaton: &'a mut Determinizer,
    budget: &'a mut Budget,
    closing: &'a mut Closing,
    fuel: usize,
}

/// The mask of `state` under a budget of `remaining` tokens; `None` when it is the plain one.
pub(crate) fn mask(
    grammar: &CompiledGrammar,
    automaton: &mut Determinizer,
    budget: &mut Budget,
    closing: &mut Closing,
    state: State,
    remaining: u32,
) -> Result<Option<Mask>, ConstrainError> {
    let vocabulary = &grammar.vocabulary;
    let end = u32::from(vocabulary.eos().is_some());
    let distances = grammar.distances();
    // What is left after this token and the end token.
    let left = remaining.checked_sub(1 + end);
    let roomy = |bytes: u32| left.is_some_and(|left| bytes <= left);
    if roomy(distances.furthest) || budget.reach.get(&state).is_some_and(|bytes| roomy(*bytes)) {
        return Ok(None);
    }
    let work = grammar.limits.mask_work.saturating_mul(SEARCH_WORK);
    masks::begin_operation(automaton, &grammar.limits, work);
    // The states in the order of the trie: which of them get fuel must not hang on their numbers.
    let mut by_state: FxHashMap<State, Vec<u32>> = FxHashMap::default();
    let mut states: Vec<State> = Vec::new();
    walk(&vocabulary.trie, &mut Lazy::new(grammar, automaton), state, |tokens, next| {
        if !tokens.is_empty() {
            let known = by_state.entry(next).or_insert_with(|| {
                states.push(next);
                Vec::new()
            });
            known.extend(tokens);
        }
    })?;
    let mut search = Search { grammar, distances, automaton, budget, closing, fuel: MOST_EXPANDED };
    let reach = states.iter().map(|next| search.spelled(*next)).max().unwrap_or(0);
    search.budget.reach.insert(state, reach);
    if roomy(reach) {
        return Ok(None);
    }
    let accepts = search.automaton.accepts(state);
    let mut kept: Vec<State> = Vec::new();
    if let Some(left) = left {
        kept = search.finishing(&states, left)?;
    }
    if kept.is_empty() && !accepts && remaining > 0 && end > 0 {
        // The end token no longer fits, a whole text may.
        kept = search.finishing(&states, remaining - 1)?;
    }
    if kept.is_empty() && !accepts {
        let nearest = states.iter().map(|next| search.spelled(*next)).min();
        kept.extend(states.iter().filter(|next| Some(search.spelled(**next)) == nearest));
    }
    let mut words = vec![0; vocabulary.mask_words()];
    for token in kept.iter().flat_map(|next| &by_state[next]) {
        allow(&mut words, *token);
    }
    if accepts && let Some(eos) = vocabulary.eos() {
        allow(&mut words, eos);
    }
    Ok(Some(Mask::new(words)))
}

impl Search<'_> {
    /// Tokens to a whole string, at most: its bytes one by one.
    fn spelled(&self, state: State) -> u32 {
        self.distances.spelled(&self.grammar.nfa, self.automaton, state)
    }

    /// The states from which a whole string is at most `left` tokens away.
    fn finishing(&mut self, states: &[State], left: u32) -> Result<Vec<State>, ConstrainError> {
        let mut kept = Vec::new();
        for &state in states {
            if self.finishes(state, left)? {
                kept.push(state);
            }
        }
        Ok(kept)
    }

    /// What bytes say: `Some` when they settle it.
    fn settled(&self, state: State, left: u32) -> Option<bool> {
        if self.spelled(state) <= left {
            return Some(true);
        }
        let bytes = self.distances.bytes(&self.grammar.nfa, self.automaton, state);
        let longest = self.grammar.vocabulary.longest as u64;
        if u64::from(bytes) > u64::from(left) * longest {
            return Some(false);
        }
        if let Some(tokens) = self.closing.exact.get(&state) {
            return Some(*tokens <= left);
        }
        (self.closing.above.get(&state) >= Some(&left)).then_some(false)
    }

    fn finishes(&mut self, state: State, left: u32) -> Result<bool, ConstrainError> {
        if let Some(settled) = self.settled(state, left) {
            return Ok(settled);
        }
        let mut level = vec![state];
        let mut seen: FxHashSet<State> = level.iter().copied().collect();
        for taken in 1..=left {
            let mut next_level = Vec::new();
            for &from in &level {
                let Some(successors) = self.successors(from)? else {
                    return Ok(false);
                };
                for &next in successors.iter() {
                    if self.automaton.accepts(next) {
                        self.closing.exact.insert(state, taken);
                        return Ok(true);
                    }
                    if !seen.insert(next) {
                        continue;
                    }
                    match self.settled(next, left - taken) {
                        Some(true) => return Ok(true),
                        Some(false) => {}
                        None => next_level.push(next),
                    }
                }
            }
            level = next_level;
            if level.is_empty() {
                break;
            }
        }
        self.closing.above.insert(state, left);
        Ok(false)
    }

    /// The states one token away; `None` when the fuel is spent.
    fn successors(&mut self, state: State) -> Result<Option<Arc<[State]>>, ConstrainError> {
        if !self.closing.expanded.contains(&state) {
            let Some(left) = self.fuel.checked_sub(1) else {
                return Ok(None);
            };
            self.fuel = left;
            self.closing.expanded.insert(state);
        }
        if let Some(known) = self.budget.successors.get(&state) {
            return Ok(Some(Arc::clone(known)));
        }
        let mut seen: FxHashSet<State> = FxHashSet::default();
        let mut found: Vec<State> = Vec::new();
        let mut lazy = Lazy::new(self.grammar, self.automaton);
        walk(&self.grammar.vocabulary.trie, &mut lazy, state, |tokens, next| {
            if !tokens.is_empty() && seen.insert(next) {
                found.push(next);
            }
        })?;
        let found: Arc<[State]> = found.into();
        self.budget.successors.insert(state, Arc::clone(&found));
        Ok(Some(found))
    }
}

impl Budget {
    /// Bytes of memory held, about.
    pub(crate) fn memory_bytes(&self) -> usize {
        let states: usize = self.successors.values().map(|s| s.len()).sum();
        self.reach.len() * 16 + self.successors.len() * 48 + states * size_of::<State>()
    }
}
