//! What the engine relies on: combinations, endings, memory, and what a grammar costs.

use std::sync::Arc;
use tinyllm_constrain::{
    CompiledGrammar, ConstrainError, ConstraintOptions, Grammar, Limits, Mask, TokenConstraint,
    Vocabulary, compile,
};

/// Every byte as a token, further tokens, and the end token last.
fn vocabulary(more: &[&str]) -> Arc<Vocabulary> {
    let bytes = (0..=255_u8).map(|b| Some(vec![b]));
    let more = more.iter().map(|text| Some(text.as_bytes().to_vec()));
    let tokens: Vec<_> = bytes.chain(more).chain([None]).collect();
    let end = tokens.len() as u32 - 1;
    Vocabulary::new(tokens, Some(end)).unwrap()
}

fn plain(grammar: &Arc<CompiledGrammar>) -> Box<dyn TokenConstraint> {
    grammar.constraint(ConstraintOptions::default())
}

fn take(constraint: &mut dyn TokenConstraint, text: &str) {
    for byte in text.bytes() {
        constraint.mask(None).unwrap();
        constraint.advance(u32::from(byte)).unwrap();
    }
}

fn tool(index: usize) -> Grammar {
    let head = format!("<tool_call>{{\"name\":\"tool_{index}\",\"arguments\":");
    let schema = format!(
        r#"{{"type":"object","properties":{{"q{index}":{{"type":"string"}},"n":{{"type":"integer"}}}},"required":["q{index}"]}}"#
    );
    let schema = format!("{{\"type\":\"schema\",\"schema\":{schema:?}}}");
    Grammar::Sequence(vec![
        Grammar::Literal(head),
        Grammar::from_json(&schema).unwrap(),
        Grammar::Literal("}</tool_call>".into()),
    ])
}

fn calls(max: u32) -> Grammar {
    let item = Box::new(Grammar::Alternative((0..30).map(tool).collect()));
    Grammar::Repeat { item, separator: "\n".into(), min: 1, max: Some(max) }
}

fn call(index: usize) -> String {
    format!(
        "<tool_call>{{\"name\":\"tool_{index}\",\"arguments\":{{\"q{index}\":\"x\"}}}}</tool_call>"
    )
}

#[test]
fn four_calls_of_thirty_tools_cost_what_one_does() {
    let vocabulary = vocabulary(&["</tool_call>\n<tool_call>", "\":\"", "\"}}"]);
    let [one, four] =
        [1, 4].map(|max| compile(&calls(max), &vocabulary, &Limits::default()).unwrap());
    assert!(four.memory_bytes() < one.memory_bytes() * 11 / 10);

    let mut constraint = plain(&four);
    let mut made = Vec::new();
    for index in 0..4 {
        take(&mut *constraint, &call(7));
        made.push(four.masks_made());
        assert!(constraint.is_complete());
        let more = constraint.mask(None).unwrap().is_allowed(u32::from(b'\n'));
        assert_eq!(more, index < 3, "four calls at most");
        if more {
            take(&mut *constraint, "\n");
        }
    }
    assert!(made[1] - made[0] <= 3, "the second call needs the first one's masks: {made:?}");
}

#[test]
fn a_token_may_end_one_part_and_begin_the_next() {
    let vocabulary = vocabulary(&["12ab", "2ab", "b3", "12a", "ab34"]);
    let grammar = Grammar::Sequence(vec![
        Grammar::Regex("[0-9]{1,2}".into()),
        Grammar::Literal("ab".into()),
        Grammar::Regex("[0-9]".into()),
    ]);
    let mut constraint = plain(&compile(&grammar, &vocabulary, &Limits::default()).unwrap());
    let tokens = |mask: &Mask| mask.iter().filter(|t| *t > 255).collect::<Vec<_>>();
    assert_eq!(tokens(&constraint.mask(None).unwrap()), [256, 257, 259]);
    constraint.advance(259).unwrap();
    assert_eq!(tokens(&constraint.mask(None).unwrap()), [258]);
    assert_eq!(constraint.forced_bytes(), b"b");
}

