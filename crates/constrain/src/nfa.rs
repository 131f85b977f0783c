//! Thompson's construction: from a tree to a nondeterministic automaton over bytes.
//!
//! Built backwards, each node given the state that follows it, so a fragment of an empty language
//! is dropped before anything points to it: **every state reachable from the start can still
//! reach the accepting state**. That is what lets the run-time automaton be determinised lazily
//! without looking for dead states: a subset that is not empty is alive.
//!
//! Size is linear in the tree. Repeat counts are unrolled for the canonical automaton
//! ([`Counting::Unrolled`]); at run time ([`Counting::Counters`]) a counted loop is one copy of
//! its body beside a counter. An embedded automaton is not taken apart: its states are stepped
//! through its table.

use crate::ast::{ByteSet, Node};
use crate::classes::ByteClasses;
use crate::dfa::{DEAD, Dfa};
use crate::error::ConstrainError;
use crate::json_chars::{self, CharForm};
use crate::limits::Limits;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// A state of an [`Nfa`].
pub(crate) type NfaState = u32;

/// No state.
pub(crate) const NONE: NfaState = NfaState::MAX;

/// A counter without an upper bound.
pub(crate) const UNBOUNDED: u32 = u32::MAX;

/// Whether counted loops are written out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Counting {
    /// One copy of the body per count.
    Unrolled,
    /// One copy of the body and a counter.
    Counters,
}

/// What a state does. States that consume a byte are the ones a subset holds; the others are
/// followed without input.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Op {
    /// Takes a byte of set `set`.
    Bytes { set: u32, next: NfaState },
    /// State `local` of the embedded automaton `table`; where it accepts, `next` follows.
    Table { table: u32, local: u32, next: NfaState },
    /// Any of `edges[from..to]`.
    Split { from: u32, to: u32 },
    /// Starts a counted loop: pushes a counter and goes to `body`; `skip` when it may be left
    /// out altogether.
    /// `hub` is the loop's [`Op::Again`].
    Enter { min: u32, max: u32, hub: NfaState, body: NfaState, skip: NfaState },
    /// An item of the loop is complete: `again` when the counter allows one more, `exit` when it
    /// has enough.
    /// `loops` says more about the loop.
    Again { again: NfaState, exit: NfaState, loops: u32 },
    /// The whole string is complete.
    Accept,
}

/// A counted loop.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Loop {
    /// The counted loop around this one: its [`Op::Again`], or [`NONE`].
    pub(crate) outer: NfaState,
    /// Fewest items.
    pub(crate) min: u32,
    /// Fewest bytes of an item and its separator.
    pub(crate) shortest: u32,
    /// The item may be empty: items without a byte are not counted.
    pub(crate) nullable: bool,
    /// The items are JSON string characters: the table's index, or [`NONE`].
    pub(crate) chars: u32,
}

/// An embedded automaton, trimmed.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) dfa: Arc<Dfa>,
    /// Bytes that keep each state alive.
    pub(crate) live: Vec<ByteSet>,
    /// Bytes that no state tells apart.
    pub(crate) classes: ByteClasses,
    /// Which JSON character automaton this is, if it is one.
    pub(crate) form: Option<CharForm>,
}

/// A nondeterministic automaton in which every state is alive.
#[derive(Debug)]
pub(crate) struct Nfa {
    pub(crate) ops: Vec<Op>,
    pub(crate) edges: Vec<NfaState>,
    pub(crate) sets: Vec<ByteSet>,
    pub(crate) tables: Vec<Arc<Table>>,
    pub(crate) loops: Vec<Loop>,
    pub(crate) start: NfaState,
    pub(crate) classes: ByteClasses,
    /// Every byte that some state takes.
    pub(crate) bytes: ByteSet,
}

impl Nfa {
    /// The automaton of a tree; `None` when its language is empty.
    pub(crate) fn build(
        node: &Node,
        counting: Counting,
        limits: &Limits,
    ) -> Result<Option<Self>, ConstrainError> {
        let mut builder = Builder {
            ops: Vec::new(),
            edges: Vec::new(),
            sets: Vec::new(),
            set_index: FxHashMap::default(),
            tables: Vec::new(),
            table_index: FxHashMap::default(),
            loops: Vec::new(),
            around: NONE,
            counting,
            limits,
            depth: 0,
        };
        let accept = builder.push(Op::Accept)?;
        let Some(start) = builder.node(node, accept)? else {
            return Ok(None);
        };
        let classes = ByteClasses::new(&builder.sets, builder.tables.iter().map(|t| &t.classes));
        let Builder { ops, edges, sets, tables, loops, .. } = builder;
        let live = sets.iter().chain(tables.iter().flat_map(|table| &table.live));
        let bytes = live.fold(ByteSet::EMPTY, |bytes, live| bytes.union(live));
        Ok(Some(Self { ops, edges, sets, tables, loops, start, classes, bytes }))
    }

