//! The project's one JSON reader, and Python's compact printing.
//!
//! Key order is kept, integers stay digits, a repeated key keeps its first place and its last
//! value, and every value knows its slice of the source. Reading is one pass over the bytes;
//! recursion is bounded by [`JSON_DEPTH`], so no text can overflow the stack.

use crate::error::ConstrainError;
use crate::limits::JSON_DEPTH;
use rustc_hash::FxHashMap;
use std::fmt::Write as _;

/// A JSON value.
#[derive(Debug, Clone, PartialEq)]
pub enum Json {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// An integer literal as its digits, with a sign where negative; `-0` is read as `0`.
    Int(String),
    /// A number with a point or an exponent; finite when it comes from the reader.
    Float(f64),
    /// A string, decoded; lone surrogate escapes have become U+FFFD.
    Str(String),
    /// An array.
    Arr(Vec<Json>),
    /// An object's members in the order of their first mention, each key once.
    Obj(Vec<(String, Json)>),
}

impl Json {
    /// Reads one JSON text.
    pub fn parse(text: &str) -> Result<Self, ConstrainError> {
        Ok(SpannedJson::parse(text)?.into_json())
    }

    /// The member of that name, when this is an object that has it. Linear in the members.
    pub fn get(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Obj(members) => members.iter().find(|(k, _)| k == key).map(|(_, v)| v),
            _ => None,
        }
    }

    /// The text Python's `json.dumps(value, ensure_ascii=False, separators=(",", ":"))` gives.
    pub fn dumps(&self) -> String {
        let mut out = String::new();
        self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) {
        match self {
            Self::Null => out.push_str("null"),
            Self::Bool(true) => out.push_str("true"),
            Self::Bool(false) => out.push_str("false"),
            Self::Int(digits) => out.push_str(if digits == "-0" { "0" } else { digits }),
            Self::Float(x) => out.push_str(&python_float(*x)),
            Self::Str(s) => quote_into(s, out),
            Self::Arr(items) => {
                out.push('[');
                for (i, item) in items.iter().enumerate() {
                    if i > 0 {
                        out.push(',');
                    }
                    item.write(out);
                }
                out.push(']');
            }
            Self::Obj(members) => {
                out.push('{');
                for (i, (key, value)) in members.iter().enumerate() {
                    if i > 0 {
                        out.push(',');
                    }
                    quote_into(key, out);
                    out.push(':');
                    value.write(out);
                }
                out.push('}');
            }
        }
    }
}

/// A JSON value with its slice of the source text.
#[derive(Debug, Clone, PartialEq)]
pub struct SpannedJson {
    /// Byte offset of the value's first character.
    pub start: usize,
    /// Byte offset just past the value's last character.
    pub end: usize,
    /// The value.
    pub value: SpannedValue,
}

/// The value of a [`SpannedJson`]; as [`Json`], with slices below.
#[derive(Debug, Clone, PartialEq)]
pub enum SpannedValue {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// See [`Json::Int`].
    Int(String),
    /// See [`Json::Float`].
    Float(f64),
    /// See [`Json::Str`].
    Str(String),
    /// An array.
    Arr(Vec<SpannedJson>),
    /// An object.
    Obj {
        /// Members in the order of their first mention, each key once with its last value.
        members: Vec<(String, SpannedJson)>,
        /// Keys written more than once, in the order of their second mention.
        repeated: Vec<String>,
    },
}

impl SpannedJson {
    /// Reads one JSON text.
    pub fn parse(text: &str) -> Result<Self, ConstrainError> {
        let mut reader = Reader { text, bytes: text.as_bytes(), at: 0 };
        reader.space();
        let value = reader.value(0)?;
        reader.space();
        if reader.at < reader.bytes.len() {
            return Err(reader.fail("text after the value"));
        }
        Ok(value)
    }

