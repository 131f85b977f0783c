//! Whatever the text, the readers answer: a value, a tree or an error that says where.

use proptest::prelude::*;
use tinyllm_constrain::{
    ConstrainError, Grammar, JSON_DEPTH, Json, Limits, SpannedJson, SpannedValue, Subset,
    Whitespace, escape, grammar_to_node, json_quote, json_schema_to_regex, parse, python_float,
    regex_to_dfa,
};

fn json() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::Bool),
        any::<i128>().prop_map(|n| Json::Int(n.to_string())),
        any::<f64>().prop_filter("finite", |x| x.is_finite()).prop_map(Json::Float),
        any::<String>().prop_map(Json::Str),
        "[\u{0}-\u{30}\"\\\\é😀\u{7f}]{0,8}".prop_map(Json::Str),
    ];
    leaf.prop_recursive(4, 40, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Json::Arr),
            prop::collection::btree_map(any::<String>(), inner, 0..5)
                .prop_map(|members| Json::Obj(members.into_iter().collect())),
        ]
    })
}

/// Every slice reads back to its own value.
fn check_slices(value: &SpannedJson, text: &str) {
    let slice = &text[value.start..value.end];
    assert_eq!(Json::parse(slice), Ok(value.clone().into_json()), "{slice}");
    let inner: Vec<&SpannedJson> = match &value.value {
        SpannedValue::Arr(items) => items.iter().collect(),
        SpannedValue::Obj { members, .. } => members.iter().map(|(_, member)| member).collect(),
        _ => Vec::new(),
    };
    for value in inner {
        check_slices(value, text);
    }
}

fn within(error: &ConstrainError, text: &str) -> bool {
    error.position().is_some_and(|at| at <= text.len())
}

/// Texts made of the pieces that a grammar's texts are made of, so that they get far.
fn pieces(pieces: &'static [&'static str]) -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(pieces), 0..24).prop_map(|pieces| pieces.concat())
}

const JSON_PIECES: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "\"a\"",
    "\"type\"",
    "\"string\"",
    "\\",
    "\\u",
    "d83d",
    "0",
    "-",
    "1.5",
    "e9",
    "true",
    "null",
    " ",
    "\n",
    "é",
];

const PATTERN_PIECES: &[&str] = &[
    "a", "b", "(", "(?:", ")", "|", "*", "+", "?", "{2}", "{0,3}", "{,", "[", "[^", "]", "-",
    "\\d", "\\W", "\\x41", "\\", ".", "^", "$", "}", "é", "(?=", "\\p{L}", "\\u{61}", "\\b",
];

const SCHEMA_PIECES: &[&str] = &[
    r#""type":"string""#,
    r#""type":"integer""#,
    r#""type":["null","array"]"#,
    r#""type":"object""#,
    r#""items":{"type":"null"}"#,
    r#""minItems":2"#,
    r#""maxItems":1e1"#,
    r#""minLength":1"#,
    r#""maxLength":3"#,
    r#""pattern":"^a|b{2}$""#,
    r#""pattern":"(""#,
    r#""enum":[1,"a",{}]"#,
    r#""const":-0.0"#,
    r#""minimum":-1e30"#,
    r#""exclusiveMaximum":3.5"#,
    r#""anyOf":[{"type":"null"},{}]"#,
    r#""oneOf":[{"const":1},{"const":2}]"#,
    r##""$ref":"#/$defs/a""##,
    r##""$ref":"#""##,
    r##""$defs":{"a":{"$ref":"#/$defs/b"},"b":{"type":"boolean"}}"##,
    r#""properties":{"a":{"type":"null"},"b":false}"#,
    r#""required":["a"]"#,
    r#""additionalProperties":false"#,
    r#""allOf":[{"type":"string"}]"#,
    r#""title":1"#,
    r#""format":"x""#,
    r#""$id":"x""#,
    r#""maximum":9007199254740991"#,
    r#""items":{"items":{}}"#,
];

