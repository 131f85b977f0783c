//! The walk that makes a mask: the trie and the automaton side by side.
//!
//! A child is visited only when its byte is live, so the cost is the number of trie nodes the
//! grammar can reach, not the vocabulary. The stack is explicit and holds at most one block of
//! children per level.

use crate::ast::ByteSet;
use crate::error::ConstrainError;
use crate::trie::{NARROW, ROOT, Trie};

/// What is walked beside the trie.
pub(crate) trait Automaton {
    /// A live state.
    type State: Copy;

    /// The state after a byte, if it is alive.
    fn step(&mut self, state: Self::State, byte: u8) -> Option<Self::State>;

    /// Bytes that keep a state alive; may hold more.
    fn live(&self, state: Self::State) -> ByteSet;

    /// Called now and then; an error stops the walk.
    fn check(&mut self) -> Result<(), ConstrainError>;

    /// Called at the end; an error makes the walk worth nothing.
    fn finish(&mut self) -> Result<(), ConstrainError> {
        Ok(())
    }
}

/// Calls `visit(tokens, state)` for the tokens whose bytes all stay alive from `state`.
pub(crate) fn walk<A: Automaton>(
    trie: &Trie,
    automaton: &mut A,
    state: A::State,
    visit: impl FnMut(&[u32], A::State),
) -> Result<(), ConstrainError> {
    walk_from(trie, automaton, vec![(ROOT, state)], visit)
}

/// Calls `visit` for the tokens below some nodes whose bytes all stay alive from the node's state.
pub(crate) fn walk_from<A: Automaton>(
    trie: &Trie,
    automaton: &mut A,
    mut stack: Vec<(u32, A::State)>,
    mut visit: impl FnMut(&[u32], A::State),
) -> Result<(), ConstrainError> {
    let mut check = 0_u32;
    while let Some((node, state)) = stack.pop() {
        check = check.wrapping_add(1);
        if check.is_multiple_of(1024) {
            automaton.check()?;
        }
        let node = trie.node(node);
        let children = trie.children(node);
        // From the last child to the first: then the nodes are read in the order they lie in.
        let mut enter = |index: usize, automaton: &mut A| {
            let child = &children[index];
            if let Some(next) = automaton.step(state, child.byte) {
                visit(trie.tokens(&child.token), next);
                if child.children > 0 {
                    stack.push((node.child + index as u32, next));
                }
            }
        };
        if node.wide == NARROW {
            for index in (0..children.len()).rev() {
                enter(index, automaton);
            }
            continue;
        }
        // Only the bytes that both have; a child's index is the rank of its byte.
        let (bytes, live) = (trie.bytes_below(node.wide).0, automaton.live(state).0);
        let mut before = children.len();
        for (bytes, live) in bytes.into_iter().zip(live).rev() {
            before -= bytes.count_ones() as usize;
            let mut both = bytes & live;
            while both != 0 {
                let bit = 1 << both.ilog2();
                both ^= bit;
                enter(before + (bytes & (bit - 1)).count_ones() as usize, automaton);
            }
        }
    }
    automaton.finish()
}
