//! What quantised activations and half-precision keys cost: the perplexity of a text by the packed
//! forward pass against the reference's.
//! `cargo run --release -p tinyllm-model --example perplexity -- model.gguf [tokens] [texts...]`
//!
//! The text is the named files one after another, or else this repository's own documentation, cut
//! into windows of [`WINDOW`] tokens; every token but a window's first is predicted from those
//! before it. `TINYLLM_CPU` chooses the tier (which changes the speed, not the numbers). Fails when
//! the two differ by more than [`MOST`].

use std::path::Path;

use tinyllm_kernels::{KvPool, PAGE_POSITIONS, choose};
use tinyllm_model::{Device, Feed, Gguf, Logits, Model, PackedModel, VocabMetadata};
use tinyllm_tokenizer::{Tokenizer, VocabSpec};

type Failure = Box<dyn std::error::Error>;

/// Tokens that are predicted from the same beginning.
const WINDOW: usize = 512;
/// How far the two perplexities may be apart, as a part of the reference's.
const MOST: f64 = 0.005;

const TEXTS: [&str; 6] = [
    "README.md",
    "ARCHITECTURE.md",
    "docs/routing.md",
    "docs/errors.md",
    "docs/grammars.md",
    "docs/server.md",
];

fn tokenizer(gguf: &Gguf) -> Result<Tokenizer, Failure> {
    let vocab = VocabMetadata::from_gguf(gguf)?;
    Ok(Tokenizer::new(&VocabSpec {
        model: vocab.model,
        pre: vocab.pre.unwrap_or_default(),
        tokens: vocab.tokens,
        kinds: vocab.kinds,
        merges: vocab.merges,
        bos: vocab.bos,
        eos: vocab.eos,
        eot: vocab.eot,
        eom: vocab.eom,
        unk: vocab.unk,
        pad: vocab.pad,
        add_bos: vocab.add_bos,
        chat_template: None,
    })?)
}

/// The logarithm of each token's probability but the first one's; `logits` has a row per token.
fn log_probabilities(tokens: &[u32], logits: &[f32]) -> Vec<f64> {
    let rows = logits.chunks_exact(logits.len() / tokens.len());
    let next = &tokens[1..];
    rows.zip(next)
        .map(|(row, &token)| {
            let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let sum: f64 = row.iter().map(|&x| f64::from(x - largest).exp()).sum();
            f64::from(row[token as usize] - largest) - sum.ln()
        })
        .collect()
}

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: perplexity model.gguf [tokens] [texts...]")?;
    let most = arguments.next().map_or(Ok(4096), |text| text.parse())?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut texts: Vec<_> = arguments.map(Into::into).collect();
    if texts.is_empty() {
        texts = TEXTS.map(|text| root.join(text)).to_vec();
    }
    let gguf = Gguf::open(&path)?;
    let mut text = String::new();
    for path in texts {
        text.push_str(&std::fs::read_to_string(path)?);
    }
    let mut tokens = tokenizer(&gguf)?.encode(&text, false)?;
    tokens.truncate(most);

    let report = choose(std::env::var("TINYLLM_CPU").ok().as_deref())?;
    let packed = PackedModel::load(&gguf, report.cpu, 2)?;
    let reference = Model::load(&gguf, Device::Cpu)?;
    let pages = WINDOW / PAGE_POSITIONS;
    let pools = [KvPool::new(packed.kv_shape(), pages)?, KvPool::new(reference.kv_shape(), pages)?];
    let [packed_table, reference_table] =
        [pools[0].allocate_many(pages)?, pools[1].allocate_many(pages)?];
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for tokens in tokens.chunks(WINDOW).filter(|tokens| tokens.len() > 1) {
        let feed = |pages| Feed { tokens, position: 0, pages, logits: Logits::All, prompt: false };
        let logits = packed.step(&[feed(&packed_table)], &pools[0])?;
        ours.extend(log_probabilities(tokens, &logits[0]));
        let logits = reference.step(&[feed(&reference_table)], &pools[1])?;
        theirs.extend(log_probabilities(tokens, &logits[0]));
    }

    let count = ours.len() as f64;
    let mean = |values: &[f64]| values.iter().sum::<f64>() / count;
    let perplexity = |values: &[f64]| (-mean(values)).exp();
    let apart: Vec<f64> = ours.iter().zip(&theirs).map(|(a, b)| b - a).collect();
    let shift = mean(&apart);
    let variance = apart.iter().map(|x| (x - shift).powi(2)).sum::<f64>() / (count - 1.0);
    let relative = shift.exp() - 1.0;
    println!(
        "{path}: {count} predictions, perplexity {:.4} packed ({}), {:.4} reference: {:+.3} % \
         (standard error {:.3} %)",
        perplexity(&ours),
        report.cpu.tier().name(),
        perplexity(&theirs),
        relative * 100.0,
        (variance / count).sqrt() * 100.0,
    );
    if relative.abs() > MOST {
        return Err(format!("more than {} % apart", MOST * 100.0).into());
    }
    Ok(())
}