proptest! {
    #[test]
    fn printing_reads_back(value in json()) {
        let text = value.dumps();
        prop_assert_eq!(Json::parse(&text), Ok(value.clone()));
        // Printing agrees with a reader that is not ours.
        let theirs: Result<serde_json::Value, _> = serde_json::from_str(&text);
        prop_assert!(theirs.is_ok(), "{}", text);
    }

    #[test]
    fn floats_read_back(bits in any::<u64>()) {
        let x = f64::from_bits(bits);
        if x.is_finite() {
            let text = python_float(x);
            prop_assert_eq!(text.parse::<f64>().map(f64::to_bits), Ok(bits), "{}", text);
            prop_assert!(text.contains(['.', 'e']));
        }
    }

    #[test]
    fn the_json_reader_agrees_with_another_or_says_where(text in prop_oneof![any::<String>(), pieces(JSON_PIECES)]) {
        match SpannedJson::parse(&text) {
            Ok(value) => check_slices(&value, &text),
            Err(error) => {
                prop_assert!(within(&error, &text));
                // The other refuses too, but for numbers and surrogates that it reads otherwise.
                if !text.contains(['e', 'E', '\\']) {
                    prop_assert!(serde_json::from_str::<serde_json::Value>(&text).is_err(), "{}", text);
                }
            }
        }
    }

    #[test]
    fn nesting_is_read_up_to_its_bound(depth in 1..300usize, object in any::<bool>()) {
        let (open, close) = if object { ("{\"a\":", "}") } else { ("[", "]") };
        let text = format!("{}1{}", open.repeat(depth), close.repeat(depth));
        prop_assert_eq!(Json::parse(&text).is_ok(), depth <= JSON_DEPTH);
    }

    #[test]
    fn the_pattern_parser_answers(pattern in prop_oneof![any::<String>(), pieces(PATTERN_PIECES)]) {
        if let Err(error) = parse(&pattern) {
            prop_assert!(within(&error, &pattern) || error.limit().is_some());
        }
    }

    #[test]
    fn an_escaped_text_matches_itself_only(text in any::<String>(), other in any::<String>()) {
        let dfa = regex_to_dfa(&escape(&text)).unwrap();
        prop_assert!(dfa.matches(text.as_bytes()));
        prop_assert_eq!(dfa.matches(other.as_bytes()), text == other);
        prop_assert!(regex_to_dfa(&escape(&json_quote(&text))).unwrap().matches(json_quote(&text).as_bytes()));
    }

    #[test]
    fn the_schema_front_ends_answer(
        keywords in prop::collection::vec(prop::sample::select(SCHEMA_PIECES), 0..5),
        inner in prop::collection::vec(prop::sample::select(SCHEMA_PIECES), 0..5),
        noise in json(),
    ) {
        let inner = inner.join(",");
        let wrapped = format!(r#"{{{},"anyOf":[{{{inner}}}]}}"#, keywords.join(","));
        let texts = [format!("{{{}}}", keywords.join(",")), wrapped, noise.dumps()];
        for text in texts {
            if let Ok(schema) = Json::parse(&text) {
                // The text parses whenever there is one.
                if let Ok(regex) = json_schema_to_regex(&schema) {
                    prop_assert!(parse(&regex).is_ok(), "{}", regex);
                }
            }
            for subset in [Subset::Strict, Subset::General] {
                let whitespace = Whitespace::Compact;
                let grammar = Grammar::Schema { text: text.clone(), subset, whitespace, max_string_length: None };
                if let Err(error) = grammar_to_node(&grammar, &Limits::default()) {
                    prop_assert!(error.pointer().is_some() || error.position().is_some(), "{}", error);
                }
            }
            let _ = Grammar::from_json(&text);
        }
    }
}

/// A strict schema's tree denotes its text's language.
fn strict_schema() -> impl Strategy<Value = String> {
    let leaf = prop::sample::select(
        &[
            r#"{"type":"null"}"#,
            r#"{"type":"boolean"}"#,
            r#"{"type":"integer"}"#,
            r#"{"enum":["a",1,{"b":[]}]}"#,
            r#"{"const":1.50}"#,
        ][..],
    );
    leaf.prop_map(str::to_owned).prop_recursive(3, 12, 3, |inner| {
        let member = ("[ab_ ]{1,2}", inner.clone(), any::<bool>());
        prop_oneof![
            (inner.clone(), 0..3u32, prop::option::of(0..3u32)).prop_map(|(items, min, more)| {
                let max = more.map(|more| format!(r#","maxItems":{}"#, min + more));
                format!(
                    r#"{{"type":"array","items":{items},"minItems":{min}{}}}"#,
                    max.unwrap_or_default()
                )
            }),
            prop::collection::vec(inner.clone(), 1..3)
                .prop_map(|branches| format!(r#"{{"anyOf":[{}]}}"#, branches.join(","))),
            prop::collection::vec(member, 0..4).prop_map(|members| {
                let properties: Vec<String> =
                    members.iter().map(|(key, value, _)| format!("{key:?}:{value}")).collect();
                let required: Vec<String> = members
                    .iter()
                    .filter(|(_, _, r)| *r)
                    .map(|(key, _, _)| format!("{key:?}"))
                    .collect();
                format!(
                    r#"{{"type":"object","properties":{{{}}},"required":[{}]}}"#,
                    properties.join(","),
                    required.join(",")
                )
            }),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_strict_schemas_tree_is_its_text(text in strict_schema()) {
        let regex = json_schema_to_regex(&Json::parse(&text).unwrap()).unwrap();
        let grammar = Grammar::Schema {
            text: text.clone(),
            subset: Subset::Strict,
            whitespace: Whitespace::Compact,
            max_string_length: None,
        };
        let limits = Limits::default();
        let tree = grammar_to_node(&grammar, &limits).unwrap();
        let dfa = tinyllm_constrain::node_to_dfa(&tree, &limits).unwrap().unwrap();
        prop_assert_eq!(dfa, regex_to_dfa(&regex).unwrap(), "{}", text);
    }
}
