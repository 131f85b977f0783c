//! The subset construction, on demand.
//!
//! A state is a *subset*: a sorted set of threads, each a consuming state of the [`Nfa`] and the
//! counters it stands under. Because every state of the NFA is alive, a subset that is not empty
//! is alive, so no dead-state pass is needed and a state may be used as soon as it is made.
//! Transitions are computed when first asked for, over byte classes; rows are dense.
//!
//! Counters: a thread's counters are an interned stack ([`Counters`]), so a loop of any count is
//! one copy of its body. `need <= left` holds in every counter, so a counted thread is alive too.
//!
//! Cost: a known transition is two loads; a new one is linear in the subset. Memory is what
//! [`Determinizer::bytes`] says; the owner bounds it.

use crate::ast::ByteSet;
use crate::error::ConstrainError;
use crate::limits::Limits;
use crate::minimize::{NO_TARGET, Partial};
use crate::nfa::{NONE, Nfa, NfaState, Op, UNBOUNDED};
use rustc_hash::{FxHashMap, FxHashSet};
use std::hash::Hasher;

/// A state of the lazily built automaton.
pub(crate) type State = u32;

/// The dead state.
pub(crate) const DEAD_STATE: State = NO_TARGET;

/// A transition not computed yet.
const UNKNOWN: State = NO_TARGET - 1;

/// The start state.
pub(crate) const START: State = 0;

/// A stack of counters; 0 is the empty one.
pub(crate) type CounterId = u32;

/// One counter of a counted loop, on top of its parents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Counter {
    pub(crate) parent: CounterId,
    /// Further items that must come.
    pub(crate) need: u32,
    /// Further items that may come; [`UNBOUNDED`] stays.
    pub(crate) left: u32,
    /// The loop's [`Op::Again`].
    pub(crate) hub: NfaState,
}

/// One way of having read the input so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Thread {
    pub(crate) state: NfaState,
    pub(crate) counter: CounterId,
}

/// Subsets larger than this have their whole row computed at once, each thread looked at once
/// instead of once per class.
const BUCKETED: usize = 6;

/// Threads in one place under different counters that are compared pair by pair, at most.
const MOST_COMPARED: usize = 512;

#[derive(Debug, Clone, Copy)]
struct Subset {
    from: u32,
    to: u32,
}

/// The automaton made so far.
#[derive(Debug)]
pub(crate) struct Determinizer {
    n_classes: usize,
    /// `states * n_classes` targets.
    table: Vec<State>,
    accept: Vec<bool>,
    subsets: Vec<Subset>,
    threads: Vec<Thread>,
    /// Open addressing over the subsets: state + 1, 0 is free.
    buckets: Vec<u32>,
    counters: Vec<Counter>,
    counter_index: FxHashMap<Counter, CounterId>,
    /// Threads looked at since the automaton was made.
    pub(crate) work: u64,
    /// What the operation in progress may make.
    bound: Bound,
    scratch: Scratch,
}

/// How far an operation may go. Past it every state that is not known counts as dead, so that the
/// operation comes to an end; its owner then asks [`Determinizer::overrun`].
#[derive(Debug)]
struct Bound {
    work: u64,
    bytes: usize,
    passed: bool,
}

/// What one closure needs, kept to avoid allocating.
#[derive(Debug, Default)]
struct Scratch {
    subset: Vec<Thread>,
    stack: Vec<Thread>,
    /// Generation in which each NFA state was last seen, and under which counter.
    seen: Vec<(u32, CounterId)>,
    generation: u32,
    /// States seen under a second counter in this generation.
    more: FxHashSet<(NfaState, CounterId)>,
    /// Loops of nullable items passed in the closure of one thread.
    passed: Vec<(NfaState, CounterId)>,
    rows: Vec<Vec<Thread>>,
}

/// The error for a compilation or a mask that takes too long.
pub(crate) fn out_of_work(limits: &Limits) -> ConstrainError {
    ConstrainError::Limit {
        limit: "compile_work",
        value: limits.compile_work,
        pointer: String::new(),
        advice: "use smaller repeat counts or fewer overlapping alternatives",
    }
}

