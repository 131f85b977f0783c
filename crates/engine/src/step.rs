//! One step: the forward pass over some rows, and what is chosen from its logits.

use std::time::Instant;

use tinyllm_model::{Feed, Logits, Output};

use crate::error::EngineError;
use crate::masks::Coming;
use crate::scheduler::{CHUNK_MIN, Row, Scheduler, caught};
use crate::sequence::Sequence;

/// A row in the step under way.
struct Share {
    /// Place among the running sequences.
    at: usize,
    count: usize,
    /// Whether these are all pending tokens, so that one is chosen after them.
    whole: bool,
    /// The choices, when they are found while the layers run.
    coming: Option<Coming>,
}

impl Share {
    fn feed<'a>(&'a self, sequence: &'a Sequence) -> Feed<'a> {
        let logits = match &self.coming {
            Some(coming) => Logits::Deferred(coming),
            None if self.whole => sequence.wanted(),
            None => Logits::None,
        };
        Feed {
            tokens: &sequence.pending()[..self.count],
            position: sequence.computed(),
            pages: sequence.pages(),
            logits,
            prompt: sequence.computed() + self.count <= sequence.prompt_len(),
        }
    }
}

impl Scheduler {
    /// Runs the forward pass over the rows and chooses the tokens.
    pub(crate) fn step(&mut self, rows: &[Row]) {
        let mut shares = Vec::with_capacity(rows.len());
        for row in rows {
            let Some(at) = self.find(row.id) else { continue };
            let sequence = &mut self.running[at];
            let whole = row.count == sequence.pending().len();
            let coming = if whole { sequence.find_choices(&self.masks) } else { None };
            shares.push(Share { at, count: row.count, whole, coming });
        }
        let running = &self.running;
        let feeds: Vec<Feed<'_>> = shares.iter().map(|s| s.feed(&running[s.at])).collect();
        let tokens: usize = feeds.iter().map(|f| f.tokens.len()).sum();
        let started = Instant::now();
        let (forward, pool, outputs) = (&mut self.forward, &self.pool, &mut self.outputs);
        let result = caught(|| forward.step(&feeds, pool, outputs));
        if tokens >= 2 * CHUNK_MIN {
            self.prefill_rate = tokens as f64 / started.elapsed().as_secs_f64().max(1e-6);
        }
        drop(feeds);
        self.shared.counters.steps.add(1);
        self.shared.counters.forward_tokens.add(tokens);
        let late = shares.iter().filter(|share| share.coming.is_some()).count();
        self.shared.counters.late_masks.add(late);
        let mut failed = Vec::new();
        for (feed, share) in shares.into_iter().enumerate() {
            let sequence = &mut self.running[share.at];
            let id = sequence.id;
            // However the step went, the constraint comes back.
            let found = share.coming.map_or(Ok(()), |coming| sequence.found(coming));
            let advanced = result
                .clone()
                .and(found)
                .and_then(|()| sequence.advance(share.count, &mut self.cache, &self.pool));
            let outcome = match advanced {
                Ok(()) if share.whole => self.choose(feed, share.at),
                advanced => advanced,
            };
            let counts = self.running[share.at].take_counts();
            self.shared.counters.count(counts);
            if let Err(error) = outcome {
                failed.push((id, error));
            }
        }
        for (id, error) in failed {
            self.fail_running(id, &error);
        }
    }

    /// Chooses a token for the running sequence at `at` from what the step gave for `feed`; before,
    /// the others of its family fork off and choose from the same.
    fn choose(&mut self, feed: usize, at: usize) -> Result<(), EngineError> {
        let nothing = matches!(self.outputs.get(feed), Output::Nothing);
        if !nothing && !self.running[at].others.is_empty() {
            self.fork(feed, at);
        }
        let sequence = &mut self.running[at];
        let output = self.outputs.get(feed);
        caught(|| sequence.choose(output, &mut self.sampler, &self.table))
    }

    fn fork(&mut self, feed: usize, at: usize) {
        let others = std::mem::take(&mut self.running[at].others);
        let mut forked = Vec::with_capacity(others.len());
        let mut copy = self.outputs.get(feed).to_vec();
        let given = copy.clone();
        for mut other in others {
            copy.copy_from_slice(&given);
            let output = match self.outputs.get(feed) {
                Output::Row { log_sum_exp, .. } => Output::Row { logits: &mut copy, log_sum_exp },
                Output::Few(_) => Output::Few(&mut copy),
                other => other,
            };
            let (first, pool, table) = (&self.running[at], &self.pool, &self.table);
            let outcome = caught(|| {
                if other.fork_from(first, pool, table)? {
                    other.choose(output, &mut self.sampler, table)?;
                }
                Ok(())
            });
            self.note_admission(&mut other);
            self.shared.counters.count(other.take_counts());
            match outcome {
                Ok(()) => forked.push(other),
                Err(error) => {
                    self.shared.counters.failed.add(other.fail(&error));
                    self.give_back(&mut other);
                }
            }
        }
        self.waiting_first(forked);
    }
}
