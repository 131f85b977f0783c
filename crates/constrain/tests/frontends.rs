//! The front ends against the golden file: texts, refusals and Python's printing, byte for byte.

use serde_json::Value;
use tinyllm_constrain::{
    Grammar, Json, Limits, Subset, Whitespace, grammar_to_node, json_schema_to_regex, node_to_dfa,
    parse, regex_to_dfa,
};
use tinyllm_testkit::golden;

fn texts(value: &Value) -> impl Iterator<Item = &str> {
    value.as_array().unwrap().iter().map(|text| text.as_str().unwrap())
}

fn strict(text: &str) -> Grammar {
    Grammar::Schema {
        text: text.to_owned(),
        subset: Subset::Strict,
        whitespace: Whitespace::Compact,
        max_string_length: None,
    }
}

#[test]
fn dfa_matches_python_l8_7_texts() {
    let limits = Limits::default();
    for case in golden::read("constrain.json")["schemas"].as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        let text = case["schema"].as_str().unwrap();
        let regex = json_schema_to_regex(&Json::parse(text).unwrap()).unwrap();
        assert_eq!(regex, case["regex"].as_str().unwrap(), "{name}");
        // Automata are built from the tree; it denotes the text's language.
        let tree = grammar_to_node(&strict(text), &limits).unwrap();
        let dfa = node_to_dfa(&tree, &limits).unwrap().unwrap();
        assert_eq!(dfa, regex_to_dfa(&regex).unwrap(), "{name}");
    }
}

#[test]
fn dumps_matches_python() {
    for pair in golden::read("constrain.json")["dumps"].as_array().unwrap() {
        let (text, dumped) = (pair[0].as_str().unwrap(), pair[1].as_str().unwrap());
        assert_eq!(Json::parse(text).unwrap().dumps(), dumped, "{text}");
    }
    for (x, text) in [
        (0.0, "0.0"),
        (5e-324, "5e-324"),
        (1.797_693_134_862_315_7e308, "1.7976931348623157e+308"),
        (9_007_199_254_740_993.0, "9007199254740992.0"),
        (1e15, "1000000000000000.0"),
        (9.999_999_999_999_998e15, "9999999999999998.0"),
        (1e-4, "0.0001"),
        (1.2345e-4, "0.00012345"),
        (9.9e-5, "9.9e-05"),
        (0.1 + 0.2, "0.30000000000000004"),
        (-2.5, "-2.5"),
        (1e100, "1e+100"),
    ] {
        assert_eq!(Json::Float(x).dumps(), text);
    }
}

#[test]
fn subset_errors_are_refused() {
    let golden = golden::read("constrain.json");
    for pattern in texts(&golden["refused_patterns"]) {
        let error = parse(pattern).expect_err(pattern);
        assert_eq!(error.code(), "ERR_TINYLLM_REGEX", "{pattern}");
        assert!(error.to_string().ends_with(&format!(" in {pattern}")), "{error}");
        assert!(regex_to_dfa(pattern).is_err(), "{pattern}");
    }
    for text in texts(&golden["refused_schemas"]) {
        let schema = Json::parse(text).unwrap();
        let error = json_schema_to_regex(&schema).expect_err(text);
        assert_eq!(error.code(), "ERR_TINYLLM_SCHEMA", "{text}");
        assert!(grammar_to_node(&strict(text), &Limits::default()).is_err(), "{text}");
    }
}

