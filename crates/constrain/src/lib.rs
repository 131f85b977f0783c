//! Bytes in, masks out: canonical DFAs, schema front ends, token masks.

mod ast;
mod dfa;
mod error;
mod grammar;
mod json;
mod limits;
mod regex;

pub use ast::{ByteSet, Member, Node};
pub use dfa::{DEAD, Dfa};
pub use error::ConstrainError;
pub use grammar::{Grammar, Subset, Whitespace};
pub use json::{Json, SpannedJson, SpannedValue, json_quote, python_float};
pub use limits::{JSON_DEPTH, Limits, REPEAT_MAX};
pub use regex::{escape, parse, parse_within};