impl Determinizer {
    /// The automaton of an NFA with its start state made.
    pub(crate) fn new(nfa: &Nfa) -> Self {
        let mut made = Self {
            n_classes: nfa.classes.len(),
            table: Vec::new(),
            accept: Vec::new(),
            subsets: Vec::new(),
            threads: Vec::new(),
            buckets: vec![0; 64],
            counters: vec![Counter { parent: 0, need: 0, left: 0, hub: NONE }],
            counter_index: FxHashMap::default(),
            work: 0,
            bound: Bound { work: u64::MAX, bytes: usize::MAX, passed: false },
            scratch: Scratch { seen: vec![(0, 0); nfa.ops.len()], ..Scratch::default() },
        };
        made.begin();
        made.add(nfa, Thread { state: nfa.start, counter: 0 });
        made.intern(nfa);
        made
    }

    /// Begins an operation that may take so much work and grow the automaton to so many bytes.
    pub(crate) fn begin_operation(&mut self, work: u64, bytes: usize) {
        self.bound = Bound { work: self.work.saturating_add(work), bytes, passed: false };
    }

    /// Whether the operation went as far as it may: nothing that it found counts.
    pub(crate) fn overrun(&mut self) -> bool {
        self.bound.passed |= self.work > self.bound.work || self.is_too_large();
        self.bound.passed
    }

    /// Whether the automaton has more bytes than the operation may grow it to.
    pub(crate) fn is_too_large(&self) -> bool {
        self.bytes() > self.bound.bytes
    }

    /// Number of states made.
    pub(crate) fn len(&self) -> usize {
        self.accept.len()
    }

