//! Forward passes that compute nothing, and engines over them.

#![allow(dead_code)] // Each test file uses a part of it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crossbeam_channel::{Receiver, Sender, unbounded};
use tinyllm_engine::{
    Batch, EngineCore, EngineError, EngineOptions, Finish, Forward, Generation, Prefill, Request,
    TokenTable, block_on,
};
use tinyllm_kernels::{KvElement, KvPool, KvShape};
use tinyllm_model::{Feed, Logits as Wanted, Outputs};

/// Bytes 0 to 255, one token each.
pub(crate) const BYTES: u32 = 256;
/// The end token.
pub(crate) const EOS: u32 = 256;
/// Another end token.
pub(crate) const EOT: u32 = 257;
/// A token of several bytes.
pub(crate) const YES: u32 = 258;
/// A control token that ends nothing.
pub(crate) const CONTROL: u32 = 259;
/// An unused token.
pub(crate) const UNUSED: u32 = 260;
/// Tokens in the table; the logits have more rows.
pub(crate) const TABLE: usize = 261;
pub(crate) const ROWS: usize = 270;

pub(crate) const CONTEXT: usize = 256;

/// Added to a prompt's tokens where they are computed in another way.
const APART: u32 = 1000;

const SHAPE: KvShape = KvShape { layers: 2, kv_heads: 1, head_dim: 2, element: KvElement::F32 };

pub(crate) fn table() -> TokenTable {
    let mut bytes: Vec<Vec<u8>> = (0..=255u8).map(|b| vec![b]).collect();
    bytes.extend([vec![], vec![], b"yes".to_vec(), vec![], vec![]]);
    TokenTable::new(bytes, |id| id == CONTROL || id == UNUSED, vec![EOS, EOT], vec![UNUSED])
}

/// What a step was given: position, tokens and head of each feed.
pub(crate) type StepLog = Arc<Mutex<Vec<Vec<(usize, Vec<u32>, bool)>>>>;

/// Stores the tokens it is fed in the pages, and makes logits out of what it reads there: so a wrong
/// page, a wrong position or a lost token shows in the output.
pub(crate) struct Fake<L> {
    pub(crate) logits: L,
    /// Length of a row.
    pub(crate) rows: usize,
    pub(crate) log: StepLog,
    /// Whether a prompt's tokens are computed in another way, which shows, too.
    pub(crate) apart: bool,
    /// When there: a step waits for a permit.
    pub(crate) gate: Option<Receiver<()>>,
}

/// The row of logits after these tokens.
pub(crate) trait Logits: Send {
    fn row(&mut self, tokens: &[u32]) -> Vec<f32>;
}

impl<F: FnMut(&[u32]) -> Vec<f32> + Send> Logits for F {
    fn row(&mut self, tokens: &[u32]) -> Vec<f32> {
        self(tokens)
    }
}

impl<L: Logits> Forward for Fake<L> {
    fn vocab_size(&self) -> usize {
        self.rows
    }

    fn context_length(&self) -> usize {
        CONTEXT
    }

    fn kv_shape(&self) -> KvShape {
        SHAPE
    }

