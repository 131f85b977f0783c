//! Bounds on what one grammar may cost, so that a hostile or careless one ends in an error that
//! names the bound, never in a hang or an out-of-memory kill.

use crate::error::ConstrainError;

/// Nesting depth that the JSON reader accepts.
pub const JSON_DEPTH: usize = 128;

/// Largest count in a strict regex quantifier.
pub const REPEAT_MAX: u32 = 256;

/// Limits of one compilation and of what it compiled. All are counts, never times, so the same
/// grammar passes or fails on every machine. (At run time, by [`Limits::mask_work`] and
/// [`Limits::cache_bytes`], what counts is what has to be made: after outputs that made some of it
/// a token may pass that failed before.) [`Limits::default`] suits schemas that people write.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Bytes of one pattern: a regex grammar, a schema's `pattern`, or the regex text that the
    /// strict subset makes of a schema. Default 1 MiB. Cost: parsing is linear, some 50 bytes of
    /// tree per pattern byte.
    pub pattern_bytes: usize,
    /// Depth of groups and stacked quantifiers in a pattern. Default 300, so that the texts the
    /// strict subset makes of schemas with hundreds of optional members parse. Cost: up to three
    /// stack frames per level while the automaton is built.
    pub pattern_nesting: usize,
    /// Depth of subschemas, references followed, and of grammar descriptions. Default 128.
    /// Cost: some stack frames per level while compiling.
    pub nesting: usize,
    /// Bytes of a schema's text. Default 4 MiB. Cost: reading is linear.
    pub schema_bytes: usize,
    /// Subschemas visited while compiling, references counted each time they are followed.
    /// Default 100,000. Cost: some microseconds each.
    pub schema_nodes: usize,
    /// Largest `maxItems`, `minItems`, `maxLength`, `minLength` or repetition count. Default
    /// 10,000,000. Cost: none at run time, where a count is a counter; one copy of the item's states
    /// per count where an automaton is written out, as for a string with a pattern and a length.
    pub repeat_count: u32,
    /// States of the nondeterministic automaton of one grammar. Default 2,000,000.
    /// Cost: some 16 bytes each.
    pub nfa_states: usize,
    /// States of one deterministic automaton, before minimising. Default 200,000.
    /// Cost: 4 bytes per state and byte class while compiling, so 20 to 200 MiB at the limit.
    pub dfa_states: usize,
    /// Bytes of one deterministic automaton's tables, while compiling and as the public 256-column
    /// form. Default 64 MiB. Cost: about three times as much at the peak of minimisation.
    pub automaton_bytes: usize,
    /// Bytes that one compiled grammar may hold in run-time states and masks. Default 64 MiB.
    /// When it is reached everything cached is dropped and made again on demand; only a single
    /// mask that alone needs more is an error.
    pub cache_bytes: usize,
    /// Steps of work that one token's mask or step may take at run time, where states are made as
    /// an output gets to them. Default 4,000,000, some hundred times what the largest schemas
    /// need. Cost: some ten nanoseconds each, so it bounds a token's time to a fraction of a
    /// second.
    pub mask_work: u64,
    /// Steps of compile work (states and edges looked at); the automata of one schema share it.
    /// Default 50,000,000. Cost: a few nanoseconds each, so it bounds the time of one compilation
    /// to seconds.
    pub compile_work: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            pattern_bytes: 1 << 20,
            pattern_nesting: 300,
            nesting: 128,
            schema_bytes: 4 << 20,
            schema_nodes: 100_000,
            repeat_count: 10_000_000,
            nfa_states: 2_000_000,
            dfa_states: 200_000,
            automaton_bytes: 64 << 20,
            cache_bytes: 64 << 20,
            mask_work: 4_000_000,
            compile_work: 50_000_000,
        }
    }
}

impl Limits {
    /// Fails when `used` is above `limit`, naming the limit.
    pub(crate) fn check(
        limit: &'static str,
        value: usize,
        used: usize,
        pointer: &str,
        advice: &'static str,
    ) -> Result<(), ConstrainError> {
        if used <= value {
            return Ok(());
        }
        Err(ConstrainError::Limit {
            limit,
            value: value as u64,
            pointer: pointer.to_owned(),
            advice,
        })
    }
}
