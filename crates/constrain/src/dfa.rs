//! The canonical byte automaton.

use crate::error::ConstrainError;

/// The state that no accepting state can be reached from.
pub const DEAD: i32 = -1;

/// A deterministic automaton over bytes; state 0 is the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dfa {
    /// How many states.
    pub n_states: usize,
    /// Whether each state accepts.
    pub accept: Vec<bool>,
    /// The next state at `state * 256 + byte`, or [`DEAD`].
    pub trans: Vec<i32>,
}

impl Dfa {
    /// The state after these bytes; [`DEAD`] stays dead.
    pub fn step(&self, state: i32, data: &[u8]) -> Result<i32, ConstrainError> {
        if state != DEAD && usize::try_from(state).map_or(true, |s| s >= self.n_states) {
            return Err(ConstrainError::Constraint {
                message: format!("state {state} is outside the automaton of {}", self.n_states),
            });
        }
        let mut state = state;
        for b in data {
            if state == DEAD {
                break;
            }
            state = self.trans[state as usize * 256 + usize::from(*b)];
        }
        Ok(state)
    }

    /// Whether the whole of `data` is in the language.
    pub fn matches(&self, data: &[u8]) -> bool {
        self.step(0, data).is_ok_and(|s| s != DEAD && self.accept[s as usize])
    }
}
