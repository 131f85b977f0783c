//! One generation: what is computed, what comes next, when it ends.
//!
//! A sequence is a list of tokens, the prompt's and then the chosen ones, of which the first
//! `computed` are in its pages. Everything else follows from that: `tokens[computed..]` is what the
//! forward pass must still see (a prompt, one token, or a run of forced ones), and when it has
//! seen it, one token is chosen. Preemption sets `computed` to 0 and forgets the pages.
//!
//! Where the grammar allows a single token nothing is computed to choose it: it is taken at once,
//! with one random draw as if it had been sampled and a log-probability of 0, and goes through the
//! layers with the tokens after it. (When what is allowed is found only while the layers run, see
//! [`crate::masks`], it is taken after them.)
//!
//! Sequences that share a prompt are a family: the first carries the others until its first choice.
//! There they fork: the others take references to its pages and choose from the same logits.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tinyllm_constrain::{CompiledGrammar, ConstraintOptions, TokenConstraint};
use tinyllm_kernels::{KvPool, PAGE_POSITIONS, PageId};
use tinyllm_model::{Logits, Output};
use tinyllm_sampler::{Allowed, Pcg32, Sampler, SamplingParams, Wanted};

use crate::error::EngineError;
use crate::held_back::{HeldBack, Released};
use crate::masks::{Choices, Coming, Found, MaskThread};
use crate::outbox::{Batch, Outbox};
use crate::prefix_cache::{NodeId, PrefixCache, ROOT};
use crate::request::{Finish, FinishReason, Logprobs, Request};
use crate::token_table::TokenTable;

/// A sequence of one engine, in order of submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SeqId(pub(crate) u64);

/// A place among the requests an engine holds at the same time; given back when dropped.
#[derive(Debug)]
pub(crate) struct Ticket(Arc<AtomicUsize>);

impl Ticket {
    /// A place, unless `limit` are taken.
    pub(crate) fn take(places: &Arc<AtomicUsize>, limit: usize) -> Option<Self> {
        places
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| (n < limit).then_some(n + 1))
            .ok()
            .map(|_| Self(Arc::clone(places)))
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

struct Constraint {
    walk: Box<dyn TokenConstraint>,
    /// What may come next; `None` until it is found.
    choices: Option<Choices>,
}

/// See the module's documentation.
#[allow(clippy::struct_excessive_bools)] // Independent switches of the request, and one state.
pub(crate) struct Sequence {
    pub(crate) id: SeqId,
    pub(crate) outbox: Arc<Outbox>,
    /// The prompt's tokens and the chosen ones.
    tokens: Vec<u32>,
    prompt_len: usize,
    /// Where a step ends at the latest, and up to where pages are shared through the prefix cache.
    boundary: Option<usize>,
    /// Length at which it ends with `length`.
    limit: usize,
    /// Positions in `pages`.
    computed: usize,
    pages: Vec<PageId>,
    /// The prefix cache's node of the last full page that is in the cache, and how many there are.
    cached_to: (NodeId, usize),
    admitted: bool,
    /// Tokens of the prompt that were computed or found in the cache, at some time.
    reached: usize,
    /// Of those, tokens that were found before they were computed.
    found_cached: usize,
    sampling: SamplingParams,
    rng: Pcg32,
    constraint: Option<Constraint>,
    close_within_budget: bool,
    logprobs: Option<usize>,
    /// Whether the logits of tokens that are not allowed are needed too.
    removed_mass: bool,
    ignore_eos: bool,
    text: HeldBack<(u32, Option<Logprobs>)>,
    finished: bool,
    /// Not reported yet.
    counts: Counts,
    /// The rest of the family, until the first choice.
    #[allow(clippy::vec_box)] // They move on between queues, as pointers.
    pub(crate) others: Vec<Box<Sequence>>,
    _ticket: Ticket,
}

/// How long a sequence may take to find out what may come next.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Patience {
    /// As long as it takes.
    All,
    /// Microseconds.
    Little,
}

/// Tokens chosen, and those among them that were the only ones allowed.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) chosen: usize,
    pub(crate) forced: usize,
}

impl Sequence {
    /// `limit` is what [`Request::check`] gave.
    pub(crate) fn new(
        id: SeqId,
        request: Request,
        limit: usize,
        seed: u64,
        outbox: Arc<Outbox>,
        ticket: Ticket,
    ) -> Self {
        Self {
            id,
            outbox,
            prompt_len: request.prompt.len(),
            tokens: request.prompt,
            boundary: None,
            limit,
            computed: 0,
            pages: Vec::new(),
            cached_to: (ROOT, 0),
            admitted: false,
            reached: 0,
            found_cached: 0,
            sampling: request.sampling,
            rng: Pcg32::new(seed),
            constraint: None,
            close_within_budget: request.close_within_budget,
            logprobs: request.logprobs,
            removed_mass: request.removed_mass && request.logprobs.is_some(),
            ignore_eos: request.ignore_eos,
            text: HeldBack::new(&request.stop),
            finished: false,
            counts: Counts::default(),
            others: Vec::new(),
            _ticket: ticket,
        }
    }

