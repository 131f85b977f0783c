//! What a grammar allows is found in time or while the layers run; nobody can tell from the output.

mod support;

use proptest::prelude::*;
use support::*;
use tinyllm_engine::{EngineCore, EngineError, EngineOptions, Request, TokenTable};
use tinyllm_sampler::SamplingParams;

/// 38,416 words of four letters, a to n, behind the bytes and the end token.
const WORDS: usize = 14 * 14 * 14 * 14;
const FIRST_WORD: usize = 257;

fn wide(options: &EngineOptions) -> EngineCore {
    let word = |n: usize| [2744, 196, 14, 1].map(|unit| b'a' + (n / unit % 14) as u8).to_vec();
    let bytes = (0..=255_u8).map(|byte| vec![byte]).chain([Vec::new()]);
    let table: Vec<Vec<u8>> = bytes.chain((0..WORDS).map(word)).collect();
    let rows = table.len();
    let table = TokenTable::new(table, |_| false, vec![256], Vec::new());
    // Words before bytes, the end now and then.
    let logits = move |tokens: &[u32]| {
        let mut row = hashed_row(tokens, rows);
        row[..FIRST_WORD - 1].iter_mut().for_each(|logit| *logit -= 4.0);
        row
    };
    let fake = Fake { logits, rows, log: StepLog::default(), apart: false, gate: None };
    EngineCore::start(Box::new(fake), table, options).expect("an engine")
}

/// Grammars whose masks take long walks, some states of which allow one token only.
const GRAMMARS: [&str; 3] = [
    r#"{"type":"regex","pattern":"([a-m][b-n])+(end|fin)!"}"#,
    r#"{"type":"regex","pattern":"(([a-m][b-n]){4,12}<only>)+([a-l][c-n])+."}"#,
    r#"{"type":"regex","pattern":"<first>([a-m][b-n]|[c-k][a-n])*<last>"}"#,
];

fn requests() -> impl Strategy<Value = Vec<Request>> {
    let request = (0_usize..3, 1_usize..40, any::<u64>(), any::<bool>(), 0_usize..3).prop_map(
        |(grammar, length, seed, warm, logprobs)| {
            let mut request = Request::new((0..length as u32).collect());
            request.grammar = Some(GRAMMARS[grammar].to_owned());
            if warm {
                request.sampling =
                    SamplingParams { temperature: 1.0, top_p: 0.95, ..SamplingParams::default() };
            }
            request.seed = Some(seed);
            request.logprobs = (logprobs > 0).then_some(logprobs);
            request.removed_mass = seed % 5 == 0;
            request.max_tokens = Some(24);
            request
        },
    );
    prop::collection::vec(request, 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn late_and_early_masks_give_the_same_output(
        requests in requests(),
        chunk in prop_oneof![Just(1_usize), Just(7), Just(512)],
        cancel in any::<prop::sample::Index>(),
    ) {
        let options = EngineOptions { prefill_chunk: Some(chunk), ..EngineOptions::default() };
        let cold = wide(&options);
        let running: Vec<_> =
            requests.iter().map(|r| cold.submit(r.clone()).expect("room")).collect();
        let extra = cold.submit(requests[cancel.index(requests.len())].clone()).expect("room");
        drop(extra);
        let late: Result<Vec<Output>, EngineError> = running.iter().map(collect).collect();
        let late = late.expect("they generate");
        let found = cold.stats().late_masks;
        prop_assert!(found > 0);
        // Again, when the masks are known.
        for (request, late) in requests.iter().zip(late) {
            let mut early = generate(&cold, request.clone()).expect("it generates");
            early.finish.cached_tokens = late.finish.cached_tokens;
            prop_assert_eq!(early, late);
        }
        prop_assert_eq!(cold.stats().late_masks, found);
    }
}
