//! Whatever the tokens, what comes out parses and satisfies its schema.
//!
//! Walks of the strict subset are read by a parser of the subset's own JSON (compact, numbers of
//! any size, lone surrogate escapes), because its language holds texts that no double holds.

use std::sync::Arc;
use tinyllm_constrain::{
    Constraint, ConstraintOptions, Grammar, Json, Limits, Subset, TokenIndex, Vocabulary,
    Whitespace, compile, json_schema_to_regex, regex_to_dfa,
};
use tinyllm_testkit::golden::{self, vocabulary};

/// A small multiplicative generator; walks need no more.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

/// A value as written.
#[derive(Debug, PartialEq)]
enum Written {
    Null,
    Bool,
    Number { text: String, integer: bool },
    Text(String),
    List(Vec<Written>),
    Object(Vec<(String, Written)>),
}

struct Parser<'a> {
    text: &'a [u8],
    at: usize,
}

impl Parser<'_> {
    fn whole(text: &str) -> Option<Written> {
        let mut parser = Parser { text: text.as_bytes(), at: 0 };
        let value = parser.value()?;
        (parser.at == text.len()).then_some(value)
    }

    fn eat(&mut self, bytes: &[u8]) -> Option<()> {
        self.text[self.at..].starts_with(bytes).then(|| self.at += bytes.len())
    }

    fn while_in(&mut self, set: &[u8]) -> usize {
        let from = self.at;
        while self.text.get(self.at).is_some_and(|b| set.contains(b)) {
            self.at += 1;
        }
        self.at - from
    }

    fn value(&mut self) -> Option<Written> {
        match *self.text.get(self.at)? {
            b'n' => self.eat(b"null").map(|()| Written::Null),
            b't' => self.eat(b"true").map(|()| Written::Bool),
            b'f' => self.eat(b"false").map(|()| Written::Bool),
            b'"' => self.text().map(Written::Text),
            b'[' => {
                self.eat(b"[")?;
                let mut items = Vec::new();
                if self.eat(b"]").is_some() {
                    return Some(Written::List(items));
                }
                loop {
                    items.push(self.value()?);
                    if self.eat(b"]").is_some() {
                        return Some(Written::List(items));
                    }
                    self.eat(b",")?;
                }
            }
            b'{' => {
                self.eat(b"{")?;
                let mut members = Vec::new();
                if self.eat(b"}").is_some() {
                    return Some(Written::Object(members));
                }
                loop {
                    let key = self.text()?;
                    self.eat(b":")?;
                    members.push((key, self.value()?));
                    if self.eat(b"}").is_some() {
                        return Some(Written::Object(members));
                    }
                    self.eat(b",")?;
                }
            }
            _ => self.number(),
        }
    }

    fn number(&mut self) -> Option<Written> {
        const DIGITS: &[u8] = b"0123456789";
        let from = self.at;
        let _ = self.eat(b"-");
        if self.eat(b"0").is_none() && self.while_in(DIGITS) == 0 {
            return None;
        }
        let mut integer = true;
        if self.eat(b".").is_some() {
            integer = false;
            (self.while_in(DIGITS) > 0).then_some(())?;
        }
        if self.while_in(b"eE") == 1 {
            integer = false;
            (self.while_in(b"+-") <= 1 && self.while_in(DIGITS) > 0).then_some(())?;
        }
        let text = String::from_utf8(self.text[from..self.at].to_vec()).ok()?;
        Some(Written::Number { text, integer })
    }

    /// A string, with its escapes as written.
    fn text(&mut self) -> Option<String> {
        self.eat(b"\"")?;
        let from = self.at;
        loop {
            match *self.text.get(self.at)? {
                b'"' => break,
                b'\\' => {
                    self.at += 1;
                    if self.eat(b"u").is_some() {
                        let digits = self.text.get(self.at..self.at + 4)?;
                        digits.iter().all(u8::is_ascii_hexdigit).then_some(())?;
                        self.at += 4;
                    } else {
                        b"\"\\/bfnrt".contains(self.text.get(self.at)?).then(|| self.at += 1)?;
                    }
                }
                0..0x20 => return None,
                _ => self.at += 1,
            }
        }
        let text = String::from_utf8(self.text[from..self.at].to_vec()).ok()?;
        self.eat(b"\"")?;
        Some(text)
    }
}

