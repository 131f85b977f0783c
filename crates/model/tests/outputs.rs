//! What a step gives for each way of asking.

use tinyllm_kernels::{Cpu, KvPool, KvShape};
use tinyllm_model::{
    Deferred, Device, Feed, Gguf, Logits, Model, ModelError, Output, Outputs, PackedModel,
};
use tinyllm_testkit::{TinyModel, test_models};

#[derive(Debug)]
struct Later<'a>(Logits<'a>);

impl Deferred for Later<'_> {
    fn logits(&self) -> Logits<'_> {
        self.0
    }
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

/// The first of the largest.
fn best(row: &[f32]) -> u32 {
    let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    row.iter().position(|logit| *logit == most).unwrap() as u32
}

fn every_way_of_asking_agrees(
    shape: KvShape,
    vocab_size: usize,
    step: impl Fn(&[Feed<'_>], &KvPool, &mut Outputs) -> Result<(), ModelError>,
) {
    let pool = KvPool::new(shape, 16).unwrap();
    let ids = [7, 3, 250, 3];
    let (only, last, likeliest, none) =
        (Later(Logits::Only(&ids)), Later(Logits::Last), Later(Logits::Best), Later(Logits::None));
    let ways = [
        Logits::None,
        Logits::Last,
        Logits::Deferred(&only),
        Logits::Best,
        Logits::All,
        Logits::Deferred(&none),
        Logits::Deferred(&last),
        Logits::Only(&ids),
        Logits::Deferred(&likeliest),
    ];
    let tokens = [1, 40, 19, 195, 90];
    let pages: Vec<_> = ways.iter().map(|_| pool.allocate_many(1).unwrap()).collect();
    let feeds: Vec<_> = ways
        .iter()
        .zip(&pages)
        .map(|(&logits, pages)| Feed { tokens: &tokens, position: 0, pages, logits, prompt: false })
        .collect();
    let mut outputs = Outputs::default();
    step(&feeds, &pool, &mut outputs).unwrap();
    let row = outputs.get(1).to_vec();
    assert_eq!(row.len(), vocab_size);
    let few: Vec<f32> = ids.iter().map(|&id| row[id as usize]).collect();
    for feed in [2, 7] {
        assert_eq!(bits(&outputs.get(feed).to_vec()), bits(&few));
    }
    for feed in [3, 8] {
        assert!(matches!(outputs.get(feed), Output::Best(token) if token == best(&row)));
    }
    let all = outputs.get(4).to_vec();
    assert_eq!(all.len(), tokens.len() * vocab_size);
    assert_eq!(bits(&all[(tokens.len() - 1) * vocab_size..]), bits(&row));
    for feed in [0, 5] {
        assert!(matches!(outputs.get(feed), Output::Nothing));
    }
    let Output::Row { logits, log_sum_exp } = outputs.get(6) else { panic!("a row") };
    assert_eq!(bits(logits), bits(&row));
    let sum: f64 = row.iter().map(|logit| f64::from(*logit).exp()).sum();
    assert!(log_sum_exp.is_none_or(|found| (found - sum.ln()).abs() < 1e-5));

    // A token that is never chosen is not given, though it is the likeliest.
    let never = best(&row);
    let mut rest = row.clone();
    rest[never as usize] = f32::NEG_INFINITY;
    let mut outputs = Outputs::new(vec![never], vocab_size);
    step(&feeds, &pool, &mut outputs).unwrap();
    assert!(matches!(outputs.get(3), Output::Best(token) if token == best(&rest)));
    assert_eq!(bits(&outputs.get(1).to_vec()), bits(&rest));

    // A token that does not exist is an error when it is asked for late as well.
    let far = [vocab_size as u32];
    let far = Later(Logits::Only(&far));
    let feed = Feed { logits: Logits::Deferred(&far), ..feeds[0] };
    let error = step(&[feed], &pool, &mut outputs).unwrap_err();
    assert_eq!(error.code(), "ERR_TINYLLM_MODEL_INPUT");
}

#[test]
fn of_the_reference() {
    let gguf = Gguf::from_bytes(&TinyModel::default().bytes()).unwrap();
    let model = Model::load(&gguf, Device::Cpu).unwrap();
    every_way_of_asking_agrees(model.kv_shape(), model.vocab_size(), |feeds, pool, outputs| {
        model.step_into(feeds, pool, outputs)
    });
}

#[test]
fn of_the_packed_model() {
    let gguf = Gguf::open(test_models::smollm2()).unwrap();
    let model = PackedModel::load(&gguf, Cpu::detect(), 2).unwrap();
    every_way_of_asking_agrees(model.kv_shape(), model.vocab_size(), |feeds, pool, outputs| {
        model.step_into(feeds, pool, outputs)
    });
}
