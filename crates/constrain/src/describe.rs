//! From a grammar's description to a tree: the forms that have no parts.

use crate::ast::Node;
use crate::error::ConstrainError;
use crate::grammar::{Grammar, Subset};
use crate::json::Json;
use crate::json_object::json_object_node;
use crate::limits::Limits;
use crate::lower::lower;
use crate::regex::parse_within;
use crate::schema::lexeme::literal;
use crate::schema::{general, strict};

/// The tree of a description.
pub fn grammar_to_node(grammar: &Grammar, limits: &Limits) -> Result<Node, ConstrainError> {
    lower(grammar, limits)
}

/// The tree of a description without parts; a description with parts is put together by
/// [`lower`].
pub(crate) fn leaf(grammar: &Grammar, limits: &Limits) -> Result<Node, ConstrainError> {
    match grammar {
        Grammar::Regex(pattern) => parse_within(pattern, limits),
        Grammar::Choice(choices) => {
            Ok(Node::Alt(choices.iter().map(|text| literal(text)).collect()))
        }
        Grammar::Literal(text) => Ok(literal(text)),
        Grammar::JsonObject { depth, finite } => json_object_node(*depth, *finite, limits),
        Grammar::Schema { text, subset, whitespace, max_string_length } => {
            Limits::check(
                "schema_bytes",
                limits.schema_bytes,
                text.len(),
                "",
                "shorten the schema",
            )?;
            let schema = Json::parse(text)?;
            match subset {
                Subset::Strict => strict::schema_to_node(&schema, limits),
                Subset::General => {
                    general::schema_to_node(&schema, *whitespace, *max_string_length, limits)
                }
            }
        }
        Grammar::Sequence(_)
        | Grammar::Repeat { .. }
        | Grammar::Alternative(_)
        | Grammar::Trigger { .. } => lower(grammar, limits),
    }
}
