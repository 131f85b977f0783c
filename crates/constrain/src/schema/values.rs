//! Constant values: their spelling as trees, and when two are the same.

use super::lexeme::literal;
use crate::ast::Node;
use crate::json::{Json, json_quote};

/// The value as Python's compact printing spells it, with the given colon and comma.
pub(crate) fn constant(value: &Json, colon: &Node, comma: &Node) -> Node {
    match value {
        Json::Arr(items) => {
            let items = items.iter().map(|item| constant(item, colon, comma)).collect();
            bracketed("[", items, comma, "]")
        }
        Json::Obj(members) => {
            let members = members.iter().map(|(key, value)| {
                let value = constant(value, colon, comma);
                Node::Concat(vec![literal(&json_quote(key)), colon.clone(), value])
            });
            bracketed("{", members.collect(), comma, "}")
        }
        scalar => literal(&scalar.dumps()),
    }
}

fn bracketed(open: &str, items: Vec<Node>, comma: &Node, close: &str) -> Node {
    let mut parts = vec![literal(open)];
    for (i, item) in items.into_iter().enumerate() {
        if i > 0 {
            parts.push(comma.clone());
        }
        parts.push(item);
    }
    parts.push(literal(close));
    Node::Concat(parts)
}

/// Whether JSON Schema takes the two for the same value: numbers by their value, objects in any
/// order of their members.
pub(crate) fn same(a: &Json, b: &Json) -> bool {
    match (a, b) {
        (Json::Int(a), Json::Int(b)) => a == b,
        (Json::Int(int), Json::Float(x)) | (Json::Float(x), Json::Int(int)) => {
            int.parse::<f64>().is_ok_and(|int| int == *x)
        }
        (Json::Float(a), Json::Float(b)) => a == b,
        (Json::Arr(a), Json::Arr(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        (Json::Obj(members), Json::Obj(others)) => {
            members.len() == others.len()
                && members.iter().all(|(key, a)| b.get(key).is_some_and(|b| same(a, b)))
        }
        (a, b) => a == b,
    }
}
