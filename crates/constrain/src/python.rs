//! Values as Python's `repr` prints them; the strict subset's messages quote schemas so.

use crate::json::{Json, python_float};
use std::fmt::Write as _;

/// The value as Python's `repr` prints it.
pub(crate) fn repr(json: &Json) -> String {
    let mut out = String::new();
    write(json, &mut out);
    out
}

/// A list of strings as Python's `repr` prints it.
pub(crate) fn repr_list(items: &[&str]) -> String {
    let mut out = String::from("[");
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            out.push_str(", ");
        }
        write_str(item, &mut out);
    }
    out.push(']');
    out
}

fn write(json: &Json, out: &mut String) {
    match json {
        Json::Null => out.push_str("None"),
        Json::Bool(true) => out.push_str("True"),
        Json::Bool(false) => out.push_str("False"),
        Json::Int(digits) => out.push_str(digits),
        Json::Float(x) => out.push_str(&python_float(*x)),
        Json::Str(s) => write_str(s, out),
        Json::Arr(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push_str(", ");
                }
                write(item, out);
            }
            out.push(']');
        }
        Json::Obj(members) => {
            out.push('{');
            for (i, (key, value)) in members.iter().enumerate() {
                if i > 0 {
                    out.push_str(", ");
                }
                write_str(key, out);
                out.push_str(": ");
                write(value, out);
            }
            out.push('}');
        }
    }
}

/// Single quotes, unless that would need escapes which double quotes do not.
fn write_str(s: &str, out: &mut String) {
    let quote = if s.contains('\'') && !s.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in s.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if c < ' ' || ('\u{7f}'..='\u{a0}').contains(&c) || c == '\u{ad}' => {
                // Writing to a String cannot fail.
                let _ = write!(out, "\\x{:02x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push(quote);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repr_is_pythons() {
        let json = Json::parse(r#"{"a":[1,1.0,null,true,"it's","\"it's\"","x\n\u007f"]}"#).unwrap();
        assert_eq!(repr(&json), r#"{'a': [1, 1.0, None, True, "it's", '"it\'s"', 'x\n\x7f']}"#);
        assert_eq!(repr_list(&["a", "b"]), "['a', 'b']");
    }
}
