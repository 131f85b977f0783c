//! The automata of one character of a JSON string, as the schema front ends write it.
//!
//! Strings are where masks are large (nearly the whole vocabulary), so the run time recognises a
//! loop over one of these and answers from tables made once per tokenizer. A character is
//! recognised by its tree; a tree that is spelled in another way still works, only slower.

use crate::ast::{ByteSet, Node};
use crate::dfa::{Dfa, node_to_dfa};
use crate::limits::Limits;
use crate::nfa::Table;
use std::sync::{Arc, LazyLock};

/// Which characters there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum CharForm {
    /// The strict subset's: every `\uXXXX`, lone surrogates too.
    Strict,
    /// The finite form's: surrogates only in pairs.
    Finite,
}

/// Both forms, in the order of their indices.
pub(crate) const FORMS: [CharForm; 2] = [CharForm::Strict, CharForm::Finite];

static CHARS: LazyLock<[Option<Known>; 2]> =
    LazyLock::new(|| [Known::new(CharForm::Strict), Known::new(CharForm::Finite)]);

struct Known {
    node: Node,
    table: Arc<Table>,
}

impl Known {
    // The automata are small constants, so building them passes every limit.
    fn new(form: CharForm) -> Option<Self> {
        let node = spelled(form);
        let dfa = node_to_dfa(&node, &Limits::default()).ok().flatten()?;
        let table = Arc::new(Table::trimmed(&Arc::new(dfa), Some(form))?);
        Some(Self { node, table })
    }
}

fn known() -> impl Iterator<Item = &'static Known> {
    CHARS.iter().flatten()
}

/// The automaton of one character.
pub(crate) fn table(form: CharForm) -> Option<&'static Arc<Table>> {
    CHARS[form as usize].as_ref().map(|known| &known.table)
}

/// The automaton of a tree that is one of the character trees.
pub(crate) fn recognise(node: &Node) -> Option<Arc<Dfa>> {
    // The trees below are alternatives: anything else is told apart without building them.
    match node {
        Node::Alt(_) => known().find(|k| k.node == *node).map(|k| Arc::clone(&k.table.dfa)),
        Node::Automaton(dfa) => {
            known().find(|k| k.table.dfa == *dfa).map(|k| Arc::clone(&k.table.dfa))
        }
        _ => None,
    }
}

/// The finished table of a character automaton.
pub(crate) fn table_of(dfa: &Arc<Dfa>) -> Option<Arc<Table>> {
    known().find(|k| Arc::ptr_eq(&k.table.dfa, dfa)).map(|k| Arc::clone(&k.table))
}

/// One character of a JSON string: a UTF-8 sequence that needs no escape, or an escape.
pub(crate) fn tree(form: CharForm) -> Node {
    match table(form) {
        Some(table) => Node::Automaton(Arc::clone(&table.dfa)),
        None => spelled(form),
    }
}

fn spelled(form: CharForm) -> Node {
    let set = |ranges: &[(u8, u8)]| {
        Node::Set(
            ranges.iter().fold(ByteSet::EMPTY, |set, (a, b)| set.union(&ByteSet::range(*a, *b))),
        )
    };
    let more = || set(&[(0x80, 0xbf)]);
    let times = |node: Node, n| Node::Repeat { node: Box::new(node), min: n, max: Some(n) };
    let backslash = || set(&[(b'\\', b'\\')]);
    let hex = || set(&[(b'0', b'9'), (b'A', b'F'), (b'a', b'f')]);
    let u = || set(&[(b'u', b'u')]);
    let mut options = vec![
        set(&[(0x20, 0x21), (0x23, 0x5b), (0x5d, 0x7f)]),
        Node::Concat(vec![set(&[(0xc2, 0xdf)]), more()]),
        Node::Concat(vec![set(&[(0xe0, 0xe0)]), set(&[(0xa0, 0xbf)]), more()]),
        Node::Concat(vec![set(&[(0xe1, 0xec), (0xee, 0xef)]), times(more(), 2)]),
        Node::Concat(vec![set(&[(0xed, 0xed)]), set(&[(0x80, 0x9f)]), more()]),
        Node::Concat(vec![set(&[(0xf0, 0xf0)]), set(&[(0x90, 0xbf)]), times(more(), 2)]),
        Node::Concat(vec![set(&[(0xf1, 0xf3)]), times(more(), 3)]),
        Node::Concat(vec![set(&[(0xf4, 0xf4)]), set(&[(0x80, 0x8f)]), times(more(), 2)]),
        Node::Concat(vec![backslash(), Node::Set(ByteSet::of(b"\"\\/bfnrt"))]),
    ];
    match form {
        CharForm::Strict => {
            options.push(Node::Concat(vec![backslash(), u(), times(hex(), 4)]));
        }
        CharForm::Finite => {
            let d = || set(&[(b'D', b'D'), (b'd', b'd')]);
            let plain = Node::Alt(vec![
                Node::Concat(vec![
                    set(&[(b'0', b'9'), (b'A', b'C'), (b'E', b'F'), (b'a', b'c'), (b'e', b'f')]),
                    times(hex(), 3),
                ]),
                Node::Concat(vec![d(), set(&[(b'0', b'7')]), times(hex(), 2)]),
            ]);
            let pair = Node::Concat(vec![
                d(),
                set(&[(b'8', b'9'), (b'A', b'B'), (b'a', b'b')]),
                times(hex(), 2),
                backslash(),
                u(),
                d(),
                set(&[(b'C', b'F'), (b'c', b'f')]),
                times(hex(), 2),
            ]);
            options.push(Node::Concat(vec![backslash(), u(), Node::Alt(vec![plain, pair])]));
        }
    }
    Node::Alt(options)
}
