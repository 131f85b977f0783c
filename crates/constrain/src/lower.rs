//! From a description to one tree.
//!
//! Sequences, repeats, alternatives and triggers of regular parts are regular, so a description
//! becomes a single tree and a token may cross the borders between its parts: the masks are those
//! of the whole. That is affordable because a tree's automaton is linear in it and is determinised
//! only where an output goes, and because counted repeats keep one copy of their item.

use crate::ast::Node;
use crate::describe::leaf;
use crate::error::ConstrainError;
use crate::grammar::Grammar;
use crate::limits::Limits;
use crate::schema::lexeme::literal;
use crate::trigger;

/// The tree of a description.
pub(crate) fn lower(grammar: &Grammar, limits: &Limits) -> Result<Node, ConstrainError> {
    lower_at(grammar, limits, 0)
}

fn lower_at(grammar: &Grammar, limits: &Limits, depth: usize) -> Result<Node, ConstrainError> {
    Limits::check("nesting", limits.nesting, depth, "", "nest the description less deeply")?;
    let inner = |grammar: &Grammar| lower_at(grammar, limits, depth + 1);
    Ok(match grammar {
        Grammar::Sequence(items) => {
            Node::Concat(items.iter().map(inner).collect::<Result<_, _>>()?)
        }
        Grammar::Alternative(options) => {
            Node::Alt(options.iter().map(inner).collect::<Result<_, _>>()?)
        }
        Grammar::Repeat { item, separator, min, max } => {
            let count = (*min).max(max.unwrap_or(0));
            Limits::check(
                "repeat_count",
                limits.repeat_count as usize,
                count as usize,
                "",
                "repeat fewer times",
            )?;
            Node::Separated {
                node: Box::new(inner(item)?),
                separator: Box::new(literal(separator)),
                min: *min,
                max: *max,
            }
        }
        Grammar::Trigger { trigger, body } => {
            if trigger.is_empty() {
                return Err(ConstrainError::Grammar {
                    message: "the trigger is empty".to_owned(),
                    pointer: "/trigger".to_owned(),
                });
            }
            trigger::tree(trigger.as_bytes(), inner(body)?)
        }
        regular => leaf(regular, limits)?,
    })
}
