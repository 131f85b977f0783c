//! The general front end: what it takes, what it refuses, and that what it writes validates.

mod validator;

use proptest::prelude::*;
use serde_json::{Value, json};
use tinyllm_constrain::{
    ConstrainError, Dfa, Grammar, Limits, Subset, Whitespace, grammar_to_node, node_to_dfa,
};
use validator::{canonical, is_valid};

fn description(schema: &str, whitespace: Whitespace, max: Option<u32>) -> Grammar {
    Grammar::Schema {
        text: schema.to_owned(),
        subset: Subset::General,
        whitespace,
        max_string_length: max,
    }
}

fn compile(schema: &str) -> Result<Dfa, ConstrainError> {
    let limits = Limits::default();
    let node = grammar_to_node(&description(schema, Whitespace::Compact, None), &limits)?;
    Ok(node_to_dfa(&node, &limits)?.expect("a schema without values is refused by name"))
}

fn automaton(schema: &str) -> Dfa {
    compile(schema).unwrap_or_else(|error| panic!("{schema}: {error}"))
}

/// A text of the automaton: `choices` steer it until they run out, then it goes the shortest way
/// to an end.
fn walk(dfa: &Dfa, distance: &[u32], choices: &[u8]) -> Vec<u8> {
    let (mut text, mut state, mut choices) = (Vec::new(), 0usize, choices.iter());
    loop {
        let row = &dfa.trans[state * 256..state * 256 + 256];
        let live: Vec<u8> = (0..=255u8).filter(|b| row[*b as usize] >= 0).collect();
        let byte = match choices.next() {
            _ if live.is_empty() => return text,
            // Printable bytes are the interesting ones; any byte may still come.
            Some(choice) => live[usize::from(*choice) % live.len()],
            None if dfa.accept[state] => return text,
            None => *live
                .iter()
                .min_by_key(|b| distance[row[**b as usize] as usize])
                .expect("a live state has a way out"),
        };
        text.push(byte);
        state = row[usize::from(byte)] as usize;
    }
}

/// Bytes from each state to the nearest accepting one.
fn distances(dfa: &Dfa) -> Vec<u32> {
    let mut sources: Vec<Vec<usize>> = vec![Vec::new(); dfa.n_states];
    for (from, row) in dfa.trans.chunks_exact(256).enumerate() {
        for target in row.iter().filter(|target| **target >= 0) {
            if sources[*target as usize].last() != Some(&from) {
                sources[*target as usize].push(from);
            }
        }
    }
    let mut distance = vec![u32::MAX; dfa.n_states];
    let mut layer: Vec<usize> = (0..dfa.n_states).filter(|state| dfa.accept[*state]).collect();
    let mut next = 0;
    while !layer.is_empty() {
        for state in &layer {
            distance[*state] = distance[*state].min(next);
        }
        let before = layer.iter().flat_map(|state| &sources[*state]);
        let mut fresh: Vec<usize> =
            before.copied().filter(|state| distance[*state] == u32::MAX).collect();
        fresh.sort_unstable();
        fresh.dedup();
        layer = fresh;
        next += 1;
    }
    distance
}

fn check_walk(schema: &Value, dfa: &Dfa, distance: &[u32], choices: &[u8]) {
    let text = walk(dfa, distance, choices);
    let text = std::str::from_utf8(&text).expect("JSON is UTF-8");
    assert!(dfa.matches(text.as_bytes()));
    let value: Value =
        serde_json::from_str(text).unwrap_or_else(|error| panic!("{schema}: {text}: {error}"));
    assert!(is_valid(schema, schema, &value), "{schema} does not accept {text}");
}

#[test]
fn client_schemas_compile_and_what_they_allow_validates() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/schemas");
    let mut files: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 21);
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let schema: Value = serde_json::from_str(&text).unwrap();
        let dfa = automaton(&text);
        let distance = distances(&dfa);
        let mut seed = 1u32;
        for length in 0..60 {
            let choices: Vec<u8> = (0..length * 3)
                .map(|_| {
                    seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (seed >> 24) as u8
                })
                .collect();
            check_walk(&schema, &dfa, &distance, &choices);
        }
    }
}

