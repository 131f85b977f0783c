//! A token's logits depend on the tokens before it and on nothing else: not on chunks, batch mates,
//! pages, threads or on which logits are asked for. All comparisons are of bits.

use proptest::prelude::*;
use tinyllm_kernels::{KvPool, PAGE_POSITIONS, PageId};
use tinyllm_model::{Device, Feed, Gguf, Logits, Model};
use tinyllm_testkit::{TinyModel, test_models};

fn tiny(tiny: &TinyModel, threads: usize) -> Model {
    let gguf = Gguf::from_bytes(&tiny.bytes()).unwrap();
    Model::load_with_threads(&gguf, Device::Cpu, threads).unwrap()
}

fn tokens(count: usize, vocab: usize, seed: usize) -> Vec<u32> {
    (0..count).map(|i| ((i * i * 31 + i * 7 + seed * 101) % vocab) as u32).collect()
}

/// All logits of a prompt that goes in `chunk` tokens at a time.
fn in_chunks(model: &Model, prompt: &[u32], chunk: usize) -> Vec<u32> {
    let mut cache = model.new_cache(prompt.len()).unwrap();
    let mut all = Vec::new();
    for chunk in prompt.chunks(chunk) {
        all.extend(model.forward(chunk, &mut cache, Logits::All).unwrap());
    }
    bits(&all)
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

#[test]
fn chunks_and_threads_change_no_bit_of_the_tiny_model() {
    for (qwen2, quantised, rope_factors) in
        [(false, true, false), (false, false, true), (true, true, false)]
    {
        let description = TinyModel { qwen2, quantised, rope_factors, ..TinyModel::default() };
        let model = tiny(&description, 1);
        let prompt = tokens(600, model.vocab_size(), 1);
        let expected = in_chunks(&model, &prompt, 512);
        assert!(expected.iter().all(|&bits| f32::from_bits(bits).is_finite()));
        for chunk in [1, 7, 64] {
            assert!(in_chunks(&model, &prompt, chunk) == expected, "chunks of {chunk}");
        }
        let threaded = tiny(&description, 2);
        for chunk in [1, 64, 512] {
            assert!(in_chunks(&threaded, &prompt, chunk) == expected, "2 threads, {chunk}");
        }
    }
}

#[test]
fn chunks_and_threads_change_no_bit_of_smollm2() {
    let gguf = Gguf::open(test_models::smollm2()).unwrap();
    let prompt = tokens(130, 49152, 2);
    let mut expected = None;
    for threads in [2, 1] {
        let model = Model::load_with_threads(&gguf, Device::Cpu, threads).unwrap();
        for chunk in [512, 64, 7] {
            let mut cache = model.new_cache(prompt.len()).unwrap();
            // The last few one at a time, with what the chunks left in the pages.
            let (chunked, singles) = prompt.split_at(126);
            for chunk in chunked.chunks(chunk) {
                model.forward(chunk, &mut cache, Logits::None).unwrap();
            }
            let logits: Vec<Vec<u32>> = singles
                .chunks(1)
                .map(|token| bits(&model.forward(token, &mut cache, Logits::Last).unwrap()))
                .collect();
            assert!(
                *expected.get_or_insert_with(|| logits.clone()) == logits,
                "{threads} threads, chunks of {chunk}"
            );
            cache.truncate(126);
            let together = model.forward(singles, &mut cache, Logits::All).unwrap();
            assert!(bits(&together) == logits.concat(), "{threads} threads, all at once");
        }
    }
}

/// A sequence on pages of a shared pool.
struct Sequence {
    tokens: Vec<u32>,
    computed: usize,
    pages: Vec<PageId>,
    logits: Vec<f32>,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Random schedules: sequences advance by random amounts, together or not, on scattered pages.
    #[test]
    fn batch_mates_and_pages_change_no_bit(
        lengths in prop::collection::vec(1_usize..90, 1..6),
        schedule in prop::collection::vec((any::<u8>(), 1_usize..40), 1..40),
        qwen2 in any::<bool>(),
        threads in 1_usize..3,
    ) {
        let model = tiny(&TinyModel { qwen2, ..TinyModel::default() }, threads);
        let pool = KvPool::new(model.kv_shape(), 40).unwrap();
        let mut scattered = pool.allocate_many(40).unwrap();
        scattered.reverse();
        let mut sequences: Vec<Sequence> = lengths
            .iter()
            .enumerate()
            .map(|(index, &length)| Sequence {
                tokens: tokens(length, model.vocab_size(), index),
                computed: 0,
                pages: Vec::new(),
                logits: Vec::new(),
            })
            .collect();
        // Pages are dealt in turn, so that no sequence has neighbouring ones.
        for _ in 0..90_usize.div_ceil(PAGE_POSITIONS) {
            for sequence in &mut sequences {
                sequence.pages.push(scattered.pop().unwrap());
            }
        }
        let all = (u8::MAX, 90);
        for (members, count) in schedule.into_iter().chain([all]) {
            let chosen: Vec<&mut Sequence> = sequences
                .iter_mut()
                .enumerate()
                .filter(|(index, sequence)| {
                    members & (1 << index) != 0 && sequence.computed < sequence.tokens.len()
                })
                .map(|(_, sequence)| sequence)
                .collect();
            let feeds: Vec<Feed<'_>> = chosen
                .iter()
                .map(|sequence| Feed {
                    tokens: &sequence.tokens[sequence.computed..]
                        [..count.min(sequence.tokens.len() - sequence.computed)],
                    position: sequence.computed,
                    pages: &sequence.pages,
                    logits: Logits::All, prompt: false })
                .collect();
            let outputs = model.step(&feeds, &pool).unwrap();
            let counts: Vec<usize> = feeds.iter().map(|feed| feed.tokens.len()).collect();
            for ((sequence, output), count) in chosen.into_iter().zip(outputs).zip(counts) {
                sequence.logits.extend(output);
                sequence.computed += count;
            }
        }
        for sequence in &sequences {
            prop_assert!(bits(&sequence.logits) == in_chunks(&model, &sequence.tokens, 512));
        }
    }

    /// Asking for fewer logits gives the same ones.
    #[test]
    fn chosen_rows_of_the_head_are_bit_equal_to_whole_rows(
        length in 1_usize..20,
        wanted in prop::collection::vec(0_u32..300, 0..60),
    ) {
        let model = tiny(&TinyModel::default(), 2);
        let prompt = tokens(length, model.vocab_size(), 3);
        let logits = |logits| {
            let mut cache = model.new_cache(length).unwrap();
            model.forward(&prompt, &mut cache, logits).unwrap()
        };
        let last = logits(Logits::Last);
        let all = logits(Logits::All);
        prop_assert_eq!(bits(&last), bits(&all[(length - 1) * model.vocab_size()..]));
        let only = logits(Logits::Only(&wanted));
        let expected: Vec<f32> = wanted.iter().map(|&id| last[id as usize]).collect();
        prop_assert_eq!(bits(&only), bits(&expected));
        prop_assert!(logits(Logits::None).is_empty());
    }
}
