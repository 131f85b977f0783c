//! The masks of states inside JSON strings, from the vocabulary's tables.
//!
//! A state is inside a string when one of its threads is in a loop of string characters and all
//! others wait for the closing quote. Then a token either stays inside, which the tables know, or
//! it closes the string, and only its rest after the quote is walked. Everything that does not fit
//! this shape exactly is left to the ordinary walk.
//!
//! Strings inside embedded automata have no loop to be told by. A state that every byte `a` leads
//! back to is compared with the character's automaton, transition by transition; if they agree,
//! it is the inside of a string of any length.

use crate::ast::ByteSet;
use crate::compile::CompiledGrammar;
use crate::counted::Bits;
use crate::determinize::{DEAD_STATE, Determinizer, State, Thread};
use crate::error::ConstrainError;
use crate::json_chars::{self, CharForm, FORMS};
use crate::mask::Mask;
use crate::masks::Lazy;
use crate::nfa::{Nfa, Op, UNBOUNDED};
use crate::string_tables::Place;
use crate::walk::walk;

const QUOTE: ByteSet = ByteSet::single(b'"');

/// A state inside a string.
struct InString {
    /// State of the character's automaton.
    local: u32,
    table: u32,
    /// What a further character's end and start allow, the one in progress not counted.
    need: u32,
    left: u32,
    /// After the string's last character.
    exit: Thread,
}

/// The mask of a state inside a string; `None` when the state is not one.
pub(crate) fn mask(
    grammar: &CompiledGrammar,
    automaton: &mut Determinizer,
    state: State,
) -> Result<Option<Mask>, ConstrainError> {
    let nfa = &grammar.nfa;
    let vocabulary = &grammar.vocabulary;
    let Some(at) = recognise(nfa, automaton, state) else {
        return looped(grammar, automaton, state);
    };
    let Some(form) = nfa.tables[at.table as usize].form else {
        return Ok(None);
    };
    let Some(place) = vocabulary.strings(form).place(vocabulary, at.local) else {
        return Ok(None);
    };
    let end = automaton.state_of(nfa, &[at.exit]);
    if end == DEAD_STATE || automaton.live(nfa, end) != QUOTE || automaton.accepts(end) {
        return Ok(None);
    }
    let quote = nfa.classes.of[b'"' as usize];
    let after = automaton.step(nfa, end, quote);
    // Between two characters the first character counted is the one that would begin here.
    let begun = u32::from(at.local == 0);
    let empty = at.local == 0 && {
        let now = automaton.step(nfa, state, quote);
        if now != after && now != DEAD_STATE {
            return Ok(None);
        }
        now == after
    };
    let closes = |chars: u32| match chars.checked_sub(begun) {
        None => empty,
        Some(more) => at.need <= more && (more <= at.left || at.left == UNBOUNDED),
    };
    let most = if at.left == UNBOUNDED { u32::MAX } else { at.left.saturating_add(begun) };
    let mut bits = place.inside.within(vocabulary, most);
    let counted = at.need > 0 || at.left != UNBOUNDED || (begun > 0 && !empty);
    close(grammar, automaton, place, after, &mut bits, |chars| !counted || closes(chars))?;
    if automaton.accepts(state)
        && let Some(eos) = vocabulary.eos()
    {
        bits.allow(eos);
    }
    if bits.count == 0 {
        // The ordinary walk says what is missing.
        return Ok(None);
    }
    Ok(Some(Mask::counted(bits.words, bits.count)))
}

/// The mask of a state that comes back to itself after every character, however its automaton
/// came about; `None` when it does not.
fn looped(
    grammar: &CompiledGrammar,
    automaton: &mut Determinizer,
    state: State,
) -> Result<Option<Mask>, ConstrainError> {
    let (nfa, vocabulary) = (&grammar.nfa, &grammar.vocabulary);
    let class = |byte: u8| nfa.classes.of[byte as usize];
    if automaton.step(nfa, state, class(b'a')) != state {
        return Ok(None);
    }
    let after = automaton.step(nfa, state, class(b'"'));
    let mut forms = FORMS.into_iter();
    let form = forms.find(|form| comes_back(nfa, automaton, state, *form));
    let (Some(form), true) = (form, after != DEAD_STATE) else {
        return Ok(None);
    };
    let Some(place) = vocabulary.strings(form).place(vocabulary, 0) else {
        return Ok(None);
    };
    let mut bits = place.inside.within(vocabulary, u32::MAX);
    close(grammar, automaton, place, after, &mut bits, |_| true)?;
    if automaton.accepts(state)
        && let Some(eos) = vocabulary.eos()
    {
        bits.allow(eos);
    }
    Ok((bits.count > 0).then(|| Mask::counted(bits.words, bits.count)))
}

/// Whether every character leads from `state` back to it, and nothing else but the quote leads
/// anywhere.
fn comes_back(nfa: &Nfa, automaton: &mut Determinizer, state: State, form: CharForm) -> bool {
    let Some(table) = json_chars::table(form) else {
        return false;
    };
    let dfa = &table.dfa;
    // The state that stands for each state of the character's automaton.
    let mut stands = vec![DEAD_STATE; dfa.n_states];
    stands[0] = state;
    let mut queue = vec![0_usize];
    while let Some(local) = queue.pop() {
        for byte in 0..=255_u8 {
            if local == 0 && byte == b'"' {
                continue;
            }
            let next = automaton.step(nfa, stands[local], nfa.classes.of[byte as usize]);
            let expected = match usize::try_from(dfa.trans[local * 256 + byte as usize]) {
                Err(_) => DEAD_STATE,
                Ok(_) if next == DEAD_STATE => return false,
                Ok(end) if dfa.accept[end] => state,
                Ok(inner) => {
                    if stands[inner] == DEAD_STATE {
                        stands[inner] = next;
                        queue.push(inner);
                    }
                    stands[inner]
                }
            };
            if next != expected {
                return false;
            }
        }
    }
    true
}

/// Allows the tokens that close the string with a number of characters that `closes` accepts.
fn close(
    grammar: &CompiledGrammar,
    automaton: &mut Determinizer,
    place: &Place,
    after: State,
    bits: &mut Bits,
    closes: impl Fn(u32) -> bool,
) -> Result<(), ConstrainError> {
    for (chars, token) in &place.closing {
        if closes(u32::from(*chars)) {
            bits.allow(*token);
        }
    }
    walk(&place.rests, &mut Lazy::new(grammar, automaton), after, |tokens, _| {
        for &token in tokens {
            if closes(place.chars_before(token)) {
                bits.allow(token);
            }
        }
    })
}

fn recognise(nfa: &Nfa, automaton: &Determinizer, state: State) -> Option<InString> {
    let mut found = None;
    for thread in automaton.threads(state) {
        match nfa.ops[thread.state as usize] {
            Op::Table { table, local, .. } if found.is_none() => {
                let counter = automaton.counter(thread.counter);
                let looped = nfa.loop_at(counter.hub)?;
                let Op::Again { exit, .. } = nfa.ops[counter.hub as usize] else {
                    return None;
                };
                if looped.chars != table {
                    return None;
                }
                let exit = Thread { state: exit, counter: counter.parent };
                let (need, left) = (counter.need, counter.left);
                found = Some(InString { local, table, need, left, exit });
            }
            Op::Accept => {}
            _ if nfa.live(thread.state) == QUOTE => {}
            _ => return None,
        }
    }
    // Within a character nothing else may be going on.
    found.filter(|at| at.local == 0 || automaton.threads(state).len() == 1)
}
