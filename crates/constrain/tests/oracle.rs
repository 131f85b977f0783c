//! The automata and masks against the derivative oracle, on random expressions and vocabularies.

use proptest::prelude::*;
use std::sync::Arc;
use tinyllm_constrain::{
    ConstrainError, ConstraintOptions, DEAD, Grammar, Limits, TokenConstraint, TokenIndex,
    Vocabulary, compile, node_to_dfa, parse, regex_to_dfa,
};
use tinyllm_testkit::Expr;

/// A random pattern of the strict subset over a few bytes, with the oracle's expression of it.
fn pattern() -> impl Strategy<Value = (String, Expr)> {
    let leaf = prop_oneof![
        4 => prop::sample::select(b"abc".to_vec())
            .prop_map(|b| ((b as char).to_string(), Expr::set([b]))),
        1 => Just(("[ab]".to_owned(), Expr::set(*b"ab"))),
        1 => Just(("[^a]".to_owned(), Expr::set((0..=255).filter(|b| *b != b'a')))),
        1 => Just((".".to_owned(), Expr::set((0..=255).filter(|b| *b != b'\n')))),
        1 => Just((r"\d".to_owned(), Expr::set(b'0'..=b'9'))),
        1 => Just((r"\xe9".to_owned(), Expr::set([0xe9]))),
        1 => Just(("()".to_owned(), Expr::empty())),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let counts = prop_oneof![
            Just(("*", 0, None)),
            Just(("+", 1, None)),
            Just(("?", 0, Some(1))),
            Just(("{2}", 2, Some(2))),
            Just(("{0,3}", 0, Some(3))),
            Just(("{2,}", 2, None)),
            Just(("{1,3}", 1, Some(3))),
            Just(("{9,17}", 9, Some(17))),
        ];
        prop_oneof![
            prop::collection::vec(inner.clone(), 1..4).prop_map(|parts| {
                let text: Vec<_> = parts.iter().map(|p| format!("(?:{})", p.0)).collect();
                (text.concat(), parts.iter().rev().fold(Expr::empty(), |rest, p| p.1.then(&rest)))
            }),
            prop::collection::vec(inner.clone(), 1..4).prop_map(|options| {
                let text: Vec<_> = options.iter().map(|o| o.0.clone()).collect();
                let any = options.iter().fold(Expr::void(), |any, o| any.or(&o.1));
                (format!("({})", text.join("|")), any)
            }),
            (inner, counts).prop_map(|((text, expr), (suffix, min, max))| {
                (format!("(?:{text}){suffix}"), expr.times(min, max))
            }),
        ]
    })
}

/// Random tokens over a few bytes: specials, empty and equal tokens among them. Token 0 ends the
/// output when `eos` says so; every byte has a token unless `sparse` says otherwise.
fn vocabulary() -> impl Strategy<Value = (Vec<Option<Vec<u8>>>, Option<u32>)> {
    let byte = prop::sample::select(b"abc1\n\xe9<x>".to_vec());
    let token = prop_oneof![
        1 => Just(None),
        12 => prop::collection::vec(byte, 0..6).prop_map(Some),
    ];
    (prop::collection::vec(token, 1..40), any::<bool>()).prop_map(|(mut tokens, eos)| {
        tokens.insert(0, None);
        tokens.extend((0..=255).map(|b| Some(vec![b])));
        (tokens, eos.then_some(0))
    })
}

