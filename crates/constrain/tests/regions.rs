//! Masks of large vocabularies under patterns, against every token walked byte by byte.

use proptest::prelude::*;
use std::sync::{Arc, LazyLock};
use tinyllm_constrain::{
    ConstraintOptions, Dfa, Grammar, Limits, Subset, Vocabulary, Whitespace, compile,
    grammar_to_node, node_to_dfa,
};

/// What tokens are made of: runs that patterns like, characters of all lengths whole and cut,
/// escapes whole and cut, and what ends a string.
const PIECES: &[&[u8]] = &[
    b"a",
    b"e",
    b"z",
    b"Q",
    b"0",
    b"7",
    b"-",
    b".",
    b"@",
    b"_",
    b" ",
    b"&",
    b"/",
    b":",
    b"abc",
    b"2024",
    b"-01",
    b"example",
    b"http://",
    b"aaaaaaaa",
    b"0123456789abcdef",
    b"the quick brown fox jumps over",
    b"\xc3\xa9",
    b"\xe2\x82\xac",
    b"\xf0\x9f\x98\x80",
    b"\xc3",
    b"\xe2\x82",
    b"\xf0\x9f",
    b"\xa9",
    b"\x98\x80",
    b"\xe2\x80\xa8",
    b"\xc0\xaf",
    b"\xff",
    b"\\",
    b"\\n",
    b"\\u00e",
    b"\\u0061",
    b"\\ud83d\\ude00",
    b"\\\"",
    b"\"",
    b"\"}",
    b"\",\"",
    b"\n",
    b"\x00",
    b"\x7f",
];

/// Enough tokens that states within patterns are worth a region.
const TOKENS: usize = 6_000;

fn tokens(seed: u64) -> Vec<Option<Vec<u8>>> {
    let mut random = seed | 1;
    let mut below = |n: usize| {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % n
    };
    let mut tokens: Vec<Option<Vec<u8>>> = vec![None];
    tokens.extend((0..=255).map(|b| Some(vec![b])));
    while tokens.len() < TOKENS {
        // Mostly plain pieces, as in real vocabularies.
        let count = 1 + below(5);
        let pieces = (0..count).map(|_| {
            let plain = below(4) > 0;
            PIECES[below(if plain { 16 } else { PIECES.len() })]
        });
        tokens.push(Some(pieces.collect::<Vec<_>>().concat()));
    }
    tokens
}

fn schema(text: &str) -> Grammar {
    Grammar::Schema {
        text: text.to_owned(),
        subset: Subset::General,
        whitespace: Whitespace::Compact,
        max_string_length: None,
    }
}

