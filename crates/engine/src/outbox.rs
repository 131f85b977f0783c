//! What a generation has ready and nobody has taken yet.
//!
//! One writer (the engine's thread) and one reader. Ready tokens are coalesced: a reader that
//! comes late gets them as one batch. The outbox is bounded, and the bound is the back-pressure:
//! the scheduler passes over a sequence whose outbox is full, so a slow reader slows only its own
//! request. The reader wakes the engine when it empties a full one.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use crate::error::EngineError;
use crate::request::{Finish, Logprobs};

/// Everything that became ready since the last batch.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Batch {
    /// Token ids; a token comes with the last of its bytes.
    pub tokens: Vec<u32>,
    /// The bytes of `text`.
    pub bytes: Vec<u8>,
    /// Whole characters.
    pub text: String,
    /// One per token, when the request asked for them; empty otherwise.
    pub logprobs: Vec<Logprobs>,
    /// How it ended; only in the last batch.
    pub finish: Option<Finish>,
}

impl Batch {
    fn append(&mut self, mut other: Batch) {
        self.tokens.append(&mut other.tokens);
        self.bytes.append(&mut other.bytes);
        self.text.push_str(&other.text);
        self.logprobs.append(&mut other.logprobs);
        self.finish = other.finish.or(self.finish.take());
    }

    fn is_empty(&self) -> bool {
        self.tokens.is_empty() && self.bytes.is_empty() && self.finish.is_none()
    }
}

#[derive(Debug, Default)]
struct State {
    ready: Batch,
    failure: Option<EngineError>,
    /// The last batch or the failure was put in; nothing may follow.
    ended: bool,
    wakers: Vec<Waker>,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Outbox {
    state: Mutex<State>,
    cancelled: AtomicBool,
    /// Tokens it holds before it counts as full. (What is held back elsewhere does not count, or
    /// a reader could wait for a sequence that waits for its reader.)
    capacity: usize,
}

impl Outbox {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { state: Mutex::default(), cancelled: AtomicBool::new(false), capacity }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds what one sampled token released (which may be nothing).
    pub(crate) fn push(&self, batch: Batch) {
        let mut state = self.lock();
        if state.ended || batch.is_empty() {
            return;
        }
        state.ended = batch.finish.is_some();
        state.ready.append(batch);
        wake(state);
    }

    /// Ends the generation with an error, after what is ready. A second end is ignored.
    pub(crate) fn fail(&self, error: EngineError) {
        let mut state = self.lock();
        if state.ended {
            return;
        }
        state.ended = true;
        state.failure = Some(error);
        wake(state);
    }

    pub(crate) fn is_full(&self) -> bool {
        self.lock().ready.tokens.len() >= self.capacity
    }

    /// Asks the engine to stop; checked between prefill chunks and steps.
    pub(crate) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    /// The next batch, `None` after the last. `emptied` is called when room was made in a full
    /// outbox.
    pub(crate) fn next(
        &self,
        emptied: impl Fn(),
    ) -> impl Future<Output = Result<Option<Batch>, EngineError>> {
        std::future::poll_fn(move |context| {
            let mut state = self.lock();
            let was_full = state.ready.tokens.len() >= self.capacity;
            let result = if !state.ready.is_empty() {
                Poll::Ready(Ok(Some(std::mem::take(&mut state.ready))))
            } else if let Some(error) = state.failure.take() {
                Poll::Ready(Err(error))
            } else if state.ended {
                Poll::Ready(Ok(None))
            } else {
                if !state.wakers.iter().any(|w| w.will_wake(context.waker())) {
                    state.wakers.push(context.waker().clone());
                }
                Poll::Pending
            };
            drop(state);
            if was_full {
                emptied();
            }
            result
        })
    }
}

/// Wakes the readers outside the lock.
fn wake(mut state: MutexGuard<'_, State>) {
    let wakers = std::mem::take(&mut state.wakers);
    drop(state);
    for waker in wakers {
        waker.wake();
    }
}
