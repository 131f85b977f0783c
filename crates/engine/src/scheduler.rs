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
//! A family (see [`crate::sequence`]) is one sequence here until its first choice; then the others
//! wait before everybody else, with pages that are given up before anybody's who runs.
//!
//! Nothing here can change a sequence's output: logits depend on the sequence alone (see
//! [`Forward`]), and so do its generator, its constraint and its text.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::Receiver;
use tinyllm_kernels::KvPool;
use tinyllm_model::Outputs;
use tinyllm_sampler::Sampler;

use crate::error::EngineError;
use crate::forward::Forward;
use crate::masks::MaskThread;
use crate::prefix_cache::PrefixCache;
use crate::sequence::{Patience, SeqId, Sequence};
use crate::stats::Counters;
use crate::token_table::TokenTable;

/// Most pending tokens of a decode row; a longer run of forced tokens counts as prefill.
const DECODE_ROW_MAX: usize = 16;
/// How long a prefill chunk may hold up the decode rows of its step.
const CHUNK_TARGET: Duration = Duration::from_millis(50);
/// How long a chunk may take when nobody decodes: a cancellation waits for its end.
const CHUNK_TARGET_ALONE: Duration = Duration::from_millis(200);
/// Bounds of the chunk that is measured out in time.
pub(crate) const CHUNK_MIN: usize = 16;
const CHUNK_MAX: usize = 512;
/// The first chunk, before anything was measured.
const CHUNK_FIRST: usize = 64;

/// As much of `pending` tokens as `budget` allows, in as few parts as possible and of about the same
/// size: a short last part would compute its tokens more slowly than the others.
fn even_part(pending: usize, budget: usize) -> usize {
    if pending <= budget {
        return pending;
    }
    let parts = pending.div_ceil(budget.max(1));
    pending.div_ceil(parts).next_multiple_of(CHUNK_MIN).min(budget)
}

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
    /// Whether there is a [`Command::Wake`] that was not taken yet.
    pub(crate) woken: AtomicBool,
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
    pub(crate) forward: Box<dyn Forward>,
    pub(crate) pool: Arc<KvPool>,
    pub(crate) table: Arc<TokenTable>,
    pub(crate) shared: Arc<Shared>,
    policy: Policy,
    pub(crate) cache: PrefixCache,
    pub(crate) masks: MaskThread,
    pub(crate) sampler: Sampler,
    pub(crate) outputs: Outputs,
    pub(crate) waiting: VecDeque<Box<Sequence>>,
    /// In order of admission.
    pub(crate) running: Vec<Box<Sequence>>,
    /// Prompt tokens computed per second, as last measured.
    pub(crate) prefill_rate: f64,
}

/// A sequence's share of the step to come.
pub(crate) struct Row {
    pub(crate) id: SeqId,
    pub(crate) count: usize,
}

