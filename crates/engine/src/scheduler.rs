//! The engine's thread: which sequences are computed in a step, and what becomes of them.
//!
//! Each step takes every sequence that has few tokens pending (the *decode rows*), then fills a
//! budget of prompt tokens (the *prefill chunk*) in order of admission. Admission is first come,
//! first served, and waits for free pages; when a running sequence needs a page and there is none,
//! the cache gives up pages, then sequences do, the newest first: they return to the head of the
//! queue and find their pages in the cache again, or compute them again. So the oldest sequence
//! always goes on, and nobody waits for ever. Sequences whose reader is slow are passed over, give
//! up their pages before all others, and count towards no limit.
//!
//! Nothing here can change a sequence's output: logits depend on the sequence alone (see
//! [`Forward`]), and so do its generator, its constraint and its text.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use tinyllm_kernels::KvPool;
use tinyllm_model::{Feed, Logits};
use tinyllm_sampler::Sampler;

use crate::error::EngineError;
use crate::forward::Forward;
use crate::prefix_cache::PrefixCache;
use crate::sequence::{SeqId, Sequence};
use crate::stats::Counters;
use crate::token_table::TokenTable;

/// Most pending tokens of a decode row; a longer run of forced tokens counts as prefill.
const DECODE_ROW_MAX: usize = 16;
/// How long a prefill chunk may hold up the decode rows of its step.
const CHUNK_TARGET: Duration = Duration::from_millis(50);
/// How long a chunk may take when nobody decodes: a cancellation waits for its end.
const CHUNK_TARGET_ALONE: Duration = Duration::from_millis(200);
/// Bounds of the chunk that is measured out in time.
const CHUNK_MIN: usize = 16;
const CHUNK_MAX: usize = 512;
/// The first chunk, before anything was measured.
const CHUNK_FIRST: usize = 64;

/// What the engine's thread is told.
pub(crate) enum Command {
    Submit(Box<Sequence>),
    /// Something changed: a cancellation, an emptied outbox, the end.
    Wake,
}

/// What the thread shares with the handles.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(crate) closed: AtomicBool,
    pub(crate) counters: Counters,
}

/// What of [`crate::EngineOptions`] concerns the scheduler.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Policy {
    pub(crate) parallel: usize,
    /// Prompt tokens per step; `None`: measured out to [`CHUNK_TARGET`].
    pub(crate) prefill_chunk: Option<usize>,
}

// Sequences move between the queues and the compiler's thread; a box moves as a pointer.
#[allow(clippy::vec_box)]
pub(crate) struct Scheduler {
    forward: Box<dyn Forward>,
    pool: Arc<KvPool>,
    table: Arc<TokenTable>,
    shared: Arc<Shared>,
    policy: Policy,
    cache: PrefixCache,
    sampler: Sampler,
    waiting: VecDeque<Box<Sequence>>,
    /// In order of admission.
    running: Vec<Box<Sequence>>,
    /// Prompt tokens computed per second, as last measured.
    prefill_rate: f64,
}

/// A sequence's share of the step to come.
struct Row {
    id: SeqId,
    count: usize,
}

impl Scheduler {
    pub(crate) fn new(
        forward: Box<dyn Forward>,
        pool: Arc<KvPool>,
        table: Arc<TokenTable>,
        shared: Arc<Shared>,
        policy: Policy,
    ) -> Self {
        shared.counters.pages_total.set(pool.capacity());
        Self {
            forward,
            pool,
            table,
            shared,
            policy,
            cache: PrefixCache::new(),
            sampler: Sampler::new(),
            waiting: VecDeque::new(),
            running: Vec::new(),
            prefill_rate: 0.0,
        }
    }

    /// Runs until the engine is closed or every handle is gone.
    pub(crate) fn run(mut self, commands: &Receiver<Command>) {
        while self.intake(commands) {
            self.turn();
        }
        // Dropping the sequences tells their readers.
    }

    /// Takes commands; waits for one when there is nothing to do. False: it is over.
    fn intake(&mut self, commands: &Receiver<Command>) -> bool {
        let mut first = if self.is_idle() {
            match commands.recv() {
                Ok(command) => Some(command),
                Err(_) => return false,
            }
        } else {
            None
        };
        while let Some(command) = first.take().or_else(|| commands.try_recv().ok()) {
            if let Command::Submit(sequence) = command {
                self.waiting.push_back(sequence);
            }
        }
        !self.shared.closed.load(Ordering::Acquire)
    }

    /// Whether nothing can be done before a command comes.
    fn is_idle(&self) -> bool {
        self.running
            .iter()
            .chain(&self.waiting)
            .all(|s| s.outbox.is_full() && !s.outbox.is_cancelled())
    }

    /// One step, with what comes before and after it.
    fn turn(&mut self) {
        self.sweep();
        self.admit();
        let rows = self.plan();
        if !rows.is_empty() {
            self.step(&rows);
        }
        self.sweep();
        self.report();
    }

