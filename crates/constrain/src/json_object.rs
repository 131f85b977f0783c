//! Any JSON object, nested to a bounded depth.
//!
//! The language of all JSON objects is not regular; to a depth it is. A level holds the level
//! below it twice, once as an object's value and once as an array's item, so both the text and
//! the automaton grow geometrically: some 3.9 times per level for the text, 2.2 for the states.

use crate::ast::Node;
use crate::dfa::node_to_dfa;
use crate::error::ConstrainError;
use crate::limits::Limits;
use crate::schema::lexeme::{self, BOOLEAN, NULL, NUMBER, STRING, byte, literal};
use std::sync::Arc;

/// The regex text of a JSON object whose objects and arrays are nested at most `depth` levels;
/// 0 counts as 1. The text has some 2 KB at depth 1 and grows nearly fourfold per level; what is
/// not the caller's own number belongs to [`json_object_regex_within`].
pub fn json_object_regex(depth: usize) -> String {
    let mut value = format!("(?:{STRING}|{NUMBER}|{BOOLEAN}|{NULL})");
    for _ in 1..depth {
        let (object, array) = (object_text(&value), array_text(&value));
        value = format!("(?:{STRING}|{NUMBER}|{BOOLEAN}|{NULL}|{object}|{array})");
    }
    object_text(&value)
}

/// [`json_object_regex`], unless its text would pass [`Limits::pattern_bytes`].
pub fn json_object_regex_within(depth: usize, limits: &Limits) -> Result<String, ConstrainError> {
    // The lengths follow the same recurrence as the texts.
    let scalar = STRING.len() + NUMBER.len() + BOOLEAN.len() + NULL.len();
    let mut value = scalar + 7;
    let object = |value: usize| 2 * (STRING.len() + 1 + value) + 15;
    let array = |value: usize| 2 * value + 15;
    for level in 0..depth.max(1) {
        Limits::check(
            "pattern_bytes",
            limits.pattern_bytes,
            object(value),
            "",
            "ask for less depth, or compile the object itself and not its text",
        )?;
        if level + 1 < depth {
            value = scalar + object(value) + array(value) + 9;
        }
    }
    Ok(json_object_regex(depth))
}

fn object_text(value: &str) -> String {
    format!(r"\{{(?:{STRING}:{value}(?:,{STRING}:{value})*)?\}}")
}

fn array_text(value: &str) -> String {
    format!(r"\[(?:{value}(?:,{value})*)?\]")
}

/// The same language as a tree; in the finite form numbers fit a double and `\u` surrogates pair.
pub(crate) fn json_object_node(
    depth: u32,
    finite: bool,
    limits: &Limits,
) -> Result<Node, ConstrainError> {
    Limits::check(
        "nesting",
        limits.nesting,
        depth as usize,
        "",
        "ask for less depth: automata grow geometrically with it",
    )?;
    let scalars =
        || vec![lexeme::string(finite), lexeme::number(finite), lexeme::boolean(), literal(NULL)];
    let mut value = Node::Alt(scalars());
    for _ in 1..depth {
        let mut options = scalars();
        options.push(object(value.clone(), finite));
        options.push(array(value));
        value = embedded(Node::Alt(options), limits)?;
    }
    Ok(object(value, finite))
}

/// The tree as one automaton, so that its copies cost its minimal states and no more.
fn embedded(node: Node, limits: &Limits) -> Result<Node, ConstrainError> {
    Ok(match node_to_dfa(&node, limits)? {
        Some(dfa) => Node::Automaton(Arc::new(dfa)),
        None => node,
    })
}

fn object(value: Node, finite: bool) -> Node {
    list(b'{', Node::Concat(vec![lexeme::string(finite), byte(b':'), value]), b'}')
}

fn array(value: Node) -> Node {
    list(b'[', value, b']')
}

fn list(open: u8, item: Node, close: u8) -> Node {
    let items = Node::Separated {
        node: Box::new(item),
        separator: Box::new(byte(b',')),
        min: 0,
        max: None,
    };
    Node::Concat(vec![byte(open), items, byte(close)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dfa::{Dfa, regex_to_dfa};

    fn automaton(depth: u32, finite: bool) -> Dfa {
        let limits = Limits::default();
        let node = json_object_node(depth, finite, &limits).unwrap();
        node_to_dfa(&node, &limits).unwrap().unwrap()
    }

    #[test]
    fn json_object_grammar() {
        for (depth, states) in [(0, 50), (1, 50), (2, 131), (3, 293)] {
            let dfa = regex_to_dfa(&json_object_regex(depth)).unwrap();
            assert_eq!(dfa.n_states, states, "depth {depth}");
            assert_eq!(dfa, automaton(depth as u32, false), "depth {depth}");
        }
        let dfa = automaton(3, false);
        for text in
            ["{}", r#"{"a":1}"#, r#"{"a":{"b":{"c":null}}}"#, r#"{"a":[[1,"x"],{}],"b":-0.5e7}"#]
        {
            assert!(dfa.matches(text.as_bytes()), "{text}");
        }
        for text in [
            "",
            "[]",
            "1",
            "null",
            "{",
            r#"{"a"}"#,
            r#"{"a":}"#,
            r#"{"a":1,}"#,
            r#"{"a":01}"#,
            r#"{"a": 1}"#,
            r#"{"a":{"b":{"c":{}}}}"#,
            r#"{"a":[[[1]]]}"#,
            "{a:1}",
            "{} ",
        ] {
            assert!(!dfa.matches(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn the_finite_form_is_a_part_of_the_strict_one() {
        let (strict, finite) = (automaton(1, false), automaton(1, true));
        for (text, fits) in [
            (r#"{"a":123456789012345678}"#, true),
            (r#"{"a":1234567890123456789}"#, false),
            (r#"{"a":1e99}"#, true),
            (r#"{"a":1e100}"#, false),
            (r#"{"a":0.12345678901234567}"#, true),
            (r#"{"a":0.123456789012345678}"#, false),
            (r#"{"a":"\ud83d\uDE00"}"#, true),
            (r#"{"a":"\ud83d"}"#, false),
            (r#"{"a":"\ude00\ud83d"}"#, false),
        ] {
            assert!(strict.matches(text.as_bytes()), "{text}");
            assert_eq!(finite.matches(text.as_bytes()), fits, "{text}");
        }
    }

    #[test]
    fn depth_ends_in_a_named_limit() {
        let limits = Limits::default();
        let text = |depth| json_object_regex_within(depth, &limits);
        assert_eq!(text(3).unwrap(), json_object_regex(3));
        assert_eq!(text(1_000_000_000).unwrap_err().limit(), Some("pattern_bytes"));
        assert!(json_object_node(100, true, &limits).unwrap_err().limit().is_some());
        assert_eq!(json_object_node(u32::MAX, true, &limits).unwrap_err().limit(), Some("nesting"));
        // The lengths that are checked are those of the texts.
        for depth in 0..4 {
            let bytes = json_object_regex(depth).len();
            let mut exact = Limits { pattern_bytes: bytes, ..Limits::default() };
            assert!(json_object_regex_within(depth, &exact).is_ok(), "{depth}");
            exact.pattern_bytes = bytes - 1;
            assert!(json_object_regex_within(depth, &exact).is_err(), "{depth}");
        }
    }
}
