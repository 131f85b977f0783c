//! What the tests of packed models share: a sequence with pages of its own, and the golden logits.

use tinyllm_kernels::{KvPool, PageId};
use tinyllm_model::{Feed, Logits, PackedModel};
use tinyllm_testkit::golden::{self, floats, ids};

/// Mean squared error over mean square.
const NMSE_MAX: f64 = 1e-3;
/// Where the two best logits are closer than this, either may come first.
pub(crate) const GAP_MIN: f64 = 0.15;

pub(crate) fn argmax(logits: &[f32]) -> u32 {
    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
    best.unwrap().0 as u32
}

pub(crate) fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

/// One sequence with its own pages.
pub(crate) struct Sequence {
    pub(crate) pages: Vec<PageId>,
    pub(crate) len: usize,
    /// Whether it is fed a prompt.
    pub(crate) prompt: bool,
}

impl Sequence {
    pub(crate) fn new(pool: &KvPool, positions: usize) -> Self {
        let pages = pool.allocate_many(positions.div_ceil(32)).unwrap();
        Self { pages, len: 0, prompt: true }
    }

    pub(crate) fn feed(
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

/// The model's errors at every position for which the golden file has logits.
pub(crate) fn matches_golden(model: &PackedModel, name: &str) {
    let (mut error, mut power) = (0.0, 0.0);
    let mut worst = 0.0_f64;
    for case in golden::logits(name) {
        let prompt = ids(&case["ids"]);
        let pool = KvPool::new(model.kv_shape(), 64).unwrap();
        let mut sequence = Sequence::new(&pool, prompt.len());
        let all = sequence.feed(model, &pool, &prompt, Logits::All);
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