    /// Bytes that a consuming state takes.
    pub(crate) fn live(&self, state: NfaState) -> ByteSet {
        match self.ops[state as usize] {
            Op::Bytes { set, .. } => self.sets[set as usize],
            Op::Table { table, local, .. } => self.tables[table as usize].live[local as usize],
            _ => ByteSet::EMPTY,
        }
    }

    /// Whether every consuming state takes one of these bytes.
    pub(crate) fn always_takes(&self, bytes: &ByteSet) -> bool {
        let takes = |live: &ByteSet| live.is_empty() || !live.intersection(bytes).is_empty();
        self.sets.iter().all(takes) && self.tables.iter().all(|table| table.live.iter().all(takes))
    }

    /// The counted loop of a hub.
    pub(crate) fn loop_at(&self, hub: NfaState) -> Option<&Loop> {
        match self.ops.get(hub as usize)? {
            Op::Again { loops, .. } => self.loops.get(*loops as usize),
            _ => None,
        }
    }

    /// Bytes of memory held. The automata of JSON's characters are everybody's.
    pub(crate) fn memory_bytes(&self) -> usize {
        let own = self.tables.iter().filter(|table| table.form.is_none());
        let table = |table: &Arc<Table>| size_of_val(&*table.live) + size_of_val(&*table.dfa.trans);
        size_of_val(&*self.ops)
            + size_of_val(&*self.edges)
            + size_of_val(&*self.sets)
            + own.map(table).sum::<usize>()
    }
}

struct Builder<'l> {
    ops: Vec<Op>,
    edges: Vec<NfaState>,
    sets: Vec<ByteSet>,
    set_index: FxHashMap<ByteSet, u32>,
    tables: Vec<Arc<Table>>,
    table_index: FxHashMap<usize, Option<u32>>,
    loops: Vec<Loop>,
    /// The counted loop that is being built.
    around: NfaState,
    counting: Counting,
    limits: &'l Limits,
    depth: usize,
}

/// Levels of a tree per level of a source text: a group adds a concatenation, an alternation and
/// a repeat.
const LEVELS_PER_NESTING: usize = 8;

/// Counted loops whose copies are together no larger than this are written out: a short chain
/// needs no counter.
const UNROLL_STATES: u64 = 64;

type Built = Result<Option<NfaState>, ConstrainError>;