/// Walks `constraint` and the oracle side by side, picking tokens by `picks`.
fn walk(
    constraint: &mut dyn TokenConstraint,
    expr: &Expr,
    tokens: &[Option<Vec<u8>>],
    eos: Option<u32>,
    picks: &[u16],
) -> Result<(), TestCaseError> {
    let mut rest = expr.clone();
    let mut taken = 0;
    let made = Expr::made();
    for pick in picks {
        // Overlapping counts make the oracle's expressions grow; it has seen enough of such a case.
        if Expr::made() > made + 5_000 {
            break;
        }
        let expected = rest.mask(tokens, eos);
        prop_assert_eq!(constraint.is_complete(), rest.nullable());
        prop_assert_eq!(constraint.is_done(), rest.nullable() && expected.is_empty());
        if expected.is_empty() && !rest.nullable() {
            let stuck = matches!(constraint.mask(None), Err(ConstrainError::Stuck { .. }));
            prop_assert!(stuck);
            break;
        }
        let mask = constraint.mask(None).unwrap();
        prop_assert_eq!(mask.iter().collect::<Vec<_>>(), expected.clone());
        prop_assert_eq!(mask.allowed() as usize, expected.len());
        prop_assert_eq!(mask.single(), if let [only] = expected[..] { Some(only) } else { None });
        for forbidden in (0..tokens.len() as u32).filter(|t| !expected.contains(t)).take(20) {
            prop_assert!(constraint.advance(forbidden).is_err());
        }
        let forced = constraint.forced_bytes();
        prop_assert!(forced.is_empty() || !rest.nullable());
        let mut spelled = rest.clone();
        for &byte in &forced {
            prop_assert!((0..=255).all(|b| b == byte || spelled.after(b).is_void()));
            spelled = spelled.after(byte);
        }
        let Some(&token) = expected.get(*pick as usize % expected.len().max(1)) else { break };
        let mut fork = constraint.fork();
        fork.advance(token).unwrap();
        constraint.advance(token).unwrap();
        taken += 1;
        if eos == Some(token) {
            prop_assert!(constraint.is_done() && fork.is_done() && constraint.is_complete());
            prop_assert_eq!(constraint.mask(None).unwrap().allowed(), 0);
            prop_assert!(constraint.advance(1).is_err());
            break;
        }
        rest = rest.after_all(tokens[token as usize].as_ref().unwrap());
    }
    prop_assert!(constraint.rollback(taken + 1).is_err());
    constraint.rollback(taken).unwrap();
    prop_assert_eq!(constraint.is_complete(), expr.nullable());
    let start: Vec<u32> = constraint.mask(None).map(|m| m.iter().collect()).unwrap_or_default();
    prop_assert_eq!(start, expr.mask(tokens, eos));
    Ok(())
}

/// A random description over the run-time combinators, with its expression.
fn description() -> impl Strategy<Value = (Grammar, Expr)> {
    let leaf = prop_oneof![
        2 => pattern().prop_map(|(text, expr)| (Grammar::Regex(text), expr)),
        2 => prop::sample::select(vec!["", "a", "ab", "abc", "<x>a", "1"])
            .prop_map(|t| (Grammar::Literal(t.into()), Expr::literal(t.as_bytes()))),
        1 => Just((
            Grammar::Choice(vec!["ab".into(), "abc".into(), "b".into()]),
            Expr::literal(b"ab").or(&Expr::literal(b"abc")).or(&Expr::literal(b"b")),
        )),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        let counts = (0..4_u32, prop::option::of(0..4_u32));
        let separator = prop::sample::select(vec!["", "a", "\n", ","]);
        let trigger = prop::sample::select(vec!["<x>", "a", "aab", "aa", "abab"]);
        prop_oneof![
            prop::collection::vec(inner.clone(), 1..3).prop_map(|parts| {
                let expr = parts.iter().rev().fold(Expr::empty(), |rest, p| p.1.then(&rest));
                (Grammar::Sequence(parts.into_iter().map(|p| p.0).collect()), expr)
            }),
            prop::collection::vec(inner.clone(), 1..3).prop_map(|parts| {
                let expr = parts.iter().fold(Expr::void(), |any, p| any.or(&p.1));
                (Grammar::Alternative(parts.into_iter().map(|p| p.0).collect()), expr)
            }),
            (inner.clone(), separator, counts).prop_map(
                |((item, expr), separator, (min, more))| {
                    // Large counts: a counter at run time, copies in the oracle.
                    let (min, max) = (min * 5, more.map(|more| (min + more) * 5));
                    let some = expr.then(
                        &Expr::literal(separator.as_bytes())
                            .then(&expr)
                            .times(min.saturating_sub(1), max.map(|max| max.max(1) - 1)),
                    );
                    let list = match (min, max) {
                        (_, Some(0)) => Expr::empty(),
                        (0, _) => some.or(&Expr::empty()),
                        _ => some,
                    };
                    let (item, separator) = (Box::new(item), separator.to_owned());
                    (Grammar::Repeat { item, separator, min, max }, list)
                }
            ),
            (inner, trigger).prop_map(|((body, expr), trigger)| {
                let free = until(trigger.as_bytes());
                (
                    Grammar::Trigger { trigger: trigger.into(), body: Box::new(body) },
                    free.0.or(&free.1.then(&expr)),
                )
            }),
        ]
    })
}

