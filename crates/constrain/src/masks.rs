//! Making the mask of a run-time state.

use crate::ast::ByteSet;
use crate::compile::CompiledGrammar;
use crate::counted::Bits;
use crate::determinize::{DEAD_STATE, Determinizer, State};
use crate::error::ConstrainError;
use crate::limits::Limits;
use crate::mask::{FEW, Mask};
use crate::nfa::Nfa;
use crate::regions;
use crate::strings;
use crate::walk::{Automaton, walk};
use std::sync::atomic::{AtomicBool, Ordering};

/// The mask of a state: the tokens that stay alive, and the end token where it accepts.
pub(crate) fn make(
    grammar: &CompiledGrammar,
    automaton: &mut Determinizer,
    state: State,
) -> Result<Mask, ConstrainError> {
    begin_operation(automaton, &grammar.limits, grammar.limits.mask_work);
    let made = make_any(grammar, automaton, state);
    end_operation(automaton, &grammar.limits)?;
    made
}

fn make_any(
    grammar: &CompiledGrammar,
    automaton: &mut Determinizer,
    state: State,
) -> Result<Mask, ConstrainError> {
    if let Some(mask) = strings::mask(grammar, automaton, state)? {
        return Ok(mask);
    }
    if let Some(mask) = regions::mask(grammar, automaton, state)? {
        return Ok(mask);
    }
    let vocabulary = &grammar.vocabulary;
    let accepts = automaton.accepts(state);
    // Every token ends at one node, so each is met once.
    let mut few: Vec<u32> = Vec::new();
    let mut many: Option<Bits> = None;
    let eos = vocabulary.eos().filter(|_| accepts);
    few.extend(eos);
    walk(&vocabulary.trie, &mut Lazy::new(grammar, automaton), state, |tokens, _| {
        for &token in tokens {
            if let Some(bits) = &mut many {
                bits.allow(token);
            } else if few.len() < FEW {
                few.push(token);
            } else {
                let mut bits = Bits::none(vocabulary);
                for token in &few {
                    bits.allow(*token);
                }
                bits.allow(token);
                many = Some(bits);
            }
        }
    })?;
    if let Some(bits) = many {
        return Ok(Mask::counted(bits.words, bits.count));
    }
    if few.is_empty() && !accepts {
        return Err(stuck(&grammar.nfa, automaton, state));
    }
    Ok(Mask::few(few, vocabulary.mask_words()))
}

fn stuck(nfa: &Nfa, automaton: &Determinizer, state: State) -> ConstrainError {
    ConstrainError::Stuck { state: u64::from(state), missing: spell(&automaton.live(nfa, state)) }
}

/// A byte set for a reader: printable bytes as they are, others as `\xHH`, runs with a dash.
fn spell(set: &ByteSet) -> String {
    let one = |byte: u8| match byte {
        b'!'..=b'~' => char::from(byte).to_string(),
        _ => format!("\\x{byte:02x}"),
    };
    let bytes: Vec<u8> = set.iter().collect();
    let runs = bytes.chunk_by(|a, b| a + 1 == *b);
    let runs = runs.map(|run| match run {
        [a, .., b] if run.len() > 2 => format!("{}-{}", one(*a), one(*b)),
        few => few.iter().map(|byte| one(*byte)).collect::<Vec<_>>().join(" "),
    });
    runs.collect::<Vec<_>>().join(" ")
}

/// Most states looked at by [`find_stuck`].
const STUCK_STATES: usize = 2_000;

/// Looks, token by token, for a state that the vocabulary cannot leave, as far as the first
/// states go; beyond them a constraint reports it when it gets there.
pub(crate) fn find_stuck(grammar: &CompiledGrammar) -> Result<(), ConstrainError> {
    let mut cache = grammar.write();
    let automaton = &mut cache.automaton;
    let mut queue = vec![crate::determinize::START];
    let mut seen: rustc_hash::FxHashSet<State> = queue.iter().copied().collect();
    let mut at = 0;
    while at < queue.len().min(STUCK_STATES) {
        let state = queue[at];
        at += 1;
        begin_operation(automaton, &grammar.limits, grammar.limits.mask_work);
        let mut lazy = Lazy::new(grammar, automaton);
        let mut leaves = false;
        walk(&grammar.vocabulary.trie, &mut lazy, state, |tokens, next| {
            if !tokens.is_empty() {
                leaves = true;
                if seen.insert(next) {
                    queue.push(next);
                }
            }
        })?;
        end_operation(automaton, &grammar.limits)?;
        if !leaves && !automaton.accepts(state) {
            return Err(stuck(&grammar.nfa, automaton, state));
        }
    }
    Ok(())
}

/// The lazily made automaton in a walk.
pub(crate) struct Lazy<'a> {
    nfa: &'a Nfa,
    automaton: &'a mut Determinizer,
    limits: &'a Limits,
    hurried: &'a AtomicBool,
}

impl<'a> Lazy<'a> {
    pub(crate) fn new(grammar: &'a CompiledGrammar, automaton: &'a mut Determinizer) -> Self {
        let CompiledGrammar { nfa, limits, hurried, .. } = grammar;
        Self { nfa, automaton, limits, hurried }
    }
}

impl Automaton for Lazy<'_> {
    type State = State;

    #[inline]
    fn step(&mut self, state: State, byte: u8) -> Option<State> {
        let class = self.nfa.classes.of[byte as usize];
        let next = self.automaton.step(self.nfa, state, class);
        (next != DEAD_STATE).then_some(next)
    }

    fn live(&self, state: State) -> ByteSet {
        self.automaton.live(self.nfa, state)
    }

    fn finish(&mut self) -> Result<(), ConstrainError> {
        end_operation(self.automaton, self.limits)
    }

    fn check(&mut self) -> Result<(), ConstrainError> {
        end_operation(self.automaton, self.limits)?;
        // Nobody sees this one: whoever was in a hurry knows what it means.
        if self.hurried.swap(false, Ordering::Relaxed) {
            let (limit, value) = ("mask_work", self.limits.mask_work);
            let (pointer, advice) = (String::new(), "");
            return Err(ConstrainError::Limit { limit, value, pointer, advice });
        }
        Ok(())
    }
}

/// Bytes that every operation may make, however small the cache.
const LEAST_BYTES: usize = 1 << 20;

/// Begins an operation on a compiled grammar's automaton. The cache starts below its limit, so an
/// operation that ends above twice the limit alone made more than the limit.
pub(crate) fn begin_operation(automaton: &mut Determinizer, limits: &Limits, work: u64) {
    let bytes = limits.cache_bytes.saturating_mul(2).max(LEAST_BYTES);
    automaton.begin_operation(work, bytes);
}

/// Fails when the operation went as far as the limits let it.
pub(crate) fn end_operation(
    automaton: &mut Determinizer,
    limits: &Limits,
) -> Result<(), ConstrainError> {
    if automaton.overrun() { Err(overrun(automaton, limits)) } else { Ok(()) }
}

/// The error for an operation that went too far.
pub(crate) fn overrun(automaton: &Determinizer, limits: &Limits) -> ConstrainError {
    let advice = "use smaller repeat counts or fewer overlapping alternatives";
    let pointer = String::new();
    let (limit, value) = if automaton.is_too_large() {
        ("cache_bytes", limits.cache_bytes as u64)
    } else {
        ("mask_work", limits.mask_work)
    };
    ConstrainError::Limit { limit, value, pointer, advice }
}