/// Whether a value satisfies a schema of the strict subset. `text` is the value as written.
fn satisfies(value: &Written, text: &str, schema: &Json) -> bool {
    let list = |json: &Json| match json {
        Json::Arr(items) => items.clone(),
        _ => Vec::new(),
    };
    if let Some(constant) = schema.get("const") {
        return constant.dumps() == text;
    }
    if let Some(options) = schema.get("enum") {
        return list(options).iter().any(|option| option.dumps() == text);
    }
    if let Some(branches) = schema.get("anyOf") {
        return list(branches).iter().any(|branch| satisfies(value, text, branch));
    }
    let Some(Json::Str(kind)) = schema.get("type") else { return false };
    match (kind.as_str(), value) {
        ("null", Written::Null)
        | ("boolean", Written::Bool)
        | ("string", Written::Text(_))
        | ("number", Written::Number { .. }) => true,
        ("integer", Written::Number { integer, .. }) => *integer,
        ("array", Written::List(items)) => {
            let bound = |key: &str| match schema.get(key) {
                Some(Json::Int(digits)) => digits.parse::<usize>().ok(),
                _ => None,
            };
            items.len() >= bound("minItems").unwrap_or(0)
                && bound("maxItems").is_none_or(|max| items.len() <= max)
                && items.iter().all(|item| {
                    satisfies(item, &spell(item), schema.get("items").unwrap_or(&Json::Null))
                })
        }
        ("object", Written::Object(members)) => {
            let Some(Json::Obj(properties)) = schema.get("properties") else {
                return members.is_empty();
            };
            let place = |key: &str| properties.iter().position(|(name, _)| name == key);
            let places: Vec<_> = members.iter().map(|(key, _)| place(key)).collect();
            let required = schema.get("required").map(list).unwrap_or_default();
            places.iter().all(Option::is_some)
                && places.windows(2).all(|pair| pair[0] < pair[1])
                && required.iter().all(
                    |name| matches!(name, Json::Str(name) if members.iter().any(|(key, _)| key == name)),
                )
                && members.iter().all(|(key, value)| {
                    place(key).is_some_and(|at| satisfies(value, &spell(value), &properties[at].1))
                })
        }
        _ => false,
    }
}

/// A value's text again; booleans are told apart where it matters, in constants, by the caller.
fn spell(value: &Written) -> String {
    match value {
        Written::Null => "null".into(),
        Written::Bool => "true".into(),
        Written::Number { text, .. } => text.clone(),
        Written::Text(text) => format!("\"{text}\""),
        Written::List(items) => {
            format!("[{}]", items.iter().map(spell).collect::<Vec<_>>().join(","))
        }
        Written::Object(members) => {
            let members: Vec<_> =
                members.iter().map(|(k, v)| format!("\"{k}\":{}", spell(v))).collect();
            format!("{{{}}}", members.join(","))
        }
    }
}

#[test]
fn constrained_output_always_parses() {
    let golden = golden::read("constrain.json");
    let (tokens, eos) = vocabulary(&golden);
    let shared = Vocabulary::new(tokens.clone(), eos).unwrap();
    for entry in golden["schemas"].as_array().unwrap() {
        let (name, text) = (entry["name"].as_str().unwrap(), entry["schema"].as_str().unwrap());
        let schema = Json::parse(text).unwrap();
        let dfa = regex_to_dfa(&json_schema_to_regex(&schema).unwrap()).unwrap();
        let index = Arc::new(TokenIndex::new(dfa, &tokens, eos).unwrap());
        let grammar = Grammar::Schema {
            text: text.into(),
            subset: Subset::Strict,
            whitespace: Whitespace::Compact,
            max_string_length: None,
        };
        let compiled = compile(&grammar, &shared, &Limits::default()).unwrap();
        for seed in 0..25 {
            let mut random = Random(seed);
            let mut constraint =
                compiled.constraint(ConstraintOptions { close_within_budget: true });
            let mut table = Constraint::new(Arc::clone(&index));
            let mut output = Vec::new();
            for remaining in (1..=80).rev() {
                let closing = constraint.mask(Some(remaining)).unwrap();
                let mask = table.mask().unwrap();
                let allowed: Vec<u32> = closing.iter().collect();
                assert!(allowed.iter().all(|t| mask[*t as usize]), "{name}");
                let token = allowed[random.below(allowed.len())];
                constraint.advance(token).unwrap();
                table.advance(token).unwrap();
                if Some(token) == eos {
                    break;
                }
                output.extend(tokens[token as usize].as_ref().unwrap());
            }
            assert!(table.done && constraint.is_done(), "{name}: the budget closes it");
            let output = String::from_utf8(output).unwrap();
            let value = Parser::whole(&output).unwrap_or_else(|| panic!("{name}: {output}"));
            assert!(satisfies(&value, &output, &schema), "{name}: {output}");
        }
    }
}

#[test]
fn the_walks_parser_refuses_what_is_not_json() {
    for text in
        ["{\"x\":1\"y\":2}", "01", "1.", "[1,]", "{\"a\" :1}", "\"\\q\"", "\"\u{1}\"", "tru", "1 "]
    {
        assert_eq!(Parser::whole(text), None, "{text}");
    }
    assert!(Parser::whole(r#"{"a":[1172e+771263,"\ud800\/"],"b":-0.5}"#).is_some());
}