    /// For a forward pass that computes prompts in another way than answers: no step has tokens of
    /// both, and no page with tokens of an answer is shared.
    pub(crate) fn keep_prompt_apart(&mut self) {
        self.boundary = Some(self.prompt_len);
    }

    /// Binds the family to its grammar.
    pub(crate) fn constrain(&mut self, grammar: &Arc<CompiledGrammar>) {
        let options = ConstraintOptions { close_within_budget: self.close_within_budget };
        let walk = grammar.constraint(options);
        for other in &mut self.others {
            other.constraint = Some(Constraint { walk: walk.fork(), choices: None });
        }
        self.constraint = Some(Constraint { walk, choices: None });
    }

    /// Ends the family with an error. Gives how many they were.
    pub(crate) fn fail(&self, error: &EngineError) -> usize {
        for other in &self.others {
            other.outbox.fail(error.clone());
        }
        self.outbox.fail(error.clone());
        1 + self.others.len()
    }

    /// Whether all of the family are cancelled.
    pub(crate) fn is_gone(&self) -> bool {
        self.outbox.is_cancelled() && self.others.iter().all(|other| other.outbox.is_cancelled())
    }

    /// Takes out the others that are cancelled, and gives how many they were.
    pub(crate) fn drop_cancelled(&mut self) -> usize {
        let before = self.others.len();
        self.others.retain(|other| !other.outbox.is_cancelled());
        before - self.others.len()
    }

    /// The others as a family of their own, when this one ends before its first choice.
    pub(crate) fn orphans(&mut self) -> Option<Box<Self>> {
        let mut others = std::mem::take(&mut self.others).into_iter();
        let mut first = others.next()?;
        first.others = others.collect();
        Some(first)
    }