#[test]
fn a_trigger_leaves_text_free_until_it_is_written() {
    let vocabulary =
        vocabulary(&["<tool_call>", "_call>x", "_call>{", "call>{}", "x<tool", "<tool_call>{}"]);
    let body = Box::new(Grammar::Regex(r"\{\}".into()));
    let grammar = Grammar::Trigger { trigger: "<tool_call>".into(), body };
    let compiled = compile(&grammar, &vocabulary, &Limits::default()).unwrap();
    let mut constraint = plain(&compiled);
    let end = vocabulary.eos().unwrap();
    let free = constraint.mask(None).unwrap();
    assert_eq!(free.allowed() as usize, vocabulary.size(), "free text, and it may end");
    take(&mut *constraint, "a<tool<tool");
    let mask = constraint.mask(None).unwrap();
    assert!(!mask.is_allowed(257), "it completes the trigger and leaves the grammar");
    assert!(mask.is_allowed(258) && mask.is_allowed(end));
    constraint.advance(258).unwrap();
    let mask = constraint.mask(None).unwrap();
    assert_eq!(mask.single(), Some(u32::from(b'}')));
    assert_eq!(constraint.forced_bytes(), b"}");
    take(&mut *constraint, "}");
    assert_eq!(constraint.mask(None).unwrap().single(), Some(end));
}

#[test]
fn without_an_end_token_a_complete_output_is_done_when_nothing_can_follow() {
    let tokens = vec![Some(b"a".to_vec()), Some(b"b".to_vec())];
    let vocabulary = Vocabulary::new(tokens, None).unwrap();
    let grammar = Grammar::Regex("ab?".into());
    let mut constraint = plain(&compile(&grammar, &vocabulary, &Limits::default()).unwrap());
    constraint.advance(0).unwrap();
    assert!(constraint.is_complete() && !constraint.is_done());
    constraint.advance(1).unwrap();
    assert!(constraint.is_complete() && constraint.is_done());
    constraint.rollback(2).unwrap();
    assert!(!constraint.is_complete() && !constraint.is_done());
}

#[test]
fn without_an_end_token_a_budget_ends_what_is_complete() {
    let tokens = vec![Some(b"a".to_vec()), Some(b"b".to_vec())];
    let vocabulary = Vocabulary::new(tokens, None).unwrap();
    let compiled =
        compile(&Grammar::Regex("a(b{5})?".into()), &vocabulary, &Limits::default()).unwrap();
    let before = compiled.memory_bytes();
    let mut constraint = compiled.constraint(ConstraintOptions { close_within_budget: true });
    constraint.advance(0).unwrap();
    assert_eq!(constraint.mask(Some(5)).unwrap().single(), Some(1));
    assert!(!constraint.is_done());
    assert_eq!(constraint.mask(Some(4)).unwrap().allowed(), 0);
    assert!(constraint.is_done() && constraint.is_complete());
    assert!(compiled.memory_bytes() > before, "the distances count");
    constraint.advance(1).unwrap();
    assert!(!constraint.is_done() && constraint.mask(Some(4)).unwrap().allowed() == 1);
    constraint.rollback(2).unwrap();
    assert!(!constraint.is_done());
}

#[test]
fn what_the_vocabulary_cannot_spell_is_an_error_that_names_the_bytes() {
    let tokens = vec![Some(b"a".to_vec()), Some(b"b".to_vec()), None];
    let vocabulary = Vocabulary::new(tokens, Some(2)).unwrap();
    for (pattern, missing) in [("abc", "c"), ("a[x-z]", "x-z"), ("c|d", "c d"), (r"a\x00", r"\x00")]
    {
        let error =
            compile(&Grammar::Regex(pattern.into()), &vocabulary, &Limits::default()).unwrap_err();
        assert!(
            matches!(&error, ConstrainError::Stuck { missing: m, .. } if m == missing),
            "{pattern}: {error}"
        );
    }
    assert!(compile(&Grammar::Regex("ab|c".into()), &vocabulary, &Limits::default()).is_ok());
}

#[test]
fn a_pattern_that_blows_up_decodes_in_bounded_memory() {
    let vocabulary = vocabulary(&["ab", "ba", "aab", "bbbb"]);
    let mut limits = Limits::default();
    limits.cache_bytes = 1 << 20;
    let grammar = Grammar::Regex("(a|b)*a(a|b){200}".into());
    let compiled = compile(&grammar, &vocabulary, &limits).unwrap();
    let mut constraint = plain(&compiled);
    let mut other = constraint.fork();
    for step in 0..3_000_u32 {
        let mask = constraint.mask(None).unwrap();
        let allowed: Vec<u32> = mask.iter().filter(|t| Some(*t) != vocabulary.eos()).collect();
        let token = allowed[(step.wrapping_mul(2_654_435_761) >> 7) as usize % allowed.len()];
        constraint.advance(token).unwrap();
        assert!(compiled.memory_bytes() < 3 << 20);
        if step == 100 {
            other = constraint.fork();
        }
    }
    // The cache was emptied since; a place in it is found again.
    let mask = other.mask(None).unwrap();
    other.advance(mask.iter().next().unwrap()).unwrap();
    other.rollback(102).unwrap();
    assert!(!other.is_complete());
}