/// About how many places an output may be in; the oracle takes its time over many.
fn places(grammar: &Grammar) -> u64 {
    match grammar {
        Grammar::Sequence(parts) | Grammar::Alternative(parts) => parts.iter().map(places).sum(),
        Grammar::Repeat { item, min, max, .. } => {
            places(item) * u64::from(max.unwrap_or(min + 1).max(1))
        }
        Grammar::Trigger { body, .. } => 4 + places(body),
        Grammar::Regex(pattern) => pattern.len() as u64,
        _ => 3,
    }
}

/// The texts without `trigger`, and those that end with its first occurrence, by a naive matcher:
/// state `k` is the longest suffix of the text that begins the trigger.
fn until(trigger: &[u8]) -> (Expr, Expr) {
    let n = trigger.len();
    let mut trans = Vec::new();
    for state in 0..n {
        for byte in 0..=255_u8 {
            let mut text = trigger[..state].to_vec();
            text.push(byte);
            let longest = (0..=text.len().min(n)).rev().find(|k| text.ends_with(&trigger[..*k]));
            trans.push(longest.unwrap() as i32);
        }
    }
    trans.extend([DEAD; 256]);
    let dfa = |accept: Vec<bool>| tinyllm_constrain::Dfa {
        n_states: n + 1,
        accept,
        trans: trans.clone(),
    };
    let expr = |accept| Expr::of(&tinyllm_constrain::Node::Automaton(Arc::new(dfa(accept))));
    (expr((0..=n).map(|k| k < n).collect()), expr((0..=n).map(|k| k == n).collect()))
}

/// Whether a whole string is at most `left` tokens away, by trying everything.
fn finishes(rest: &Expr, tokens: &[Option<Vec<u8>>], left: u32) -> bool {
    let mut level = vec![rest.clone()];
    let mut seen: std::collections::HashSet<Expr> = level.iter().cloned().collect();
    for _ in 0..left {
        if level.iter().any(Expr::nullable) {
            return true;
        }
        let mut next = Vec::new();
        for from in &level {
            for bytes in tokens.iter().flatten().filter(|bytes| !bytes.is_empty()) {
                let after = from.after_all(bytes);
                if !after.is_void() && seen.insert(after.clone()) {
                    next.push(after);
                }
            }
        }
        level = next;
    }
    level.iter().any(Expr::nullable)
}

