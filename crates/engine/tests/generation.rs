//! What one generation puts out, how it is counted and how it ends.

mod support;

use std::time::Duration;

use support::*;
use tinyllm_engine::{
    ContextOverflow, EngineError, EngineOptions, FinishReason, Request, block_on,
};
use tinyllm_sampler::SamplingParams;

fn script(text: &str, end: &[u32]) -> Vec<u32> {
    prompt(text).into_iter().chain(end.iter().copied()).collect()
}

fn request(text: &str) -> Request {
    Request::new(prompt(text))
}

fn run(script: Vec<u32>, change: impl FnOnce(&mut Request)) -> Output {
    let (core, _) = engine(scripted(1, script), &EngineOptions::default());
    let mut request = request("p");
    change(&mut request);
    generate(&core, request).expect("it generates")
}

#[test]
fn the_end_token_is_counted_and_left_out() {
    for end in [EOS, EOT] {
        let out = run(script("abc", &[end]), |_| ());
        assert_eq!((out.text.as_str(), out.tokens), ("abc", prompt("abc")));
        assert_eq!(out.finish.reason, FinishReason::Stop);
        assert_eq!((out.finish.prompt_tokens, out.finish.completion_tokens), (1, 4));
    }
}

#[test]
fn ignore_eos_goes_on_and_keeps_the_end_tokens() {
    let out = run(script("ab", &[EOS]), |r| {
        r.ignore_eos = true;
        r.max_tokens = Some(5);
    });
    assert_eq!(out.tokens, script("ab", &[EOS, 97, 98]));
    assert_eq!((out.text.as_str(), out.finish.reason), ("abab", FinishReason::Length));
    assert_eq!(out.finish.completion_tokens, 5);
}

#[test]
fn max_tokens_counts_every_sampled_token() {
    let out = run(script("abc", &[EOS]), |r| r.max_tokens = Some(3));
    assert_eq!((out.text.as_str(), out.finish.reason), ("abc", FinishReason::Length));
    let out = run(script("abc", &[EOS]), |r| r.max_tokens = Some(4));
    assert_eq!((out.text.as_str(), out.finish.reason), ("abc", FinishReason::Stop));
}

#[test]
fn a_stop_string_is_cut_off_and_its_tokens_are_counted() {
    let out = run(script("one STOP two", &[EOS]), |r| r.stop = vec!["STOP".to_owned()]);
    assert_eq!((out.text.as_str(), out.tokens), ("one ", prompt("one ")));
    assert_eq!((out.finish.reason, out.finish.completion_tokens), (FinishReason::Stop, 8));
    // A token that straddles the start of the stop string stays, the text does not.
    let out = run(vec![97, YES, EOS], |r| r.stop = vec!["es".to_owned()]);
    assert_eq!((out.text.as_str(), out.tokens), ("ay", vec![97, YES]));
    assert_eq!(out.finish.completion_tokens, 2);
}

#[test]
fn an_unfinished_stop_string_is_given_out_at_the_end() {
    let out = run(script("abST", &[EOS]), |r| r.stop = vec!["STOP".to_owned()]);
    assert_eq!((out.text.as_str(), out.tokens), ("abST", prompt("abST")));
}

#[test]
fn a_stop_string_works_when_it_is_the_last_token_of_the_budget() {
    let out = run(script("a.", &[EOS]), |r| {
        r.stop = vec![".".to_owned()];
        r.max_tokens = Some(2);
    });
    assert_eq!((out.text.as_str(), out.finish.reason), ("a", FinishReason::Stop));
}

#[test]
fn a_character_is_never_split_and_an_unfinished_one_is_replaced() {
    let (core, _) =
        engine(scripted(1, script("é\u{1f600}", &[0xe2, 0x82, EOS])), &EngineOptions::default());
    let generation = core.submit(request("p")).expect("accepted");
    let mut text = String::new();
    let mut bytes = 0;
    while let Some(batch) = block_on(generation.next_batch()).expect("it generates") {
        text.push_str(&batch.text);
        bytes += batch.bytes.len();
        let done = batch.finish.is_some();
        assert!(done || !text.contains('\u{fffd}'));
    }
    assert_eq!((text.as_str(), bytes), ("é\u{1f600}\u{fffd}", 8));
}

#[test]
fn tokens_that_are_never_produced_have_no_chance() {
    let row = |_: &[u32]| {
        let mut row = vec![0.0; ROWS];
        row[UNUSED as usize] = 50.0;
        row[ROWS - 1] = 60.0;
        row[98] = 1.0;
        row
    };
    let (core, _) = engine(row, &EngineOptions::default());
    let mut wanted = request("p");
    wanted.max_tokens = Some(3);
    assert_eq!(generate(&core, wanted).expect("it generates").text, "bbb");
}