#[test]
fn large_counts_cost_nothing_before_they_are_reached() {
    let vocabulary = vocabulary(&["aaaa"]);
    let grammar = Grammar::Regex("(((a{256}){256}){256}b?)".into());
    let compiled = compile(&grammar, &vocabulary, &Limits::default()).unwrap();
    assert!(compiled.memory_bytes() < 1 << 16);
    let mut constraint = compiled.constraint(ConstraintOptions { close_within_budget: true });
    constraint.advance(256).unwrap();
    assert_eq!(constraint.forced_bytes(), vec![b'a'; 4096]);
    let mask = constraint.mask(Some(10)).unwrap();
    assert!(mask.allowed() > 0, "nothing can finish, so what comes closest is kept");
}

#[test]
fn a_closing_mask_does_not_depend_on_the_masks_before_it() {
    // `a` and `b` are no tokens by themselves, so only the search finds the long way's end, and
    // its fuel runs out; the short way's end is known without it.
    let tokens = ["aa", "ab", "ba", "bb", "aab", "c"].map(|t| Some(t.as_bytes().to_vec()));
    let vocabulary = Vocabulary::new(tokens.into_iter().chain([None]).collect(), Some(6)).unwrap();
    let grammar = Grammar::Regex("c{1,30}|(?:a|b)*a(?:a|b){20}cc".into());
    let fresh = || compile(&grammar, &vocabulary, &Limits::default()).unwrap();
    let mask = |compiled: &Arc<CompiledGrammar>, remaining| {
        let options = ConstraintOptions { close_within_budget: true };
        compiled.constraint(options).mask(Some(remaining)).unwrap()
    };
    let warm = fresh();
    for _ in 0..4 {
        for remaining in 2..20 {
            assert_eq!(mask(&warm, remaining), mask(&fresh(), remaining), "{remaining} to go");
        }
    }
}

#[test]
fn a_long_walk_is_given_up_and_made_later() {
    // 38,416 words of four letters.
    let words: Vec<String> = (0..14_u32.pow(4))
        .map(|n| [2744, 196, 14, 1].map(|unit| char::from(b'a' + (n / unit % 14) as u8)))
        .map(String::from_iter)
        .collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let vocabulary = vocabulary(&words);
    let grammar = Grammar::Regex("([a-m][b-n])+(end|fin)!".into());
    let [tried, patient] =
        [(); 2].map(|()| compile(&grammar, &vocabulary, &Limits::default()).unwrap());
    let (mut tried, mut patient) = (plain(&tried), plain(&patient));
    let mut given_up = 0;
    for byte in b"abablnend!" {
        let expected = patient.mask(None).unwrap();
        if let Some(mask) = tried.quick_mask(None).unwrap() {
            assert_eq!(mask, expected);
        } else {
            given_up += 1;
            assert_eq!(tried.mask(None).unwrap(), expected);
            assert_eq!(tried.quick_mask(None).unwrap(), Some(expected));
        }
        tried.advance(u32::from(*byte)).unwrap();
        patient.advance(u32::from(*byte)).unwrap();
    }
    assert!((1..10).contains(&given_up), "{given_up}");
}

/// Takes `steps` random tokens of those allowed, the end token aside: the most memory that the
/// grammar held, how many were taken, and the error that ended it.
fn generate(compiled: &Arc<CompiledGrammar>, steps: u32) -> (usize, u32, Option<ConstrainError>) {
    let mut constraint = plain(compiled);
    let (mut most, mut random) = (0, 1_u64);
    for step in 0..steps {
        let mask = match constraint.mask(None) {
            Ok(mask) => mask,
            Err(error) => return (most, step, Some(error)),
        };
        let end = compiled.vocabulary().eos();
        let allowed: Vec<u32> = mask.iter().filter(|token| Some(*token) != end).collect();
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99_991);
        let Some(token) = allowed.get((random >> 33) as usize % allowed.len().max(1)) else {
            return (most, step, None);
        };
        if let Err(error) = constraint.advance(*token) {
            return (most, step, Some(error));
        }
        most = most.max(compiled.memory_bytes());
    }
    (most, steps, None)
}