impl Builder<'_> {
    fn push(&mut self, op: Op) -> Result<NfaState, ConstrainError> {
        Limits::check(
            "nfa_states",
            self.limits.nfa_states,
            self.ops.len() + 1,
            "",
            "use smaller repeat counts",
        )?;
        self.ops.push(op);
        Ok(self.ops.len() as NfaState - 1)
    }

    fn split(&mut self, targets: &[NfaState]) -> Result<NfaState, ConstrainError> {
        if let [only] = targets {
            return Ok(*only);
        }
        let from = self.edges.len() as u32;
        self.edges.extend_from_slice(targets);
        self.push(Op::Split { from, to: self.edges.len() as u32 })
    }

    /// The start of `node` followed by `next`; `None` when the node's language is empty.
    fn node(&mut self, node: &Node, next: NfaState) -> Built {
        self.depth += 1;
        Limits::check(
            "nesting",
            self.limits.nesting,
            self.depth / LEVELS_PER_NESTING,
            "",
            "nest less deeply",
        )?;
        let start = self.shallow(node, next);
        self.depth -= 1;
        start
    }

    fn shallow(&mut self, node: &Node, next: NfaState) -> Built {
        match node {
            Node::Empty => Ok(Some(next)),
            Node::Set(set) => self.set(set, next),
            Node::Concat(parts) => {
                let mut next = next;
                for part in parts.iter().rev() {
                    let Some(start) = self.node(part, next)? else {
                        return Ok(None);
                    };
                    next = start;
                }
                Ok(Some(next))
            }
            Node::Alt(options) => {
                let mut starts = Vec::with_capacity(options.len());
                for option in options {
                    starts.extend(self.node(option, next)?);
                }
                if starts.is_empty() { Ok(None) } else { self.split(&starts).map(Some) }
            }
            Node::Repeat { node, min, max } => self.list(node, None, *min, *max, next),
            Node::Separated { node, separator, min, max } => {
                self.list(node, Some(separator), *min, *max, next)
            }
            Node::Automaton(dfa) => self.automaton(dfa, next),
            Node::Members { open, members, separator, close } => {
                self.members(open, members, separator, close, next)
            }
        }
    }

    fn set(&mut self, set: &ByteSet, next: NfaState) -> Built {
        if set.is_empty() {
            return Ok(None);
        }
        let sets = &mut self.sets;
        let set = *self.set_index.entry(*set).or_insert_with(|| {
            sets.push(*set);
            sets.len() as u32 - 1
        });
        self.push(Op::Bytes { set, next }).map(Some)
    }

    /// A repeat; `separator` stands between two items.
    fn list(
        &mut self,
        item: &Node,
        separator: Option<&Node>,
        min: u32,
        max: Option<u32>,
        next: NfaState,
    ) -> Built {
        if max.is_some_and(|max| max < min) {
            return Ok(None);
        }
        if max == Some(0) || (is_empty(item) && separator.is_none_or(is_empty)) {
            return Ok(Some(next));
        }
        let chars = separator.is_none().then(|| json_chars::recognise(item)).flatten();
        let automaton;
        let item = match &chars {
            Some(dfa) => {
                automaton = Node::Automaton(Arc::clone(dfa));
                &automaton
            }
            None => item,
        };
        let plain = min <= 1 && (max.is_none() || max == Some(1));
        let small = || {
            let copies = u64::from(max.unwrap_or(min));
            let one = size(item, UNROLL_STATES) + separator.map_or(0, |s| size(s, UNROLL_STATES));
            copies.saturating_mul(one) <= UNROLL_STATES
        };
        // Loops of string characters are always counted, so that they can be told from their hub.
        match self.counting {
            Counting::Counters if chars.is_some() || (!plain && !small()) => {
                self.counted(item, separator, min, max, next)
            }
            _ => self.unrolled(item, separator, min, max, next),
        }
    }

    /// One copy of the item beside a counter.
    fn counted(
        &mut self,
        item: &Node,
        separator: Option<&Node>,
        min: u32,
        max: Option<u32>,
        next: NfaState,
    ) -> Built {
        let hub = self.push(Op::Accept)?;
        let outer = std::mem::replace(&mut self.around, hub);
        let Some(body) = self.node(item, hub)? else {
            self.around = outer;
            return Ok((min == 0).then_some(next));
        };
        let again = self.joined(separator, body)?;
        self.around = outer;
        let skip = if min == 0 { next } else { NONE };
        let max = max.unwrap_or(UNBOUNDED);
        let Some(again) = again else {
            // No separator can be written: one item at most.
            self.ops[hub as usize] = self.goto(next);
            return match (min > 1, skip) {
                (true, _) => Ok(None),
                (false, NONE) => Ok(Some(body)),
                (false, skip) => self.split(&[body, skip]).map(Some),
            };
        };
        // x{m,n} of a nullable x is x{0,n}: a missing item is an empty one.
        let nullable = separator.is_none_or(nullable) && nullable(item);
        let min = if nullable { 0 } else { min };
        let chars = match self.ops[body as usize] {
            Op::Table { table, .. } if self.tables[table as usize].form.is_some() => table,
            _ => NONE,
        };
        let shortest = shortest(item).saturating_add(separator.map_or(0, shortest));
        let shortest = u32::try_from(shortest).unwrap_or(u32::MAX);
        self.loops.push(Loop { outer, min, shortest, nullable, chars });
        let loops = self.loops.len() as u32 - 1;
        self.ops[hub as usize] = Op::Again { again, exit: next, loops };
        self.push(Op::Enter { min, max, hub, body, skip }).map(Some)
    }

    fn goto(&mut self, next: NfaState) -> Op {
        self.edges.push(next);
        let to = self.edges.len() as u32;
        Op::Split { from: to - 1, to }
    }

    /// One copy of the item per count, built from the last to the first.
    fn unrolled(
        &mut self,
        item: &Node,
        separator: Option<&Node>,
        min: u32,
        max: Option<u32>,
        next: NfaState,
    ) -> Built {
        // `tail`: what follows when `done` items are complete, from the end of the list backwards.
        let copies = max.unwrap_or(min.max(1));
        let mut tail = next;
        if max.is_none() {
            // The last copy loops: item.end -> (separator item | next).
            let hub = self.push(Op::Accept)?;
            let Some(body) = self.node(item, hub)? else {
                return Ok((min == 0).then_some(next));
            };
            let again = self.joined(separator, body)?;
            let mut targets: Vec<NfaState> = again.into_iter().collect();
            targets.push(next);
            let from = self.edges.len() as u32;
            self.edges.extend_from_slice(&targets);
            self.ops[hub as usize] = Op::Split { from, to: self.edges.len() as u32 };
            tail = body;
            if copies == 1 {
                return if min == 0 { self.split(&[tail, next]).map(Some) } else { Ok(Some(tail)) };
            }
            let Some(start) = self.joined(separator, tail)? else {
                return Ok(None);
            };
            tail = start;
        }
        let written = if max.is_none() { copies - 1 } else { copies };
        for index in (0..written).rev() {
            // After item `index` (from 0): the next item, or the end when enough are written.
            let after =
                if tail == next || index + 1 < min { tail } else { self.split(&[tail, next])? };
            let Some(start) = self.node(item, after)? else {
                return Ok((min == 0).then_some(next));
            };
            if index == 0 {
                return if min == 0 {
                    self.split(&[start, next]).map(Some)
                } else {
                    Ok(Some(start))
                };
            }
            tail = match self.joined(separator, start)? {
                Some(start) => start,
                // No separator can be written: only the first item counts.
                None if index < min => return Ok(None),
                None => next,
            };
        }
        Ok(Some(tail))
    }

    fn joined(&mut self, separator: Option<&Node>, start: NfaState) -> Built {
        match separator {
            None => Ok(Some(start)),
            Some(separator) => self.node(separator, start),
        }
    }

    fn automaton(&mut self, dfa: &Arc<Dfa>, next: NfaState) -> Built {
        let key = Arc::as_ptr(dfa) as usize;
        let index = if let Some(index) = self.table_index.get(&key) {
            *index
        } else {
            let known = json_chars::table_of(dfa);
            let table = known.or_else(|| Table::trimmed(dfa, None).map(Arc::new));
            let index = table.map(|table| {
                self.tables.push(table);
                self.tables.len() as u32 - 1
            });
            self.table_index.insert(key, index);
            index
        };
        let Some(table) = index else {
            return Ok(None);
        };
        let base = self.ops.len() as NfaState;
        let dfa = Arc::clone(&self.tables[table as usize].dfa);
        for local in 0..dfa.n_states {
            let next = if dfa.accept[local] { next } else { NONE };
            self.push(Op::Table { table, local: local as u32, next })?;
        }
        Ok(Some(base))
    }

    /// `first`: no member written yet; `after`: at least one was. One copy of each member.
    fn members(
        &mut self,
        open: &Node,
        members: &[crate::ast::Member],
        separator: &Node,
        close: &Node,
        next: NfaState,
    ) -> Built {
        let Some(close) = self.node(close, next)? else {
            return Ok(None);
        };
        let (mut first, mut after) = (Some(close), Some(close));
        for member in members.iter().rev() {
            let written = match after {
                Some(after) => self.node(&member.node, after)?,
                None => None,
            };
            let separated = match written {
                Some(written) => self.node(separator, written)?,
                None => None,
            };
            (first, after) = if member.required {
                (written, separated)
            } else {
                (self.either(written, first)?, self.either(separated, after)?)
            };
        }
        match first {
            Some(first) => self.node(open, first),
            None => Ok(None),
        }
    }

    fn either(&mut self, a: Option<NfaState>, b: Option<NfaState>) -> Built {
        match (a, b) {
            (Some(a), Some(b)) => self.split(&[a, b]).map(Some),
            (a, b) => Ok(a.or(b)),
        }
    }
}

