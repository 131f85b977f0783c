//! Compiled grammars, kept for reuse.
//!
//! Keyed by the description (an engine has one tokenizer), bounded by bytes, least recently used
//! out first. A compiled grammar grows as its masks are computed, so sizes are taken anew at each
//! insertion. Whoever still generates with a grammar that was given up keeps it alive.

use std::sync::{Arc, Mutex, PoisonError};

use tinyllm_constrain::{CompiledGrammar, Grammar};

#[derive(Debug)]
struct Entry {
    grammar: Grammar,
    compiled: Arc<CompiledGrammar>,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct GrammarCache {
    /// The most recently used last. A process meets tens of grammars, not thousands: a list will do.
    entries: Mutex<Vec<Entry>>,
    limit_bytes: usize,
}

impl GrammarCache {
    pub(crate) fn new(limit_bytes: usize) -> Self {
        Self { entries: Mutex::default(), limit_bytes }
    }

    pub(crate) fn get(&self, grammar: &Grammar) -> Option<Arc<CompiledGrammar>> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let at = entries.iter().rposition(|entry| entry.grammar == *grammar)?;
        entries[at..].rotate_left(1);
        entries.last().map(|entry| Arc::clone(&entry.compiled))
    }

    pub(crate) fn insert(&self, grammar: Grammar, compiled: &Arc<CompiledGrammar>) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.retain(|entry| entry.grammar != grammar);
        entries.push(Entry { grammar, compiled: Arc::clone(compiled) });
        let mut bytes = 0;
        let kept = entries
            .iter()
            .rev()
            .take_while(|entry| {
                bytes += entry.compiled.memory_bytes();
                bytes <= self.limit_bytes
            })
            .count();
        let given_up = entries.len() - kept;
        entries.drain(..given_up);
    }

    /// Grammars and their bytes.
    pub(crate) fn size(&self) -> (usize, usize) {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        (entries.len(), entries.iter().map(|entry| entry.compiled.memory_bytes()).sum())
    }
}
