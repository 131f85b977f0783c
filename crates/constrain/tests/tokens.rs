//! Masks and constraints against the recorded ones, by the table and at run time.

use serde_json::Value;
use std::sync::Arc;
use tinyllm_constrain::{
    Constraint, ConstraintOptions, DEAD, Grammar, Limits, TokenIndex, Vocabulary, apply_mask,
    compile, json_object_regex, regex_to_dfa,
};
use tinyllm_testkit::golden::{self, vocabulary};

fn ids(mask: &[bool]) -> Vec<usize> {
    (0..mask.len()).filter(|i| mask[*i]).collect()
}

fn entries(golden: &Value) -> impl Iterator<Item = (&Value, &str)> {
    let schemas = golden["schemas"].as_array().unwrap().iter();
    let patterns = golden["patterns"].as_array().unwrap().iter();
    schemas
        .map(|e| (e, e["regex"].as_str().unwrap()))
        .chain(patterns.map(|e| (e, e["pattern"].as_str().unwrap())))
}

#[test]
fn masks_match_python_l8_7() {
    let golden = golden::read("constrain.json");
    let (vocab, eos) = vocabulary(&golden);
    for (entry, pattern) in entries(&golden) {
        let index = Arc::new(TokenIndex::new(regex_to_dfa(pattern).unwrap(), &vocab, eos).unwrap());
        for path in entry["paths"].as_array().unwrap() {
            let mut constraint = Constraint::new(Arc::clone(&index));
            for step in path.as_array().unwrap() {
                let mask = constraint.mask().unwrap();
                assert_eq!(serde_json::json!(ids(&mask)), step["mask"], "{}", entry["name"]);
                assert_eq!(constraint.is_complete(), step["complete"].as_bool().unwrap());
                let Some(token) = step["token"].as_u64() else { continue };
                constraint.advance(token as u32).unwrap();
                if constraint.done {
                    assert!(ids(&constraint.mask().unwrap()).is_empty());
                }
            }
        }
    }
}

#[test]
fn run_time_masks_are_those_of_the_table() {
    let golden = golden::read("constrain.json");
    let (vocab, eos) = vocabulary(&golden);
    let vocabulary = Vocabulary::new(vocab, eos).unwrap();
    for (entry, pattern) in entries(&golden) {
        let compiled = compile(&Grammar::Regex(pattern.into()), &vocabulary, &Limits::default());
        // A vocabulary without most bytes cannot spell every string, which compile reports.
        let Ok(compiled) = compiled else { continue };
        for path in entry["paths"].as_array().unwrap() {
            let mut constraint = compiled.constraint(ConstraintOptions::default());
            for step in path.as_array().unwrap() {
                let mask = constraint.mask(None).unwrap();
                let ids: Vec<u32> = mask.iter().collect();
                assert_eq!(serde_json::json!(ids), step["mask"], "{}", entry["name"]);
                assert_eq!(u64::from(mask.allowed()), ids.len() as u64);
                assert_eq!(constraint.is_complete(), step["complete"].as_bool().unwrap());
                let Some(token) = step["token"].as_u64() else { continue };
                let before = constraint.fork();
                constraint.advance(token as u32).unwrap();
                let mut back = constraint.fork();
                back.rollback(1).unwrap();
                assert_eq!(back.is_complete(), before.is_complete());
                assert_eq!(back.mask(None).unwrap(), mask);
            }
        }
    }
}

#[test]
fn token_index_rules() {
    let bytes = |text: &str| Some(text.as_bytes().to_vec());
    // 0 a, 1 b, 2 ab, 3 special, 4 empty, 5 aa, 6 end
    let vocab = [bytes("a"), bytes("b"), bytes("ab"), None, bytes(""), bytes("aa"), bytes("b")];
    let index = TokenIndex::new(regex_to_dfa("ab?").unwrap(), &vocab, Some(6)).unwrap();
    assert_eq!(
        ids(&index.mask(0).unwrap()),
        [0, 2],
        "whole tokens only; no end before a whole string"
    );
    let a = index.next_state(0, 0).unwrap();
    assert_eq!(
        ids(&index.mask(a).unwrap()),
        [1, 6],
        "the end token by acceptance, not by its bytes"
    );
    let ab = index.next_state(0, 2).unwrap();
    assert_eq!(ids(&index.mask(ab).unwrap()), [6]);
    assert_eq!(index.next_state(a, 6).unwrap(), a);
    for dead in [(0, 6), (0, 3), (0, 4), (0, 1), (0, 5), (a, 0), (ab, 1)] {
        assert_eq!(index.next_state(dead.0, dead.1).unwrap(), DEAD, "{dead:?}");
    }
    assert!(index.mask(DEAD).is_err() && index.mask(3).is_err());
    assert!(index.next_state(0, 7).is_err() && index.next_state(3, 0).is_err());
    assert!(TokenIndex::new(regex_to_dfa("a").unwrap(), &vocab, Some(7)).is_err());

    let mut constraint = Constraint::new(Arc::new(index));
    for forbidden in [1, 3, 4, 6, 99] {
        assert!(constraint.advance(forbidden).is_err());
        assert_eq!((constraint.state, constraint.done), (0, false), "an error changes nothing");
    }
    constraint.advance(0).unwrap();
    assert!(constraint.is_complete() && !constraint.done);
    constraint.advance(6).unwrap();
    assert!(constraint.done && constraint.is_complete());
    assert!(ids(&constraint.mask().unwrap()).is_empty());
    assert!(constraint.advance(1).is_err());

    let masked = apply_mask(&[1.0, 2.0], &[false, true]).unwrap();
    assert_eq!(masked, [f32::NEG_INFINITY, 2.0]);
    assert!(apply_mask(&[1.0], &[false, true]).is_err() && apply_mask(&[1.0], &[false]).is_err());
}

#[test]
fn json_object_grammar() {
    let deep = |n: usize| format!("{}1{}", "{\"a\":".repeat(n), "}".repeat(n));
    for (depth, states) in [(1, 50), (2, 131), (3, 293)] {
        let dfa = regex_to_dfa(&json_object_regex(depth)).unwrap();
        assert_eq!(dfa.n_states, states);
        for n in 1..=5 {
            assert_eq!(dfa.matches(deep(n).as_bytes()), n <= depth, "{n} in {depth}");
        }
        for whole in
            ["{}", r#"{"a":1,"b":"x\n\u00e9","c":null,"d":true,"e":-0.5e+7}"#, "{\"é\":\"€\"}"]
        {
            assert!(dfa.matches(whole.as_bytes()), "{whole}");
        }
        assert_eq!(dfa.matches(br#"{"a":[1,[]]}"#), depth >= 3);
        assert_eq!(dfa.matches(br#"{"a":[1,{}]}"#), depth >= 3);
        assert_eq!(dfa.matches(br#"{"a":[1,"x"]}"#), depth >= 2);
        for broken in [
            "[]",
            "1",
            "\"a\"",
            "null",
            "",
            "{",
            "{\"a\"}",
            "{a:1}",
            "{\"a\":01}",
            "{\"a\":1,}",
            "{ }",
            "{}{}",
        ] {
            assert!(!dfa.matches(broken.as_bytes()), "{broken}");
        }
    }
    assert_eq!(
        regex_to_dfa(&json_object_regex(0)).unwrap(),
        regex_to_dfa(&json_object_regex(1)).unwrap()
    );
}
