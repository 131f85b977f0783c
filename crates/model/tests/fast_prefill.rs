//! Fast prefill against an independent f32 implementation's logits, and against itself.

use std::path::Path;

use tinyllm_kernels::{Cpu, KvPool, PageId};
use tinyllm_model::{Feed, Gguf, Logits, PackedModel};
use tinyllm_testkit::golden::{self, floats, ids};
use tinyllm_testkit::test_models;

/// Mean squared error over mean square.
const NMSE_MAX: f64 = 1e-3;
/// Where the two best logits are closer than this, either may come first.
const GAP_MIN: f64 = 0.15;

fn argmax(logits: &[f32]) -> u32 {
    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
    best.unwrap().0 as u32
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

/// One sequence with its own pages.
struct Sequence {
    pages: Vec<PageId>,
    len: usize,
    /// Whether it is fed a prompt.
    prompt: bool,
}

impl Sequence {
    fn new(pool: &KvPool, positions: usize) -> Self {
        let pages = pool.allocate_many(positions.div_ceil(32)).unwrap();
        Self { pages, len: 0, prompt: true }
    }

    fn feed(
        &mut self,
        model: &PackedModel,
        pool: &KvPool,
        tokens: &[u32],
        logits: Logits<'_>,
    ) -> Vec<f32> {
        let Self { len, prompt, ref pages } = *self;
        let feed = Feed { tokens, position: len, pages, logits, prompt };
        self.len += tokens.len();
        model.step(&[feed], pool).unwrap().remove(0)
    }
}

fn matches_golden(path: &Path, name: &str) {
    let model = PackedModel::load(&Gguf::open(path).unwrap(), Cpu::detect(), 2).unwrap();
    let model = model.with_fast_prefill().unwrap();
    let (mut error, mut power) = (0.0, 0.0);
    let mut worst = 0.0_f64;
    for case in golden::logits(name) {
        let prompt = ids(&case["ids"]);
        let pool = KvPool::new(model.kv_shape(), 64).unwrap();
        let mut sequence = Sequence::new(&pool, prompt.len());
        let all = sequence.feed(&model, &pool, &prompt, Logits::All);
        let rows: Vec<&[f32]> = all.chunks_exact(model.vocab_size()).collect();
        assert_eq!(rows.len(), prompt.len());
        for expected in case["positions"].as_array().unwrap() {
            let position = expected["position"].as_u64().unwrap() as usize;
            let (mut e, mut p) = (0.0, 0.0);
            for (ids_key, logits_key) in
                [("top_ids", "top_logits"), ("sample_ids", "sample_logits")]
            {
                let values = floats(&expected[logits_key]);
                for (id, value) in ids(&expected[ids_key]).into_iter().zip(values) {
                    e += (f64::from(rows[position][id as usize]) - value).powi(2);
                    p += value.powi(2);
                }
            }
            worst = worst.max(e / p);
            (error, power) = (error + e, power + p);
            assert!(e / p < NMSE_MAX, "{} at {position}: NMSE {}", case["prompt"], e / p);
            let top = floats(&expected["top_logits"]);
            if top[0] - top[1] > GAP_MIN {
                let best = ids(&expected["top_ids"])[0];
                assert_eq!(argmax(rows[position]), best, "{} at {position}", case["prompt"]);
            }
        }
    }
    println!("{name}: NMSE {} (worst position {worst})", error / power);
}

#[test]
fn fast_prefill_computes_the_golden_logits() {
    if Cpu::detect().fast_prefill().is_err() {
        return;
    }
    matches_golden(&test_models::smollm2(), "smollm2-135m-instruct");
    matches_golden(&test_models::qwen_coder(), "qwen2.5-coder-0.5b-instruct");
}

#[test]
fn with_fast_prefill_logits_depend_on_the_tokens_and_on_which_are_the_prompts() {
    let gguf = Gguf::open(test_models::smollm2()).unwrap();
    let load = |threads| PackedModel::load(&gguf, Cpu::detect(), threads).unwrap();
    if let Err(error) = Cpu::detect().fast_prefill() {
        assert!(load(1).with_fast_prefill().unwrap_err().to_string().contains(&error.to_string()));
        return;
    }
    let exact = load(2);
    let models = [1, 2].map(|threads| load(threads).with_fast_prefill().unwrap());
    let vocab = exact.vocab_size() as u32;
    let tokens: Vec<u32> = (0..330).map(|i| (i * i * 37 + 11 * i + 5) % vocab).collect();
    let pool = KvPool::new(exact.kv_shape(), 128).unwrap();
    let mut expected: Option<Vec<u32>> = None;
    for (model, chunk, mates) in [
        (&models[1], 330, 0),
        (&models[1], 330, 3),
        (&models[0], 330, 0),
        (&models[1], 7, 20),
        (&models[0], 64, 1),
    ] {
        // 313 tokens of prompt, then an answer, one token at a time or some.
        let mut one = Sequence::new(&pool, tokens.len());
        let mut got = Vec::new();
        for (part, prompt) in [(&tokens[..313], true), (&tokens[313..], false)] {
            for tokens in part.chunks(chunk) {
                // Others in the step, of both kinds.
                let others: Vec<_> = (0..mates).map(|_| Sequence::new(&pool, 40)).collect();
                let mut feeds: Vec<Feed<'_>> = Vec::new();
                for (i, Sequence { pages, .. }) in others.iter().enumerate() {
                    let (tokens, prompt) = (&part[i % 3..i % 5 + 4], i % 2 == 0);
                    feeds.push(Feed { tokens, position: 0, pages, logits: Logits::None, prompt });
                }
                let at = mates / 2;
                let logits = Logits::All;
                let Sequence { len: position, ref pages, .. } = one;
                feeds.insert(at, Feed { tokens, position, pages, logits, prompt });
                got.extend(bits(&model.step(&feeds, &pool).unwrap()[at]));
                one.len += tokens.len();
                others.into_iter().flat_map(|mate| mate.pages).for_each(|page| {
                    pool.release(page).unwrap();
                });
            }
        }
        for page in one.pages {
            pool.release(page).unwrap();
        }
        assert!(*expected.get_or_insert_with(|| got.clone()) == got, "chunks of {chunk}");
    }
    // What is no prompt's is computed as by a model without it.
    let mut sequences =
        [(&exact, true), (&models[1], false), (&models[1], true)].map(|(model, prompt)| {
            let mut sequence = Sequence { prompt, ..Sequence::new(&pool, 40) };
            bits(&sequence.feed(model, &pool, &tokens[..40], Logits::Last))
        });
    sequences.rotate_left(1);
    assert!(sequences[0] == sequences[2] && sequences[1] != sequences[2]);
}
