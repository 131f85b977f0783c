//! The engine without a tokenizer: token ids in, tokens and text out. Three threads, one that
//! computes, one that compiles grammars and one that finds masks while the first is busy with
//! layers, and the handles to them.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use tinyllm_constrain::{CompiledGrammar, Grammar};
use tinyllm_kernels::{KvPool, PAGE_POSITIONS};

use crate::compiler::{Compiler, Job};
use crate::error::EngineError;
use crate::forward::Forward;
use crate::grammar_cache::GrammarCache;
use crate::masks::MaskThread;
use crate::outbox::{Batch, Outbox};
use crate::promise::promise;
use crate::request::Request;
use crate::scheduler::{Command, Policy, Scheduler, Shared};
use crate::sequence::{SeqId, Sequence, Ticket};
use crate::stats::Stats;
use crate::token_table::TokenTable;

/// How an engine uses its machine.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// Positions for one sequence, prompt and answer together. Default: what the model was made
    /// for, at most 8,192. Never more than the pages hold.
    pub context_length: Option<usize>,
    /// Sequences that make progress at the same time. Default: 32.
    pub parallel: usize,
    /// Requests that may wait beyond those. Default: 256.
    pub max_queue: usize,
    /// Bytes of keys and values kept, for running sequences and for the prefix cache together.
    /// Memory is taken as it is used. Default: 1 GiB; at least one context.
    pub kv_bytes: usize,
    /// Prompt tokens computed per step. Default: as many as take 50 ms while others decode.
    pub prefill_chunk: Option<usize>,
    /// How logits are computed. Default: packed weights where there are kernels for them.
    pub path: ForwardPath,
    /// How prompts are computed. Default: exactly.
    pub prefill: Prefill,
    /// The CPU tier asked for by name (`portable`, `avx2`, `avx512`, `amx`). Default: the best.
    pub cpu: Option<String>,
    /// Threads of the forward pass. Default: as many as the machine runs at once.
    pub threads: Option<usize>,
    /// Tokens a generation has ready before it waits for its reader. Default: 256.
    pub outbox_tokens: usize,
    /// Bytes of compiled grammars kept for reuse. Default: 256 MiB.
    pub grammar_cache_bytes: usize,
}

/// How logits are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ForwardPath {
    /// Packed weights, or the reference for files with a weight type that has no kernel.
    #[default]
    Packed,
    /// Weights in full precision: exact, and some ten times slower.
    Reference,
}

/// How prompts are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Prefill {
    /// Like answers: a position's logits depend on the tokens up to it alone.
    #[default]
    Exact,
    /// With bf16 products, on CPUs that have AMX tiles for them. Tokens of a prompt are computed
    /// this way and no others, so a position's logits depend on the tokens up to it and on which of
    /// them were the prompt's: a step ends where a prompt does, and only pages of prompts are shared.
    Fast,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            context_length: None,
            parallel: 32,
            max_queue: 256,
            kv_bytes: 1 << 30,
            prefill_chunk: None,
            path: ForwardPath::default(),
            prefill: Prefill::Exact,
            cpu: None,
            threads: None,
            outbox_tokens: 256,
            grammar_cache_bytes: 256 << 20,
        }
    }
}

/// Context kept by default at most: a model's 128k would take gigabytes for the first long prompt.
const DEFAULT_CONTEXT_MAX: usize = 8192;

/// Grammars that may wait to be compiled for nothing but the knowledge that they do.
const CHECKS_MAX: usize = 256;

/// See the module's documentation. Dropping it closes the engine without waiting.
#[derive(Debug)]
pub struct EngineCore {
    table: Arc<TokenTable>,
    shared: Arc<Shared>,
    commands: Sender<Command>,
    jobs: Sender<Job>,
    wakes: Wakes,
    grammars: Arc<GrammarCache>,
    places: Arc<AtomicUsize>,
    /// Places of those who wait to know whether a grammar compiles.
    checks: Arc<AtomicUsize>,
    places_max: usize,
    next_id: AtomicU64,
    vocab_size: usize,
    context: usize,
    kv_bytes: usize,
    outbox_tokens: usize,
    prefill: Prefill,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Disconnected when the engine's thread has ended.
    ended: Receiver<()>,
}

