//! What two regular languages have in common, and what one has that the other has not.

use crate::ast::Node;
use crate::classes::ByteClasses;
use crate::determinize::explore_all;
use crate::dfa::{DEAD, Dfa};
use crate::error::ConstrainError;
use crate::limits::Limits;
use crate::minimize::{NO_TARGET, Partial, canonical};
use crate::nfa::{Counting, Nfa};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// The canonical automaton of a tree. What the work takes is taken from [`Limits::compile_work`],
/// so that the many automata of one schema share one allowance.
pub(crate) fn automaton(node: &Node, limits: &mut Limits) -> Result<Option<Dfa>, ConstrainError> {
    let Some(nfa) = Nfa::build(node, Counting::Unrolled, limits)? else {
        return Ok(None);
    };
    let partial = explore_all(&nfa, limits)?;
    let work = partial.work + partial.table.len() as u64 + nfa.ops.len() as u64;
    limits.compile_work = limits.compile_work.saturating_sub(work);
    canonical(&partial, limits).map(Some)
}

/// What both trees accept; none when that is nothing. Costs the product of their states.
pub(crate) fn both(
    a: &Node,
    b: &Node,
    limits: &mut Limits,
) -> Result<Option<Node>, ConstrainError> {
    match (automaton(a, limits)?, automaton(b, limits)?) {
        (Some(a), Some(b)) => product(&a, &b, true, limits),
        _ => Ok(None),
    }
}

/// What `a` accepts and `b` does not; none when that is nothing.
pub(crate) fn without(
    a: &Node,
    b: &Node,
    limits: &mut Limits,
) -> Result<Option<Node>, ConstrainError> {
    match (automaton(a, limits)?, automaton(b, limits)?) {
        (Some(a), Some(b)) => product(&a, &b, false, limits),
        (Some(a), None) => Ok(Some(Node::Automaton(Arc::new(a)))),
        (None, _) => Ok(None),
    }
}

/// What `a` accepts where `b`'s acceptance is `wanted`.
fn product(
    a: &Dfa,
    b: &Dfa,
    wanted: bool,
    limits: &mut Limits,
) -> Result<Option<Node>, ConstrainError> {
    let classes =
        ByteClasses::new(&[], [ByteClasses::of_table(a), ByteClasses::of_table(b)].iter());
    let mut pairs: Vec<(i32, i32)> = vec![(0, 0)];
    let mut index: FxHashMap<(i32, i32), u32> = FxHashMap::default();
    index.insert((0, 0), 0);
    let mut table = Vec::new();
    let mut accept = Vec::new();
    let mut next = 0;
    while let Some(&(s, t)) = pairs.get(next) {
        next += 1;
        accept.push(a.accept[s as usize] && (t != DEAD && b.accept[t as usize]) == wanted);
        for byte in &classes.first {
            let target = (follow(a, s, *byte), follow(b, t, *byte));
            if target.0 == DEAD || (wanted && target.1 == DEAD) {
                table.push(NO_TARGET);
                continue;
            }
            let fresh = pairs.len() as u32;
            let state = *index.entry(target).or_insert(fresh);
            if state == fresh {
                pairs.push(target);
            }
            table.push(state);
        }
        let advice = "bound the pattern or the length alone, or use smaller counts";
        Limits::check("dfa_states", limits.dfa_states, pairs.len(), "", advice)?;
        Limits::check("automaton_bytes", limits.automaton_bytes, table.len() * 4, "", advice)?;
    }
    limits.compile_work = limits.compile_work.saturating_sub(table.len() as u64);
    let Some(partial) = trimmed(&classes, &table, &accept) else {
        return Ok(None);
    };
    Ok(Some(Node::Automaton(Arc::new(canonical(&partial, limits)?))))
}

/// The states from which an accepting one can be reached; none when the start is not among them.
fn trimmed(classes: &ByteClasses, table: &[u32], accept: &[bool]) -> Option<Partial> {
    let mut sources: Vec<Vec<u32>> = vec![Vec::new(); accept.len()];
    for (from, row) in table.chunks_exact(classes.len()).enumerate() {
        for target in row.iter().filter(|target| **target != NO_TARGET) {
            sources[*target as usize].push(from as u32);
        }
    }
    let mut alive = accept.to_vec();
    let mut open: Vec<u32> = (0..accept.len() as u32).filter(|s| accept[*s as usize]).collect();
    while let Some(state) = open.pop() {
        for source in &sources[state as usize] {
            if !std::mem::replace(&mut alive[*source as usize], true) {
                open.push(*source);
            }
        }
    }
    if !alive[0] {
        return None;
    }
    let mut count = 0;
    let name: Vec<u32> = alive
        .iter()
        .map(|alive| {
            count += u32::from(*alive);
            if *alive { count - 1 } else { NO_TARGET }
        })
        .collect();
    let rows = table.chunks_exact(classes.len()).zip(&alive).filter(|(_, alive)| **alive);
    let target = |target: &u32| name.get(*target as usize).copied().unwrap_or(NO_TARGET);
    let table = rows.flat_map(|(row, _)| row.iter().map(target)).collect();
    let accept = accept.iter().zip(&alive).filter(|(_, alive)| **alive).map(|(a, _)| *a).collect();
    Some(Partial::new(classes, table, accept))
}

fn follow(dfa: &Dfa, state: i32, byte: u8) -> i32 {
    if state == DEAD { DEAD } else { dfa.trans[state as usize * 256 + usize::from(byte)] }
}