    /// The same value without slices.
    pub fn into_json(self) -> Json {
        match self.value {
            SpannedValue::Null => Json::Null,
            SpannedValue::Bool(b) => Json::Bool(b),
            SpannedValue::Int(digits) => Json::Int(digits),
            SpannedValue::Float(x) => Json::Float(x),
            SpannedValue::Str(s) => Json::Str(s),
            SpannedValue::Arr(items) => Json::Arr(items.into_iter().map(Self::into_json).collect()),
            SpannedValue::Obj { members, .. } => {
                Json::Obj(members.into_iter().map(|(k, v)| (k, v.into_json())).collect())
            }
        }
    }
}

struct Reader<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn fail(&self, message: impl Into<String>) -> ConstrainError {
        ConstrainError::Json { message: message.into(), offset: self.at }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn expected(&self, what: &str) -> ConstrainError {
        match self.text.get(self.at..).and_then(|rest| rest.chars().next()) {
            None => self.fail(format!("expected {what}, found the end")),
            Some(c) => self.fail(format!("expected {what}, found {c:?}")),
        }
    }

    fn value(&mut self, depth: usize) -> Result<SpannedJson, ConstrainError> {
        let start = self.at;
        let value = match self.peek() {
            Some(b'{') => self.object(depth)?,
            Some(b'[') => self.array(depth)?,
            Some(b'"') => SpannedValue::Str(self.string()?),
            Some(b'-' | b'0'..=b'9') => self.number()?,
            Some(b't') => self.word("true", SpannedValue::Bool(true))?,
            Some(b'f') => self.word("false", SpannedValue::Bool(false))?,
            Some(b'n') => self.word("null", SpannedValue::Null)?,
            _ => return Err(self.expected("a value")),
        };
        Ok(SpannedJson { start, end: self.at, value })
    }

    fn word(&mut self, word: &str, value: SpannedValue) -> Result<SpannedValue, ConstrainError> {
        if !self.bytes[self.at..].starts_with(word.as_bytes()) {
            return Err(self.expected("a value"));
        }
        self.at += word.len();
        Ok(value)
    }

    fn enter(&mut self, depth: usize) -> Result<(), ConstrainError> {
        if depth >= JSON_DEPTH {
            return Err(self.fail(format!("nesting deeper than {JSON_DEPTH}")));
        }
        self.at += 1;
        self.space();
        Ok(())
    }