    /// The logits that the next choice takes, when [`Self::find_choices`] gave nothing.
    pub(crate) fn wanted(&self) -> Logits<'_> {
        match &self.constraint {
            Some(Constraint { choices: Some(choices), .. }) => choices.logits(),
            None if self.is_plain() => Logits::Best,
            _ => Logits::Last,
        }
    }

    /// Whether the likeliest token is all there is to know.
    fn is_plain(&self) -> bool {
        self.sampling.takes_the_likeliest() && self.logprobs.is_none()
    }

    /// When it is not known yet what may come next: has it found on the thread. The constraint is
    /// gone until [`Self::found`].
    pub(crate) fn find_choices(&mut self, thread: &MaskThread) -> Option<Coming> {
        let Constraint { walk, .. } = self.constraint.take_if(|c| c.choices.is_none())?;
        Some(thread.find(walk, self.remaining(), self.removed_mass))
    }

    /// Takes the constraint back with what was found.
    pub(crate) fn found(&mut self, coming: Coming) -> Result<(), EngineError> {
        let lost = || EngineError::Internal("the thread that finds masks is gone".to_owned());
        let Found { walk, choices } = coming.wait().ok_or_else(lost)?;
        self.constraint = Some(Constraint { walk, choices: Some(choices?) });
        Ok(())
    }

    /// Tokens the output may still take.
    fn remaining(&self) -> u32 {
        (self.limit - self.tokens.len()) as u32
    }

    /// Tokens the forward pass must see before one can be chosen; not empty unless finished.
    pub(crate) fn pending(&self) -> &[u32] {
        &self.tokens[self.computed..]
    }

    /// How many of the pending tokens one step may see.
    pub(crate) fn pending_at_once(&self) -> usize {
        match self.boundary {
            Some(boundary) if self.computed < boundary => boundary - self.computed,
            _ => self.pending().len(),
        }
    }

    /// Positions whose pages may be shared, of so many.
    fn shareable(&self, positions: usize) -> usize {
        self.boundary.map_or(positions, |boundary| positions.min(boundary))
    }

    pub(crate) fn computed(&self) -> usize {
        self.computed
    }

    pub(crate) fn pages(&self) -> &[PageId] {
        &self.pages
    }

    pub(crate) fn prompt_len(&self) -> usize {
        self.prompt_len
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.finished
    }

    /// Pages that so many further tokens need beyond those the sequence has, a copy of a partly
    /// full one that is shared among them.
    pub(crate) fn pages_missing(&self, tokens: usize, pool: &KvPool) -> usize {
        let needed = (self.computed + tokens).div_ceil(PAGE_POSITIONS);
        needed.saturating_sub(self.pages.len()) + usize::from(self.shares_last_page(pool))
    }

    /// Whether the next position is in a page that another sequence of the family has too.
    fn shares_last_page(&self, pool: &KvPool) -> bool {
        let page = self.pages.get(self.computed / PAGE_POSITIONS);
        page.is_some_and(|page| pool.references(*page) > 1)
    }

    /// Takes one free page: for the copy of a shared one, or for further positions.
    pub(crate) fn add_page(&mut self, pool: &KvPool) -> Result<(), EngineError> {
        if self.shares_last_page(pool) {
            let page = &mut self.pages[self.computed / PAGE_POSITIONS];
            *page = pool.make_unique(*page)?;
        } else {
            self.pages.push(pool.allocate()?);
        }
        Ok(())
    }

    /// Forks off a sequence that is about to make its first choice: refers to its pages, copying
    /// none. Settles; when the two have not the same tokens then, it takes nothing.
    pub(crate) fn fork_from(
        &mut self,
        first: &Self,
        pool: &KvPool,
        table: &TokenTable,
    ) -> Result<bool, EngineError> {
        self.settle(table, Patience::All)?;
        if self.finished || self.tokens != first.tokens {
            return Ok(false);
        }
        for &page in &first.pages {
            pool.retain(page)?;
            self.pages.push(page);
        }
        self.computed = first.computed;
        self.cached_to = first.cached_to;
        Ok(true)
    }

    /// Takes pages from the cache for as much of `pending` as it has, but for the last token,
    /// whose logits must be computed.
    pub(crate) fn reuse(
        &mut self,
        cache: &mut PrefixCache,
        pool: &KvPool,
    ) -> Result<(), EngineError> {
        let last = self.shareable(self.tokens.len() - 1);
        let (mut node, mut full) = self.cached_to;
        // Pages of one's own behind the last cached one are kept: the computing is done.
        while self.computed == full * PAGE_POSITIONS && self.pages.len() == full {
            let rest = self.tokens.get(self.computed..last).unwrap_or_default();
            if let Some(page) = rest.get(..PAGE_POSITIONS)
                && let Some((next, page)) = cache.follow(pool, node, page)?
            {
                self.pages.push(page);
                self.computed += PAGE_POSITIONS;
                (node, full) = (next, full + 1);
                continue;
            }
            if let Some((page, count)) = cache.follow_partly(pool, node, rest)? {
                self.pages.push(page);
                self.computed += count;
            }
            break;
        }
        self.cached_to = (node, full);
        Ok(())
    }

    /// True the first time.
    pub(crate) fn note_admission(&mut self) -> bool {
        !std::mem::replace(&mut self.admitted, true)
    }

    /// To be called after [`Self::reuse`], when the pages it took are kept. Gives the tokens of the
    /// prompt that need no computing thanks to it; those of before a preemption are none.
    pub(crate) fn note_cached(&mut self) -> usize {
        let here = self.computed.min(self.prompt_len);
        let found = here.saturating_sub(self.reached);
        self.reached += found;
        self.found_cached += found;
        found
    }

    /// `count` pending tokens were computed; pages that became full go into the cache.
    pub(crate) fn advance(
        &mut self,
        count: usize,
        cache: &mut PrefixCache,
        pool: &KvPool,
    ) -> Result<(), EngineError> {
        self.computed += count;
        self.reached = self.reached.max(self.computed.min(self.prompt_len));
        let (mut node, mut full) = self.cached_to;
        while (full + 1) * PAGE_POSITIONS <= self.shareable(self.computed) {
            let tokens = &self.tokens[full * PAGE_POSITIONS..(full + 1) * PAGE_POSITIONS];
            let (next, page) = cache.insert(pool, node, tokens, self.pages[full])?;
            self.pages[full] = page;
            (node, full) = (next, full + 1);
            self.cached_to = (node, full);
        }
        Ok(())
    }

    /// Gives its pages back; what is in the cache stays there.
    pub(crate) fn drop_pages(&mut self, pool: &KvPool) -> Result<(), EngineError> {
        self.computed = 0;
        self.cached_to = (ROOT, 0);
        for page in self.pages.drain(..) {
            pool.release(page)?;
        }
        Ok(())
    }

    /// Goes on until logits are needed or the sequence has ended: takes every token that is the
    /// only one allowed. With little patience it stops, too, where finding out what is allowed takes
    /// long.
    pub(crate) fn settle(
        &mut self,
        table: &TokenTable,
        patience: Patience,
    ) -> Result<(), EngineError> {
        while !self.finished {
            let remaining = self.remaining();
            let Some(constraint) = &mut self.constraint else {
                break;
            };
            if constraint.walk.is_done() {
                self.finish(FinishReason::Stop);
                break;
            }
            if constraint.choices.is_none() {
                let mask = match patience {
                    Patience::All => Some(constraint.walk.mask(Some(remaining))?),
                    Patience::Little => constraint.walk.quick_mask(Some(remaining))?,
                };
                let whole_row = self.removed_mass;
                constraint.choices = mask.map(|mask| Choices::new(mask, whole_row));
                // A budget may leave nothing of a complete output without an end token.
                if constraint.walk.is_done() {
                    self.finish(FinishReason::Stop);
                    break;
                }
            }
            let Some(token) = constraint.choices.as_ref().and_then(Choices::forced) else {
                break;
            };
            self.counts.forced += 1;
            if !self.sampling.is_greedy() {
                self.rng.next_u32();
            }
            let logprobs = self.logprobs.map(|top| Logprobs {
                logprob: 0.0,
                top: if top > 0 { vec![(token, 0.0)] } else { Vec::new() },
                removed_mass: None,
            });
            self.take(token, logprobs, table)?;
        }
        Ok(())
    }

    /// Chooses a token from what a step gave for [`Self::wanted`], then settles. Where it gave
    /// nothing there was nothing to choose.
    pub(crate) fn choose(
        &mut self,
        output: Output<'_>,
        sampler: &mut Sampler,
        table: &TokenTable,
    ) -> Result<(), EngineError> {
        let (logits, log_sum_exp) = match output {
            Output::Best(token) => {
                self.take(token, None, table)?;
                return self.settle(table, Patience::Little);
            }
            Output::Row { logits, log_sum_exp } => (logits, log_sum_exp),
            Output::Few(logits) => (logits, None),
            Output::Nothing | Output::Rows(_) => return self.settle(table, Patience::Little),
        };
        let (prompt, output) = self.tokens.split_at(self.prompt_len);
        let top_logprobs = self.logprobs.map(|n| n as u32);
        let wanted = Wanted { top_logprobs, removed_mass: self.removed_mass, log_sum_exp };
        let choices = self.constraint.as_ref().and_then(|c| c.choices.as_ref());
        let allowed = choices.map_or(Allowed::All, Choices::allowed);
        let (params, rng) = (&self.sampling, &mut self.rng);
        let sampled = sampler.sample(logits, allowed, params, prompt, output, rng, wanted)?;
        let logprobs = sampled.logprob.map(|logprob| Logprobs {
            logprob,
            top: sampled.top,
            removed_mass: sampled.removed_mass,
        });
        self.take(sampled.token, logprobs, table)?;
        self.settle(table, Patience::Little)
    }

    /// Appends a chosen token and sends out what it makes certain.
    fn take(
        &mut self,
        token: u32,
        logprobs: Option<Logprobs>,
        table: &TokenTable,
    ) -> Result<(), EngineError> {
        self.tokens.push(token);
        self.counts.chosen += 1;
        let mut done = false;
        if let Some(constraint) = &mut self.constraint {
            constraint.walk.advance(token)?;
            constraint.choices = None;
            done = constraint.walk.is_done();
        }
        if table.is_end(token) && (done || !self.ignore_eos) {
            self.finish(FinishReason::Stop);
            return Ok(());
        }
        let (released, stopped) = self.text.push((token, logprobs), table.bytes(token));
        self.outbox.push(batch(released, None));
        if stopped || done {
            self.finish(FinishReason::Stop);
        } else if self.tokens.len() >= self.limit {
            self.finish(FinishReason::Length);
        }
        Ok(())
    }

    fn finish(&mut self, reason: FinishReason) {
        self.finished = true;
        let finish = Finish {
            reason,
            prompt_tokens: self.prompt_len,
            completion_tokens: self.tokens.len() - self.prompt_len,
            cached_tokens: self.found_cached,
            complete: self.constraint.as_ref().map(|c| c.walk.is_complete()),
        };
        let released = self.text.flush();
        self.outbox.push(batch(released, Some(finish)));
    }

    /// What was chosen since the last call.
    pub(crate) fn take_counts(&mut self) -> Counts {
        std::mem::take(&mut self.counts)
    }
}

impl Drop for Sequence {
    /// A reader never waits for a sequence that is gone. (No effect when it has ended already.)
    fn drop(&mut self) {
        self.outbox.fail(EngineError::Closed);
    }
}

fn batch(released: Released<(u32, Option<Logprobs>)>, finish: Option<Finish>) -> Batch {
    let (tokens, logprobs): (Vec<_>, Vec<_>) = released.tokens.into_iter().unzip();
    Batch {
        tokens,
        bytes: released.bytes,
        text: released.text,
        logprobs: logprobs.into_iter().flatten().collect(),
        finish,
    }
}