#[test]
fn a_generation_never_prefills_again() {
    let (core, log) = engine(scripted(40, script("abcdef", &[EOS])), &EngineOptions::default());
    let out = generate(&core, request(&"x".repeat(40))).expect("it generates");
    assert_eq!(out.finish.completion_tokens, 7);
    // The prompt and every sampled token but the last, once each.
    assert_eq!(core.stats().forward_tokens, 40 + 6);
    assert_eq!(log.lock().expect("free").len(), 7);
}

#[test]
fn a_prompt_is_fed_in_chunks() {
    let options = EngineOptions { prefill_chunk: Some(32), ..EngineOptions::default() };
    let (core, log) = engine(scripted(100, script("a", &[EOS])), &options);
    generate(&core, request(&"x".repeat(100))).expect("it generates");
    let log = log.lock().expect("free");
    let shape: Vec<_> = log.iter().map(|s| (s[0].0, s[0].1.len(), s[0].2)).collect();
    assert_eq!(
        shape,
        [(0, 32, false), (32, 32, false), (64, 32, false), (96, 4, true), (100, 1, true)]
    );
}

#[test]
fn logprobs_are_aligned_with_tokens_and_held_back_with_them() {
    let out = run(script("abST", &[EOS]), |r| {
        r.stop = vec!["STOP".to_owned()];
        r.logprobs = Some(2);
    });
    assert_eq!(out.logprobs.len(), out.tokens.len());
    for (token, logprobs) in out.tokens.iter().zip(&out.logprobs) {
        assert_eq!(logprobs.top.len(), 2);
        assert_eq!(logprobs.top[0], (*token, logprobs.logprob));
    }
}

