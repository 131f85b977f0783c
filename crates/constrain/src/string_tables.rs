//! Tables over a vocabulary for the inside of JSON strings.
//!
//! Inside a string nearly every token is allowed, and which ones depends on the grammar only
//! through the counts of characters and what follows the closing quote. So, once per tokenizer
//! and place within a character: the tokens that stay inside, and the tokens that close the
//! string, by what they spell after the quote. A mask is then a copy and a walk over those few
//! rests. Cost: one walk of the vocabulary per place, when first needed.

use crate::ast::ByteSet;
use crate::counted::Counted;
use crate::error::ConstrainError;
use crate::json_chars::{self, CharForm};
use crate::trie::Trie;
use crate::vocabulary::Vocabulary;
use crate::walk::{Automaton, walk};
use std::sync::OnceLock;

/// The tables of one form of characters: one per place, the index being the state of the
/// character's automaton; 0 is between two characters.
#[derive(Debug)]
pub(crate) struct StringTables {
    form: CharForm,
    places: Vec<OnceLock<Option<Place>>>,
}

/// Tokens as seen from one place within a string.
#[derive(Debug)]
pub(crate) struct Place {
    /// Tokens that stay inside, by the number of characters they begin.
    pub(crate) inside: Counted,
    /// Tokens that end with the closing quote, with the number of characters before it.
    pub(crate) closing: Vec<(u16, u32)>,
    /// Tokens that go on after the closing quote, by what follows it.
    pub(crate) rests: Trie,
    /// Number of characters before the quote, by token, for the tokens of `rests`.
    rest_chars: Vec<(u32, u16)>,
}

impl StringTables {
    pub(crate) fn new(form: CharForm) -> Self {
        let states = json_chars::table(form).map_or(0, |table| table.dfa.n_states);
        Self { form, places: (0..states).map(|_| OnceLock::new()).collect() }
    }

    /// The tables for a state of the character's automaton; none for its end.
    pub(crate) fn place(&self, vocabulary: &Vocabulary, local: u32) -> Option<&Place> {
        let slot = self.places.get(local as usize)?;
        slot.get_or_init(|| Place::new(vocabulary, self.form, local)).as_ref()
    }

    /// Makes every place's table.
    pub(crate) fn prepare(&self, vocabulary: &Vocabulary) {
        for local in 0..self.places.len() as u32 {
            self.place(vocabulary, local);
        }
    }
}

impl Place {
    fn new(vocabulary: &Vocabulary, form: CharForm, local: u32) -> Option<Self> {
        let chars = Chars::new(form)?;
        if chars.is_end(local) {
            return None;
        }
        let mut inside = Vec::new();
        let mut closed: Vec<(u16, u16, u32)> = Vec::new();
        let start = Inside { local, chars: 0, read: 0, closed: false };
        // The table's own walk passes no limit.
        walk(&vocabulary.trie, &mut { chars }, start, |tokens, at| {
            for &token in tokens {
                if at.closed {
                    closed.push((at.chars, at.read, token));
                } else {
                    inside.push((at.chars, token));
                }
            }
        })
        .ok()?;
        let rest = |(_, read, token): &(u16, u16, u32)| &vocabulary.token(*token)[*read as usize..];
        let closing = closed.iter().filter(|c| rest(c).is_empty()).map(|c| (c.0, c.2)).collect();
        let rests = Trie::new(closed.iter().map(|c| (c.2, rest(c)))).ok()?;
        let mut rest_chars: Vec<_> = closed.iter().map(|c| (c.2, c.0)).collect();
        rest_chars.sort_unstable();
        let inside = Counted::new(vocabulary, &inside);
        Some(Self { inside, closing, rests, rest_chars })
    }

    /// Characters that a token of `rests` has before the quote.
    pub(crate) fn chars_before(&self, token: u32) -> u32 {
        match self.rest_chars.binary_search_by_key(&token, |(token, _)| *token) {
            Ok(at) => u32::from(self.rest_chars[at].1),
            Err(_) => u32::MAX,
        }
    }
}

/// The inside of a string, up to and past the closing quote.
struct Chars {
    trans: &'static [i32],
    accept: &'static [bool],
}

#[derive(Debug, Clone, Copy)]
struct Inside {
    local: u32,
    /// Characters begun.
    chars: u16,
    /// Bytes read, the quote included.
    read: u16,
    closed: bool,
}

impl Chars {
    /// None when a character could be the beginning of a longer one: the tables need to know
    /// where each ends.
    fn new(form: CharForm) -> Option<Self> {
        let dfa = &json_chars::table(form)?.dfa;
        let ends = |state: usize| {
            !dfa.accept[state] || dfa.trans[state * 256..][..256].iter().all(|t| *t < 0)
        };
        let quote = dfa.trans[b'"' as usize] < 0;
        ((0..dfa.n_states).all(ends) && !dfa.accept[0] && quote)
            .then(|| Self { trans: &dfa.trans, accept: &dfa.accept })
    }

    fn is_end(&self, local: u32) -> bool {
        self.accept[local as usize]
    }
}

impl Automaton for Chars {
    type State = Inside;

    #[inline]
    fn step(&mut self, at: Inside, byte: u8) -> Option<Inside> {
        if at.closed {
            return Some(at);
        }
        let read = at.read + 1;
        if at.local == 0 && byte == b'"' {
            return Some(Inside { read, closed: true, ..at });
        }
        let next = self.trans[at.local as usize * 256 + byte as usize];
        let next = u32::try_from(next).ok()?;
        let chars = at.chars + u16::from(at.local == 0);
        let local = if self.is_end(next) { 0 } else { next };
        Some(Inside { local, chars, read, closed: false })
    }

    fn live(&self, _: Inside) -> ByteSet {
        ByteSet::FULL
    }

    fn check(&mut self) -> Result<(), ConstrainError> {
        Ok(())
    }
}