    fn array(&mut self, depth: usize) -> Result<SpannedValue, ConstrainError> {
        self.enter(depth)?;
        let mut items = Vec::new();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(SpannedValue::Arr(items));
        }
        loop {
            items.push(self.value(depth + 1)?);
            self.space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => {
                    self.at += 1;
                    return Ok(SpannedValue::Arr(items));
                }
                _ => return Err(self.expected("',' or ']'")),
            }
            self.space();
        }
    }

    fn object(&mut self, depth: usize) -> Result<SpannedValue, ConstrainError> {
        self.enter(depth)?;
        let mut members: Vec<(String, SpannedJson)> = Vec::new();
        let mut repeated = Vec::new();
        // Small objects are scanned; the map keeps an object of many members linear.
        // A place of `members`, and whether the key is in `repeated` already.
        let mut places: FxHashMap<String, (usize, bool)> = FxHashMap::default();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(SpannedValue::Obj { members, repeated });
        }
        loop {
            if self.peek() != Some(b'"') {
                return Err(self.expected("a string key"));
            }
            let key = self.string()?;
            self.space();
            if self.peek() != Some(b':') {
                return Err(self.expected("':'"));
            }
            self.at += 1;
            self.space();
            let value = self.value(depth + 1)?;
            let known = if members.len() < 16 {
                let place = members.iter().position(|(k, _)| *k == key);
                place.map(|i| (i, repeated.contains(&key)))
            } else {
                if places.is_empty() {
                    let entry = |(i, (k, _)): (usize, &(String, SpannedJson))| {
                        (k.clone(), (i, repeated.contains(k)))
                    };
                    places.extend(members.iter().enumerate().map(entry));
                }
                let place = places.get_mut(&key);
                place.map(|(i, seen)| (*i, std::mem::replace(seen, true)))
            };
            if let Some((i, seen)) = known {
                members[i].1 = value;
                if !seen {
                    repeated.push(key);
                }
            } else {
                if !places.is_empty() {
                    places.insert(key.clone(), (members.len(), false));
                }
                members.push((key, value));
            }
            self.space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => {
                    self.at += 1;
                    return Ok(SpannedValue::Obj { members, repeated });
                }
                _ => return Err(self.expected("',' or '}'")),
            }
            self.space();
        }
    }

    fn digits(&mut self) -> usize {
        let from = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        self.at - from
    }

    fn number(&mut self) -> Result<SpannedValue, ConstrainError> {
        let start = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        let first = self.at;
        if self.digits() == 0 {
            return Err(self.expected("a digit"));
        }
        if self.bytes[first] == b'0' && self.at - first > 1 {
            self.at = first;
            return Err(self.fail("a number starts with a superfluous zero"));
        }
        let mut float = false;
        if self.peek() == Some(b'.') {
            float = true;
            self.at += 1;
            if self.digits() == 0 {
                return Err(self.expected("a digit"));
            }
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            float = true;
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            if self.digits() == 0 {
                return Err(self.expected("a digit"));
            }
        }
        let slice = &self.text[start..self.at];
        if !float {
            let digits = if slice == "-0" { "0" } else { slice };
            return Ok(SpannedValue::Int(digits.to_owned()));
        }
        match slice.parse::<f64>() {
            Ok(x) if x.is_finite() => Ok(SpannedValue::Float(x)),
            _ => {
                self.at = start;
                Err(self.fail("the number is out of range"))
            }
        }
    }

    fn hex4(&mut self) -> Result<u32, ConstrainError> {
        let mut code = 0;
        for _ in 0..4 {
            let Some(digit) = self.peek().and_then(|b| char::from(b).to_digit(16)) else {
                return Err(self.expected("a hexadecimal digit"));
            };
            code = code * 16 + digit;
            self.at += 1;
        }
        Ok(code)
    }

    fn string(&mut self) -> Result<String, ConstrainError> {
        self.at += 1;
        let mut out = String::new();
        loop {
            let from = self.at;
            // `"`, `\` and control bytes never occur inside a multi-byte character.
            while matches!(self.peek(), Some(b) if b != b'"' && b != b'\\' && b >= 0x20) {
                self.at += 1;
            }
            out.push_str(&self.text[from..self.at]);
            match self.peek() {
                None => return Err(self.fail("the string does not end")),
                Some(b'"') => {
                    self.at += 1;
                    return Ok(out);
                }
                Some(b'\\') => {
                    self.at += 1;
                    self.escape_into(&mut out)?;
                }
                Some(_) => return Err(self.fail("a control character in a string is not escaped")),
            }
        }
    }

    fn escape_into(&mut self, out: &mut String) -> Result<(), ConstrainError> {
        let simple = match self.peek() {
            Some(c @ (b'"' | b'\\' | b'/')) => char::from(c),
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => {
                self.at += 1;
                let high = self.hex4()?;
                let mut code = high;
                if (0xd800..0xdc00).contains(&high) && self.bytes[self.at..].starts_with(b"\\u") {
                    let back = self.at;
                    self.at += 2;
                    let low = self.hex4()?;
                    if (0xdc00..0xe000).contains(&low) {
                        code = 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
                    } else {
                        // Not a pair: the second escape stands for itself.
                        self.at = back;
                    }
                }
                out.push(char::from_u32(code).unwrap_or('\u{fffd}'));
                return Ok(());
            }
            _ => return Err(self.expected("an escape")),
        };
        self.at += 1;
        out.push(simple);
        Ok(())
    }
}

/// A string as a JSON literal: only `"`, `\` and bytes below 0x20 are escaped.
pub fn json_quote(s: &str) -> String {
    let mut out = String::with_capacity(s.len() + 2);
    quote_into(s, &mut out);
    out
}