#[test]
fn the_mass_the_mask_removed_is_told_and_changes_nothing() {
    let ask = |removed_mass| {
        let (core, _) = engine(hashed, &EngineOptions::default());
        let mut wanted = request("Is it?");
        wanted.grammar = Some(r#"{"type":"regex","pattern":"(yes|no)+!"}"#.to_owned());
        wanted.sampling.temperature = 1.0;
        wanted.seed = Some(5);
        wanted.max_tokens = Some(20);
        wanted.logprobs = Some(1);
        wanted.removed_mass = removed_mass;
        generate(&core, wanted).expect("it generates")
    };
    let (with, without) = (ask(true), ask(false));
    assert_eq!(with.tokens, without.tokens);
    for (told, plain) in with.logprobs.iter().zip(&without.logprobs) {
        assert!((told.logprob - plain.logprob).abs() < 1e-9);
        assert!(told.removed_mass.is_some_and(|mass| mass > 0.0 && mass < 1.0));
        assert_eq!(plain.removed_mass, None);
    }
}

#[test]
fn a_grammar_is_followed_and_ends_the_generation() {
    let grammar = r#"{"type":"regex","pattern":"(yes|no)"}"#.to_owned();
    let (core, _) = engine(hashed, &EngineOptions::default());
    let mut wanted = request("Is it?");
    wanted.grammar = Some(grammar);
    let out = generate(&core, wanted).expect("it generates");
    assert!(["yes", "no"].contains(&out.text.as_str()), "{}", out.text);
    assert_eq!((out.finish.reason, out.finish.complete), (FinishReason::Stop, Some(true)));
}

#[test]
fn a_grammar_that_is_cut_short_says_so() {
    let (core, _) = engine(hashed, &EngineOptions::default());
    let mut wanted = request("p");
    wanted.grammar = Some(r#"{"type":"regex","pattern":"a{20}"}"#.to_owned());
    wanted.max_tokens = Some(5);
    let out = generate(&core, wanted).expect("it generates");
    assert_eq!((out.text.as_str(), out.finish.reason), ("aaaaa", FinishReason::Length));
    assert_eq!(out.finish.complete, Some(false));
}

#[test]
fn forced_tokens_need_no_logits_and_one_pass() {
    let (core, log) = engine(hashed, &EngineOptions::default());
    let mut wanted = request("p");
    wanted.grammar = Some(r#"{"type":"regex","pattern":"abcdef[xy]"}"#.to_owned());
    let out = generate(&core, wanted).expect("it generates");
    assert_eq!(out.finish.completion_tokens, 8, "six letters, x or y, the end token");
    let log = log.lock().expect("free");
    // The prompt and six forced letters, then nothing: the end token is forced too.
    assert_eq!(log.len(), 1);
    assert_eq!((log[0][0].1.len(), log[0][0].2), (7, true));
    drop(log);
    // Counters are told after the output.
    while core.stats().finished == 0 {
        std::thread::yield_now();
    }
    assert_eq!((core.stats().completion_tokens, core.stats().forced_tokens), (8, 7));
}

#[test]
fn the_same_seed_gives_the_same_output_and_another_seed_another() {
    let (core, _) = engine(hashed, &EngineOptions::default());
    let run = |seed| {
        let mut wanted = request("seeds");
        wanted.sampling = SamplingParams { temperature: 1.0, ..SamplingParams::default() };
        wanted.seed = Some(seed);
        wanted.max_tokens = Some(20);
        generate(&core, wanted).expect("it generates").tokens
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}

#[test]
fn what_does_not_fit_the_context_is_refused_or_cut_by_name() {
    let (core, _) = engine(scripted(250, vec![97]), &EngineOptions::default());
    let code = |r: Request| core.submit(r).map(|_| ()).expect_err("refused").code();
    let mut wanted = request(&"x".repeat(250));
    wanted.max_tokens = Some(7);
    assert_eq!(code(wanted.clone()), "ERR_TINYLLM_CONTEXT_LENGTH");
    wanted.overflow = ContextOverflow::Truncate;
    let out = generate(&core, wanted).expect("it generates");
    assert_eq!((out.text.as_str(), out.finish.reason), ("aaaaaa", FinishReason::Length));
    assert_eq!(code(request(&"x".repeat(256))), "ERR_TINYLLM_CONTEXT_LENGTH");
    let told = |prompt: usize, max: Option<usize>| {
        let mut wanted = request(&"x".repeat(prompt));
        wanted.max_tokens = max;
        core.submit(wanted).map(|_| ()).expect_err("refused").to_string()
    };
    assert!(told(257, Some(1)).starts_with("the prompt has 257 tokens and the context holds 256;"));
    assert!(told(256, Some(1)).contains("fills the context, which leaves no room for an answer"));
    assert!(told(250, Some(7)).contains("250 tokens and maxTokens is 7, the context holds 256;"));
    assert!(generate(&core, request(&"x".repeat(255))).is_ok());
}

#[test]
fn members_out_of_range_are_named() {
    let (core, _) = engine(hashed, &EngineOptions::default());
    let refused = |change: fn(&mut Request)| {
        let mut wanted = request("p");
        change(&mut wanted);
        match core.submit(wanted).map(|_| ()) {
            Err(EngineError::InvalidRequest { param, .. }) => param,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(refused(|r| r.sampling.temperature = f32::NAN), "temperature");
    assert_eq!(refused(|r| r.sampling.top_p = 0.0), "topP");
    assert_eq!(refused(|r| r.sampling.min_p = 1.5), "minP");
    assert_eq!(refused(|r| r.sampling.repetition_penalty = 0.0), "repetitionPenalty");
    assert_eq!(refused(|r| r.sampling.logit_bias = vec![(261, 1.0)]), "logitBias");
    assert_eq!(refused(|r| r.logprobs = Some(21)), "logprobs");
    assert_eq!(refused(|r| r.stop = vec![String::new()]), "stop");
    assert_eq!(refused(|r| r.max_tokens = Some(0)), "maxTokens");
    assert_eq!(refused(|r| r.prompt = vec![]), "prompt");
    assert_eq!(refused(|r| r.prompt = vec![261]), "prompt");
}

#[test]
fn a_refused_grammar_fails_its_request_only() {
    let (core, _) = engine(scripted(1, script("a", &[EOS])), &EngineOptions::default());
    let mut wanted = request("p");
    wanted.grammar = Some(r#"{"type":"regex","pattern":"a{3,2}"}"#.to_owned());
    let error = generate(&core, wanted.clone()).expect_err("refused");
    assert_eq!(error.code(), "ERR_TINYLLM_REGEX");
    let compiled = block_on(core.compile(wanted.grammar.as_deref().unwrap_or_default()));
    assert_eq!(compiled.map(|_| ()).expect_err("refused").code(), "ERR_TINYLLM_REGEX");
    assert_eq!(generate(&core, request("p")).expect("it generates").text, "a");
}

#[test]
fn compiled_grammars_are_kept_within_their_bound() {
    let compile = |core: &tinyllm_engine::EngineCore, i: usize| {
        let description = format!(r#"{{"type":"regex","pattern":"{i:03}"}}"#);
        block_on(core.compile(&description)).expect("it compiles")
    };
    let (core, _) = engine(hashed, &EngineOptions::default());
    let first = compile(&core, 1);
    assert!(std::sync::Arc::ptr_eq(&first, &compile(&core, 1)), "found again");
    let one = core.grammars().1;
    let bound = EngineOptions { grammar_cache_bytes: 4 * one, ..EngineOptions::default() };
    let (core, _) = engine(hashed, &bound);
    for i in 1..20 {
        compile(&core, i);
        assert!(core.grammars().1 <= 4 * one);
    }
    assert!(core.grammars().0 >= 2);
}

#[test]
fn after_close_everything_is_refused_and_closing_again_is_fine() {
    let (core, _, permits) = gated(hashed, &EngineOptions::default());
    let generation = core.submit(request("p")).expect("accepted");
    drop(permits);
    assert!(core.close(Duration::from_mins(1)));
    let ended = collect(&generation);
    assert!(ended.is_err_and(|e| e.code() == "ERR_TINYLLM_ENGINE_CLOSED") || core.is_closed());
    assert!(matches!(core.submit(request("p")).map(|_| ()), Err(EngineError::Closed)));
    assert!(core.close(Duration::ZERO));
}
