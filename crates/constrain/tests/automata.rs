//! Canonical automata against the recorded ones, and what a blow-up ends in.

use serde_json::Value;
use tinyllm_constrain::{DEAD, Dfa, Limits, regex_to_dfa};
use tinyllm_testkit::golden;

#[test]
fn hand_example_dfa() {
    let dfa = regex_to_dfa("(cat|car|dog)s?").unwrap();
    assert_eq!(dfa.n_states, 7);
    assert_eq!(dfa.accepting(), [5, 6]);
    let edges: Vec<(usize, u8, i32)> = (0..7)
        .flat_map(|s| (0..=255_u8).map(move |b| (s, b)))
        .map(|(s, b)| (s, b, dfa.trans[s * 256 + b as usize]))
        .filter(|e| e.2 != DEAD)
        .collect();
    let expected = [
        (0, b'c', 1),
        (0, b'd', 2),
        (1, b'a', 3),
        (2, b'o', 4),
        (3, b'r', 5),
        (3, b't', 5),
        (4, b'g', 5),
        (5, b's', 6),
    ];
    assert_eq!(edges, expected);
    assert_eq!(dfa.step(0, b"ca").unwrap(), 3);
    assert_eq!(dfa.step(0, b"cow").unwrap(), DEAD);
    assert_eq!(dfa.step(DEAD, b"c").unwrap(), DEAD);
    assert!(dfa.step(7, b"").is_err() && dfa.step(-2, b"").is_err());
    for (text, whole) in
        [("cat", true), ("dogs", true), ("cats ", false), ("ca", false), ("", false)]
    {
        assert_eq!(dfa.matches(text.as_bytes()), whole, "{text}");
    }
}

fn assert_recorded(dfa: &Dfa, entry: &Value) {
    let name = entry["name"].as_str().unwrap();
    assert_eq!(dfa.n_states as u64, entry["n_states"].as_u64().unwrap(), "{name}");
    assert_eq!(serde_json::json!(dfa.accepting()), entry["accept"], "{name}");
    assert_eq!(serde_json::json!(dfa.runs()), entry["runs"], "{name}");
    assert_eq!(dfa.sha256(), entry["sha256"].as_str().unwrap(), "{name}");
}

#[test]
fn dfa_matches_python_l8_7() {
    let golden = golden::read("constrain.json");
    for entry in golden["patterns"].as_array().unwrap() {
        assert_recorded(&regex_to_dfa(entry["pattern"].as_str().unwrap()).unwrap(), entry);
    }
    for entry in golden["schemas"].as_array().unwrap() {
        assert_recorded(&regex_to_dfa(entry["regex"].as_str().unwrap()).unwrap(), entry);
    }
}

#[test]
fn equal_languages_have_equal_tables() {
    for (a, b) in [
        ("(a|b)*abb", "(a*b*)*abb"),
        ("a{2,4}", "aa|aaa|aaaa"),
        ("(?:ab)*a", "a(?:ba)*"),
        ("x(?:y|)z", "xy?z"),
        ("[^a]|a", r"[\x00-\xff]"),
        ("(?:a?){3}", "a{0,3}"),
        ("(?:a|b[^\\x00-\\xff]c)d", "ad"),
    ] {
        assert_eq!(regex_to_dfa(a).unwrap(), regex_to_dfa(b).unwrap(), "{a} {b}");
    }
}

#[test]
fn a_blow_up_names_its_limit() {
    for (pattern, limits) in [
        ("(a|b)*a(a|b){200}", &["dfa_states", "automaton_bytes", "compile_work"][..]),
        ("(((a{256}){256}){256}){256}", &["nfa_states"]),
        ("((a|b|ab){256}){256}", &["nfa_states", "dfa_states", "automaton_bytes", "compile_work"]),
        ("((a?){256}){256}", &["automaton_bytes", "compile_work"]),
        ("(.*a.{30}|.*b.{30}|.*c.{30}){20}", &["dfa_states", "automaton_bytes", "compile_work"]),
    ] {
        let error = regex_to_dfa(pattern).expect_err(pattern);
        let limit = error.limit().unwrap_or_else(|| panic!("{pattern}: {error}"));
        assert!(limits.contains(&limit), "{pattern}: {error}");
        assert_eq!(error.code(), "ERR_TINYLLM_GRAMMAR_LIMIT");
    }
}

#[test]
fn limits_are_those_given() {
    let mut limits = Limits::default();
    limits.dfa_states = 10;
    let error = tinyllm_constrain::regex_to_dfa_within("abcdefghijklmnop", &limits).unwrap_err();
    assert_eq!((error.limit(), error.code()), (Some("dfa_states"), "ERR_TINYLLM_GRAMMAR_LIMIT"));
}