fn quote_into(s: &str, out: &mut String) {
    out.push('"');
    for c in s.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' => {
                // Writing to a String cannot fail.
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// A float as Python's `repr` writes it: the shortest digits that read back to the same double,
/// scientific when the decimal exponent is below -4 or at least 16.
pub fn python_float(x: f64) -> String {
    if x.is_nan() {
        return "nan".to_owned();
    }
    if x.is_infinite() {
        return if x > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    // `{:e}` prints the shortest round-trip digits: `-1.25e100`, `5e-7`, `0e0`.
    let text = format!("{x:e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let (sign, mantissa) = match mantissa.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", mantissa),
    };
    if !(-4..16).contains(&exponent) {
        let mark = if exponent < 0 { '-' } else { '+' };
        return format!("{sign}{mantissa}e{mark}{:02}", exponent.unsigned_abs());
    }
    let digits: String = mantissa.chars().filter(|c| *c != '.').collect();
    if exponent < 0 {
        let zeros = "0".repeat(exponent.unsigned_abs() as usize - 1);
        return format!("{sign}0.{zeros}{digits}");
    }
    let whole = exponent as usize + 1;
    if digits.len() <= whole {
        let zeros = "0".repeat(whole - digits.len());
        return format!("{sign}{digits}{zeros}.0");
    }
    format!("{sign}{}.{}", &digits[..whole], &digits[whole..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_json_does_not_have() {
        for text in [
            "",
            "01",
            "-",
            "1.",
            ".5",
            "1e",
            "[1,]",
            "{\"a\":1,}",
            "1 2",
            "\"\u{1}\"",
            "\"a",
            "\"\\x\"",
            "\"\\u12\"",
            "{a:1}",
            "nul",
            "+1",
            "NaN",
            "1e999",
            "'a'",
            "[1",
            "{\"a\"}",
            "\u{feff}1",
            "00",
            "-01",
            "\u{a0}1",
        ] {
            let error = Json::parse(text).expect_err(text);
            assert_eq!(error.code(), "ERR_TINYLLM_JSON", "{text}");
            assert!(error.position().is_some());
        }
        assert!(Json::parse("-1e400").unwrap_err().to_string().contains("out of range"));
    }

    #[test]
    fn nesting_is_bounded() {
        let nested = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        assert!(Json::parse(&nested(JSON_DEPTH)).is_ok());
        assert!(Json::parse(&nested(JSON_DEPTH + 1)).is_err());
        assert!(Json::parse(&"[".repeat(1_000_000)).is_err());
        assert!(Json::parse(&"{\"a\":".repeat(1_000_000)).is_err());
    }

    #[test]
    fn surrogates_pair_or_become_the_replacement_character() {
        let read = |text: &str| match Json::parse(text) {
            Ok(Json::Str(s)) => s,
            other => panic!("{other:?}"),
        };
        assert_eq!(read(r#""\ud83d\ude00""#), "😀");
        assert_eq!(read(r#""\ud83d""#), "\u{fffd}");
        assert_eq!(read(r#""\ude00\ud83d""#), "\u{fffd}\u{fffd}");
        assert_eq!(read(r#""\ud83d\ud83d\ude00""#), "\u{fffd}😀");
        assert_eq!(read(r#""\ud83d\u0041""#), "\u{fffd}A");
    }

    #[test]
    fn repeated_keys_keep_the_first_place_and_the_last_value() {
        let text = r#" {"a": 1, "b": [2], "a": 3, "a": 4} "#;
        let read = SpannedJson::parse(text).unwrap();
        let SpannedValue::Obj { members, repeated } = &read.value else { panic!("an object") };
        assert_eq!(repeated, &["a"]);
        assert_eq!(members.iter().map(|(k, _)| k.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(&text[members[0].1.start..members[0].1.end], "4");
        assert_eq!(&text[members[1].1.start..members[1].1.end], "[2]");
        assert_eq!(&text[read.start..read.end], text.trim());
        // Past the size where keys are looked up in a map.
        let many: Vec<String> = (0..40).map(|i| format!("\"k{}\":{i}", i % 20)).collect();
        let json = Json::parse(&format!("{{{}}}", many.join(","))).unwrap();
        assert_eq!(json.get("k3"), Some(&Json::Int("23".into())));
        let Json::Obj(members) = json else { panic!("an object") };
        assert_eq!(members.len(), 20);
    }
}
