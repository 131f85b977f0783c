//! The canonical automaton: the public, dense form of a regular language over bytes.
//!
//! Invariants of a canonical table: state 0 is the start; every state is reachable and can still
//! reach an accepting one ([`DEAD`] stands for everything else); no two states accept the same
//! rest; states are numbered breadth-first from the start, taking bytes 0 to 255 in order. So two
//! patterns with the same language have identical tables, and a table is its language's name.
//!
//! Cost: `n * 256` words of memory. The engine decodes over a lazily built automaton instead
//! (see [`crate::compile`]); this form exists to be compared, printed and checked by hand.

use crate::ast::Node;
use crate::determinize::explore_all;
use crate::error::ConstrainError;
use crate::limits::Limits;
use crate::minimize::{Partial, canonical};
use crate::nfa::{Counting, Nfa};
use crate::regex::parse_within;
use sha2::{Digest, Sha256};
use std::fmt::Write as _;

/// The state from which nothing can be accepted any more.
pub const DEAD: i32 = -1;

/// A deterministic automaton over bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dfa {
    /// Number of states; 0 is the start.
    pub n_states: usize,
    /// Whether each state accepts.
    pub accept: Vec<bool>,
    /// `n_states * 256` targets, [`DEAD`] where there is none.
    pub trans: Vec<i32>,
}

/// A run of bytes `(first, last, target)` that lead to the same target.
pub type Run = (u8, u8, i32);

impl Dfa {
    /// The state after `data`. [`DEAD`] stays dead; a state outside the table is an error.
    pub fn step(&self, state: i32, data: &[u8]) -> Result<i32, ConstrainError> {
        if state == DEAD {
            return Ok(DEAD);
        }
        self.check(state)?;
        let mut state = state;
        for &byte in data {
            state = self.trans[state as usize * 256 + byte as usize];
            if state == DEAD {
                break;
            }
        }
        Ok(state)
    }

    /// Whether the whole of `data` is accepted.
    pub fn matches(&self, data: &[u8]) -> bool {
        let end = if self.n_states == 0 { Ok(DEAD) } else { self.step(0, data) };
        matches!(end, Ok(state) if state != DEAD && self.accept[state as usize])
    }

    /// The accepting states, ascending.
    pub fn accepting(&self) -> Vec<usize> {
        (0..self.n_states).filter(|s| self.accept[*s]).collect()
    }

    /// Each state's row as runs that cover 0 to 255.
    pub fn runs(&self) -> Vec<Vec<Run>> {
        self.trans
            .chunks_exact(256)
            .map(|row| {
                let mut runs: Vec<Run> = Vec::new();
                for (byte, &target) in row.iter().enumerate() {
                    match runs.last_mut() {
                        Some(run) if run.2 == target => run.1 = byte as u8,
                        _ => runs.push((byte as u8, byte as u8, target)),
                    }
                }
                runs
            })
            .collect()
    }

    /// SHA-256 in lower-case hex over `n_states` as u32, one byte per accept flag, and the table
    /// as i32, all little-endian.
    pub fn sha256(&self) -> String {
        let mut hash = Sha256::new();
        hash.update((self.n_states as u32).to_le_bytes());
        hash.update(self.accept.iter().map(|a| u8::from(*a)).collect::<Vec<_>>());
        for row in self.trans.chunks(256) {
            hash.update(row.iter().flat_map(|t| t.to_le_bytes()).collect::<Vec<_>>());
        }
        hash.finalize().iter().fold(String::new(), |mut text, byte| {
            // Writing to a String cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
    }

    /// Fails for a state outside the table.
    pub(crate) fn check(&self, state: i32) -> Result<(), ConstrainError> {
        if state >= 0 && (state as usize) < self.n_states {
            return Ok(());
        }
        Err(ConstrainError::Constraint {
            message: format!("state {state} is outside an automaton of {} states", self.n_states),
        })
    }
}

/// The canonical automaton of a tree; `None` when its language is empty.
pub fn node_to_dfa(node: &Node, limits: &Limits) -> Result<Option<Dfa>, ConstrainError> {
    let Some(nfa) = Nfa::build(node, Counting::Unrolled, limits)? else {
        return Ok(None);
    };
    let partial = explore_all(&nfa, limits)?;
    drop(nfa);
    canonical(&partial, limits).map(Some)
}

/// The canonical automaton of a pattern of the strict regex subset, within the default limits.
pub fn regex_to_dfa(pattern: &str) -> Result<Dfa, ConstrainError> {
    regex_to_dfa_within(pattern, &Limits::default())
}

/// [`regex_to_dfa`] within limits.
pub fn regex_to_dfa_within(pattern: &str, limits: &Limits) -> Result<Dfa, ConstrainError> {
    let node = parse_within(pattern, limits)?;
    node_to_dfa(&node, limits)?.ok_or_else(|| ConstrainError::Regex {
        message: "the pattern matches nothing".to_owned(),
        position: 0,
        pattern: pattern.to_owned(),
    })
}

impl Partial {
    /// The 256-column form of a table over classes.
    pub(crate) fn widen(&self) -> Dfa {
        let n_states = self.accept.len();
        let mut trans = vec![DEAD; n_states * 256];
        for state in 0..n_states {
            for byte in 0..256 {
                let target = self.table[state * self.n_classes + self.classes[byte] as usize];
                trans[state * 256 + byte] = target as i32;
            }
        }
        Dfa { n_states, accept: self.accept.clone(), trans }
    }
}
