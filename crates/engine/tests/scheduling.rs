//! Many generations at once: nobody's output depends on anybody else, no page is lost, nobody waits
//! for ever, and what is stopped stops.

mod support;

use std::time::Duration;

use proptest::prelude::*;
use support::*;
use tinyllm_engine::{
    EngineCore, EngineError, EngineOptions, Generation, Prefill, Request, block_on,
};
use tinyllm_sampler::SamplingParams;

const GRAMMAR: &str =
    r#"{"type":"regex","pattern":"(alpha|beta|[0-9]{1,8})(,(alpha|beta|[0-9]{1,8})){2,9}"}"#;

/// A request that random schedules are made of.
fn any_request() -> impl Strategy<Value = Request> {
    let prefix = prop_oneof![Just(0_usize), Just(20), Just(32), Just(64), Just(75)];
    let tail = prop::collection::vec(0..BYTES, 1..40);
    let choices = (any::<bool>(), any::<bool>(), any::<u64>(), 1_usize..60, 0_usize..4);
    (prefix, tail, choices).prop_map(|(prefix, tail, (warm, grammar, seed, max, stops))| {
        // Shared beginnings of various lengths, so that pages are found, shared in part, and not.
        let mut prompt: Vec<u32> = (0..prefix as u32).collect();
        prompt.extend(tail);
        let mut request = Request::new(prompt);
        if warm {
            request.sampling = SamplingParams {
                temperature: 1.5,
                top_p: 0.9,
                repetition_penalty: 1.2,
                ..SamplingParams::default()
            };
        }
        request.seed = Some(seed);
        request.grammar = grammar.then(|| GRAMMAR.to_owned());
        request.max_tokens = Some(max);
        request.stop = ["a", "beta", "9,"][..stops].iter().map(|s| (*s).to_owned()).collect();
        request.logprobs = warm.then_some(2);
        request
    })
}

fn any_options() -> impl Strategy<Value = EngineOptions> {
    let chunk =
        prop_oneof![Just(None), Just(Some(1)), Just(Some(7)), Just(Some(64)), Just(Some(512))];
    let prefill = prop_oneof![Just(Prefill::Exact), Just(Prefill::Fast)];
    (chunk, prefill, 1_usize..6, 9_usize..40).prop_map(
        |(prefill_chunk, prefill, parallel, pages)| EngineOptions {
            prefill_chunk,
            prefill,
            parallel,
            kv_bytes: pages * page_bytes(),
            ..EngineOptions::default()
        },
    )
}

/// Everything but the count of tokens that needed no computing, which depends on the others.
fn comparable(output: Result<Output, EngineError>) -> Output {
    let mut output = output.expect("it generates");
    output.finish.cached_tokens = 0;
    output
}

/// When nothing runs, pages are in the cache or free.
fn assert_idle(core: &EngineCore) {
    // One more request, so that everything before it has been swept up.
    let mut last = Request::new(vec![1]);
    last.max_tokens = Some(1);
    generate(core, last).expect("it generates");
    let stats = settled(core);
    assert_eq!((stats.running, stats.waiting), (0, 0));
    assert_eq!(stats.pages_used, stats.pages_cached);
    assert_eq!(stats.requests, stats.finished + stats.cancelled + stats.failed);
}

