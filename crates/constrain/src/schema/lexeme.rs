//! The scalars of JSON, as text of the strict subset and as trees.

use crate::ast::{ByteSet, Node};
use crate::json_chars::{self, CharForm};
use std::sync::Arc;

/// A JSON string in the strict subset: well-formed UTF-8, the eight escapes, any `\uXXXX`.
pub(crate) const STRING: &str = concat!(
    r#""(?:[\x20\x21\x23-\x5b\x5d-\x7f]|[\xc2-\xdf][\x80-\xbf]|\xe0[\xa0-\xbf][\x80-\xbf]"#,
    r"|[\xe1-\xec\xee\xef][\x80-\xbf]{2}|\xed[\x80-\x9f][\x80-\xbf]|\xf0[\x90-\xbf][\x80-\xbf]{2}",
    r#"|[\xf1-\xf3][\x80-\xbf]{3}|\xf4[\x80-\x8f][\x80-\xbf]{2}|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*""#
);
pub(crate) const INTEGER: &str = "-?(?:0|[1-9][0-9]*)";
pub(crate) const NUMBER: &str = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?";
pub(crate) const BOOLEAN: &str = "(?:true|false)";
pub(crate) const NULL: &str = "null";

/// Digits before the point, at most, in the finite form.
pub(crate) const FINITE_DIGITS: u32 = 18;
/// Digits of a fraction, at most, in the finite form.
pub(crate) const FINITE_FRACTION: u32 = 17;
const FINITE_EXPONENT: u32 = 2;

const DIGITS: ByteSet = ByteSet::range(b'0', b'9');

pub(crate) fn byte(b: u8) -> Node {
    Node::Set(ByteSet::single(b))
}

pub(crate) fn range(low: u8, high: u8) -> Node {
    Node::Set(ByteSet::range(low, high))
}

/// Exactly these bytes.
pub(crate) fn literal(text: &str) -> Node {
    let bytes = text.bytes();
    match bytes.len() {
        0 => Node::Empty,
        1 => byte(text.as_bytes()[0]),
        _ => Node::Concat(bytes.map(byte).collect()),
    }
}

pub(crate) fn repeat(node: Node, min: u32, max: Option<u32>) -> Node {
    Node::Repeat { node: Box::new(node), min, max }
}

pub(crate) fn optional(node: Node) -> Node {
    repeat(node, 0, Some(1))
}

/// One character of a JSON string, however it is written. In the finite form `\u` surrogates
/// occur only as pairs, so one character is one code point.
pub(crate) fn character(finite: bool) -> Node {
    let form = if finite { CharForm::Finite } else { CharForm::Strict };
    // One shared automaton, as long as there is one, so that a string costs its reference only.
    json_chars::table(form)
        .map_or_else(|| json_chars::tree(form), |table| Node::Automaton(Arc::clone(&table.dfa)))
}

/// A JSON string of any length.
pub(crate) fn string(finite: bool) -> Node {
    Node::Concat(vec![byte(b'"'), repeat(character(finite), 0, None), byte(b'"')])
}

/// A JSON integer: no leading zeros, no fraction, no exponent.
pub(crate) fn integer(finite: bool) -> Node {
    let more = finite.then_some(FINITE_DIGITS - 1);
    Node::Concat(vec![
        optional(byte(b'-')),
        Node::Alt(vec![
            byte(b'0'),
            Node::Concat(vec![range(b'1', b'9'), repeat(Node::Set(DIGITS), 0, more)]),
        ]),
    ])
}

/// A JSON number.
pub(crate) fn number(finite: bool) -> Node {
    let digits = |max: u32| repeat(Node::Set(DIGITS), 1, finite.then_some(max));
    Node::Concat(vec![
        integer(finite),
        optional(Node::Concat(vec![byte(b'.'), digits(FINITE_FRACTION)])),
        optional(Node::Concat(vec![
            Node::Set(ByteSet::of(b"eE")),
            optional(Node::Set(ByteSet::of(b"+-"))),
            digits(FINITE_EXPONENT),
        ])),
    ])
}

pub(crate) fn boolean() -> Node {
    Node::Alt(vec![literal("true"), literal("false")])
}
