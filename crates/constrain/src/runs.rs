//! Tables over a vocabulary for runs of characters: the tokens made only of characters that begin
//! with certain bytes, complete or cut off at the end.
//!
//! Patterns repeat a few sets of characters (letters, digits, everything but a quote), and so do
//! different grammars, so each set's table is made once per tokenizer. Cost: one walk of the
//! tokens in question, when first needed; all tables together hold at most [`MOST_BYTES`].

use crate::ast::ByteSet;
use crate::counted::Counted;
use crate::error::ConstrainError;
use crate::utf8;
use crate::vocabulary::Vocabulary;
use crate::walk::{Automaton, walk};
use rustc_hash::FxHashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// When the tables would hold more than this, they are made afresh.
const MOST_BYTES: usize = 16 << 20;

/// The tables made so far.
#[derive(Debug, Default)]
pub(crate) struct Runs(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    tables: FxHashMap<ByteSet, Arc<Counted>>,
    bytes: usize,
}

impl Runs {
    /// The tokens made of characters that begin with one of `leads`.
    pub(crate) fn get(&self, vocabulary: &Vocabulary, leads: &ByteSet) -> Arc<Counted> {
        // A poisoned lock still guards whole tables: they are put in complete.
        let known = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(table) = known().tables.get(leads) {
            return Arc::clone(table);
        }
        let mut tokens = Vec::new();
        let start = Place { within: utf8::BETWEEN, chars: 0 };
        let mut run = Run(*leads);
        let walked = walk(&vocabulary.trie, &mut run, start, |ends, at| {
            tokens.extend(ends.iter().map(|token| (at.chars, *token)));
        });
        // The walk passes no limit.
        debug_assert!(walked.is_ok());
        let table = Arc::new(Counted::new(vocabulary, &tokens));
        let mut known = known();
        if known.bytes + table.bytes() > MOST_BYTES {
            *known = Known::default();
        }
        if known.tables.insert(*leads, Arc::clone(&table)).is_none() {
            known.bytes += table.bytes();
        }
        table
    }
}

/// Characters that begin with one of these bytes.
struct Run(ByteSet);

#[derive(Debug, Clone, Copy)]
struct Place {
    within: u8,
    /// Characters begun.
    chars: u16,
}

impl Automaton for Run {
    type State = Place;

    #[inline]
    fn step(&mut self, at: Place, byte: u8) -> Option<Place> {
        let begins = at.within == utf8::BETWEEN;
        if begins && !self.0.contains(byte) {
            return None;
        }
        let within = utf8::step(at.within, byte);
        (within != utf8::ILL).then(|| Place { within, chars: at.chars + u16::from(begins) })
    }

    fn live(&self, at: Place) -> ByteSet {
        if at.within == utf8::BETWEEN { self.0 } else { utf8::more(at.within) }
    }

    fn check(&mut self) -> Result<(), ConstrainError> {
        Ok(())
    }
}