/// The mask that closes within `remaining` tokens, by trying everything; none when nothing can.
fn closing(
    rest: &Expr,
    tokens: &[Option<Vec<u8>>],
    eos: Option<u32>,
    remaining: u32,
) -> Option<Vec<u32>> {
    let plain = rest.mask(tokens, eos);
    let keep = |end: u32| -> Vec<u32> {
        let able = |token: &u32| {
            eos == Some(*token)
                || remaining.checked_sub(1 + end).is_some_and(|left| {
                    let bytes = tokens[*token as usize].as_ref().unwrap();
                    finishes(&rest.after_all(bytes), tokens, left)
                })
        };
        plain.iter().copied().filter(able).collect()
    };
    let with_end = keep(u32::from(eos.is_some()));
    let kept = if with_end.is_empty() { keep(0) } else { with_end };
    (!kept.is_empty()).then_some(kept)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn patterns_match_what_the_oracle_matches(
        (text, expr) in pattern(),
        strings in prop::collection::vec("[abc1\n]{0,8}", 20),
    ) {
        let dfa = regex_to_dfa(&text).unwrap();
        for string in strings {
            prop_assert_eq!(dfa.matches(string.as_bytes()), expr.matches(string.as_bytes()));
        }
        // The tree says the same, and numbering is breadth-first.
        let node = parse(&text).unwrap();
        let again = node_to_dfa(&node, &Limits::default()).unwrap().unwrap();
        prop_assert_eq!(&again, &dfa);
        let mut seen = 0;
        for target in dfa.trans.iter().filter(|t| **t != DEAD) {
            prop_assert!(*target <= seen + 1);
            seen = seen.max(*target);
        }
        prop_assert_eq!(seen as usize + 1, dfa.n_states);
    }

    #[test]
    fn masks_are_brute_force_masks(
        (text, expr) in pattern(),
        (tokens, eos) in vocabulary(),
        picks in prop::collection::vec(any::<u16>(), 6),
    ) {
        let index = TokenIndex::new(regex_to_dfa(&text).unwrap(), &tokens, eos).unwrap();
        let (mut state, mut rest) = (0, expr.clone());
        for pick in &picks {
            let mask = index.mask(state).unwrap();
            let ids: Vec<u32> = (0..mask.len() as u32).filter(|i| mask[*i as usize]).collect();
            prop_assert_eq!(&ids, &rest.mask(&tokens, eos));
            let Some(&token) = ids.get(*pick as usize % ids.len().max(1)) else { break };
            if eos == Some(token) { break }
            state = index.next_state(state, token).unwrap();
            rest = rest.after_all(tokens[token as usize].as_ref().unwrap());
        }
        let vocabulary = Vocabulary::new(tokens.clone(), eos).unwrap();
        let compiled = compile(&Grammar::Regex(text), &vocabulary, &Limits::default()).unwrap();
        let mut constraint = compiled.constraint(ConstraintOptions::default());
        walk(&mut *constraint, &expr, &tokens, eos, &picks)?;
    }

    #[test]
    fn combined_masks_are_brute_force_masks(
        (grammar, expr) in description(),
        (tokens, eos) in vocabulary(),
        picks in prop::collection::vec(any::<u16>(), 8),
    ) {
        prop_assume!(places(&grammar) < 1_000);
        let vocabulary = Vocabulary::new(tokens.clone(), eos).unwrap();
        let compiled = compile(&grammar, &vocabulary, &Limits::default()).unwrap();
        let mut constraint = compiled.constraint(ConstraintOptions::default());
        walk(&mut *constraint, &expr, &tokens, eos, &picks)?;
        // A cache without room is emptied again and again; the masks stay the same.
        let mut limits = Limits::default();
        limits.cache_bytes = 0;
        if let Ok(compiled) = compile(&grammar, &vocabulary, &limits) {
            let mut constraint = compiled.constraint(ConstraintOptions::default());
            walk(&mut *constraint, &expr, &tokens, eos, &picks)?;
        }
    }

    #[test]
    fn a_budget_keeps_exactly_what_can_still_finish(
        (grammar, expr) in description(),
        (mut tokens, eos) in vocabulary(),
        all_bytes in any::<bool>(),
        remaining in 1..7_u32,
        picks in prop::collection::vec(any::<u16>(), 6),
    ) {
        if !all_bytes {
            tokens.truncate(tokens.len() - 256);
            tokens.extend(b"abc1\n\xe9<x>,".map(|b| Some(vec![b])));
        }
        let vocabulary = Vocabulary::new(tokens.clone(), eos).unwrap();
        let Ok(compiled) = compile(&grammar, &vocabulary, &Limits::default()) else {
            return Ok(());
        };
        let options = ConstraintOptions { close_within_budget: true };
        let mut constraint = compiled.constraint(options);
        let mut rest = expr;
        for (taken, pick) in picks.iter().enumerate() {
            let Some(remaining) = remaining.checked_sub(taken as u32).filter(|r| *r > 0) else { break };
            let mask: Vec<u32> = constraint.mask(Some(remaining)).unwrap().iter().collect();
            let made = Expr::made();
            match closing(&rest, &tokens, eos, remaining) {
                Some(expected) => prop_assert_eq!(&mask, &expected, "{} left", remaining),
                None if rest.nullable() && eos.is_none() => {
                    prop_assert!(mask.is_empty() && constraint.is_done());
                }
                // Nothing can finish: something allowed is kept all the same.
                None => prop_assert!(mask.iter().all(|t| rest.mask(&tokens, eos).contains(t))),
            }
            if Expr::made() > made + 5_000 { break }
            let Some(&token) = mask.get(*pick as usize % mask.len().max(1)) else { break };
            constraint.advance(token).unwrap();
            if eos == Some(token) { break }
            rest = rest.after_all(tokens[token as usize].as_ref().unwrap());
        }
    }

    #[test]
    fn string_masks_are_brute_force_masks(
        schema in prop::sample::select(vec![
            r#"{"type":"string"}"#,
            r#"{"type":"string","minLength":2,"maxLength":3}"#,
            r#"{"type":"string","minLength":1}"#,
            r#"{"type":"string","maxLength":40}"#,
            r#"{"type":"string","maxLength":0}"#,
            r#"{"type":"array","items":{"type":"string","maxLength":2},"minItems":1,"maxItems":90}"#,
            r#"{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"string","minLength":3}}}"#,
            r#"{"anyOf":[{"type":"string","minLength":4},{"enum":["","a","aa\"b"]}]}"#,
            r#"{"anyOf":[{"type":"string"},{"type":"array","items":{"type":"string"}}]}"#,
        ]),
        strict in any::<bool>(),
        extra in prop::collection::vec(
            prop::collection::vec(
                prop::sample::select(vec![
                    "a", "b", "\"", "\\", "u", "n", "00", "e9", "d8", "\\ud83d", "\\ude00", "\u{e9}",
                    "\u{20ac}", "\u{1f600}", ",", "}", "]", ":", "[", "{", "\n",
                ]),
                1..5,
            ),
            1..60,
        ),
        cuts in prop::collection::vec(1..4_usize, 8),
        picks in prop::collection::vec(any::<u16>(), 14),
    ) {
        use tinyllm_constrain::{Subset, Whitespace, grammar_to_node};
        let mut tokens: Vec<Option<Vec<u8>>> =
            extra.into_iter().map(|parts| Some(parts.concat().into_bytes())).collect();
        // Tokens that cut a character in two.
        for (token, cut) in tokens.clone().into_iter().flatten().zip(cuts) {
            tokens.push(Some(token[cut.min(token.len())..].to_vec()));
            tokens.push(Some(token[..token.len() - cut.min(token.len())].to_vec()));
        }
        tokens.insert(0, None);
        tokens.extend((0..=255).map(|b| Some(vec![b])));
        let grammar = Grammar::Schema {
            text: schema.into(),
            subset: if strict { Subset::Strict } else { Subset::General },
            whitespace: Whitespace::Compact,
            max_string_length: None,
        };
        let nested = Grammar::JsonObject { depth: 2, finite: !strict };
        let grammar = if picks[0] % 8 == 0 { nested } else { grammar };
        let Ok(node) = grammar_to_node(&grammar, &Limits::default()) else { return Ok(()) };
        let vocabulary = Vocabulary::new(tokens.clone(), Some(0)).unwrap();
        let compiled = compile(&grammar, &vocabulary, &Limits::default()).unwrap();
        let mut constraint = compiled.constraint(ConstraintOptions::default());
        walk(&mut *constraint, &Expr::of(&node), &tokens, Some(0), &picks)?;
    }
}