    /// Bytes of memory held.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.table)
            + size_of_val(&*self.threads)
            + size_of_val(&*self.buckets)
            + self.subsets.len() * (size_of::<Subset>() + 1)
            + self.counters.len() * 3 * size_of::<Counter>()
    }

    /// Whether a state accepts.
    pub(crate) fn accepts(&self, state: State) -> bool {
        self.accept[state as usize]
    }

    /// A state's threads.
    pub(crate) fn threads(&self, state: State) -> &[Thread] {
        let subset = self.subsets[state as usize];
        &self.threads[subset.from as usize..subset.to as usize]
    }

    /// A counter.
    pub(crate) fn counter(&self, id: CounterId) -> Counter {
        self.counters[id as usize]
    }

    /// Bytes that keep a state alive.
    pub(crate) fn live(&self, nfa: &Nfa, state: State) -> ByteSet {
        self.threads(state)
            .iter()
            .fold(ByteSet::EMPTY, |live, thread| live.union(&nfa.live(thread.state)))
    }

    /// The target of a transition, if it was computed before.
    #[inline]
    pub(crate) fn known(&self, state: State, class: u8) -> Option<State> {
        let target = self.table[state as usize * self.n_classes + class as usize];
        (target != UNKNOWN).then_some(target)
    }

    /// The target of a transition.
    #[inline]
    pub(crate) fn step(&mut self, nfa: &Nfa, state: State, class: u8) -> State {
        let at = state as usize * self.n_classes + class as usize;
        match self.table[at] {
            UNKNOWN => self.compute(nfa, state, class),
            target => target,
        }
    }

    #[cold]
    fn compute(&mut self, nfa: &Nfa, state: State, class: u8) -> State {
        if self.overrun() {
            return DEAD_STATE;
        }
        let subset = self.subsets[state as usize];
        if (subset.to - subset.from) as usize > BUCKETED {
            self.compute_row(nfa, state);
            // Unknown still when the operation came to its end first.
            return self.known(state, class).unwrap_or(DEAD_STATE);
        }
        let byte = nfa.classes.first[class as usize];
        self.begin();
        for index in subset.from..subset.to {
            let thread = self.threads[index as usize];
            if let Some(next) = take(nfa, thread, byte) {
                self.add(nfa, next);
            }
        }
        let target = self.intern(nfa);
        self.table[state as usize * self.n_classes + class as usize] = target;
        target
    }

    /// Every transition of a state.
    fn compute_row(&mut self, nfa: &Nfa, state: State) {
        let subset = self.subsets[state as usize];
        let mut rows = std::mem::take(&mut self.scratch.rows);
        rows.resize_with(self.n_classes, Vec::new);
        for index in subset.from..subset.to {
            let thread = self.threads[index as usize];
            let live = nfa.live(thread.state);
            if live.len() == 1 {
                let byte = live.iter().next().unwrap_or_default();
                rows[nfa.classes.of[byte as usize] as usize].extend(take(nfa, thread, byte));
                continue;
            }
            for (class, &byte) in nfa.classes.first.iter().enumerate() {
                rows[class].extend(take(nfa, thread, byte));
            }
        }
        for (class, row) in rows.iter_mut().enumerate() {
            let target = if row.is_empty() {
                DEAD_STATE
            } else if self.overrun() {
                row.clear();
                continue;
            } else {
                self.begin();
                for thread in row.drain(..) {
                    self.add(nfa, thread);
                }
                self.intern(nfa)
            };
            self.table[state as usize * self.n_classes + class] = target;
        }
        self.work += self.n_classes as u64;
        self.scratch.rows = rows;
    }

    /// A state that no token of at most `longest` bytes tells apart from this one: counters
    /// count no further than such a token can. Masks are kept for that state.
    pub(crate) fn clamp(&mut self, nfa: &Nfa, state: State, longest: usize) -> State {
        if self.threads(state).iter().all(|thread| thread.counter == 0) {
            return state;
        }
        let mut threads = self.threads(state).to_vec();
        for thread in &mut threads {
            thread.counter = self.clamp_counter(nfa, thread.counter, longest);
        }
        self.state_of(nfa, &threads)
    }

    fn clamp_counter(&mut self, nfa: &Nfa, id: CounterId, longest: usize) -> CounterId {
        // Counters nest no deeper than the tree.
        if id == 0 {
            return 0;
        }
        let counter = self.counters[id as usize];
        let shortest = nfa.loop_at(counter.hub).map_or(1, |l| l.shortest.max(1));
        // Items that can end within a token: the one in progress may at once, each further one
        // takes `shortest` bytes.
        let ends = longest as u32 / shortest + 1;
        let parent = self.clamp_counter(nfa, counter.parent, longest);
        let need = counter.need.min(ends);
        let left = if counter.left >= ends { UNBOUNDED } else { counter.left };
        self.counter_id(Counter { parent, need, left, ..counter })
    }

    /// The state after `bytes`, all of which must be alive; the states between are not kept.
    /// None when the operation comes to its end first.
    pub(crate) fn replay(&mut self, nfa: &Nfa, bytes: impl Iterator<Item = u8>) -> Option<State> {
        let mut threads = self.threads(START).to_vec();
        for byte in bytes {
            self.begin();
            for &thread in &threads {
                if let Some(next) = take(nfa, thread, byte) {
                    self.add(nfa, next);
                }
            }
            let mut subset = std::mem::take(&mut self.scratch.subset);
            self.tidy(&mut subset);
            std::mem::swap(&mut threads, &mut subset);
            self.scratch.subset = subset;
            if self.overrun() {
                return None;
            }
        }
        Some(self.state_of(nfa, &threads))
    }

    /// A state in a form that another automaton of the same NFA can take over: its places, each
    /// with its counters from the innermost out.
    pub(crate) fn portable(&self, state: State) -> Vec<(NfaState, Vec<Counter>)> {
        let counters = |mut id: CounterId| {
            let mut counters = Vec::new();
            while id != 0 {
                let counter = self.counters[id as usize];
                counters.push(counter);
                id = counter.parent;
            }
            counters
        };
        let threads = self.threads(state).iter();
        threads.map(|thread| (thread.state, counters(thread.counter))).collect()
    }

    /// The state that another automaton gave by [`Determinizer::portable`].
    pub(crate) fn take_over(&mut self, nfa: &Nfa, state: &[(NfaState, Vec<Counter>)]) -> State {
        let mut threads = Vec::with_capacity(state.len());
        for (state, counters) in state {
            let outside_in = counters.iter().rev();
            let counter = outside_in
                .fold(0, |parent, counter| self.counter_id(Counter { parent, ..*counter }));
            threads.push(Thread { state: *state, counter });
        }
        self.state_of(nfa, &threads)
    }

    /// The state of a set of threads; every thread must be alive.
    pub(crate) fn state_of(&mut self, nfa: &Nfa, threads: &[Thread]) -> State {
        self.begin();
        for &thread in threads {
            self.add(nfa, thread);
        }
        self.intern(nfa)
    }

    fn begin(&mut self) {
        let scratch = &mut self.scratch;
        scratch.subset.clear();
        scratch.more.clear();
        scratch.generation = scratch.generation.wrapping_add(1);
        if scratch.generation == 0 {
            scratch.seen.fill((0, 0));
            scratch.generation = 1;
        }
    }

    /// Adds a thread and everything it reaches without input.
    fn add(&mut self, nfa: &Nfa, thread: Thread) {
        self.scratch.passed.clear();
        self.scratch.stack.push(thread);
        while let Some(thread) = self.scratch.stack.pop() {
            if !self.first_time(thread) {
                continue;
            }
            self.work += 1;
            let at = |state| Thread { state, counter: thread.counter };
            match nfa.ops[thread.state as usize] {
                Op::Bytes { .. } | Op::Accept => self.scratch.subset.push(thread),
                Op::Table { table, local, next } => {
                    if !nfa.tables[table as usize].live[local as usize].is_empty() {
                        self.scratch.subset.push(thread);
                    }
                    if next != NONE {
                        self.scratch.stack.push(at(next));
                    }
                }
                Op::Split { from, to } => {
                    let edges = &nfa.edges[from as usize..to as usize];
                    self.scratch.stack.extend(edges.iter().rev().map(|state| at(*state)));
                }
                Op::Enter { min, max, hub, body, skip } => {
                    if skip != NONE {
                        self.scratch.stack.push(at(skip));
                    }
                    let parent = thread.counter;
                    let counter = Counter { parent, need: min, left: max, hub };
                    self.enter(body, counter);
                }
                Op::Again { again, exit, loops } => {
                    let counter = self.counters[thread.counter as usize];
                    if nfa.loops[loops as usize].nullable {
                        let key = (thread.state, counter.parent);
                        if self.scratch.passed.contains(&key) {
                            continue;
                        }
                        self.scratch.passed.push(key);
                    }
                    if counter.need == 0 {
                        self.scratch.stack.push(Thread { state: exit, counter: counter.parent });
                    }
                    if counter.left > 0 {
                        self.enter(again, counter);
                    }
                }
            }
        }
    }

    /// Begins an item of a counted loop.
    fn enter(&mut self, body: NfaState, counter: Counter) {
        let left = if counter.left == UNBOUNDED { UNBOUNDED } else { counter.left - 1 };
        let counter = Counter { need: counter.need.saturating_sub(1), left, ..counter };
        let counter = self.counter_id(counter);
        self.scratch.stack.push(Thread { state: body, counter });
    }

    /// The id of a counter.
    pub(crate) fn counter_id(&mut self, counter: Counter) -> CounterId {
        let counters = &mut self.counters;
        *self.counter_index.entry(counter).or_insert_with(|| {
            counters.push(counter);
            counters.len() as CounterId - 1
        })
    }

    fn first_time(&mut self, thread: Thread) -> bool {
        let Scratch { seen, generation, more, .. } = &mut self.scratch;
        let seen = &mut seen[thread.state as usize];
        if seen.0 != *generation {
            *seen = (*generation, thread.counter);
            return true;
        }
        seen.1 != thread.counter && more.insert((thread.state, thread.counter))
    }

    /// The state of the closure that was collected.
    fn intern(&mut self, nfa: &Nfa) -> State {
        if self.scratch.subset.is_empty() {
            return DEAD_STATE;
        }
        let mut subset = std::mem::take(&mut self.scratch.subset);
        self.tidy(&mut subset);
        let state = self.find_or_insert(nfa, &subset);
        self.scratch.subset = subset;
        state
    }

    /// Brings threads into the form of a state's.
    fn tidy(&mut self, subset: &mut Vec<Thread>) {
        subset.sort_unstable();
        self.drop_covered(subset);
    }

    /// Drops threads whose every continuation another thread has: the same place under counters
    /// that must come no more often and may come no less often. Without this, the ways to count
    /// nested loops multiply.
    fn drop_covered(&mut self, subset: &mut Vec<Thread>) {
        if subset.windows(2).all(|pair| pair[0].state != pair[1].state) {
            return;
        }
        let (mut kept, mut from) = (0, 0);
        while from < subset.len() {
            let state = subset[from].state;
            let to = from + subset[from..].partition_point(|thread| thread.state == state);
            subset.copy_within(from..to, kept);
            let place = &mut subset[kept..kept + to - from];
            kept += self.keep_uncovered(place);
            from = to;
        }
        subset.truncate(kept);
    }

    /// Moves the threads of one place that no other covers to the front; how many they are.
    fn keep_uncovered(&mut self, place: &mut [Thread]) -> usize {
        if place.len() == 1 {
            return 1;
        }
        // Within one loop entered once, a sweep finds them.
        let counters = &self.counters;
        place.sort_unstable_by_key(|thread| {
            let counter = counters[thread.counter as usize];
            (counter.parent, counter.need, std::cmp::Reverse(counter.left))
        });
        let (mut kept, mut most) = (0, 0);
        for index in 0..place.len() {
            let counter = self.counters[place[index].counter as usize];
            let fresh = kept == 0
                || self.counters[place[kept - 1].counter as usize].parent != counter.parent;
            if fresh || counter.left > most {
                most = counter.left;
                place[kept] = place[index];
                kept += 1;
            }
        }
        // Across loops entered several times each pair is looked at, as long as they are few.
        let parent = |thread: &Thread| self.counters[thread.counter as usize].parent;
        if kept <= MOST_COMPARED && parent(&place[0]) != parent(&place[kept - 1]) {
            self.work += (kept * kept) as u64 / 8;
            let mut left = 0;
            for index in 0..kept {
                let thread = place[index];
                let covered = |other: &Thread| self.covers(other.counter, thread.counter);
                if !place[..left].iter().any(covered) && !place[index + 1..kept].iter().any(covered)
                {
                    place[left] = thread;
                    left += 1;
                }
            }
            kept = left;
        }
        place[..kept].sort_unstable();
        kept
    }

    /// Whether everything that may follow under counter `b` may follow under `a`.
    fn covers(&self, mut a: CounterId, mut b: CounterId) -> bool {
        while a != b {
            let (one, other) = (self.counters[a as usize], self.counters[b as usize]);
            if one.hub != other.hub || one.need > other.need || one.left < other.left {
                return false;
            }
            (a, b) = (one.parent, other.parent);
        }
        true
    }

    fn find_or_insert(&mut self, nfa: &Nfa, subset: &[Thread]) -> State {
        let mask = self.buckets.len() - 1;
        let mut at = hash(subset) as usize & mask;
        while self.buckets[at] != 0 {
            let state = self.buckets[at] - 1;
            if self.threads(state) == subset {
                return state;
            }
            at = (at + 1) & mask;
        }
        let state = self.accept.len() as State;
        self.buckets[at] = state + 1;
        let from = self.threads.len() as u32;
        self.threads.extend_from_slice(subset);
        self.subsets.push(Subset { from, to: self.threads.len() as u32 });
        self.accept.push(subset.iter().any(|t| matches!(nfa.ops[t.state as usize], Op::Accept)));
        self.table.resize(self.table.len() + self.n_classes, UNKNOWN);
        if self.accept.len() * 2 > self.buckets.len() {
            self.grow();
        }
        state
    }

    fn grow(&mut self) {
        let size = self.buckets.len() * 4;
        let mut buckets = vec![0; size];
        for state in 0..self.accept.len() as State {
            let mut at = hash(self.threads(state)) as usize & (size - 1);
            while buckets[at] != 0 {
                at = (at + 1) & (size - 1);
            }
            buckets[at] = state + 1;
        }
        self.buckets = buckets;
    }
}

