//! Fast prefill against an independent f32 implementation's logits, and against itself.

mod support;

use tinyllm_kernels::{Cpu, KvPool};
use tinyllm_model::{Feed, Gguf, Logits, PackedModel};
use tinyllm_testkit::test_models;

use support::{Sequence, bits, matches_golden};

#[test]
fn fast_prefill_computes_the_golden_logits() {
    if Cpu::detect().fast_prefill().is_err() {
        return;
    }
    for (path, name) in [
        (test_models::smollm2(), "smollm2-135m-instruct"),
        (test_models::qwen_coder(), "qwen2.5-coder-0.5b-instruct"),
    ] {
        let model = PackedModel::load(&Gguf::open(path).unwrap(), Cpu::detect(), 2).unwrap();
        matches_golden(&model.with_fast_prefill().unwrap(), name);
    }
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
        (&models[1], 1, 2),
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
