//! Counters for tests and metrics: written by the engine's thread, read by anybody.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::sequence::Counts;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Live counters; all only grow, but for the gauges.
        #[derive(Debug, Default)]
        pub(crate) struct Counters { $(pub(crate) $name: Counter),* }

        /// The counters at one moment.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct Stats { $($(#[$doc])* pub $name: u64),* }

        impl Counters {
            pub(crate) fn snapshot(&self) -> Stats {
                Stats { $($name: self.$name.0.load(Ordering::Relaxed)),* }
            }
        }
    };
}

counters! {
    /// Requests taken in.
    requests,
    /// Requests that ended by themselves.
    finished,
    /// Requests that were cancelled.
    cancelled,
    /// Requests that ended with an error.
    failed,
    /// Forward steps.
    steps,
    /// Token positions computed, in all steps together.
    forward_tokens,
    /// Tokens in the prompts of admitted requests.
    prompt_tokens,
    /// Of those, tokens whose pages were found in the prefix cache.
    cached_tokens,
    /// Tokens chosen.
    completion_tokens,
    /// Tokens chosen without logits, because the grammar left one.
    forced_tokens,
    /// Times that what is allowed was found while the layers ran.
    late_masks,
    /// Sequences that had to give their pages back for another.
    preemptions,
    /// Pages the prefix cache gave up.
    evictions,
    /// Gauge: sequences that hold pages.
    running,
    /// Gauge: sequences that wait for their turn.
    waiting,
    /// Gauge: pages of the KV pool in use, those of the prefix cache included.
    pages_used,
    /// Gauge: pages the prefix cache holds.
    pages_cached,
    /// Pages of the KV pool.
    pages_total,
}

impl Counters {
    /// Adds what a sequence chose.
    pub(crate) fn count(&self, counts: Counts) {
        self.completion_tokens.add(counts.chosen);
        self.forced_tokens.add(counts.forced);
    }
}

/// One counter.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: usize) {
        self.0.fetch_add(n as u64, Ordering::Relaxed);
    }

    pub(crate) fn set(&self, n: usize) {
        self.0.store(n as u64, Ordering::Relaxed);
    }
}