/// The counters once the engine has put everything away.
fn settled(core: &EngineCore) -> tinyllm_engine::Stats {
    loop {
        let stats = core.stats();
        if stats.requests == stats.finished + stats.cancelled + stats.failed && stats.running == 0 {
            return stats;
        }
        std::thread::yield_now();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// Bit for bit the same alone on a fresh engine and among others: with chunks of any size, with
    /// pages found, copied, evicted and taken away, with others cancelled in mid-air. The same where
    /// tokens of prompts are computed in another way than those of answers.
    #[test]
    fn output_depends_on_the_request_alone(
        families in prop::collection::vec((any_request(), any::<[bool; 3]>(), 1_usize..4), 1..8),
        options in any_options(),
    ) {
        let (core, _) = engine(hashed, &options);
        let mut requests = Vec::new();
        let mut running = Vec::new();
        for (request, cancel, choices) in families {
            let seeds: Vec<u64> =
                (0..choices as u64).map(|i| request.seed.unwrap_or(0).wrapping_add(i)).collect();
            let generations = family(&core, &request, &seeds);
            for ((generation, seed), cancel) in generations.into_iter().zip(seeds).zip(cancel) {
                running.push((generation, cancel));
                requests.push((Request { seed: Some(seed), ..request.clone() }, cancel));
            }
        }
        for (generation, cancel) in &running {
            if *cancel {
                generation.cancel();
            }
        }
        for ((generation, cancelled), (request, _)) in running.iter().zip(&requests) {
            let output = collect(generation);
            if *cancelled {
                // It may have ended before it was cancelled.
                prop_assert!(output.is_ok() || matches!(output, Err(EngineError::Cancelled)));
                continue;
            }
            let prefill = options.prefill;
            let (alone, _) = engine(hashed, &EngineOptions { prefill, ..EngineOptions::default() });
            prop_assert_eq!(comparable(output), comparable(generate(&alone, request.clone())));
        }
        assert_idle(&core);
        // Again, with a warm cache.
        for (request, _) in &requests {
            let first = comparable(generate(&core, request.clone()));
            prop_assert_eq!(&first, &comparable(generate(&core, request.clone())));
        }
        assert_idle(&core);
    }

    /// Cancellations at any moment lose no page.
    #[test]
    fn a_storm_of_cancellations_loses_no_page(
        requests in prop::collection::vec((any_request(), any::<[u8; 3]>(), 1_usize..4), 1..14),
        options in any_options(),
    ) {
        let (core, _) = engine(hashed, &options);
        let mut running = Vec::new();
        for (request, batches, choices) in requests {
            let family = family(&core, &request, &[1, 2, 3][..choices]);
            running.extend(family.into_iter().zip(batches.map(|n| n % 5)));
        }
        for (generation, batches) in running {
            for _ in 0..batches {
                if !matches!(block_on(generation.next_batch()), Ok(Some(_))) {
                    break;
                }
            }
        }
        assert_idle(&core);
    }
}

#[test]
fn forced_tokens_change_no_draw() {
    // The same logits, seed and language; in one grammar letters are forced, in the other a second
    // choice exists that the logits rule out. What is drawn after them must be the same.
    let row = |tokens: &[u32]| {
        let mut row = hashed(&tokens[..1.max(tokens.len())]);
        row[usize::from(b'z')] = -1e9;
        row
    };
    let run = |pattern: &str| {
        let (core, _) = engine(row, &EngineOptions::default());
        let mut request = Request::new(prompt("p"));
        request.grammar = Some(format!(r#"{{"type":"regex","pattern":"{pattern}"}}"#));
        request.sampling = SamplingParams { temperature: 1.0, ..SamplingParams::default() };
        request.seed = Some(3);
        generate(&core, request).expect("it generates").tokens
    };
    for tail in ["[a-y]{8}", "[0-9]{12}"] {
        assert_eq!(run(&format!("abc{tail}")), run(&format!("[az][bz][cz]{tail}")));
    }
}

#[test]
fn a_slow_reader_slows_only_its_own_request() {
    let options = EngineOptions { parallel: 1, ..EngineOptions::default() };
    let endless = |_: &[u32]| {
        let mut row = vec![0.0; ROWS];
        row[usize::from(b'a')] = 9.0;
        row
    };
    // Contexts are short, so the outbox never fills within one; a small outbox is what a long text
    // and a slow reader come to.
    let (core, _) = engine_with_outbox(endless, &options, 8);
    let slow = core.submit(Request::new(prompt("slow"))).expect("room");
    for _ in 0..3 {
        let mut quick = Request::new(prompt("quick"));
        quick.max_tokens = Some(5);
        assert_eq!(generate(&core, quick).expect("it generates").text, "aaaaa");
    }
    let stats = core.stats();
    assert!(stats.completion_tokens <= 3 * 5 + 8, "the slow one stood still");
    assert_eq!(collect(&slow).expect("it goes on").tokens.len(), CONTEXT - 4);
}

#[test]
fn a_slow_reader_gives_way_when_pages_run_out() {
    let options = EngineOptions { kv_bytes: 9 * page_bytes(), ..EngineOptions::default() };
    let (core, _) = engine_with_outbox(hashed, &options, 2);
    let slow = core.submit(Request::new((0..200).collect())).expect("room");
    let mut first = Vec::new();
    while first.is_empty() {
        first = block_on(slow.next_batch()).expect("it goes").expect("not over").tokens;
    }
    let mut other = Request::new((0..220).rev().collect());
    other.max_tokens = Some(30);
    generate(&core, other).expect("it gets the pages");
    assert!(core.stats().preemptions >= 1);
    let rest = collect(&slow).expect("it goes on").tokens;
    let (alone, _) = engine(hashed, &EngineOptions::default());
    let whole = generate(&alone, Request::new((0..200).collect())).expect("it generates").tokens;
    assert_eq!([first, rest].concat(), whole);
}

#[test]
fn a_cancellation_takes_effect_within_one_chunk_of_a_prefill() {
    let options = EngineOptions { prefill_chunk: Some(10), ..EngineOptions::default() };
    let (core, log, permits) = gated(hashed, &options);
    let generation = core.submit(Request::new(vec![7; 200])).expect("room");
    permits.send(()).expect("the engine listens");
    while log.lock().expect("free").len() < 2 {
        std::thread::yield_now();
    }
    // The second chunk is under way.
    generation.cancel();
    assert!(matches!(collect(&generation), Err(EngineError::Cancelled)), "at once");
    permits.send(()).expect("the engine listens");
    permits.send(()).expect("the engine listens");
    assert_eq!(settled(&core).cancelled, 1);
    assert_eq!(log.lock().expect("free").len(), 2, "no chunk after the cancellation");
}

#[test]
fn dropping_a_generation_cancels_it() {
    let (core, _, permits) = gated(hashed, &EngineOptions::default());
    drop(core.submit(Request::new(prompt("p"))).expect("room"));
    drop(permits);
    assert_eq!(settled(&core).cancelled, 1);
}

#[test]
fn one_request_too_many_is_refused() {
    let options = EngineOptions { parallel: 1, max_queue: 2, ..EngineOptions::default() };
    let (core, _, permits) = gated(hashed, &options);
    let mut short = Request::new(prompt("p"));
    short.max_tokens = Some(1);
    let held: Vec<_> = (0..3).map(|_| core.submit(short.clone()).expect("room")).collect();
    let refused = core.submit(short.clone()).map(|_| ());
    assert!(matches!(refused, Err(EngineError::Overloaded { limit: 3 })));
    drop(permits);
    for generation in &held {
        collect(generation).expect("it generates");
    }
    settled(&core);
    generate(&core, short).expect("there is room again");
}

#[test]
fn cancelling_never_takes_a_requests_place_in_the_channel() {
    let options = EngineOptions { parallel: 1, max_queue: 1, ..EngineOptions::default() };
    let (core, log, permits) = gated(hashed, &options);
    let mut short = Request::new(prompt("p"));
    short.max_tokens = Some(1);
    let held = core.submit(short.clone()).expect("room");
    while log.lock().expect("free").is_empty() {
        std::thread::yield_now();
    }
    // The engine is in a step, so that nothing is taken from its channel meanwhile.
    for _ in 0..1_000 {
        held.cancel();
    }
    let last = core.submit(short.clone()).expect("room for one more");
    assert!(matches!(core.submit(short).map(|_| ()), Err(EngineError::Overloaded { limit: 2 })));
    drop(permits);
    collect(&last).expect("it generates");
    assert_idle(&core);
}

/// A family's generations: each is the request alone with its seed.
fn family(core: &EngineCore, request: &Request, seeds: &[u64]) -> Vec<Generation> {
    let seeds: Vec<_> = seeds.iter().map(|seed| Some(*seed)).collect();
    core.submit_choices(request.clone(), &seeds).expect("room")
}

#[test]
fn a_family_computes_its_prompt_once_and_shares_its_pages() {
    let options = EngineOptions { prefill_chunk: Some(64), ..EngineOptions::default() };
    let (core, log) = engine(hashed, &options);
    let mut request = Request::new((0..75).collect());
    request.sampling = SamplingParams { temperature: 1.0, ..SamplingParams::default() };
    request.max_tokens = Some(20);
    request.ignore_eos = true;
    let outputs: Vec<Output> = family(&core, &request, &[3, 4, 5, 6])
        .iter()
        .map(|g| collect(g).expect("it generates"))
        .collect();
    let stats = settled(&core);
    // The prompt once, and of each output everything but the last token.
    assert_eq!(stats.forward_tokens, 75 + 4 * 19);
    assert_eq!((stats.prompt_tokens, stats.cached_tokens), (4 * 75, 3 * 75));
    let cached: Vec<_> = outputs.iter().map(|o| o.finish.cached_tokens).collect();
    assert_eq!(cached, [0, 75, 75, 75]);
    // All of them go on in the step after the first choice.
    assert_eq!(log.lock().expect("free")[2].len(), 4);
    for (output, seed) in outputs.into_iter().zip(3..) {
        let (alone, _) = engine(hashed, &EngineOptions::default());
        request.seed = Some(seed);
        assert_eq!(comparable(Ok(output)), comparable(generate(&alone, request.clone())));
    }
    assert_idle(&core);
}

#[test]
fn a_family_is_accepted_or_refused_as_one() {
    let options = EngineOptions { parallel: 2, max_queue: 1, ..EngineOptions::default() };
    let (core, _, permits) = gated(hashed, &options);
    let mut short = Request::new(prompt("p"));
    short.max_tokens = Some(2);
    let never = core.submit_choices(short.clone(), &[None; 4]).map(|_| ());
    assert!(
        matches!(never, Err(EngineError::InvalidRequest { param: "choices", .. })),
        "{never:?}"
    );
    assert!(core.submit_choices(short.clone(), &[]).is_err());
    let three = core.submit_choices(short.clone(), &[None; 3]).expect("room");
    assert_eq!(core.stats().requests, 3);
    let refused = core.submit_choices(short.clone(), &[None; 2]).map(|_| ());
    assert!(matches!(refused, Err(EngineError::Overloaded { limit: 3 })));
    drop(permits);
    for generation in &three {
        collect(generation).expect("it generates");
    }
    let mut bad = short;
    bad.grammar = Some(r#"{"type":"regex","pattern":"a{3,2}"}"#.to_owned());
    settled(&core);
    for generation in core.submit_choices(bad, &[None; 3]).expect("room") {
        assert_eq!(collect(&generation).expect_err("refused").code(), "ERR_TINYLLM_REGEX");
    }
    assert_eq!(settled(&core).failed, 3);
    assert_idle(&core);
}

#[test]
fn a_family_that_has_nothing_to_choose_ends_as_one() {
    let (core, _) = engine(hashed, &EngineOptions::default());
    let mut request = Request::new(prompt("p"));
    request.grammar = Some(r#"{"type":"regex","pattern":"only this"}"#.to_owned());
    for generation in core.submit_choices(request, &[None; 3]).expect("room") {
        assert_eq!(collect(&generation).expect("it generates").text, "only this");
    }
    assert_eq!(settled(&core).finished, 3);
    assert_idle(&core);
}

#[test]
fn a_family_larger_than_the_batch_takes_its_turns() {
    let options = EngineOptions { parallel: 2, kv_bytes: 0, ..EngineOptions::default() };
    let (core, log) = engine(hashed, &options);
    let mut request = Request::new((0..100).collect());
    request.sampling = SamplingParams { temperature: 1.0, ..SamplingParams::default() };
    request.max_tokens = Some(100);
    request.ignore_eos = true;
    let seeds: Vec<u64> = (0..12).collect();
    let outputs: Vec<Output> = family(&core, &request, &seeds)
        .iter()
        .map(|generation| comparable(collect(generation)))
        .collect();
    assert!(log.lock().expect("free").iter().all(|step| step.len() <= 2));
    for (output, seed) in outputs.iter().zip(seeds) {
        let (alone, _) = engine(hashed, &EngineOptions::default());
        request.seed = Some(seed);
        assert_eq!(*output, comparable(generate(&alone, request.clone())));
    }
    assert_idle(&core);
}

#[test]
fn the_others_of_a_family_go_on_without_the_first() {
    let options = EngineOptions { prefill_chunk: Some(10), ..EngineOptions::default() };
    let (core, log, permits) = gated(hashed, &options);
    let mut request = Request::new(vec![7; 200]);
    request.max_tokens = Some(5);
    let all = core.submit_choices(request.clone(), &[None; 4]).expect("room");
    permits.send(()).expect("the engine listens");
    while log.lock().expect("free").len() < 2 {
        std::thread::yield_now();
    }
    // In the middle of the prompt.
    all[0].cancel();
    all[2].cancel();
    drop(permits);
    let (alone, _) = engine(hashed, &EngineOptions::default());
    let expected = comparable(generate(&alone, request)).tokens;
    for (i, generation) in all.iter().enumerate() {
        match collect(generation) {
            Ok(output) => assert_eq!((output.tokens, i % 2), (expected.clone(), 1)),
            Err(error) => assert!(i % 2 == 0 && matches!(error, EngineError::Cancelled)),
        }
    }
    let stats = settled(&core);
    assert_eq!((stats.finished, stats.cancelled), (2, 2));
    assert_idle(&core);
}

#[test]
fn a_panic_in_a_step_costs_its_requests_only() {
    let panics = silence_panics();
    let row = |tokens: &[u32]| {
        assert!(tokens[0] != 66, "a defect");
        hashed(tokens)
    };
    let (core, _) = engine(row, &EngineOptions::default());
    let error = generate(&core, Request::new(vec![66])).expect_err("it panics");
    assert_eq!(error.code(), "ERR_TINYLLM_INTERNAL");
    assert!(error.to_string().contains("a defect"));
    let mut fine = Request::new(vec![65]);
    fine.max_tokens = Some(3);
    generate(&core, fine).expect("the engine lives");
    assert_eq!(panics.load(std::sync::atomic::Ordering::Relaxed), 1);
    assert_idle(&core);
}

#[test]
fn decoding_rows_come_before_a_prefill_chunk_in_every_step() {
    let options = EngineOptions { prefill_chunk: Some(16), ..EngineOptions::default() };
    let (core, log, permits) = gated(hashed, &options);
    let mut short = Request::new(prompt("s"));
    short.max_tokens = Some(12);
    short.ignore_eos = true;
    let decoding = core.submit(short).expect("room");
    permits.send(()).expect("the engine listens");
    while log.lock().expect("free").len() < 2 {
        std::thread::yield_now();
    }
    let mut long = Request::new(vec![9; 200]);
    long.max_tokens = Some(1);
    let prefilling = core.submit(long).expect("room");
    drop(permits);
    collect(&decoding).expect("it generates");
    collect(&prefilling).expect("it generates");
    let log = log.lock().expect("free");
    let mixed: Vec<_> = log.iter().filter(|step| step.len() == 2).collect();
    assert_eq!(mixed.len(), 10, "the decoding one is in every step until it ends");
    for step in mixed {
        assert_eq!((step[0].1.len(), step[1].1.len()), (1, 16));
    }
}

#[test]
fn a_repeated_prompt_is_computed_once() {
    let (core, _) = engine(hashed, &EngineOptions::default());
    let system: Vec<u32> = (0..200).map(|i| i % 250).collect();
    let ask = |question: &str| {
        let mut request = Request::new([system.clone(), prompt(question)].concat());
        request.max_tokens = Some(1);
        let before = core.stats().forward_tokens;
        let output = generate(&core, request).expect("it generates");
        (core.stats().forward_tokens - before, output.finish.cached_tokens)
    };
    assert_eq!(ask("one?"), (204, 0));
    let (computed, cached) = ask("two?");
    assert!(computed <= 31 + 4, "{computed}");
    assert_eq!(computed as usize + cached, 204);
}

#[test]
fn prompts_that_arrive_together_share_the_computing() {
    let options = EngineOptions { prefill_chunk: Some(64), ..EngineOptions::default() };
    let (core, _, permits) = gated(hashed, &options);
    let system: Vec<u32> = (0..192).collect();
    let all: Vec<_> = (0..8_u32)
        .map(|i| {
            let mut request = Request::new([system.clone(), vec![i, i]].concat());
            request.max_tokens = Some(1);
            core.submit(request).expect("room")
        })
        .collect();
    drop(permits);
    let outputs = all.iter().map(|generation| collect(generation).expect("it generates"));
    let cached: usize = outputs.map(|output| output.finish.cached_tokens).sum();
    let stats = settled(&core);
    assert!(stats.forward_tokens <= 192 + 8 * 2 + 64, "{}", stats.forward_tokens);
    // What one of them computed while the others waited is found by these, and told.
    assert_eq!(stats.forward_tokens + stats.cached_tokens, stats.prompt_tokens);
    assert_eq!(cached as u64, stats.cached_tokens);
}

#[test]
fn nobody_waits_for_ever_when_pages_are_short() {
    // Pages for one context and one more; ten requests that each need most of them.
    let options = EngineOptions { kv_bytes: 0, parallel: 10, ..EngineOptions::default() };
    let (core, _) = engine(hashed, &options);
    let requests: Vec<Request> = (0..10_u32)
        .map(|i| {
            let mut request = Request::new((0..100).map(|j| (i * 17 + j) % 256).collect());
            request.max_tokens = Some(120);
            request.ignore_eos = true;
            request
        })
        .collect();
    let all: Vec<_> = requests.iter().map(|r| core.submit(r.clone()).expect("room")).collect();
    for (generation, request) in all.iter().zip(&requests) {
        let (alone, _) = engine(hashed, &EngineOptions::default());
        assert_eq!(
            comparable(collect(generation)).tokens,
            comparable(generate(&alone, request.clone())).tokens
        );
    }
    assert!(core.stats().preemptions > 0);
    assert_idle(&core);
}

#[test]
fn closing_ends_every_generation() {
    let (core, _, permits) = gated(hashed, &EngineOptions::default());
    let all: Vec<_> =
        (0..5).map(|_| core.submit(Request::new(prompt("p"))).expect("room")).collect();
    assert!(!core.close(Duration::ZERO) || core.is_closed());
    drop(permits);
    assert!(core.close(Duration::from_mins(1)));
    for generation in &all {
        let ended = collect(generation).map(|_| ());
        assert!(matches!(ended, Err(EngineError::Closed)), "{ended:?}");
    }
}
