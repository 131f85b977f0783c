//! The packed forward pass against an independent f32 implementation's logits, and against itself.

mod support;

use std::path::Path;

use tinyllm_kernels::{Cpu, KvPool, choose};
use tinyllm_model::{Feed, Gguf, Logits, PackedModel};
use tinyllm_testkit::golden::{self, floats, ids};
use tinyllm_testkit::test_models;

use support::{GAP_MIN, Sequence, argmax, bits, matches_golden};

/// The likeliest token at every position of the golden continuations, each given the golden tokens
/// before it: the positions where it is another than the reference's, with the gap between the
/// reference's two best.
fn other_choices(model: &PackedModel, name: &str) -> Vec<(String, usize, f64)> {
    let mut found = Vec::new();
    let mut positions = 0;
    for case in golden::logits(name) {
        let (prompt, greedy) = (ids(&case["ids"]), ids(&case["greedy"]));
        let pool = KvPool::new(model.kv_shape(), 64).unwrap();
        let tokens = [&prompt[..], &greedy[..greedy.len() - 1]].concat();
        let mut sequence = Sequence::new(&pool, tokens.len());
        let all = sequence.feed(model, &pool, &tokens, Logits::All);
        let rows = all.chunks_exact(model.vocab_size()).skip(prompt.len() - 1);
        let gaps = floats(&case["greedy_gaps"]);
        for (index, ((row, expected), gap)) in rows.zip(greedy).zip(gaps).enumerate() {
            positions += 1;
            if argmax(row) != expected {
                found.push((case["prompt"].to_string(), index, gap));
            }
        }
    }
    println!("{name}: {} of {positions} choices differ: {found:?}", found.len());
    found
}

fn chosen() -> Cpu {
    choose(std::env::var("TINYLLM_CPU").ok().as_deref()).unwrap().cpu
}

fn packed(path: &Path) -> PackedModel {
    PackedModel::load(&Gguf::open(path).unwrap(), chosen(), 2).unwrap()
}

#[test]
fn smollm2_computes_the_golden_logits() {
    let model = packed(&test_models::smollm2());
    matches_golden(&model, "smollm2-135m-instruct");
    let other = other_choices(&model, "smollm2-135m-instruct");
    assert!(other.iter().all(|&(_, _, gap)| gap <= GAP_MIN), "{other:?}");
}

#[test]
fn qwen_coder_computes_the_golden_logits() {
    let model = packed(&test_models::qwen_coder());
    matches_golden(&model, "qwen2.5-coder-0.5b-instruct");
    let other = other_choices(&model, "qwen2.5-coder-0.5b-instruct");
    assert!(other.iter().all(|&(_, _, gap)| gap <= GAP_MIN), "{other:?}");
}

#[test]
fn logits_depend_on_a_sequences_own_tokens_alone() {
    let gguf = Gguf::open(test_models::smollm2()).unwrap();
    let model = PackedModel::load(&gguf, Cpu::detect(), 2).unwrap();
    let vocab = model.vocab_size() as u32;
    let tokens: Vec<u32> = (0..530).map(|i| (i * i * 37 + 11 * i + 5) % vocab).collect();
    let pool = KvPool::new(model.kv_shape(), 128).unwrap();
    let mut whole = Sequence::new(&pool, tokens.len());
    whole.feed(&model, &pool, &tokens[..500], Logits::None);
    let expected: Vec<Vec<u32>> = tokens[500..]
        .iter()
        .map(|&token| bits(&whole.feed(&model, &pool, &[token], Logits::Last)))
        .collect();

    // In chunks, among other sequences, with one thread, and on every tier that is fast enough.
    for cpu in Cpu::available().into_iter().skip(1) {
        let other = PackedModel::load(&gguf, cpu, 1).unwrap();
        for (model, chunk) in [(&other, 512), (&model, 64), (&model, 7)] {
            let mut sequence = Sequence::new(&pool, tokens.len());
            for chunk in tokens[..516].chunks(chunk) {
                sequence.feed(model, &pool, chunk, Logits::None);
            }
            let rows = sequence.feed(model, &pool, &tokens[516..], Logits::All);
            for (row, expected) in rows.chunks_exact(vocab as usize).zip(&expected[16..]) {
                assert_eq!(&bits(row), expected, "{:?}, chunks of {chunk}", cpu.tier());
            }
            for page in sequence.pages {
                pool.release(page).unwrap();
            }
        }
    }
    let mut one = Sequence::new(&pool, 40);
    let mut mates: Vec<Sequence> = (0..31).map(|_| Sequence::new(&pool, 40)).collect();
    let mut alone = Sequence::new(&pool, 40);
    for step in 0..40 {
        let expected = alone.feed(&model, &pool, &tokens[step..=step], Logits::Last);
        let mut feeds = vec![Feed {
            tokens: &tokens[step..=step],
            position: one.len,
            pages: &one.pages,
            logits: Logits::Last,
            prompt: false,
        }];
        for (i, mate) in mates.iter().enumerate().filter(|(i, _)| step % (i + 1) == 0) {
            feeds.push(Feed {
                tokens: &tokens[i + step..=i + step],
                position: mate.len,
                pages: &mate.pages,
                logits: if i % 2 == 0 { Logits::None } else { Logits::Only(&[3, 70, 3]) },
                prompt: false,
            });
        }
        let rows = model.step(&feeds, &pool).unwrap();
        assert_eq!(bits(&rows[0]), bits(&expected), "step {step}");
        one.len += 1;
        for (i, mate) in mates.iter_mut().enumerate() {
            mate.len += usize::from(step % (i + 1) == 0);
        }
    }
}

#[test]
fn some_logits_are_bit_equal_to_the_same_of_all() {
    let model = PackedModel::load(&Gguf::open(test_models::smollm2()).unwrap(), Cpu::detect(), 2);
    let model = model.unwrap();
    let pool = KvPool::new(model.kv_shape(), 4).unwrap();
    let tokens = [1, 4093, 198, 19556, 905];
    let all = Sequence::new(&pool, 5).feed(&model, &pool, &tokens, Logits::Last);
    let wanted = [0, 49151, 17, 18, 30000, 17];
    let some = Sequence::new(&pool, 5).feed(&model, &pool, &tokens, Logits::Only(&wanted));
    let expected: Vec<f32> = wanted.iter().map(|&id| all[id as usize]).collect();
    assert_eq!(bits(&some), bits(&expected));
}
