//! Bytes in, masks out: canonical DFAs, schema front ends, token masks.

mod ast;
mod classes;
mod determinize;
mod dfa;
mod error;
mod grammar;
mod json;
mod json_chars;
mod limits;
mod minimize;
mod nfa;
mod regex;

pub use ast::{ByteSet, Member, Node};
pub use dfa::{DEAD, Dfa, Run, node_to_dfa, regex_to_dfa, regex_to_dfa_within};
pub use error::ConstrainError;
pub use grammar::{Grammar, Subset, Whitespace};
pub use json::{Json, SpannedJson, SpannedValue, json_quote, python_float};
pub use limits::{JSON_DEPTH, Limits, REPEAT_MAX};
pub use regex::{escape, parse, parse_within};