impl EngineCore {
    /// Starts the threads over a forward pass.
    pub fn start(
        forward: Box<dyn Forward>,
        table: TokenTable,
        options: &EngineOptions,
    ) -> Result<Self, EngineError> {
        let trained = forward.context_length();
        let context = options.context_length.unwrap_or(trained.min(DEFAULT_CONTEXT_MAX));
        if context < 2 || context > trained {
            return Err(EngineError::invalid(
                "contextLength",
                format!("must be from 2 to {trained}, the positions this model was made for"),
            ));
        }
        if options.parallel == 0 {
            return Err(EngineError::invalid("parallel", "must be at least 1"));
        }
        if options.prefill_chunk == Some(0) {
            return Err(EngineError::invalid("prefillChunk", "must be at least 1"));
        }
        let shape = forward.kv_shape();
        let page_bytes = 2 * shape.layers * shape.row() * PAGE_POSITIONS * shape.element.bytes();
        // One page more than a context: a partly shared page is copied while its source is held.
        let pages =
            (options.kv_bytes / page_bytes.max(1)).max(context.div_ceil(PAGE_POSITIONS) + 1);
        let pool = Arc::new(KvPool::new(shape, pages)?);
        let table = Arc::new(table);
        let shared = Arc::new(Shared::default());
        let places_max = options.parallel.saturating_add(options.max_queue);
        // Requests are bounded by their tickets, so no channel of theirs is ever full.
        let (commands, inbox) = unbounded();
        let (jobs, job_inbox) = unbounded();
        let wakes = Wakes { commands: commands.clone(), shared: Arc::clone(&shared) };
        let (alive, ended) = bounded(0);
        let vocab_size = forward.vocab_size().min(table.len());
        let policy = Policy { parallel: options.parallel, prefill_chunk: options.prefill_chunk };
        let (masks, find_masks) = MaskThread::new();
        let scheduler =
            Scheduler::new(forward, pool, Arc::clone(&table), Arc::clone(&shared), masks, policy);
        let grammars = Arc::new(GrammarCache::new(options.grammar_cache_bytes));
        let compiler = Compiler {
            table: Arc::clone(&table),
            cache: Arc::clone(&grammars),
            commands: commands.clone(),
            shared: Arc::clone(&shared),
        };
        let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new()
                .name(name.to_owned())
                .spawn(work)
                .map_err(|e| EngineError::Internal(format!("no thread could be started: {e}")))
        };
        let thread = spawn(
            "tinyllm-engine",
            Box::new(move || {
                scheduler.run(&inbox);
                drop(alive);
            }),
        )?;
        spawn("tinyllm-masks", Box::new(find_masks))?;
        spawn("tinyllm-grammar", Box::new(move || compiler.run(&job_inbox)))?;
        Ok(Self {
            table,
            shared,
            commands,
            jobs,
            wakes,
            grammars,
            places: Arc::default(),
            checks: Arc::default(),
            places_max,
            next_id: AtomicU64::new(0),
            vocab_size,
            context,
            kv_bytes: pages * page_bytes,
            outbox_tokens: options.outbox_tokens.max(1),
            prefill: options.prefill,
            thread: Mutex::new(Some(thread)),
            ended,
        })
    }

    /// Positions for one sequence.
    pub fn context_length(&self) -> usize {
        self.context
    }

    /// Bytes the KV pages take when all are used.
    pub fn kv_bytes(&self) -> usize {
        self.kv_bytes
    }

    /// What tokens are, for this engine.
    pub fn table(&self) -> &TokenTable {
        &self.table
    }

    /// Takes a request in. Does not wait; what happens to it comes from the [`Generation`].
    pub fn submit(&self, request: Request) -> Result<Generation, EngineError> {
        let seed = request.seed;
        let generation = self.submit_choices(request, &[seed])?.pop();
        generation.ok_or_else(|| EngineError::Internal("a choice was lost".to_owned()))
    }

    /// Takes a request in once for each seed (in place of its own). The prompt is computed once, its
    /// pages are shared, and each generation puts out what the request alone with its seed does.
    /// All are accepted, or none.
    pub fn submit_choices(
        &self,
        request: Request,
        seeds: &[Option<u64>],
    ) -> Result<Vec<Generation>, EngineError> {
        if self.is_closed() {
            return Err(EngineError::Closed);
        }
        // Not overloaded: it would be too many at any time.
        if seeds.len() > self.places_max {
            let most = self.places_max;
            let message = format!("must be at most {most}, the answers this engine takes at once");
            return Err(EngineError::invalid("choices", message));
        }
        let limit = request.check(self.vocab_size, self.context)?;
        let grammar = request.grammar.as_deref().map(Grammar::from_json).transpose()?;
        let mut generations = Vec::with_capacity(seeds.len());
        let mut family = Vec::with_capacity(seeds.len());
        let requests = std::iter::repeat_n(request, seeds.len());
        for (request, seed) in requests.zip(seeds) {
            let ticket = Ticket::take(&self.places, self.places_max)
                .ok_or(EngineError::Overloaded { limit: self.places_max })?;
            let outbox = Arc::new(Outbox::new(self.outbox_tokens));
            let id = SeqId(self.next_id.fetch_add(1, Ordering::Relaxed));
            let seed = seed.unwrap_or_else(|| RandomState::new().hash_one(id));
            let (to, wakes) = (Arc::clone(&outbox), self.wakes.clone());
            let mut sequence = Box::new(Sequence::new(id, request, limit, seed, to, ticket));
            if self.prefill == Prefill::Fast {
                sequence.keep_prompt_apart();
            }
            family.push(sequence);
            generations.push(Generation { outbox, wakes });
        }
        let mut family = family.into_iter();
        let Some(mut sequence) = family.next() else {
            return Err(EngineError::invalid("choices", "must be at least 1"));
        };
        sequence.others = family.collect();
        let compiled = grammar.as_ref().and_then(|grammar| self.grammars.get(grammar));
        if let Some(compiled) = &compiled {
            sequence.constrain(compiled);
        }
        let sent = match grammar {
            Some(grammar) if compiled.is_none() => {
                self.jobs.send(Job::Sequence(sequence, grammar)).is_ok()
            }
            _ => self.commands.send(Command::Submit(sequence)).is_ok(),
        };
        if !sent {
            return Err(EngineError::Closed);
        }
        self.shared.counters.requests.add(generations.len());
        Ok(generations)
    }

    /// Compiles a grammar for this vocabulary, or finds it compiled.
    pub fn compile(
        &self,
        description: &str,
    ) -> impl Future<Output = Result<Arc<CompiledGrammar>, EngineError>> + use<> {
        let (resolver, promise) = promise();
        let sent = Grammar::from_json(description).map_err(EngineError::from).and_then(|grammar| {
            let ticket = Ticket::take(&self.checks, CHECKS_MAX)
                .ok_or(EngineError::Overloaded { limit: CHECKS_MAX })?;
            self.jobs.send(Job::Check(grammar, resolver, ticket)).map_err(|_| EngineError::Closed)
        });
        async move {
            sent?;
            promise.await.unwrap_or(Err(EngineError::Closed))
        }
    }

    /// Counters at this moment.
    pub fn stats(&self) -> Stats {
        self.shared.counters.snapshot()
    }

    /// Compiled grammars kept, and their bytes.
    pub fn grammars(&self) -> (usize, usize) {
        self.grammars.size()
    }

    /// Whether [`Self::close`] was called or the engine's thread has ended.
    pub fn is_closed(&self) -> bool {
        self.shared.closed.load(Ordering::Acquire)
    }

    /// Stops intake, ends every generation with [`EngineError::Closed`] and waits for the step
    /// under way, but not beyond the deadline. True when the thread has ended. May be called again.
    pub fn close(&self, deadline: Duration) -> bool {
        self.stop();
        // The channel carries nothing: it disconnects when the thread ends.
        let waited = self.ended.recv_deadline(Instant::now() + deadline);
        let ended = matches!(waited, Err(crossbeam_channel::RecvTimeoutError::Disconnected));
        if ended
            && let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take()
        {
            // Its panics were turned into errors; there is nothing to learn from the result.
            drop(thread.join());
        }
        ended
    }

    fn stop(&self) {
        self.shared.closed.store(true, Ordering::Release);
        self.wakes.wake();
    }
}

impl Drop for EngineCore {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A running generation. Dropping it cancels it.
#[derive(Debug)]
pub struct Generation {
    outbox: Arc<Outbox>,
    wakes: Wakes,
}

/// Tells the engine's thread to look at what has changed. However often it is told before it does,
/// there is one command.
#[derive(Debug, Clone)]
struct Wakes {
    commands: Sender<Command>,
    shared: Arc<Shared>,
}

impl Wakes {
    fn wake(&self) {
        if !self.shared.woken.swap(true, Ordering::AcqRel) {
            // When the engine is gone there is nobody to wake.
            drop(self.commands.send(Command::Wake));
        }
    }
}

impl Generation {
    /// Everything that became ready since the last call; waits when nothing did. `None` after the
    /// end.
    pub async fn next_batch(&self) -> Result<Option<Batch>, EngineError> {
        self.outbox.next(|| self.wakes.wake()).await
    }

    /// Stops it: within one step it takes nothing any more. A waiting reader gets
    /// [`EngineError::Cancelled`] at once.
    pub fn cancel(&self) {
        self.outbox.cancel();
        self.outbox.fail(EngineError::Cancelled);
        self.wakes.wake();
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.cancel();
    }
}
