//! From a grammar's description to a tree, for the forms that are regular.

use crate::ast::Node;
use crate::error::ConstrainError;
use crate::grammar::{Grammar, Subset};
use crate::json::Json;
use crate::json_object::json_object_node;
use crate::limits::Limits;
use crate::regex::parse_within;
use crate::schema::lexeme::literal;
use crate::schema::{general, strict};

/// The tree of a description. A trigger is not a language of whole outputs that a tree can hold;
/// it is refused here and run beside an automaton by [`crate::compile`].
pub fn grammar_to_node(grammar: &Grammar, limits: &Limits) -> Result<Node, ConstrainError> {
    node(grammar, limits, 0)
}

fn node(grammar: &Grammar, limits: &Limits, depth: usize) -> Result<Node, ConstrainError> {
    Limits::check("nesting", limits.nesting, depth, "", "nest the description less deeply")?;
    let list = |items: &[Grammar]| -> Result<Vec<Node>, ConstrainError> {
        items.iter().map(|item| node(item, limits, depth + 1)).collect()
    };
    Ok(match grammar {
        Grammar::Regex(pattern) => parse_within(pattern, limits)?,
        Grammar::Choice(choices) => Node::Alt(choices.iter().map(|text| literal(text)).collect()),
        Grammar::Literal(text) => literal(text),
        Grammar::Sequence(items) => Node::Concat(list(items)?),
        Grammar::Alternative(options) => Node::Alt(list(options)?),
        Grammar::Repeat { item, separator, min, max } => Node::Separated {
            node: Box::new(node(item, limits, depth + 1)?),
            separator: Box::new(literal(separator)),
            min: *min,
            max: *max,
        },
        Grammar::JsonObject { depth, finite } => json_object_node(*depth, *finite, limits)?,
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
                Subset::Strict => strict::schema_to_node(&schema, limits)?,
                Subset::General => {
                    general::schema_to_node(&schema, *whitespace, *max_string_length, limits)?
                }
            }
        }
        Grammar::Trigger { .. } => {
            return Err(ConstrainError::Grammar {
                message: "a trigger can stand at the top of a grammar only".to_owned(),
                pointer: String::new(),
            });
        }
    })
}