    fn report(&self) {
        let counters = &self.shared.counters;
        counters.running.set(self.running.len());
        counters.waiting.set(self.waiting.len());
        counters.pages_used.set(self.pool.used());
        counters.pages_cached.set(self.cache.len());
    }

    /// Removes what has ended or was cancelled.
    fn sweep(&mut self) {
        let counters = &self.shared.counters;
        let ended = |sequence: &Sequence| {
            if sequence.is_finished() {
                counters.finished.add(1);
                true
            } else if sequence.outbox.is_cancelled() {
                counters.cancelled.add(1);
                true
            } else {
                false
            }
        };
        self.waiting.retain(|sequence| !ended(sequence));
        let mut gone = self.running.extract_if(.., |sequence| ended(sequence)).collect::<Vec<_>>();
        for sequence in &mut gone {
            self.give_back(sequence);
        }
    }

    fn give_back(&mut self, sequence: &mut Sequence) {
        if let Err(error) = sequence.drop_pages(&self.pool) {
            sequence.outbox.fail(error);
        }
    }

    /// Moves waiting sequences to the running ones, in order, as long as there is room.
    fn admit(&mut self) {
        let mut passed = VecDeque::new();
        while let Some(mut sequence) = self.waiting.pop_front() {
            if sequence.outbox.is_full() {
                passed.push_back(sequence);
                continue;
            }
            let active = self.running.iter().filter(|s| !s.outbox.is_full()).count();
            if active >= self.policy.parallel {
                self.waiting.push_front(sequence);
                break;
            }
            match self.prepare(&mut sequence) {
                Ok(true) => self.running.push(sequence),
                Ok(false) => {
                    self.waiting.push_front(sequence);
                    break;
                }
                Err(error) => self.fail(sequence, error),
            }
        }
        while let Some(sequence) = passed.pop_back() {
            self.waiting.push_front(sequence);
        }
    }

    /// Finds cached pages for a sequence and sees whether there are free ones for the rest. False:
    /// not yet.
    fn prepare(&mut self, sequence: &mut Sequence) -> Result<bool, EngineError> {
        sequence.settle(&self.table)?;
        self.shared.counters.count(sequence.take_counts());
        if sequence.is_finished() {
            return Ok(true);
        }
        sequence.reuse(&mut self.cache, &self.pool)?;
        let missing = sequence.pages_missing(sequence.pending().len());
        let has_room = |scheduler: &Self| {
            let free = scheduler.pool.free();
            missing <= free || missing <= free + scheduler.cache.evictable(&scheduler.pool)
        };
        // With nothing else running the pool is the sequence's: its limit fits the pool.
        while !has_room(self) && !self.running.is_empty() {
            if self.slow_holder().is_none() {
                sequence.drop_pages(&self.pool)?;
                return Ok(false);
            }
            self.preempt()?;
        }
        if sequence.note_admission() {
            self.shared.counters.prompt_tokens.add(sequence.prompt_len());
        }
        self.shared.counters.cached_tokens.add(sequence.note_cached());
        Ok(true)
    }

    fn fail(&mut self, mut sequence: Box<Sequence>, error: EngineError) {
        self.shared.counters.failed.add(1);
        sequence.outbox.fail(error);
        self.give_back(&mut sequence);
    }

    fn find(&self, id: SeqId) -> Option<usize> {
        self.running.iter().position(|s| s.id == id)
    }

    /// Takes a running sequence out with an error.
    fn fail_running(&mut self, id: SeqId, error: EngineError) {
        if let Some(at) = self.find(id) {
            let sequence = self.running.remove(at);
            self.fail(sequence, error);
        }
    }

    /// Decides the step's rows and sees to their pages.
    fn plan(&mut self) -> Vec<Row> {
        let active: Vec<(SeqId, usize)> = self
            .running
            .iter()
            .filter(|s| !s.is_finished() && !s.outbox.is_full())
            .map(|s| (s.id, s.pending().len()))
            .collect();
        let (decode, prefill): (Vec<_>, Vec<_>) =
            active.into_iter().partition(|(_, pending)| *pending <= DECODE_ROW_MAX);
        let mut rows = Vec::new();
        for (id, count) in decode {
            self.add_row(&mut rows, id, count);
        }
        let mut budget = self.chunk(rows.is_empty());
        for (id, _) in prefill {
            if budget == 0 {
                break;
            }
            // Another sequence may have computed this one's prompt since.
            let pending = match self.skip_ahead(id) {
                Ok(pending) => pending,
                Err(error) => {
                    self.fail_running(id, error);
                    continue;
                }
            };
            let count = pending.min(budget);
            if self.add_row(&mut rows, id, count) {
                budget -= count;
            }
        }
        // A row's sequence may have been preempted by a later row.
        rows.retain(|row| self.find(row.id).is_some());
        rows
    }

    fn skip_ahead(&mut self, id: SeqId) -> Result<usize, EngineError> {
        let Some(at) = self.find(id) else {
            return Ok(0);
        };
        let sequence = &mut self.running[at];
        sequence.reuse(&mut self.cache, &self.pool)?;
        self.shared.counters.cached_tokens.add(sequence.note_cached());
        Ok(sequence.pending().len())
    }