impl Table {
    /// The part of an automaton that can reach acceptance; `None` when the start cannot.
    pub(crate) fn trimmed(dfa: &Arc<Dfa>, form: Option<CharForm>) -> Option<Self> {
        let n = dfa.n_states;
        if n == 0 {
            return None;
        }
        let mut sources: Vec<Vec<u32>> = vec![Vec::new(); n];
        for (state, row) in dfa.trans.chunks_exact(256).enumerate() {
            let mut last = DEAD;
            for &target in row {
                if target != last && target != DEAD {
                    sources[target as usize].push(state as u32);
                }
                last = target;
            }
        }
        let mut alive = dfa.accept.clone();
        let mut stack: Vec<u32> = (0..n as u32).filter(|s| alive[*s as usize]).collect();
        while let Some(state) = stack.pop() {
            for &source in &sources[state as usize] {
                if !alive[source as usize] {
                    alive[source as usize] = true;
                    stack.push(source);
                }
            }
        }
        if !alive[0] {
            return None;
        }
        let mut dfa = Arc::clone(dfa);
        if alive.contains(&false) {
            let trans = dfa
                .trans
                .iter()
                .map(|t| if *t == DEAD || !alive[*t as usize] { DEAD } else { *t })
                .collect();
            dfa = Arc::new(Dfa { n_states: n, accept: dfa.accept.clone(), trans });
        }
        let live = dfa
            .trans
            .chunks_exact(256)
            .map(|row| {
                let mut live = ByteSet::EMPTY;
                for (byte, target) in row.iter().enumerate() {
                    if *target != DEAD {
                        live.insert(byte as u8);
                    }
                }
                live
            })
            .collect();
        let classes = ByteClasses::of_table(&dfa);
        Some(Self { dfa, live, classes, form })
    }
}

