//! What may come next, and finding it out while the layers run.
//!
//! A mask is needed before the head and not before the layers. Most masks are known or made in a
//! microsecond or less, and those are taken at once: the scheduler then knows a token that is the
//! only one allowed before the step, and sends it through the layers together with the one before.
//! A mask that takes longer is left to a thread of its own, which has the layers' time for it: the
//! forward pass asks for it right before the head ([`Deferred`]). A hop to another thread and back
//! costs some ten microseconds, which is why it is for masks that cost more.
//!
//! The constraint travels to the thread and comes back with its mask; a step takes all of them back,
//! however it ends.

use std::sync::{Mutex, OnceLock, PoisonError};

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use tinyllm_constrain::{Mask, TokenConstraint};
use tinyllm_model::{Deferred, Logits};
use tinyllm_sampler::Allowed;

use crate::error::EngineError;
use crate::scheduler::caught;

/// Up to this many allowed tokens the head computes theirs alone: beyond, whole tiles of rows are
/// about as fast.
const SPARSE_HEAD_MAX: u32 = 4096;

/// The tokens that may come next.
#[derive(Debug)]
pub(crate) struct Choices {
    mask: Mask,
    /// Those of the mask when they are few enough that only their logits are computed.
    listed: Option<Vec<u32>>,
    whole_row: bool,
}

impl Choices {
    /// With `whole_row` the logits of all tokens are computed, whatever may be chosen.
    pub(crate) fn new(mask: Mask, whole_row: bool) -> Self {
        let few = !whole_row && (2..=SPARSE_HEAD_MAX).contains(&mask.allowed());
        let listed = few.then(|| mask.iter().collect());
        Self { mask, listed, whole_row }
    }

    /// The token that needs no choosing.
    pub(crate) fn forced(&self) -> Option<u32> {
        self.mask.single().filter(|_| !self.whole_row)
    }

    pub(crate) fn logits(&self) -> Logits<'_> {
        match (&self.listed, self.forced()) {
            (Some(ids), _) => Logits::Only(ids),
            (None, Some(_)) => Logits::None,
            (None, None) => Logits::Last,
        }
    }

    /// What the sampler may choose from the logits of [`Self::logits`].
    pub(crate) fn allowed(&self) -> Allowed<'_> {
        self.listed.as_deref().map_or(Allowed::Masked(&self.mask), Allowed::Listed)
    }
}

/// A constraint on its way to its choices.
struct Job {
    walk: Box<dyn TokenConstraint>,
    remaining: u32,
    whole_row: bool,
    reply: Sender<Found>,
}

/// A constraint that came back.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) walk: Box<dyn TokenConstraint>,
    pub(crate) choices: Result<Choices, EngineError>,
}

impl Job {
    fn run(mut self) {
        let mask = caught(|| Ok(self.walk.mask(Some(self.remaining))?));
        let choices = mask.map(|mask| Choices::new(mask, self.whole_row));
        // Whoever is gone does not want it any more.
        drop(self.reply.send(Found { walk: self.walk, choices }));
    }
}

/// The thread that finds choices. It ends with this handle.
#[derive(Debug)]
pub(crate) struct MaskThread {
    jobs: Sender<Job>,
}

impl MaskThread {
    /// The handle, and the work for the thread.
    pub(crate) fn new() -> (Self, impl FnOnce() + Send) {
        // A step sends at most one job for each of its sequences.
        let (jobs, inbox) = unbounded::<Job>();
        (Self { jobs }, move || inbox.into_iter().for_each(Job::run))
    }

    /// Sends a constraint to find its choices for an output that may take `remaining` more tokens.
    pub(crate) fn find(
        &self,
        walk: Box<dyn TokenConstraint>,
        remaining: u32,
        whole_row: bool,
    ) -> Coming {
        let (reply, found) = bounded(1);
        if let Err(refused) = self.jobs.send(Job { walk, remaining, whole_row, reply }) {
            // There is no thread, so it is done here.
            refused.0.run();
        }
        Coming { reply: found, found: OnceLock::new() }
    }
}

/// Choices that are being found.
#[derive(Debug)]
pub(crate) struct Coming {
    reply: Receiver<Found>,
    found: OnceLock<Arrived>,
}

/// The constraint is taken out when the step is over; until then the forward pass reads the choices.
#[derive(Debug)]
struct Arrived {
    walk: Mutex<Box<dyn TokenConstraint>>,
    choices: Result<Choices, EngineError>,
}

impl Deferred for Coming {
    fn logits(&self) -> Logits<'_> {
        if self.found.get().is_none()
            && let Ok(Found { walk, choices }) = self.reply.recv()
        {
            drop(self.found.set(Arrived { walk: Mutex::new(walk), choices }));
        }
        match self.found.get() {
            Some(Arrived { choices: Ok(choices), .. }) => choices.logits(),
            // Nothing can be chosen: the sequence fails after the step.
            _ => Logits::None,
        }
    }
}

impl Coming {
    /// Waits for the constraint. `None` when its thread is gone with it.
    pub(crate) fn wait(self) -> Option<Found> {
        match self.found.into_inner() {
            Some(Arrived { walk, choices }) => Some(Found {
                walk: walk.into_inner().unwrap_or_else(PoisonError::into_inner),
                choices,
            }),
            None => self.reply.recv().ok(),
        }
    }
}