#[test]
fn refusals_say_what_and_where() {
    for (text, message, pointer) in [
        (
            r#"{"type":"string","pattern":"a","minLength":1}"#,
            "JSON schema keyword \"minLength\" is not in the subset",
            "/minLength",
        ),
        (r#"{"type":"date"}"#, "JSON schema type 'date' is not in the subset", "/type"),
        (
            r#"{"type":["string","null"]}"#,
            "JSON schema type ['string', 'null'] is not in the subset",
            "/type",
        ),
        (r#"{"type":{"a":true}}"#, "JSON schema type {'a': True} is not in the subset", "/type"),
        ("{}", "JSON schema type None is not in the subset", ""),
        (r#"{"title":"t"}"#, "JSON schema type None is not in the subset", ""),
        (r##"{"$ref":"#/x"}"##, "JSON schema keyword \"$ref\" is not in the subset", "/$ref"),
        ("[]", "schema must be a dict, got list", ""),
        ("\"a\"", "schema must be a dict, got str", ""),
        ("1", "schema must be a dict, got int", ""),
        ("1.0", "schema must be a dict, got float", ""),
        ("true", "schema must be a dict, got bool", ""),
        ("null", "schema must be a dict, got NoneType", ""),
        (
            r#"{"type":"object","additionalProperties":true}"#,
            "additionalProperties must be false (or absent)",
            "/additionalProperties",
        ),
        (
            r#"{"type":"object","additionalProperties":null}"#,
            "additionalProperties must be false (or absent)",
            "/additionalProperties",
        ),
        (
            r#"{"type":"object","properties":{"c":{"type":"null"}},"required":["a","c","b"]}"#,
            "required names unknown properties ['a', 'b']",
            "/required",
        ),
        (
            r#"{"type":"array","items":{"type":"null"},"minItems":-1}"#,
            "bad array bounds",
            "/minItems",
        ),
        (
            r#"{"type":"array","items":{"type":"null"},"minItems":1.0}"#,
            "bad array bounds",
            "/minItems",
        ),
        (
            r#"{"type":"array","items":{"type":"null"},"minItems":3,"maxItems":2}"#,
            "bad array bounds",
            "/maxItems",
        ),
        (r#"{"type":"array","maxItems":0}"#, "JSON schema type None is not in the subset", ""),
        (
            r#"{"anyOf":[{"type":"null"}],"type":"null"}"#,
            "JSON schema keyword \"type\" is not in the subset",
            "/type",
        ),
        (
            r#"{"type":"object","properties":{"a/b":{"anyOf":[{"type":"null"},{"type":"string","format":"x"}]}}}"#,
            "JSON schema keyword \"format\" is not in the subset",
            "/properties/a~1b/anyOf/1/format",
        ),
    ] {
        let error = json_schema_to_regex(&Json::parse(text).unwrap()).expect_err(text);
        assert_eq!(
            (error.to_string().as_str(), error.pointer()),
            (message, Some(pointer)),
            "{text}"
        );
    }
}

#[test]
fn what_the_subset_ignores_changes_nothing() {
    let regex = |text: &str| json_schema_to_regex(&Json::parse(text).unwrap()).unwrap();
    assert_eq!(
        regex(r#"{"title":1,"description":[],"default":{},"type":"integer"}"#),
        regex(r#"{"type":"integer"}"#)
    );
    // `enum` wins over `const`, and a type beside them is not looked at.
    assert_eq!(regex(r#"{"const":1,"enum":["a"],"type":["x"]}"#), "(?:\\\"a\\\")");
    assert_eq!(
        regex(r#"{"type":"array","items":{"type":"null"},"minItems":null,"maxItems":null}"#),
        regex(r#"{"type":"array","items":{"type":"null"}}"#)
    );
}

#[test]
fn blow_ups_of_the_text_end_in_a_named_limit() {
    let members: Vec<String> =
        (0..2000).map(|i| format!("\"k{i}\":{{\"type\":\"string\"}}")).collect();
    let schema = format!("{{\"type\":\"object\",\"properties\":{{{}}}}}", members.join(","));
    let error = json_schema_to_regex(&Json::parse(&schema).unwrap()).unwrap_err();
    assert_eq!(error.limit(), Some("pattern_bytes"));
    // The tree is linear.
    assert!(grammar_to_node(&strict(&schema), &Limits::default()).is_ok());
}