    fn step(
        &mut self,
        feeds: &[Feed<'_>],
        pool: &KvPool,
        outputs: &mut Outputs,
    ) -> Result<(), EngineError> {
        outputs.clear();
        let entry = feeds
            .iter()
            .map(|f| (f.position, f.tokens.to_vec(), !matches!(f.logits, Wanted::None)))
            .collect();
        self.log.lock().expect("no panic under the lock").push(entry);
        if let Some(gate) = &self.gate {
            let _ = gate.recv();
        }
        let mut access = pool.access()?;
        let mut rows = Vec::new();
        for feed in feeds {
            assert!(!feed.tokens.is_empty());
            for (i, &token) in feed.tokens.iter().enumerate() {
                let token = if self.apart && feed.prompt { token + APART } else { token };
                for layer in 0..2 {
                    let keys = [token as f32, layer as f32];
                    access.write(feed.pages, feed.position + i, layer, &keys, &keys)?;
                }
            }
            let wanted = match feed.logits {
                Wanted::Deferred(deferred) => deferred.logits(),
                wanted => wanted,
            };
            let mut row = Vec::new();
            if !matches!(wanted, Wanted::None) {
                let count = feed.position + feed.tokens.len();
                let (mut keys, mut values) = (vec![0.0; count * 2], vec![0.0; count * 2]);
                access.gather(feed.pages, count, 1, 0, &mut keys, &mut values)?;
                assert!(keys.iter().skip(1).step_by(2).all(|&layer| layer == 1.0));
                let tokens: Vec<u32> = keys.iter().step_by(2).map(|&t| t as u32).collect();
                row = self.logits.row(&tokens);
            }
            rows.push((wanted, row));
        }
        let whole = |wanted: &Wanted<'_>| matches!(wanted, Wanted::Last | Wanted::Best);
        let dense: Vec<f32> = rows
            .iter()
            .filter(|(wanted, _)| whole(wanted))
            .flat_map(|(_, row)| row.clone())
            .collect();
        let width = self.rows;
        outputs.rows(dense.len() / width, width).copy_from_slice(&dense);
        for (wanted, row) in &rows {
            match wanted {
                Wanted::Last | Wanted::Best => outputs.give_row(*wanted, width, None, None),
                Wanted::Only(ids) => {
                    let few: Vec<f32> = ids.iter().map(|&id| row[id as usize]).collect();
                    outputs.give_few(&few);
                }
                _ => outputs.give_nothing(),
            }
        }
        Ok(())
    }
}

/// Logits that are a hash of all tokens before: any confusion changes them.
pub(crate) fn hashed(tokens: &[u32]) -> Vec<f32> {
    hashed_row(tokens, ROWS)
}

pub(crate) fn hashed_row(tokens: &[u32], rows: usize) -> Vec<f32> {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for &token in tokens {
        hash = (hash ^ u64::from(token)).wrapping_mul(0x0100_0000_01b3);
    }
    (0..rows as u64)
        .map(|i| {
            let mut x = hash ^ i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((x >> 40) as f32) / ((1 << 24) as f32) * 8.0
        })
        .collect()
}

/// Logits that follow a script: after `n` tokens the `n`-th token of the script is the likeliest.
pub(crate) fn scripted(prompt: usize, script: Vec<u32>) -> impl Logits {
    move |tokens: &[u32]| {
        let mut row = vec![0.0; ROWS];
        row[script[(tokens.len() - prompt) % script.len()] as usize] = 10.0;
        row
    }
}

pub(crate) fn engine_with_outbox(
    logits: impl Logits + 'static,
    options: &EngineOptions,
    tokens: usize,
) -> (EngineCore, StepLog) {
    engine(logits, &EngineOptions { outbox_tokens: tokens, ..options.clone() })
}

pub(crate) fn engine(
    logits: impl Logits + 'static,
    options: &EngineOptions,
) -> (EngineCore, StepLog) {
    let log = StepLog::default();
    let apart = options.prefill == Prefill::Fast;
    let fake = Fake { logits, rows: ROWS, log: Arc::clone(&log), apart, gate: None };
    (EngineCore::start(Box::new(fake), table(), options).expect("an engine"), log)
}

/// An engine whose steps wait for a permit each.
pub(crate) fn gated(
    logits: impl Logits + 'static,
    options: &EngineOptions,
) -> (EngineCore, StepLog, Sender<()>) {
    let (permits, gate) = unbounded();
    let log = StepLog::default();
    let apart = options.prefill == Prefill::Fast;
    let fake = Fake { logits, rows: ROWS, log: Arc::clone(&log), apart, gate: Some(gate) };
    (EngineCore::start(Box::new(fake), table(), options).expect("an engine"), log, permits)
}

/// Bytes of a page of the fakes' pool.
pub(crate) fn page_bytes() -> usize {
    2 * SHAPE.layers * SHAPE.row() * 32 * 4
}

/// Everything a generation puts out.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Output {
    pub(crate) tokens: Vec<u32>,
    pub(crate) text: String,
    pub(crate) bytes: Vec<u8>,
    pub(crate) logprobs: Vec<tinyllm_engine::Logprobs>,
    pub(crate) finish: Finish,
}

pub(crate) fn collect(generation: &Generation) -> Result<Output, EngineError> {
    let mut all = Batch::default();
    while let Some(batch) = block_on(generation.next_batch())? {
        assert!(all.finish.is_none(), "nothing follows the end");
        all.tokens.extend(batch.tokens);
        all.text.push_str(&batch.text);
        all.bytes.extend(batch.bytes);
        all.logprobs.extend(batch.logprobs);
        all.finish = batch.finish;
    }
    let finish = all.finish.expect("the last batch says how it ended");
    Ok(Output {
        tokens: all.tokens,
        text: all.text,
        bytes: all.bytes,
        logprobs: all.logprobs,
        finish,
    })
}

pub(crate) fn generate(core: &EngineCore, request: Request) -> Result<Output, EngineError> {
    collect(&core.submit(request)?)
}

/// A prompt of these bytes.
pub(crate) fn prompt(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

/// Counts panics that tests cause on purpose, keeping them off the terminal.
pub(crate) fn silence_panics() -> Arc<AtomicUsize> {
    let count = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&count);
    std::panic::set_hook(Box::new(move |_| {
        seen.fetch_add(1, Ordering::Relaxed);
    }));
    count
}