    /// Prompt tokens for this step.
    fn chunk(&self, alone: bool) -> usize {
        let target = if alone { CHUNK_TARGET_ALONE } else { CHUNK_TARGET };
        match self.policy.prefill_chunk {
            Some(tokens) => tokens,
            None if self.prefill_rate == 0.0 => CHUNK_FIRST,
            None => {
                ((self.prefill_rate * target.as_secs_f64()) as usize).clamp(CHUNK_MIN, CHUNK_MAX)
            }
        }
    }

    /// Adds a row when the sequence still runs and its pages can be had.
    fn add_row(&mut self, rows: &mut Vec<Row>, id: SeqId, count: usize) -> bool {
        match self.reserve(id, count) {
            Ok(true) if count > 0 => {
                rows.push(Row { id, count });
                true
            }
            Ok(_) => false,
            Err(error) => {
                self.fail_running(id, error);
                false
            }
        }
    }

    /// Gives a running sequence pages for its next `count` tokens, taking them from the cache and
    /// from other sequences if need be. False when it is not running, or had to yield itself.
    fn reserve(&mut self, id: SeqId, count: usize) -> Result<bool, EngineError> {
        loop {
            let Some(at) = self.find(id) else {
                return Ok(false);
            };
            if self.running[at].pages_missing(count) == 0 {
                return Ok(true);
            }
            if self.pool.free() > 0 {
                let page = self.pool.allocate()?;
                self.running[at].add_page(page);
            } else if self.cache.evict(&self.pool)? {
                self.shared.counters.evictions.add(1);
            } else {
                self.preempt()?;
            }
        }
    }

    /// The newest sequence that holds pages and whose reader is slow.
    fn slow_holder(&self) -> Option<usize> {
        self.running.iter().rposition(|s| !s.pages().is_empty() && s.outbox.is_full())
    }

    /// Takes the pages of the newest sequence, those with slow readers first.
    fn preempt(&mut self) -> Result<(), EngineError> {
        let newest = || self.running.iter().rposition(|s| !s.pages().is_empty());
        let Some(at) = self.slow_holder().or_else(newest) else {
            return Err(EngineError::Internal("no page is left and nobody holds one".to_owned()));
        };
        let mut sequence = self.running.remove(at);
        sequence.drop_pages(&self.pool)?;
        self.shared.counters.preemptions.add(1);
        self.waiting.push_front(sequence);
        Ok(())
    }

    /// Runs the forward pass over the rows and chooses the tokens.
    fn step(&mut self, rows: &[Row]) {
        let mut feeds = Vec::with_capacity(rows.len());
        let mut order = Vec::with_capacity(rows.len());
        for row in rows {
            let Some(at) = self.find(row.id) else { continue };
            let sequence = &self.running[at];
            let pending = sequence.pending();
            order.push(at);
            feeds.push(Feed {
                tokens: &pending[..row.count],
                position: sequence.computed(),
                pages: sequence.pages(),
                logits: if row.count < pending.len() {
                    Logits::None
                } else {
                    sequence.allowed().map_or(Logits::Last, Logits::Only)
                },
            });
        }
        let tokens: usize = feeds.iter().map(|f| f.tokens.len()).sum();
        let started = Instant::now();
        let forward = &mut self.forward;
        let pool = &self.pool;
        let result = caught(|| forward.step(&feeds, pool));
        if tokens >= 2 * CHUNK_MIN {
            self.prefill_rate = tokens as f64 / started.elapsed().as_secs_f64().max(1e-6);
        }
        drop(feeds);
        let counters = &self.shared.counters;
        counters.steps.add(1);
        counters.forward_tokens.add(tokens);
        let logits = match result {
            Ok(logits) => logits,
            Err(error) => {
                for row in rows {
                    self.fail_running(row.id, error.clone());
                }
                return;
            }
        };
        let mut failed = Vec::new();
        for ((row, at), logits) in rows.iter().zip(order).zip(logits) {
            let sequence = &mut self.running[at];
            let outcome = sequence.advance(row.count, &mut self.cache, &self.pool).and_then(|()| {
                if logits.is_empty() {
                    return Ok(());
                }
                caught(|| sequence.choose(logits, &mut self.sampler, &self.table))
            });
            let counts = self.running[at].take_counts();
            counters.count(counts);
            if let Err(error) = outcome {
                failed.push((row.id, error));
            }
        }
        for (id, error) in failed {
            self.fail_running(id, error);
        }
    }
}

impl Drop for Scheduler {
    /// However the thread ends, nobody may wait for it.
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Release);
        self.running.clear();
        self.waiting.clear();
        self.report();
    }
}

/// Runs `work`; a panic becomes an error, so that one step's defect costs its requests only.
pub(crate) fn caught<T>(work: impl FnOnce() -> Result<T, EngineError>) -> Result<T, EngineError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let message = panic
            .downcast_ref::<&str>()
            .map(|s| (*s).to_owned())
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "a panic without a message".to_owned());
        Err(EngineError::Internal(message))
    })
}
