//! Values as Python writes them: `str()`, `repr()` and `json.dumps`.
//!
//! A template can share one value in many places, so what is written may be exponentially larger
//! than what exists; the writer pays the interpreter's fuel as it goes, not when it is done.

use crate::control::may_be_sentinel;
use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind, State};
use std::fmt::Write;

/// Most nesting that is written. Deeper values exist only in hostile templates.
const MAX_DEPTH: usize = 300;
/// Bytes a unit of fuel pays for, and how often it is paid.
const BYTES_PER_FUEL: usize = 16;
const BYTES_PER_PAYMENT: usize = 1024;

/// How JSON is laid out.
pub(super) struct JsonStyle {
    ascii: bool,
    sort: bool,
    indent: Option<String>,
    item: String,
    key: String,
}

impl JsonStyle {
    pub(super) fn new(
        ascii: bool,
        sort: bool,
        indent: Option<String>,
        separators: Option<(String, String)>,
    ) -> Self {
        // Python drops the space after the comma at a line's end.
        let item = if indent.is_some() { "," } else { ", " };
        let (item, key) = separators.unwrap_or_else(|| (item.to_owned(), ": ".to_owned()));
        Self { ascii, sort, indent, item, key }
    }
}

/// `json.dumps(value)`.
pub(super) fn dumps(state: &State, value: &Value, style: &JsonStyle) -> Result<String, Error> {
    let mut writer = Writer::new(state);
    writer.json(value, style, 0)?;
    writer.finish()
}

/// `str(value)` of anything but a string.
pub(super) fn display(state: &State, value: &Value) -> Result<String, Error> {
    // An undefined variable prints as nothing, as jinja2's does.
    if value.is_undefined() {
        return Ok(String::new());
    }
    let mut writer = Writer::new(state);
    writer.repr(value, 0)?;
    writer.finish()
}

struct Writer<'a, 'template, 'env> {
    state: &'a State<'template, 'env>,
    text: String,
    paid: usize,
}

impl<'a, 'template, 'env> Writer<'a, 'template, 'env> {
    fn new(state: &'a State<'template, 'env>) -> Self {
        Self { state, text: String::new(), paid: 0 }
    }

    fn finish(mut self) -> Result<String, Error> {
        self.paid = self.paid.saturating_sub(BYTES_PER_PAYMENT);
        self.pay()?;
        Ok(self.text)
    }

    fn pay(&mut self) -> Result<(), Error> {
        let due = self.text.len() - self.paid;
        if due >= BYTES_PER_PAYMENT {
            self.paid = self.text.len();
            self.state.consume_fuel((due / BYTES_PER_FUEL) as u64)?;
        }
        Ok(())
    }

    fn enter(&mut self, depth: usize) -> Result<(), Error> {
        self.pay()?;
        if depth > MAX_DEPTH {
            return Err(Error::new(ErrorKind::InvalidOperation, "a value is nested too deeply"));
        }
        Ok(())
    }

    fn json(&mut self, value: &Value, style: &JsonStyle, depth: usize) -> Result<(), Error> {
        self.enter(depth)?;
        match value.kind() {
            ValueKind::None => self.text.push_str("null"),
            ValueKind::Bool => self.text.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.text.push_str(&number(value, "NaN", "Infinity")),
            ValueKind::String => self.json_string(value.as_str().unwrap_or_default(), style.ascii),
            ValueKind::Seq | ValueKind::Iterable => {
                self.text.push('[');
                let mut first = true;
                for item in value.try_iter()? {
                    self.json_separator(&mut first, style, depth + 1);
                    self.json(&item, style, depth + 1)?;
                }
                self.json_close(']', first, style, depth);
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if style.sort {
                    keys.sort();
                }
                self.text.push('{');
                let mut first = true;
                for key in keys {
                    self.json_separator(&mut first, style, depth + 1);
                    let name = match (key.as_str(), key.kind()) {
                        (Some(text), _) => text.to_owned(),
                        (_, ValueKind::None) => "null".to_owned(),
                        (_, ValueKind::Bool) => key.is_true().to_string(),
                        (_, ValueKind::Number) => number(&key, "NaN", "Infinity"),
                        (_, kind) => return Err(unsupported(kind)),
                    };
                    self.json_string(&name, style.ascii);
                    self.text.push_str(&style.key);
                    self.json(&value.get_item(&key)?, style, depth + 1)?;
                }
                self.json_close('}', first, style, depth);
            }
            kind => return Err(unsupported(kind)),
        }
        Ok(())
    }