#[test]
fn keywords_mean_what_json_schema_says() {
    for (schema, yes, no) in [
        (
            r#"{"type":"integer"}"#,
            vec!["0", "-0", "-12", "999999999999999999"],
            vec!["1.0", "01", "1000000000000000000"],
        ),
        (
            r#"{"type":"integer","minimum":-3,"exclusiveMaximum":12}"#,
            vec!["-3", "0", "-0", "11"],
            vec!["-4", "12", "120"],
        ),
        (
            r#"{"type":"integer","minimum":1.5,"maximum":4.5}"#,
            vec!["2", "4"],
            vec!["1", "5", "0", "-0"],
        ),
        (
            r#"{"type":"integer","exclusiveMinimum":1.5,"exclusiveMaximum":4.5}"#,
            vec!["2", "4"],
            vec!["1", "5"],
        ),
        (
            r#"{"type":"integer","exclusiveMinimum":1,"maximum":3e0}"#,
            vec!["2", "3"],
            vec!["1", "4"],
        ),
        (r#"{"type":"integer","minimum":1e300}"#, vec![], vec![]),
        (r#"{"type":"number"}"#, vec!["0.5", "-1e-9", "12E+07"], vec!["1e100", "1.", ".5"]),
        (
            r#"{"type":"number","minimum":0,"exclusiveMaximum":1.5}"#,
            vec!["0", "-0", "-0.00", "0.5", "1.499"],
            vec!["1.5", "-0.1", "1e0", "2"],
        ),
        (
            r#"{"type":["number","null"],"exclusiveMinimum":-1e-2,"maximum":1e+300}"#,
            vec!["null", "-0.009", "0", "999999999999999999"],
            vec!["-0.01", "-1"],
        ),
        (r#"{"type":["string","null"]}"#, vec!["null", "\"a\""], vec!["1"]),
        (
            r#"{"type":["integer","null"],"enum":[1,"a",null,2.5]}"#,
            vec!["1", "null"],
            vec!["\"a\"", "2.5"],
        ),
        (r#"{"type":"integer","enum":[1.0,1.5]}"#, vec!["1.0"], vec!["1.5", "1"]),
        (r#"{"enum":[1,2,{"a":1}],"const":{"a":1.0}}"#, vec![r#"{"a":1}"#], vec!["1", "2"]),
        (
            r#"{"const":{"a":[1,{"b":null}],"c":"é\n"}}"#,
            vec!["{\"a\":[1,{\"b\":null}],\"c\":\"é\\n\"}"],
            vec![r#"{"c":1}"#],
        ),
        (
            r#"{"type":"string","minLength":2,"maxLength":3}"#,
            vec![r#""ab""#, r#""é😀x""#, r#""\n\u00e9""#, r#""\ud83d\ude00b""#],
            vec![r#""a""#, r#""abcd""#, r#""\n""#, r#""\ud83da""#],
        ),
        (r#"{"type":"string","minLength":2.0}"#, vec![r#""ab""#], vec![r#""a""#]),
        (
            r#"{"type":"string","pattern":"^a+$","minLength":2,"maxLength":3}"#,
            vec![r#""aa""#, r#""a\u0061a""#],
            vec![r#""a""#, r#""aaaa""#, r#""ab""#],
        ),
        (
            r#"{"type":"string","pattern":"b","maxLength":2}"#,
            vec![r#""b""#, r#""xb""#, r#""bx""#, r#""\"b""#],
            vec![r#""xx""#, r#""xbx""#, r#""""#],
        ),
        (
            r##"{"$defs":{"n":{"type":"integer"}},"type":"array","items":{"$ref":"#/$defs/n","title":"t"},"minItems":1,"maxItems":2}"##,
            vec!["[1]", "[1,2]"],
            vec!["[]", "[1,2,3]", "[1,]", "[\"a\"]"],
        ),
        (
            r##"{"definitions":{"a/b ~":{"type":"null"}},"$ref":"#/definitions/a~1b%20~0"}"##,
            vec!["null"],
            vec!["1"],
        ),
        (
            r##"{"anyOf":[{"$ref":"#/anyOf/1"},{"type":"null"}],"title":"t"}"##,
            vec!["null"],
            vec!["1"],
        ),
        (
            r#"{"type":"integer","anyOf":[{"type":["string","integer"]},{"type":"number","description":"d"}]}"#,
            vec!["1"],
            vec!["1.5", "\"a\""],
        ),
        (
            r#"{"anyOf":[{"type":"integer","minimum":3,"maximum":2},{"type":"null"},false]}"#,
            vec!["null"],
            vec!["2", "3"],
        ),
        (r#"{"oneOf":[{"type":"string"},{"type":"integer"}]}"#, vec!["1", "\"a\""], vec!["null"]),
        (r#"{"allOf":[{"type":"string"}],"default":1}"#, vec!["\"a\""], vec!["1"]),
        (r#"{"type":"array","items":false}"#, vec!["[]"], vec!["[1]"]),
        (r#"{"type":"array","maxItems":0}"#, vec!["[]"], vec!["[1]"]),
        (
            r#"{"type":"array","items":{"type":"null"},"uniqueItems":true,"maxItems":1}"#,
            vec!["[]", "[null]"],
            vec!["[null,null]"],
        ),
        (r#"{"type":"object"}"#, vec!["{}"], vec![r#"{"a":1}"#]),
        (
            r#"{"properties":{"a":{"type":"null"},"b":{"type":"null"},"c":false},"required":["b"]}"#,
            vec![r#"{"b":null}"#, r#"{"a":null,"b":null}"#],
            vec!["{}", r#"{"b":null,"a":null}"#, r#"{"a":null}"#, "1", r#"{"b":null,"c":1}"#],
        ),
        (
            r#"{"type":"object","properties":{"é\"":{"type":"null"}},"additionalProperties":{"not":{}},"minProperties":0,"maxProperties":1}"#,
            vec!["{}", "{\"é\\\"\":null}"],
            vec![],
        ),
        (r#"{"minLength":1}"#, vec!["\"a\""], vec!["\"\"", "1"]),
    ] {
        let dfa = match compile(schema) {
            Ok(dfa) => dfa,
            Err(error) if yes.is_empty() => {
                assert_eq!(error.code(), "ERR_TINYLLM_SCHEMA", "{schema}: {error}");
                continue;
            }
            Err(error) => panic!("{schema}: {error}"),
        };
        for text in yes {
            assert!(dfa.matches(text.as_bytes()), "{schema} accepts {text}");
        }
        for text in no {
            assert!(!dfa.matches(text.as_bytes()), "{schema} refuses {text}");
        }
    }
}

#[test]
fn what_cannot_be_enforced_is_refused_by_name() {
    for (schema, keyword, pointer) in [
        (r#"{"type":"string","format":"idn-email"}"#, "format", "/format"),
        (r#"{"type":"object","properties":{"a":{"not":{}}}}"#, "not", "/properties/a/not"),
        (
            r#"{"type":"object","additionalProperties":true}"#,
            "additionalProperties",
            "/additionalProperties",
        ),
        (
            r#"{"type":"object","additionalProperties":{"type":"null"}}"#,
            "additionalProperties",
            "/additionalProperties",
        ),
        (r#"{"type":"object","patternProperties":{}}"#, "patternProperties", "/patternProperties"),
        (r#"{"type":"array"}"#, "items", "/items"),
        (r#"{"type":"array","items":[{"type":"null"}]}"#, "items", "/items"),
        (
            r#"{"type":"array","items":{"type":"null"},"uniqueItems":true}"#,
            "uniqueItems",
            "/uniqueItems",
        ),
        (r#"{"type":"number","exclusiveMinimum":true}"#, "exclusiveMinimum", "/exclusiveMinimum"),
        (
            r#"{"type":"integer","minimum":1,"exclusiveMinimum":true}"#,
            "exclusiveMinimum",
            "/exclusiveMinimum",
        ),
        (
            r#"{"type":"integer","exclusiveMaximum":-1e300}"#,
            "exclusiveMaximum",
            "/exclusiveMaximum",
        ),
        (r#"{"type":"integer","multipleOf":2}"#, "multipleOf", "/multipleOf"),
        (r#"{"allOf":[{"type":"null"},{"type":"null"}]}"#, "allOf", "/allOf"),
        (r#"{"anyOf":[{"type":"null"}],"minLength":1}"#, "minLength", "/minLength"),
        (r#"{"enum":["a"],"pattern":"a"}"#, "pattern", "/pattern"),
        (r#"{"type":"string","pattern":"a(?=b)"}"#, "pattern", "/pattern"),
        (r#"{"type":"string","x-order":1}"#, "x-order", "/x-order"),
        (r#"{"type":"string","nullable":true}"#, "nullable", "/nullable"),
        (r##"{"type":"array","items":{"$ref":"#"}}"##, "$ref", "/items/$ref"),
        (
            r##"{"$defs":{"a":{"anyOf":[{"$ref":"#/$defs/a"},{"type":"null"}]}},"$ref":"#/$defs/a"}"##,
            "$ref",
            "/$defs/a/anyOf/0/$ref",
        ),
        (r#"{"$ref":"other.json"}"#, "$ref", "/$ref"),
        (r##"{"$ref":"#name"}"##, "$ref", "/$ref"),
        (r##"{"anyOf":[{"$id":"x","anyOf":[{"$ref":"#"}]}]}"##, "$ref", "/anyOf/0/anyOf/0/$ref"),
        (r#"{"oneOf":[{"type":"integer"},{"type":"number"}]}"#, "oneOf", "/oneOf"),
        (
            r#"{"oneOf":[{"type":"object","properties":{"k":{"const":1}},"required":["k"]},{"type":"object","properties":{"k":{"const":1.0}},"required":["k"]}]}"#,
            "oneOf",
            "/oneOf",
        ),
        // Without a type, a schema of JSON Schema accepts every other type too.
        (r#"{"oneOf":[{"type":"string"},{"properties":{"k":{"const":1}}}]}"#, "oneOf", "/oneOf"),
        ("true", "items", "/items"),
        ("{}", "items", "/items"),
        (
            r#"{"type":"object","properties":{"a":{"type":"null"}},"minProperties":1}"#,
            "minProperties",
            "/minProperties",
        ),
    ] {
        let error = compile(schema).expect_err(schema);
        assert_eq!(error.code(), "ERR_TINYLLM_SCHEMA_UNSUPPORTED", "{schema}: {error}");
        assert_eq!((error.keyword(), error.pointer()), (Some(keyword), Some(pointer)), "{schema}");
    }
}

#[test]
fn malformed_and_unsatisfiable_schemas_name_the_place() {
    for (schema, pointer) in [
        ("false", ""),
        ("[]", ""),
        (r#"{"type":"date"}"#, "/type"),
        (r#"{"type":[]}"#, "/type"),
        (r#"{"enum":[]}"#, "/enum"),
        (r#"{"anyOf":{}}"#, "/anyOf"),
        (r#"{"type":"integer","enum":["a"]}"#, ""),
        (r#"{"type":"string","minLength":-1}"#, "/minLength"),
        (r#"{"type":"string","minLength":3,"maxLength":2}"#, ""),
        (r#"{"type":"string","pattern":"^a$","minLength":2}"#, ""),
        (r#"{"type":"integer","minimum":"1"}"#, "/minimum"),
        (r#"{"type":"object","required":["a"]}"#, "/required"),
        (r#"{"type":"object","required":[1]}"#, "/required"),
        (
            r#"{"type":"object","properties":{"a":{"type":"object","properties":{"b":false},"required":["b"]}},"required":["a"]}"#,
            "/properties/a/properties/b",
        ),
        (r##"{"$ref":"#/$defs/none"}"##, "/$ref"),
        (r#"{"type":"array","items":{"anyOf":[1]}}"#, "/items/anyOf/0"),
    ] {
        let error = compile(schema).expect_err(schema);
        assert_eq!(
            (error.code(), error.pointer()),
            ("ERR_TINYLLM_SCHEMA", Some(pointer)),
            "{schema}: {error}"
        );
    }
}

#[test]
fn limits_name_themselves_and_the_place() {
    let error =
        compile(r#"{"type":"array","items":{"type":"null"},"maxItems":100000000}"#).unwrap_err();
    assert_eq!((error.limit(), error.pointer()), (Some("repeat_count"), Some("/maxItems")));
    let mut limits = Limits::default();
    limits.schema_nodes = 10;
    let many: Vec<Value> = (0..20).map(|_| json!({"type": "null"})).collect();
    let with = |schema: &Value, limits: &Limits| {
        let description = description(&schema.to_string(), Whitespace::Compact, None);
        grammar_to_node(&description, limits).map(|_| ()).unwrap_err()
    };
    assert_eq!(with(&json!({"anyOf": many}), &limits).limit(), Some("schema_nodes"));
    limits.schema_bytes = 10;
    assert_eq!(with(&json!({"anyOf": many}), &limits).limit(), Some("schema_bytes"));
    // Each level refers to the next twice: 2^40 subschemas, written out.
    let mut levels = serde_json::Map::new();
    for i in 0..40 {
        let next = json!({"$ref": format!("#/$defs/l{}", i + 1)});
        levels.insert(format!("l{i}"), json!({"anyOf": [next, next]}));
    }
    levels.insert("l40".to_owned(), json!({"type": "null"}));
    let doubling = json!({"$defs": levels, "$ref": "#/$defs/l0"});
    assert_eq!(with(&doubling, &Limits::default()).limit(), Some("schema_nodes"));
}

#[test]
fn a_thousand_optional_members_cost_twice_what_five_hundred_do() {
    let schema = |n: usize| {
        let members: serde_json::Map<String, Value> =
            (0..n).map(|i| (format!("member{i:04}"), json!({"type": "string"}))).collect();
        json!({"type": "object", "properties": members}).to_string()
    };
    let fits = |n: usize, states: usize| {
        let mut limits = Limits::default();
        limits.nfa_states = states;
        grammar_to_node(&description(&schema(n), Whitespace::Compact, None), &limits).is_ok()
    };
    let least = (1..1000).find(|thousands| fits(500, thousands * 1000)).unwrap() * 1000;
    assert!(fits(1000, 2 * least));
}

#[test]
fn white_space_is_none_or_flexible() {
    let schema = r#"{"type":"object","properties":{"a":{"type":"array","items":{"type":"null"}},"b":{"const":{"c":[1,2]}}}}"#;
    let limits = Limits::default();
    let node = grammar_to_node(&description(schema, Whitespace::Flexible, None), &limits).unwrap();
    let (flexible, compact) = (node_to_dfa(&node, &limits).unwrap().unwrap(), automaton(schema));
    for (text, fits) in [
        (r#"{"a":[null,null],"b":{"c":[1,2]}}"#, true),
        (r#"{"a": [null, null], "b": {"c": [1, 2]}}"#, false),
        (r#"{"a": [null,null], "b":{"c":[1, 2]}}"#, false),
    ] {
        assert!(flexible.matches(text.as_bytes()), "{text}");
        assert_eq!(compact.matches(text.as_bytes()), fits, "{text}");
    }
    for text in [r#"{"a":  []}"#, r#"{ "a":[]}"#, r#"{"a" :[]}"#, "{\"a\":\n[]}"] {
        assert!(!flexible.matches(text.as_bytes()), "{text}");
    }
}

#[test]
fn max_string_length_bounds_every_string() {
    let limits = Limits::default();
    let bounded = |schema: &str| {
        let node = grammar_to_node(&description(schema, Whitespace::Compact, Some(2)), &limits);
        node_to_dfa(&node.unwrap(), &limits).unwrap().unwrap()
    };
    for schema in [
        r#"{"type":"string"}"#,
        r#"{"type":"string","maxLength":9}"#,
        r#"{"type":"string","pattern":"a"}"#,
    ] {
        assert!(bounded(schema).matches(br#""aa""#), "{schema}");
        assert!(!bounded(schema).matches(br#""aaa""#), "{schema}");
    }
    assert!(bounded(r#"{"enum":["aaa"]}"#).matches(br#""aaa""#));
}

fn scalar_schema() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!({"type": "null"})),
        Just(json!({"type": "boolean"})),
        Just(json!({"type": "number"})),
        (-9000..9000i32, 0..4000i32).prop_map(|(low, span)| {
            let (low, high) = (f64::from(low) / 1000.0, f64::from(low + span) / 1000.0);
            json!({"type": "number", "minimum": low, "maximum": high})
        }),
        Just(json!({"type": ["integer", "null"]})),
        Just(json!({"enum": ["a", 1, null, [1, {"b": false}], {"x": "y"}]})),
        Just(json!({"const": "b"})),
        (-120..120i64, 0..90i64).prop_map(
            |(low, span)| json!({"type": "integer", "minimum": low, "maximum": low + span})
        ),
        (-20..20i64).prop_map(|low| json!({"type": "integer", "exclusiveMinimum": low})),
        (0..3u32, 0..3u32).prop_map(
            |(min, more)| json!({"type": "string", "minLength": min, "maxLength": min + more})
        ),
        "[ab]{1,2}(c|d)?".prop_map(|pattern| json!({"type": "string", "pattern": pattern})),
        Just(json!({"type": "string", "pattern": "^(a|bc)+$", "maxLength": 4})),
    ]
}

fn schema() -> impl Strategy<Value = Value> {
    scalar_schema().prop_recursive(3, 16, 4, |inner| {
        let member = ("[a-d]", inner.clone(), any::<bool>());
        prop_oneof![
            (inner.clone(), 0..3u32, 0..3u32).prop_map(|(items, min, more)| {
                json!({"type": "array", "items": items, "minItems": min, "maxItems": min + more})
            }),
            prop::collection::vec(member, 0..4).prop_map(|members| {
                let required: std::collections::BTreeSet<&String> =
                    members.iter().filter(|(_, _, r)| *r).map(|(key, _, _)| key).collect();
                let required: Vec<&String> = required.into_iter().collect();
                let properties: serde_json::Map<String, Value> =
                    members.iter().map(|(key, value, _)| (key.clone(), value.clone())).collect();
                json!({"type": "object", "properties": properties, "required": required})
            }),
            prop::collection::vec(inner, 1..3)
                .prop_map(|branches| json!({"anyOf": branches, "title": "t"})),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, ..ProptestConfig::default() })]

    /// Walks validate; and a text one edit away is accepted exactly when it is canonical JSON in
    /// the finite form that validates.
    #[test]
    fn outputs_validate_and_nothing_valid_is_left_out(
        schema in schema(),
        choices in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 6),
        edits in prop::collection::vec((any::<prop::sample::Index>(), prop::sample::select(b"0179-.,:\"abcdx{}[]\\n".to_vec()), 0..3u8), 30),
    ) {
        let Ok(dfa) = compile(&schema.to_string()) else { return Ok(()) };
        let distance = distances(&dfa);
        for choices in &choices {
            check_walk(&schema, &dfa, &distance, choices);
            let text = walk(&dfa, &distance, choices);
            for (place, byte, kind) in &edits {
                let mut edited = text.clone();
                let at = place.index(edited.len());
                match kind {
                    0 => edited[at] = *byte,
                    1 => edited.insert(at, *byte),
                    _ => { edited.remove(at); }
                }
                let accepted = dfa.matches(&edited);
                let expected = std::str::from_utf8(&edited).ok().is_some_and(|text| canonical(&schema, text));
                prop_assert_eq!(accepted, expected, "{} {}", schema, String::from_utf8_lossy(&edited));
            }
        }
    }
}

#[test]
fn the_automata_of_one_schema_share_one_allowance() {
    let properties: serde_json::Map<String, Value> = (0..1000)
        .map(|i| {
            let pattern = format!("^(a|b)*a(a|b){{9}}x{i}$");
            (format!("p{i}"), json!({"type": "string", "pattern": pattern, "maxLength": 40}))
        })
        .collect();
    let schema = json!({"type": "object", "properties": properties}).to_string();
    let mut limits = Limits::default();
    limits.compile_work = 5_000_000;
    let error =
        grammar_to_node(&description(&schema, Whitespace::Compact, None), &limits).unwrap_err();
    assert_eq!(error.limit(), Some("compile_work"), "{error}");
    assert!(error.to_string().contains("5000000"), "{error}");
    assert!(error.pointer().is_some_and(|at| at.ends_with("/pattern")), "{error}");
}

#[test]
fn each_limit_is_enforced_by_its_name() {
    let regex = |pattern: &str| Grammar::Regex(pattern.to_owned());
    let general = |schema: &str| description(schema, Whitespace::Compact, None);
    let nested = r#"{"type":"array","items":{"type":"array","items":{"type":"null"}}}"#;
    let small = |change: fn(&mut Limits)| {
        let mut limits = Limits::default();
        change(&mut limits);
        limits
    };
    for (name, limits, grammar) in [
        ("pattern_bytes", small(|l| l.pattern_bytes = 3), regex("abcd")),
        ("pattern_nesting", small(|l| l.pattern_nesting = 2), regex("(((a)))")),
        ("nesting", small(|l| l.nesting = 1), general(nested)),
        (
            "nesting",
            small(|l| l.nesting = 1),
            Grammar::Sequence(vec![Grammar::Sequence(vec![Grammar::Sequence(vec![regex("a")])])]),
        ),
        ("schema_bytes", small(|l| l.schema_bytes = 10), general(nested)),
        ("schema_nodes", small(|l| l.schema_nodes = 2), general(nested)),
        (
            "repeat_count",
            small(|l| l.repeat_count = 5),
            general(r#"{"type":"string","maxLength":6}"#),
        ),
        ("nfa_states", small(|l| l.nfa_states = 100), regex("(?:abc){256}")),
        (
            "nfa_states",
            small(|l| l.nfa_states = 100),
            general(&format!("{{\"const\":\"{}\"}}", "a".repeat(101))),
        ),
        ("dfa_states", small(|l| l.dfa_states = 100), regex("(a|b)*a(a|b){10}")),
        ("automaton_bytes", small(|l| l.automaton_bytes = 1000), regex("(a|b)*a(a|b){10}")),
        ("compile_work", small(|l| l.compile_work = 1000), regex("(a|b)*a(a|b){10}")),
    ] {
        let node = grammar_to_node(&grammar, &limits).and_then(|node| node_to_dfa(&node, &limits));
        assert_eq!(node.unwrap_err().limit(), Some(name), "{grammar:?}");
    }
}

#[test]
fn telling_branches_apart_is_bounded() {
    // Every branch leads back to all of them, eight levels deep.
    let all: Vec<Value> = (0..300).map(|i| json!({"$ref": format!("#/$defs/b{i}")})).collect();
    let mut branches = serde_json::Map::new();
    for i in 0..300 {
        branches.insert(format!("b{i}"), json!({"anyOf": all}));
    }
    let schema = json!({"$defs": branches, "oneOf": all}).to_string();
    let error = compile(&schema).unwrap_err();
    assert_eq!(error.limit(), Some("compile_work"), "{error}");
}

#[test]
fn repeats_of_nothing_end_at_once() {
    for (pattern, yes, no) in [
        ("^((?:){100000}){100000}a$", "\"a\"", "\"\""),
        ("^((?:(){9}|(?:){2,}){1000000}){5,}$", "\"\"", "\"a\""),
        ("^(?:a{0}){1000000}b", "\"bc\"", "\"a\""),
    ] {
        let dfa = automaton(&format!(r#"{{"type":"string","pattern":"{pattern}","maxLength":3}}"#));
        assert!(dfa.matches(yes.as_bytes()) && !dfa.matches(no.as_bytes()), "{pattern}");
    }
}