/// The thread after a byte.
fn take(nfa: &Nfa, thread: Thread, byte: u8) -> Option<Thread> {
    let state = match nfa.ops[thread.state as usize] {
        Op::Bytes { set, next } => nfa.sets[set as usize].contains(byte).then_some(next)?,
        Op::Table { table, local, .. } => {
            let trans = &nfa.tables[table as usize].dfa.trans;
            let target = trans[local as usize * 256 + byte as usize];
            // The automaton's states are consecutive.
            (target >= 0).then(|| thread.state - local + target as NfaState)?
        }
        _ => return None,
    };
    Some(Thread { state, counter: thread.counter })
}

fn hash(subset: &[Thread]) -> u64 {
    let mut hasher = rustc_hash::FxHasher::default();
    for thread in subset {
        hasher.write_u64(u64::from(thread.counter) << 32 | u64::from(thread.state));
    }
    let hash = hasher.finish();
    hash ^ (hash >> 29)
}

/// Every reachable state and transition.
pub(crate) fn explore_all(nfa: &Nfa, limits: &Limits) -> Result<Partial, ConstrainError> {
    let mut made = Determinizer::new(nfa);
    let advice = "use smaller repeat counts or fewer overlapping alternatives";
    let mut state = 0;
    while state < made.len() {
        for class in 0..made.n_classes {
            made.step(nfa, state as State, class as u8);
            if made.work > limits.compile_work {
                return Err(out_of_work(limits));
            }
        }
        Limits::check("dfa_states", limits.dfa_states, made.len(), "", advice)?;
        Limits::check("automaton_bytes", limits.automaton_bytes, made.bytes(), "", advice)?;
        state += 1;
    }
    let work = made.work;
    Ok(Partial { work, ..Partial::new(&nfa.classes, made.table, made.accept) })
}