    fn json_separator(&mut self, first: &mut bool, style: &JsonStyle, depth: usize) {
        if !std::mem::replace(first, false) {
            self.text.push_str(&style.item);
        }
        self.line(style, depth);
    }

    fn json_close(&mut self, bracket: char, empty: bool, style: &JsonStyle, depth: usize) {
        if !empty {
            self.line(style, depth);
        }
        self.text.push(bracket);
    }

    fn line(&mut self, style: &JsonStyle, depth: usize) {
        if let Some(indent) = &style.indent {
            self.text.push('\n');
            self.text.extend(std::iter::repeat_n(indent.as_str(), depth));
        }
    }

    fn json_string(&mut self, text: &str, ascii: bool) {
        self.text.push('"');
        for char in text.chars() {
            match char {
                '"' => self.text.push_str("\\\""),
                '\\' => self.text.push_str("\\\\"),
                '\n' => self.text.push_str("\\n"),
                '\r' => self.text.push_str("\\r"),
                '\t' => self.text.push_str("\\t"),
                '\u{8}' => self.text.push_str("\\b"),
                '\u{c}' => self.text.push_str("\\f"),
                '\0'..' ' => self.escape(char),
                _ if ascii && !char.is_ascii() && !may_be_sentinel(char) => self.escape(char),
                _ => self.text.push(char),
            }
        }
        self.text.push('"');
    }

    fn escape(&mut self, char: char) {
        for unit in char.encode_utf16(&mut [0; 2]) {
            // Writing to a string cannot fail.
            let _ = write!(self.text, "\\u{unit:04x}");
        }
    }

    /// `repr(value)`.
    fn repr(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.enter(depth)?;
        match value.kind() {
            ValueKind::Undefined => self.text.push_str("Undefined"),
            ValueKind::None => self.text.push_str("None"),
            ValueKind::Bool => self.text.push_str(if value.is_true() { "True" } else { "False" }),
            ValueKind::Number => self.text.push_str(&number(value, "nan", "inf")),
            ValueKind::String => self.repr_string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                self.text.push('[');
                for (index, item) in value.try_iter()?.enumerate() {
                    if index > 0 {
                        self.text.push_str(", ");
                    }
                    self.repr(&item, depth + 1)?;
                }
                self.text.push(']');
            }
            ValueKind::Map => {
                self.text.push('{');
                for (index, key) in value.try_iter()?.enumerate() {
                    if index > 0 {
                        self.text.push_str(", ");
                    }
                    self.repr(&key, depth + 1)?;
                    self.text.push_str(": ");
                    self.repr(&value.get_item(&key)?, depth + 1)?;
                }
                self.text.push('}');
            }
            _ => self.text.push_str(&value.to_string()),
        }
        Ok(())
    }

    fn repr_string(&mut self, text: &str) {
        let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
        self.text.push(quote);
        for char in text.chars() {
            match char {
                '\\' => self.text.push_str("\\\\"),
                '\n' => self.text.push_str("\\n"),
                '\r' => self.text.push_str("\\r"),
                '\t' => self.text.push_str("\\t"),
                _ if char == quote => self.text.extend(['\\', quote]),
                '\0'..' ' | '\u{7f}'..'\u{a1}' | '\u{ad}' => {
                    let _ = write!(self.text, "\\x{:02x}", char as u32);
                }
                _ => self.text.push(char),
            }
        }
        self.text.push(quote);
    }
}

fn unsupported(kind: ValueKind) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("tojson: {kind} is not JSON"))
}

/// A number as Python prints it; JSON and `repr` differ in the names of what is not finite.
fn number(value: &Value, nan: &str, infinity: &str) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    let Ok(float) = f64::try_from(value.clone()) else { return value.to_string() };
    if float.is_nan() {
        return nan.to_owned();
    }
    if float.is_infinite() {
        return format!("{}{infinity}", if float < 0.0 { "-" } else { "" });
    }
    // Both languages print the shortest digits that read back as the same number; they differ in
    // where the exponent begins.
    let scientific = format!("{float:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = float.to_string();
        return if plain.contains('.') { plain } else { format!("{plain}.0") };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

#[cfg(test)]
mod tests {
    use super::number;
    use minijinja::value::Value;

    #[test]
    fn numbers_are_pythons() {
        let printed = |float: f64| number(&Value::from(float), "nan", "inf");
        for (float, text) in [
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (0.0001, "0.0001"),
            (0.000_012, "1.2e-05"),
            (5e-324, "5e-324"),
            (f64::NAN, "nan"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(printed(float), text);
        }
        assert_eq!(number(&Value::from(u64::MAX), "", ""), "18446744073709551615");
    }
}
