//! Bytes in, masks out: canonical DFAs, schema front ends, token masks.
//!
//! ```text
//! description ─► front ends ─► Node ─┬─► Nfa, counts unrolled ─► Determinizer ─► minimize ─► Dfa ─► TokenIndex
//!                              (tree) └─► Nfa, counts counted  ─► CompiledGrammar ─► TokenConstraint ─► Mask
//! ```
//!
//! The upper way is exact and canonical: its tables are compared state for state. The lower way is
//! what outputs go through: nothing is determinised before an output gets there, so compiling is
//! linear in the grammar. Both give the same masks. All work is bounded by [`Limits`].

mod ast;
mod budget;
mod classes;
mod compile;
mod constraint;
mod counted;
mod describe;
mod determinize;
mod dfa;
mod distance;
mod error;
mod grammar;
mod index;
mod json;
mod json_chars;
mod json_object;
mod limits;
mod lower;
mod mask;
mod masks;
mod minimize;
mod nfa;
mod python;
mod regex;
mod regions;
mod runs;
mod runtime;
mod schema;
mod string_tables;
mod strings;
mod subtrees;
mod trie;
mod trigger;
mod utf8;
mod vocabulary;
mod walk;

pub use ast::{ByteSet, Member, Node};
pub use compile::{CompiledGrammar, compile};
pub use constraint::{ConstraintOptions, TokenConstraint};
pub use describe::grammar_to_node;
pub use dfa::{DEAD, Dfa, Run, node_to_dfa, regex_to_dfa, regex_to_dfa_within};
pub use error::ConstrainError;
pub use grammar::{Grammar, Subset, Whitespace};
pub use index::{Constraint, TokenIndex, apply_mask};
pub use json::{Json, SpannedJson, SpannedValue, json_quote, python_float};
pub use json_object::{json_object_regex, json_object_regex_within};
pub use limits::{JSON_DEPTH, Limits, REPEAT_MAX};
pub use mask::Mask;
pub use regex::{escape, parse, parse_within};
pub use schema::strict::{json_schema_to_regex, json_schema_to_regex_within};
pub use vocabulary::Vocabulary;
