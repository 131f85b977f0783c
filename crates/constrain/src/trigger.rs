//! Free text until a byte string, then a grammar.
//!
//! Both parts are regular: the text before the trigger is what the matcher of Knuth, Morris and
//! Pratt reads without reaching its last state. So a trigger is a tree like any other, and a
//! token that crosses the trigger's end is allowed exactly when its rest begins the body.

use crate::ast::Node;
use crate::dfa::{DEAD, Dfa};
use std::sync::Arc;

/// Any text without the trigger, or the first occurrence of the trigger followed by `body`.
/// The trigger must not be empty.
pub(crate) fn tree(trigger: &[u8], body: Node) -> Node {
    let n = trigger.len();
    // `back[k]`: the state to go on from when byte `k` does not follow.
    let mut trans = Vec::with_capacity((n + 1) * 256);
    let mut back = 0;
    for (state, &byte) in trigger.iter().enumerate() {
        let mut row: Vec<i32> =
            if state == 0 { vec![0; 256] } else { trans[back * 256..(back + 1) * 256].to_vec() };
        let fallback = row[byte as usize] as usize;
        row[byte as usize] = state as i32 + 1;
        trans.extend(row);
        if state > 0 {
            back = fallback;
        }
    }
    let free = Dfa {
        n_states: n,
        accept: vec![true; n],
        trans: trans.iter().map(|t| if *t as usize == n { DEAD } else { *t }).collect(),
    };
    trans.extend([DEAD; 256]);
    let mut accept = vec![false; n];
    accept.push(true);
    let until = Dfa { n_states: n + 1, accept, trans };
    Node::Alt(vec![
        Node::Automaton(Arc::new(free)),
        Node::Concat(vec![Node::Automaton(Arc::new(until)), body]),
    ])
}
