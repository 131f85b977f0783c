//! What must hold for every input. The fuzz targets run one check each; an ordinary test runs all
//! of them over the inputs that once failed (`regressions/`).

use tinyllm_constrain::{
    ConstraintOptions, Grammar, Json, Limits, SpannedJson, Subset, Vocabulary, Whitespace, compile,
    escape, grammar_to_node, json_schema_to_regex_within, node_to_dfa, parse_within,
    regex_to_dfa_within,
};

/// Small enough that every input ends within milliseconds.
fn limits() -> Limits {
    let mut limits = Limits::default();
    limits.pattern_bytes = 1 << 14;
    limits.schema_nodes = 500;
    limits.nfa_states = 20_000;
    limits.dfa_states = 2_000;
    limits.automaton_bytes = 4 << 20;
    limits.cache_bytes = 4 << 20;
    limits.compile_work = 1_000_000;
    limits
}

/// The pattern parser answers, errors lie within the pattern, and an automaton accepts what its
/// own transitions spell.
pub(crate) fn regex(data: &[u8]) {
    let Ok(pattern) = std::str::from_utf8(data) else { return };
    let limits = limits();
    match parse_within(pattern, &limits) {
        Err(error) => {
            let inside = error.position().is_some_and(|at| at <= pattern.len());
            assert!(inside || error.limit().is_some(), "{error}");
        }
        Ok(_) => match regex_to_dfa_within(pattern, &limits) {
            Err(error) => assert!(error.limit().is_some(), "{error}"),
            Ok(dfa) => {
                let (mut state, mut text) = (0usize, Vec::new());
                while !dfa.accept[state] && text.len() <= dfa.n_states {
                    let row = &dfa.trans[state * 256..state * 256 + 256];
                    let byte =
                        row.iter().rposition(|target| *target >= 0).expect("a live state goes on");
                    text.push(byte as u8);
                    state = row[byte] as usize;
                }
                assert_eq!(dfa.matches(&text), dfa.accept[state]);
            }
        },
    }
    assert!(parse_within(&escape(pattern), &Limits::default()).is_ok() || pattern.len() > 1 << 17);
}

/// Both schema front ends answer; a strict schema's text parses and its tree has its language.
pub(crate) fn schema(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let limits = limits();
    let tree = |subset, whitespace, max_string_length| {
        let grammar =
            Grammar::Schema { text: text.to_owned(), subset, whitespace, max_string_length };
        grammar_to_node(&grammar, &limits)
    };
    let Ok(schema) = Json::parse(text) else {
        assert!(tree(Subset::General, Whitespace::Compact, None).is_err());
        return;
    };
    for (whitespace, max) in [(Whitespace::Compact, None), (Whitespace::Flexible, Some(3))] {
        if let Ok(node) = tree(Subset::General, whitespace, max) {
            let _ = node_to_dfa(&node, &limits);
        }
    }
    if let Ok(regex) = json_schema_to_regex_within(&schema, &limits) {
        let parsed = parse_within(&regex, &limits);
        let tree = tree(Subset::Strict, Whitespace::Compact, None);
        if let (Ok(parsed), Ok(tree)) = (parsed, tree)
            && let (Ok(a), Ok(b)) = (node_to_dfa(&parsed, &limits), node_to_dfa(&tree, &limits))
        {
            assert!(a == b, "{regex}");
        }
    }
    let _ = Grammar::from_json(text);
}

/// What the reader reads prints to a text that reads to the same.
pub(crate) fn json(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match SpannedJson::parse(text) {
        Err(error) => assert!(error.position().is_some_and(|at| at <= text.len()), "{error}"),
        Ok(value) => {
            assert!(value.start <= value.end && value.end <= text.len());
            let value = value.into_json();
            let printed = value.dumps();
            let again = Json::parse(&printed).expect("what is printed can be read");
            assert_eq!(again.dumps(), printed);
            assert_eq!(again, value);
        }
    }
}

/// Input: a byte for the kind of grammar, a byte for the length of its text, the text, and steps.
/// In every state the mask is exactly the tokens that can be taken.
pub(crate) fn mask_walk(data: &[u8]) {
    let [kind, length, rest @ ..] = data else { return };
    let (text, steps) = rest.split_at(usize::from(*length).min(rest.len()));
    let Ok(text) = std::str::from_utf8(text) else { return };
    let grammar = match kind % 4 {
        0 => Grammar::Regex(text.to_owned()),
        1 => Grammar::Schema {
            text: text.to_owned(),
            subset: Subset::General,
            whitespace: Whitespace::Flexible,
            max_string_length: None,
        },
        2 => Grammar::Trigger {
            trigger: "<t>".to_owned(),
            body: Box::new(Grammar::Regex(text.to_owned())),
        },
        _ => Grammar::Repeat {
            item: Box::new(Grammar::Regex(text.to_owned())),
            separator: ",".to_owned(),
            min: 1,
            max: Some(3),
        },
    };
    let Ok(compiled) = compile(&grammar, &vocabulary(), &limits()) else { return };
    let mut constraint = compiled.constraint(ConstraintOptions::default());
    let mut taken = 0;
    for step in steps.iter().take(24) {
        let Ok(mask) = constraint.mask(None) else { return };
        let allowed: Vec<u32> = (0..=TOKENS.len() as u32).filter(|t| mask.is_allowed(*t)).collect();
        for token in 0..=TOKENS.len() as u32 {
            let taken = constraint.fork().advance(token).is_ok();
            assert_eq!(taken, mask.is_allowed(token), "token {token} of {grammar:?}");
        }
        if step % 8 == 7 && taken > 0 {
            constraint.rollback(1).expect("a token was taken");
            taken -= 1;
            continue;
        }
        let Some(token) = allowed.get(usize::from(*step) % allowed.len().max(1)) else { return };
        constraint.advance(*token).expect("the mask allows it");
        taken += 1;
    }
}

/// Single bytes that matter, and tokens that cross borders between strings, keys and numbers.
const TOKENS: &[&[u8]] = &[
    b"a",
    b"b",
    b"c",
    b"0",
    b"1",
    b"9",
    b"-",
    b".",
    b"e",
    b"\"",
    b"\\",
    b"/",
    b"u",
    b"n",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b" ",
    b"\n",
    b"<",
    b"<t",
    b"<t>",
    b"t>a",
    b"<<t>",
    b"\":",
    b"\",\"",
    b"\"}",
    b"\"]",
    b"true",
    b"null",
    b"false",
    b"00",
    b"12",
    b"\\u",
    b"\\u00",
    b"ab",
    b"abc",
    b"aa",
    b"\xc3",
    b"\xa9",
    b"\xc3\xa9",
    b"\xf0\x9f",
    b"\x98\x80",
    b"{\"",
    b"\":\"",
    b"\"a",
    b"],",
];

fn vocabulary() -> std::sync::Arc<Vocabulary> {
    let tokens = TOKENS.iter().map(|bytes| Some(bytes.to_vec())).chain([None]).collect();
    Vocabulary::new(tokens, Some(TOKENS.len() as u32)).expect("a vocabulary")
}
