//! The logits of real files against those of an independent f32 implementation.

use std::path::Path;

use serde_json::Value;
use tinyllm_kernels::{KvPool, PAGE_POSITIONS, PageId};
use tinyllm_model::{Device, Feed, Gguf, Logits, Model};
use tinyllm_testkit::golden::{self, floats, ids};
use tinyllm_testkit::test_models;

/// Mean squared error over mean square.
const NMSE_MAX: f64 = 1e-6;
/// Where the two best logits are closer than this, either may come first.
const GAP_MIN: f64 = 1e-3;

fn argmax(logits: &[f32]) -> u32 {
    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
    best.unwrap().0 as u32
}

/// Compares everything the file says about the logits at one position.
fn compare(logits: &[f32], expected: &Value, what: &str) {
    let mut error = 0.0;
    let mut power = 0.0;
    for (ids_key, logits_key) in [("top_ids", "top_logits"), ("sample_ids", "sample_logits")] {
        for (id, value) in ids(&expected[ids_key]).into_iter().zip(floats(&expected[logits_key])) {
            error += (f64::from(logits[id as usize]) - value).powi(2);
            power += value.powi(2);
        }
    }
    assert!(error / power < NMSE_MAX, "{what}: NMSE {}", error / power);

    let top = floats(&expected["top_logits"]);
    if top[0] - top[1] > GAP_MIN {
        assert_eq!(argmax(logits), ids(&expected["top_ids"])[0], "{what}: the best token");
    }
    let wide = || logits.iter().map(|&logit| f64::from(logit));
    let mean = wide().sum::<f64>() / logits.len() as f64;
    assert!((mean - expected["mean"].as_f64().unwrap()).abs() < 1e-3, "{what}: mean {mean}");
    let largest = wide().fold(f64::NEG_INFINITY, f64::max);
    let logsumexp = largest + wide().map(|logit| (logit - largest).exp()).sum::<f64>().ln();
    let expected = expected["logsumexp"].as_f64().unwrap();
    assert!((logsumexp - expected).abs() < 1e-3, "{what}: logsumexp {logsumexp}");
}

/// One of the file's prompts on its way.
struct Case {
    prompt: Vec<u32>,
    expected: Vec<u32>,
    pages: Vec<PageId>,
    greedy: Vec<u32>,
}

fn matches_golden(path: &Path, name: &str) {
    let model = Model::load(&Gguf::open(path).unwrap(), Device::Cpu).unwrap();
    let golden = golden::logits(name);
    let pool = KvPool::new(model.kv_shape(), 64).unwrap();
    let mut cases = Vec::new();
    for case in &golden {
        let (prompt, expected) = (ids(&case["ids"]), ids(&case["greedy"]));
        let positions = prompt.len() + expected.len();
        let pages = pool.allocate_many(positions.div_ceil(PAGE_POSITIONS)).unwrap();
        let feed = Feed {
            tokens: &prompt,
            position: 0,
            pages: &pages,
            logits: Logits::All,
            prompt: false,
        };
        let all = model.step(&[feed], &pool).unwrap().remove(0);
        let rows: Vec<&[f32]> = all.chunks_exact(model.vocab_size()).collect();
        assert_eq!(rows.len(), prompt.len());
        for expected in case["positions"].as_array().unwrap() {
            let position = expected["position"].as_u64().unwrap() as usize;
            compare(rows[position], expected, &format!("{} at {position}", case["prompt"]));
        }
        let greedy = vec![argmax(rows[rows.len() - 1])];
        cases.push(Case { prompt, expected, pages, greedy });
    }

    // All continuations side by side. The end token is a token like any other here.
    let before = model.forward_tokens();
    let longest = cases.iter().map(|case| case.expected.len()).max().unwrap();
    for _ in 1..longest {
        let feeds: Vec<Feed<'_>> = cases
            .iter()
            .map(|case| Feed {
                tokens: &case.greedy[case.greedy.len() - 1..],
                position: case.prompt.len() + case.greedy.len() - 1,
                pages: &case.pages,
                logits: Logits::Last,
                prompt: false,
            })
            .collect();
        let logits = model.step(&feeds, &pool).unwrap();
        for (case, logits) in cases.iter_mut().zip(logits) {
            case.greedy.push(argmax(&logits));
        }
    }
    for (case, golden) in cases.iter().zip(&golden) {
        assert_eq!(case.greedy, case.expected, "{}: the greedy continuation", golden["prompt"]);
    }
    let computed = (model.forward_tokens() - before) as usize;
    assert_eq!(computed, cases.len() * (longest - 1), "no token is computed twice");
}

#[test]
fn smollm2_computes_the_golden_logits() {
    matches_golden(&test_models::smollm2(), "smollm2-135m-instruct");
}

#[test]
fn qwen_coder_computes_the_golden_logits() {
    matches_golden(&test_models::qwen_coder(), "qwen2.5-coder-0.5b-instruct");
}