/// Whether nothing but the empty string can be told to be in the language: no state is made for
/// it, so its repetitions would be counted without a bound.
fn is_empty(node: &Node) -> bool {
    match node {
        Node::Empty => true,
        Node::Concat(parts) => parts.iter().all(is_empty),
        Node::Alt(options) => !options.is_empty() && options.iter().all(is_empty),
        Node::Repeat { node, max, .. } => *max == Some(0) || is_empty(node),
        Node::Separated { node, separator, max, .. } => {
            *max == Some(0) || (is_empty(node) && is_empty(separator))
        }
        _ => false,
    }
}

/// Whether the empty string is in the language.
fn nullable(node: &Node) -> bool {
    match node {
        Node::Empty => true,
        Node::Set(_) => false,
        Node::Concat(parts) => parts.iter().all(nullable),
        Node::Alt(options) => options.iter().any(nullable),
        Node::Repeat { node, min, .. } => *min == 0 || nullable(node),
        Node::Separated { node, separator, min, .. } => {
            *min == 0 || (nullable(node) && (*min == 1 || nullable(separator)))
        }
        Node::Automaton(dfa) => dfa.n_states > 0 && dfa.accept[0],
        Node::Members { open, members, separator, close } => {
            let required = members.iter().filter(|m| m.required).count();
            nullable(open)
                && nullable(close)
                && members.iter().all(|m| !m.required || nullable(&m.node))
                && (required <= 1 || nullable(separator))
        }
    }
}

/// Fewest bytes of a string of the language, at most; saturates.
fn shortest(node: &Node) -> u64 {
    let times = |one: u64, n: u32| one.saturating_mul(u64::from(n));
    match node {
        Node::Empty => 0,
        Node::Set(_) => 1,
        Node::Concat(parts) => parts.iter().fold(0, |sum, part| sum.saturating_add(shortest(part))),
        Node::Alt(options) => options.iter().map(shortest).min().unwrap_or(0),
        Node::Repeat { node, min, .. } => times(shortest(node), *min),
        Node::Separated { node, separator, min, .. } => times(shortest(node), *min)
            .saturating_add(times(shortest(separator), min.saturating_sub(1))),
        Node::Automaton(dfa) => u64::from(dfa.n_states > 0 && !dfa.accept[0]),
        Node::Members { open, members, close, .. } => {
            let required = members.iter().filter(|m| m.required).map(|m| shortest(&m.node));
            let ends = shortest(open).saturating_add(shortest(close));
            required.fold(ends, u64::saturating_add)
        }
    }
}

/// States that a node takes, counted up to somewhat above `cap`.
fn size(node: &Node, cap: u64) -> u64 {
    let sum = |parts: &mut dyn Iterator<Item = &Node>| {
        let mut total = 1;
        for part in parts {
            total += size(part, cap);
            if total > cap {
                break;
            }
        }
        total
    };
    match node {
        Node::Empty | Node::Set(_) => 1,
        Node::Concat(parts) | Node::Alt(parts) => sum(&mut parts.iter()),
        Node::Repeat { node, min, max } => {
            size(node, cap).saturating_mul(u64::from(max.unwrap_or(*min).max(1)))
        }
        Node::Separated { node, separator, min, max } => sum(&mut [&**node, separator].into_iter())
            .saturating_mul(u64::from(max.unwrap_or(*min).max(1))),
        Node::Automaton(dfa) => dfa.n_states as u64,
        Node::Members { open, members, separator, close } => {
            let ends = [&**open, separator, close];
            sum(&mut ends.into_iter().chain(members.iter().map(|m| &m.node)))
        }
    }
}
