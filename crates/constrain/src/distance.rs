//! How far an output is from an ending, in bytes.
//!
//! Computed once per grammar over the NFA, so it costs no deterministic state: within each
//! counted loop the distance to the loop's hub, at the top the distance to acceptance. A thread's
//! distance adds up its stack of counters.
//! Bytes that no token spells alone are left out where a bound in tokens is asked for.

use crate::ast::ByteSet;
use crate::determinize::{CounterId, Determinizer, State, Thread};
use crate::nfa::{NONE, Nfa, NfaState, Op};

/// Distances over an NFA; all saturate.
#[derive(Debug)]
pub(crate) struct Distances {
    /// By any bytes.
    any: Vec<u32>,
    /// By bytes that are tokens by themselves, where that differs.
    spelled: Option<Vec<u32>>,
    /// No state of the automaton is further from an ending than this, spelled byte by byte.
    pub(crate) furthest: u32,
}

const FAR: u32 = u32::MAX;

impl Distances {
    /// Distances when `singles` are the bytes that are tokens by themselves.
    pub(crate) fn new(nfa: &Nfa, singles: &ByteSet) -> Self {
        let any = settle(nfa, &ByteSet::FULL);
        let spelled = (*singles != ByteSet::FULL).then(|| settle(nfa, singles));
        let local = spelled.as_ref().unwrap_or(&any);
        let states = local.iter().max().copied().unwrap_or(0);
        let mut loops = 0;
        for op in &nfa.ops {
            if let Op::Enter { hub, .. } = *op {
                loops = loops.max(around(nfa, local, hub));
            }
        }
        let furthest = states.saturating_add(loops);
        Self { any, spelled, furthest }
    }

    /// Bytes of memory held.
    pub(crate) fn memory_bytes(&self) -> usize {
        let tables = [Some(&self.any), self.spelled.as_ref()];
        tables.into_iter().flatten().map(|table| size_of_val(&**table)).sum()
    }

    /// Fewest bytes from a deterministic state to acceptance.
    pub(crate) fn bytes(&self, nfa: &Nfa, automaton: &Determinizer, state: State) -> u32 {
        total(nfa, &self.any, automaton, state)
    }

    /// Fewest bytes from a deterministic state to acceptance of which each is a token.
    pub(crate) fn spelled(&self, nfa: &Nfa, automaton: &Determinizer, state: State) -> u32 {
        total(nfa, self.spelled.as_ref().unwrap_or(&self.any), automaton, state)
    }
}

/// Fewest bytes, all in `bytes`, from each state to the hub of its counted loop or to acceptance.
fn settle(nfa: &Nfa, bytes: &ByteSet) -> Vec<u32> {
    let mut local = vec![FAR; nfa.ops.len()];
    // Fragments are built before what leads to them, so all but loops settle in one pass.
    loop {
        let mut changed = false;
        for state in 0..nfa.ops.len() {
            let distance = relax(nfa, &local, state as NfaState, bytes);
            if distance < local[state] {
                local[state] = distance;
                changed = true;
            }
        }
        if !changed {
            return local;
        }
    }
}

fn total(nfa: &Nfa, local: &[u32], automaton: &Determinizer, state: State) -> u32 {
    let threads = automaton.threads(state).iter();
    let distance = |thread: &Thread| {
        let here = local[thread.state as usize];
        here.saturating_add(after(nfa, local, automaton, thread.counter))
    };
    threads.map(distance).min().unwrap_or(FAR)
}

/// Fewest bytes from the hub of a counter to acceptance.
fn after(nfa: &Nfa, local: &[u32], automaton: &Determinizer, counter: CounterId) -> u32 {
    let (mut total, mut id) = (0_u32, counter);
    while id != 0 {
        let counter = automaton.counter(id);
        if let Op::Again { again, exit, .. } = nfa.ops[counter.hub as usize] {
            let items = match counter.need {
                0 => 0,
                need => need.saturating_mul(local[again as usize]),
            };
            total = total.saturating_add(items).saturating_add(local[exit as usize]);
        }
        id = counter.parent;
    }
    total
}

/// Fewest bytes from a state, given those from its successors.
fn relax(nfa: &Nfa, local: &[u32], state: NfaState, bytes: &ByteSet) -> u32 {
    let at = |state: NfaState| if state == NONE { FAR } else { local[state as usize] };
    match nfa.ops[state as usize] {
        Op::Accept | Op::Again { .. } => 0,
        Op::Bytes { set, .. } if nfa.sets[set as usize].intersection(bytes).is_empty() => FAR,
        Op::Bytes { next, .. } => at(next).saturating_add(1),
        Op::Split { from, to } => {
            nfa.edges[from as usize..to as usize].iter().map(|s| at(*s)).min().unwrap_or(FAR)
        }
        Op::Table { table, local: here, next } => {
            let row = &nfa.tables[table as usize].dfa.trans[here as usize * 256..][..256];
            let base = state - here;
            let mut best = at(next);
            for (byte, &target) in row.iter().enumerate() {
                if target >= 0 && bytes.contains(byte as u8) {
                    best = best.min(at(base + target as NfaState).saturating_add(1));
                }
            }
            best
        }
        Op::Enter { min, hub, body, skip, .. } => {
            let Op::Again { again, exit, .. } = nfa.ops[hub as usize] else {
                return FAR;
            };
            let more = min.saturating_sub(1);
            let items = if more == 0 { 0 } else { more.saturating_mul(at(again)) };
            at(body).saturating_add(items).saturating_add(at(exit)).min(at(skip))
        }
    }
}

/// Most bytes that the counters of a loop and those around it can add to a local distance.
fn around(nfa: &Nfa, local: &[u32], hub: NfaState) -> u32 {
    let (mut total, mut hub) = (0_u32, hub);
    while let (Some(l), Op::Again { again, exit, .. }) =
        (nfa.loop_at(hub), nfa.ops.get(hub as usize).copied().unwrap_or(Op::Accept))
    {
        let more = l.min.saturating_sub(1);
        let items = if more == 0 { 0 } else { more.saturating_mul(local[again as usize]) };
        total = total.saturating_add(items).saturating_add(local[exit as usize]);
        hub = l.outer;
    }
    total
}
