//! JSON Schema front ends: the strict subset, defined by its regex texts, and the general one.

mod decimals;
mod disjoint;
mod formats;
pub(crate) mod general;
mod integers;
pub(crate) mod lexeme;
mod pattern;
mod pointer;
mod product;
mod spelling;
pub(crate) mod strict;
mod types;
mod values;