fn grammars() -> Vec<Grammar> {
    let strings = [
        // Searched for: any characters before and after.
        r#""pattern":"\\d{4}-\\d{2}""#,
        r#""pattern":"[a-f0-9]{4}""#,
        r#""pattern":"(a|b)+\\.|e$""#,
        r#""pattern":"é|\\u20ac""#,
        r#""pattern":"\"""#,
        r#""pattern":"[a-z]+","minLength":3,"maxLength":9"#,
        r#""pattern":"[a-z_.-]+","minLength":2,"maxLength":60"#,
        // Anchored: runs of one set, of several, with counts.
        r#""pattern":"^[a-z0-9]+(-[a-z0-9]+)*$""#,
        r#""pattern":"^[0-9A-Za-z]{8}-[0-9A-Za-z]{4}-[0-9A-Za-z]{12}$""#,
        r#""pattern":"^[a-z]+[0-9]+$""#,
        r#""pattern":"^[A-Za-z0-9 _-]{1,40}$""#,
        r#""pattern":"^[A-Za-z ]{2,5}$""#,
        r#""pattern":"^([A-Za-z0-9+/]{4})*$""#,
        // Nearly everything.
        r#""pattern":"^.*x$""#,
        r#""pattern":"^[^&]*$""#,
        r#""pattern":"^[^\\u20ac]{3,}$""#,
        r#""pattern":"^\\S+@\\S+$""#,
        r#""pattern":"^[^a-z]{0,30}$""#,
        r#""pattern":"^\\p{L}+$""#,
        r#""pattern":"^(?!abc).*""#,
        r#""pattern":"[a-z]","minLength":30,"maxLength":30"#,
        r#""pattern":"a.{4}e","maxLength":18"#,
        r#""format":"uri""#,
        r#""format":"email""#,
        r#""format":"hostname""#,
    ];
    let regexes = [
        r#"[^"\\]*"#,
        r"(?:.|\n)*a",
        r"[a-z]{2,5}[^a]*",
        r"[^\x80-\xff]{0,30}",
        r"(?:[a-z]|\xc3[\x80-\xbf])*",
        r"(?:[ -~]|\xe2\x82[\x80-\x8f])*",
        r"[\x20-\x7e\xc3\xa9]{5}",
        r"(?:[a-zA-Z0-9]{3})*-",
    ];
    let strings = strings.iter().flat_map(|keywords| {
        let one = format!(r#"{{"type":"string",{keywords}}}"#);
        let several = format!(
            r#"{{"anyOf":[{one},{{"enum":["2024-01","abc"]}},{{"type":"array","items":{one}}}]}}"#
        );
        [schema(&one), schema(&several)]
    });
    let free = schema(r#"{"type":"string","pattern":"e$"}"#);
    let mixed = [
        // Bytes that no JSON string holds, beside one that is free.
        Grammar::Alternative(vec![free, Grammar::Regex("\"[^\"]*!".to_owned())]),
        // A bounded string beside an unbounded one.
        schema(
            r#"{"anyOf":[{"type":"string","maxLength":5},{"type":"string","pattern":"^[a-z]*$"}]}"#,
        ),
    ];
    let trigger = Grammar::Trigger {
        trigger: "abc:".to_owned(),
        body: Box::new(Grammar::Regex("[a-z]+".to_owned())),
    };
    let mut all: Vec<Grammar> = strings.collect();
    all.extend(regexes.iter().map(|regex| Grammar::Regex((*regex).to_owned())));
    all.extend(mixed);
    all.push(trigger);
    all
}

fn brute_force(dfa: &Dfa, state: i32, tokens: &[Option<Vec<u8>>]) -> Vec<u32> {
    let allowed = |(id, token): (usize, &Option<Vec<u8>>)| match token {
        None => (id == 0 && dfa.accept[state as usize]).then_some(0),
        Some(bytes) => {
            let alive = !bytes.is_empty() && dfa.step(state, bytes).is_ok_and(|next| next >= 0);
            alive.then_some(id as u32)
        }
    };
    tokens.iter().enumerate().filter_map(allowed).collect()
}

/// The grammars with their canonical automata; none where a description has none.
static GRAMMARS: LazyLock<Vec<(Grammar, Option<Dfa>)>> = LazyLock::new(|| {
    let limits = Limits::default();
    let automaton = |grammar: &Grammar| {
        let node = grammar_to_node(grammar, &limits).ok()?;
        node_to_dfa(&node, &limits).unwrap()
    };
    grammars().into_iter().map(|grammar| (grammar.clone(), automaton(&grammar))).collect()
});

/// Beginnings that lead into the middle of things.
const OPENINGS: &[&str] = &["", "\"", "\"a", "\"2024-0", "[\"", "\"ab-", "\"\u{e9}"];

fn check(
    grammar: &Grammar,
    dfa: Option<&Dfa>,
    tokens: &[Option<Vec<u8>>],
    vocabulary: &Arc<Vocabulary>,
    picks: &[u16],
) -> Result<(), TestCaseError> {
    let compiled = compile(grammar, vocabulary, &Limits::default()).unwrap();
    let mut constraint = compiled.constraint(ConstraintOptions::default());
    let Some(dfa) = dfa else {
        return trigger(&constraint.mask(None).unwrap(), tokens);
    };
    let mut state = 0;
    for byte in OPENINGS[usize::from(picks[0]) % OPENINGS.len()].bytes() {
        let next = dfa.step(state, &[byte]).unwrap();
        if next < 0 {
            break;
        }
        constraint.advance(u32::from(byte) + 1).unwrap();
        state = next;
    }
    for pick in picks {
        let expected = brute_force(dfa, state, tokens);
        let mask = constraint.mask(None).unwrap();
        prop_assert!(mask.iter().eq(expected.iter().copied()), "{:?} after {}", grammar, state);
        prop_assert_eq!(mask.allowed() as usize, expected.len());
        let Some(&token) = expected.get(usize::from(*pick) % expected.len().max(1)) else { break };
        let Some(bytes) = &tokens[token as usize] else { break };
        constraint.advance(token).unwrap();
        state = dfa.step(state, bytes).unwrap();
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10, ..ProptestConfig::default() })]

    #[test]
    fn masks_under_patterns_are_brute_force_masks(
        seed in any::<u64>(),
        picks in prop::collection::vec(any::<u16>(), 64),
    ) {
        let tokens = tokens(seed);
        let vocabulary = Vocabulary::new(tokens.clone(), Some(0)).unwrap();
        for (index, (grammar, dfa)) in GRAMMARS.iter().enumerate() {
            let picks = &picks[index % 52..][..12];
            check(grammar, dfa.as_ref(), &tokens, &vocabulary, picks)?;
        }
    }
}

/// Free text up to `abc:`, then letters.
fn trigger(
    mask: &tinyllm_constrain::Mask,
    tokens: &[Option<Vec<u8>>],
) -> Result<(), TestCaseError> {
    for (id, token) in tokens.iter().enumerate() {
        let allowed = match token {
            None => id == 0,
            Some(bytes) => match bytes.windows(4).position(|four| four == b"abc:") {
                None => !bytes.is_empty(),
                Some(at) => bytes[at + 4..].iter().all(u8::is_ascii_lowercase),
            },
        };
        prop_assert_eq!(mask.is_allowed(id as u32), allowed, "{:?}", token);
    }
    Ok(())
}