#[test]
fn patterns_that_blow_up_run_on_in_bounded_memory() {
    let vocabulary = vocabulary(&["ab", "ba", "aab", "bbbb", "xx", "xyx", "aaaaaaaaaaaa"]);
    for (pattern, steps) in [
        ("(a|b)*a(a|b){200}", 4_000),
        ("((a|b)*a(a|b){200}c)*", 2_000),
        ("((x{0,256}){0,256}){0,256}", 4_000),
        ("(((x{1,256}y?){1,256}){1,256}){1,256}", 4_000),
        ("((a|ab|b){3,200}(a|ba|b){3,200}){3,200}", 2_000),
        ("((a|b){0,256}a(a|b){0,256}){256}", 100),
    ] {
        let grammar = Grammar::Regex(pattern.into());
        let limits = Limits::default();
        let compiled = compile(&grammar, &vocabulary, &limits).unwrap();
        let (most, taken, error) = generate(&compiled, steps);
        assert!(error.is_none() && taken == steps, "{pattern} after {taken}: {error:?}");
        assert!(most < 2 * limits.cache_bytes, "{pattern}: {most} bytes");
    }
}

#[test]
fn what_one_token_may_cost_is_a_limit_with_a_name() {
    let vocabulary = vocabulary(&["ab", "ba", "aaaaaaaaaaaaaaaa"]);
    let options = (0..150).map(|n| format!("(a|b)*a(a|b){{{}}}", 100 + n));
    let grammar = Grammar::Regex(options.collect::<Vec<_>>().join("|"));
    let mut limits = Limits::default();
    limits.mask_work = 700_000;
    let compiled = compile(&grammar, &vocabulary, &limits).unwrap();
    let (most, taken, error) = generate(&compiled, 1_000);
    let error = error.unwrap();
    assert_eq!((error.limit(), error.code()), (Some("mask_work"), "ERR_TINYLLM_GRAMMAR_LIMIT"));
    assert!(taken > 0 && most < limits.cache_bytes, "{taken} tokens, {most} bytes");
    assert!(error.to_string().contains("mask_work = 700000"), "{error}");

    limits.mask_work = u64::MAX;
    limits.cache_bytes = 1 << 10;
    let compiled = compile(&grammar, &vocabulary, &limits).unwrap();
    let (most, _, error) = generate(&compiled, 1_000);
    assert_eq!(error.unwrap().limit(), Some("cache_bytes"));
    assert!(most < 4 << 20, "{most} bytes");
}

#[test]
fn nested_counts_are_what_they_say_written_out() {
    let vocabulary = vocabulary(&["ab", "ba", "aab", "bbbb", "aaaaaaa", "abababab"]);
    for pattern in [
        "((a{1,20}b?){1,6}){1,3}",
        "((a|b){3,70}c){2,3}",
        "((a|b){2,4}a(a|b){0,3}){2,3}",
        "((a|ab|b){3,9}(a|ba|b){3,9}){2,3}",
        "((a{2,20}){0,20}b){5,7}",
        "(((a?b?){0,5}){0,5}){0,3}b",
        "((ab?){5}|(ba?){4,30}){2}",
        "(a{0,70}|b{3,70}){2,3}",
        "((a{30,40}b){2,}a?){2,3}",
    ] {
        let dfa = tinyllm_constrain::regex_to_dfa(pattern).expect(pattern);
        let grammar = Grammar::Regex(pattern.into());
        let compiled = compile(&grammar, &vocabulary, &Limits::default()).unwrap();
        for seed in 0..12_u64 {
            let (mut constraint, mut state) = (plain(&compiled), 0);
            let mut random = seed;
            for _ in 0..80 {
                let mask = constraint.mask(None).unwrap();
                for token in 0..vocabulary.size() as u32 {
                    let expected = if vocabulary.eos() == Some(token) {
                        dfa.accept[state as usize]
                    } else {
                        dfa.step(state, vocabulary.token(token)).unwrap() >= 0
                    };
                    assert_eq!(mask.is_allowed(token), expected, "{pattern}: {token}");
                }
                let allowed: Vec<u32> =
                    mask.iter().filter(|t| Some(*t) != vocabulary.eos()).collect();
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99_991);
                let pick = (random >> 33) as usize;
                let Some(token) = allowed.get(pick % allowed.len().max(1)) else { break };
                constraint.advance(*token).unwrap();
                state = dfa.step(state, vocabulary.token(*token)).unwrap();
            }
        }
    }
}