impl Scheduler {
    pub(crate) fn new(
        forward: Box<dyn Forward>,
        pool: Arc<KvPool>,
        table: Arc<TokenTable>,
        shared: Arc<Shared>,
        masks: MaskThread,
        policy: Policy,
    ) -> Self {
        let outputs = table.outputs();
        shared.counters.pages_total.set(pool.capacity());
        Self {
            forward,
            pool,
            table,
            shared,
            policy,
            cache: PrefixCache::new(),
            masks,
            sampler: Sampler::new(),
            outputs,
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
            match command {
                Command::Submit(sequence) => self.waiting.push_back(sequence),
                // What was changed before is seen after this; for later changes another will come.
                Command::Wake => drop(self.shared.woken.swap(false, Ordering::AcqRel)),
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
        let carried = self.running.iter().chain(&self.waiting).map(|s| s.others.len());
        counters.waiting.set(self.waiting.len() + carried.sum::<usize>());
        counters.pages_used.set(self.pool.used());
        counters.pages_cached.set(self.cache.len());
    }

    /// Removes what has ended or was cancelled.
    fn sweep(&mut self) {
        let counters = &self.shared.counters;
        let mut ended = |sequence: &mut Box<Sequence>| {
            counters.cancelled.add(sequence.drop_cancelled());
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
        let mut gone: Vec<_> = self.running.extract_if(.., &mut ended).collect();
        // (A deque has no such method.)
        let waiting = std::mem::take(&mut self.waiting);
        for mut sequence in waiting {
            if ended(&mut sequence) {
                gone.push(sequence);
            } else {
                self.waiting.push_back(sequence);
            }
        }
        for sequence in &mut gone {
            self.give_back(sequence);
            self.waiting_first(sequence.orphans());
        }
    }

    /// Puts sequences before those that wait, in their order.
    pub(crate) fn waiting_first(
        &mut self,
        sequences: impl IntoIterator<Item = Box<Sequence>, IntoIter: DoubleEndedIterator>,
    ) {
        for sequence in sequences.into_iter().rev() {
            self.waiting.push_front(sequence);
        }
    }

    pub(crate) fn give_back(&mut self, sequence: &mut Sequence) {
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
                Err(error) => self.fail(sequence, &error),
            }
        }
        self.waiting_first(passed);
    }

    /// Finds cached pages for a sequence and sees whether there are free ones for the rest. False:
    /// not yet.
    fn prepare(&mut self, sequence: &mut Sequence) -> Result<bool, EngineError> {
        sequence.settle(&self.table, Patience::Little)?;
        self.shared.counters.count(sequence.take_counts());
        if sequence.is_finished() {
            return Ok(true);
        }
        sequence.reuse(&mut self.cache, &self.pool)?;
        let missing = sequence.pages_missing(sequence.pending().len(), &self.pool);
        let has_room = |scheduler: &Self| {
            let free = scheduler.pool.free();
            missing <= free || missing <= free + scheduler.cache.evictable(&scheduler.pool)
        };
        // With nothing else running the pool is the sequence's: its limit fits the pool.
        while !has_room(self) && !self.running.is_empty() {
            if self.slow_holder().is_none() && self.waiting_holder().is_none() {
                sequence.drop_pages(&self.pool)?;
                return Ok(false);
            }
            self.preempt()?;
        }
        self.note_admission(sequence);
        Ok(true)
    }

    /// Counts a sequence's prompt, the first time, and what of it was found computed.
    pub(crate) fn note_admission(&self, sequence: &mut Sequence) {
        let counters = &self.shared.counters;
        if sequence.note_admission() {
            counters.prompt_tokens.add(sequence.prompt_len());
        }
        counters.cached_tokens.add(sequence.note_cached());
    }

    fn fail(&mut self, mut sequence: Box<Sequence>, error: &EngineError) {
        self.shared.counters.failed.add(sequence.fail(error));
        self.give_back(&mut sequence);
    }

    pub(crate) fn find(&self, id: SeqId) -> Option<usize> {
        self.running.iter().position(|s| s.id == id)
    }

    /// Takes a running sequence out with an error.
    pub(crate) fn fail_running(&mut self, id: SeqId, error: &EngineError) {
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
            .map(|s| (s.id, s.pending_at_once()))
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
                    self.fail_running(id, &error);
                    continue;
                }
            };
            let count = match self.policy.prefill_chunk {
                Some(_) => pending.min(budget),
                None => even_part(pending, budget),
            };
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
        Ok(sequence.pending_at_once())
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
                self.fail_running(id, &error);
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
            if self.running[at].pages_missing(count, &self.pool) == 0 {
                return Ok(true);
            }
            if self.pool.free() > 0 {
                self.running[at].add_page(&self.pool)?;
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

    /// The last of those that wait with pages: of a family that has just forked.
    fn waiting_holder(&self) -> Option<usize> {
        self.waiting.iter().rposition(|s| !s.pages().is_empty())
    }

    /// Takes the pages of one that waits with some, or of the newest sequence, those with slow
    /// readers first.
    fn preempt(&mut self) -> Result<(), EngineError> {
        if let Some(at) = self.waiting_holder() {
            self.shared.counters.preemptions.add(1);
            return self.waiting[at].drop_pages(&self.pool);
        }
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
