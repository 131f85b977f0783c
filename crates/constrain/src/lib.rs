//! Bytes in, masks out: canonical DFAs, schema front ends, token masks.

mod error;
mod grammar;
mod json;
mod limits;

pub use error::ConstrainError;
pub use grammar::{Grammar, Subset, Whitespace};
pub use json::{Json, SpannedJson, SpannedValue, json_quote, python_float};
pub use limits::{JSON_DEPTH, Limits, REPEAT_MAX};
