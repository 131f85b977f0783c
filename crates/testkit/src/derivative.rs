//! A slow, obvious matcher: Brzozowski derivatives of expressions over bytes.
//!
//! An oracle for the automata of `tinyllm-constrain`: it shares no code with them, builds no
//! states and knows no classes. A token is allowed when the derivative by its bytes is not void.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use tinyllm_constrain::{DEAD, Dfa, Node};

/// An expression. Equal expressions are one object, so that alternatives that repeat themselves
/// do not pile up as derivatives are taken.
#[derive(Debug, Clone)]
pub struct Expr(Rc<Inner>);

#[derive(Debug)]
struct Inner {
    id: usize,
    kind: Kind,
    nullable: bool,
    void: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Kind {
    /// No string.
    Void,
    /// The empty string.
    Empty,
    /// One of these bytes.
    Set(Vec<u8>),
    Cat(Expr, Expr),
    /// Two or more, in the order of their ids.
    Or(Vec<Expr>),
    /// `min` to `max` times.
    Times(Expr, u32, Option<u32>),
    /// What an automaton accepts from a state.
    Rest(Table, i32),
}

/// An automaton, equal to itself only.
#[derive(Debug, Clone)]
struct Table(Rc<Dfa>);

impl PartialEq for Table {
    fn eq(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Table {}

impl std::hash::Hash for Table {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        Rc::as_ptr(&self.0).hash(state);
    }
}

impl PartialEq for Expr {
    fn eq(&self, other: &Self) -> bool {
        self.0.id == other.0.id
    }
}

impl Eq for Expr {}

impl std::hash::Hash for Expr {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.id.hash(state);
    }
}

thread_local! {
    static KNOWN: RefCell<HashMap<Kind, Expr>> = RefCell::default();
    static AFTER: RefCell<HashMap<(usize, u8), Expr>> = RefCell::default();
}

impl Expr {
    fn new(kind: Kind) -> Self {
        KNOWN.with_borrow_mut(|known| {
            if let Some(expr) = known.get(&kind) {
                return expr.clone();
            }
            let (nullable, void) = (kind.nullable(), kind.is_void());
            let expr = Self(Rc::new(Inner { id: known.len(), kind: kind.clone(), nullable, void }));
            known.insert(kind, expr.clone());
            expr
        })
    }

    /// No string.
    pub fn void() -> Self {
        Self::new(Kind::Void)
    }

    /// The empty string.
    pub fn empty() -> Self {
        Self::new(Kind::Empty)
    }

    /// One byte of a set.
    pub fn set(bytes: impl IntoIterator<Item = u8>) -> Self {
        let mut bytes: Vec<u8> = bytes.into_iter().collect();
        bytes.sort_unstable();
        if bytes.is_empty() { Self::void() } else { Self::new(Kind::Set(bytes)) }
    }

    /// Exactly these bytes.
    pub fn literal(bytes: &[u8]) -> Self {
        bytes.iter().rev().fold(Self::empty(), |rest, byte| Self::set([*byte]).then(&rest))
    }

    /// One after the other.
    #[must_use]
    pub fn then(&self, next: &Self) -> Self {
        match (&self.0.kind, &next.0.kind) {
            _ if self.is_void() || next.is_void() => Self::void(),
            (Kind::Empty, _) => next.clone(),
            (_, Kind::Empty) => self.clone(),
            _ => Self::new(Kind::Cat(self.clone(), next.clone())),
        }
    }

    /// Either.
    #[must_use]
    pub fn or(&self, other: &Self) -> Self {
        let parts = |expr: &Self| match &expr.0.kind {
            Kind::Or(parts) => parts.clone(),
            _ if expr.is_void() => Vec::new(),
            _ => vec![expr.clone()],
        };
        let mut all = parts(self);
        all.extend(parts(other));
        all.sort_by_key(|part| part.0.id);
        all.dedup();
        match &all[..] {
            [] => Self::void(),
            [only] => only.clone(),
            _ => Self::new(Kind::Or(all)),
        }
    }

    /// `min` to `max` times.
    #[must_use]
    pub fn times(&self, min: u32, max: Option<u32>) -> Self {
        if max.is_some_and(|max| max < min) {
            return Self::void();
        }
        match (&self.0.kind, max) {
            (_, Some(0)) => Self::empty(),
            _ if self.is_void() => {
                if min > 0 {
                    Self::void()
                } else {
                    Self::empty()
                }
            }
            (Kind::Empty, _) => Self::empty(),
            (_, Some(1)) if min == 1 => self.clone(),
            _ => Self::new(Kind::Times(self.clone(), min, max)),
        }
    }

    /// Whether the empty string is in the language.
    pub fn nullable(&self) -> bool {
        self.0.nullable
    }

    /// Whether the language is empty.
    pub fn is_void(&self) -> bool {
        self.0.void
    }

    /// How many expressions this thread has made: a test may give up on one that grows.
    pub fn made() -> usize {
        KNOWN.with_borrow(HashMap::len)
    }

    /// What may follow a byte.
    #[must_use]
    pub fn after(&self, byte: u8) -> Self {
        let key = (self.0.id, byte);
        if let Some(after) = AFTER.with_borrow(|after| after.get(&key).cloned()) {
            return after;
        }
        let after = self.derive(byte);
        AFTER.with_borrow_mut(|all| all.insert(key, after.clone()));
        after
    }

    fn derive(&self, byte: u8) -> Self {
        match &self.0.kind {
            Kind::Set(bytes) if bytes.contains(&byte) => Self::empty(),
            Kind::Void | Kind::Empty | Kind::Set(_) => Self::void(),
            Kind::Cat(a, b) => {
                let first = a.after(byte).then(b);
                if a.nullable() { first.or(&b.after(byte)) } else { first }
            }
            Kind::Or(parts) => {
                parts.iter().fold(Self::void(), |any, part| any.or(&part.after(byte)))
            }
            Kind::Times(a, min, max) => {
                a.after(byte).then(&a.times(min.saturating_sub(1), max.map(|max| max - 1)))
            }
            Kind::Rest(dfa, state) => match dfa.0.step(*state, &[byte]) {
                Ok(DEAD) | Err(_) => Self::void(),
                Ok(next) => Self::new(Kind::Rest(dfa.clone(), next)),
            },
        }
    }

    /// What may follow these bytes.
    #[must_use]
    pub fn after_all(&self, bytes: &[u8]) -> Self {
        let mut rest = self.clone();
        for &byte in bytes {
            if rest.is_void() {
                return Self::void();
            }
            rest = rest.after(byte);
        }
        rest
    }

    /// Whether the whole of `bytes` is in the language.
    pub fn matches(&self, bytes: &[u8]) -> bool {
        self.after_all(bytes).nullable()
    }

    /// The tokens that may come next: those whose bytes can be continued to a whole string, and
    /// the end token where the string is whole.
    pub fn mask(&self, vocabulary: &[Option<Vec<u8>>], eos: Option<u32>) -> Vec<u32> {
        let allowed = |(id, bytes): (usize, &Option<Vec<u8>>)| {
            if eos == Some(id as u32) {
                return self.nullable();
            }
            bytes.as_ref().is_some_and(|b| !b.is_empty() && !self.after_all(b).is_void())
        };
        let ids = vocabulary.iter().enumerate().filter(|entry| allowed((entry.0, entry.1)));
        ids.map(|(id, _)| id as u32).collect()
    }

    /// The expression of a tree.
    pub fn of(node: &Node) -> Self {
        match node {
            Node::Empty => Self::empty(),
            Node::Set(set) => Self::set(set.iter()),
            Node::Concat(parts) => {
                parts.iter().rev().fold(Self::empty(), |rest, part| Self::of(part).then(&rest))
            }
            Node::Alt(options) => {
                options.iter().fold(Self::void(), |any, option| any.or(&Self::of(option)))
            }
            Node::Repeat { node, min, max } => Self::of(node).times(*min, *max),
            Node::Separated { node, separator, min, max } => {
                let item = Self::of(node);
                let more = Self::of(separator).then(&item);
                if *max == Some(0) {
                    return if *min == 0 { Self::empty() } else { Self::void() };
                }
                let rest = more.times(min.saturating_sub(1), max.map(|max| max - 1));
                let some = item.then(&rest);
                if *min == 0 { some.or(&Self::empty()) } else { some }
            }
            Node::Automaton(dfa) if dfa.n_states == 0 => Self::void(),
            Node::Automaton(dfa) => Self::new(Kind::Rest(Table(Rc::new((**dfa).clone())), 0)),
            Node::Members { open, members, separator, close } => {
                let (separator, close) = (Self::of(separator), Self::of(close));
                let (mut first, mut after) = (close.clone(), close);
                for member in members.iter().rev() {
                    let written = Self::of(&member.node).then(&after);
                    let separated = separator.then(&written);
                    (first, after) = if member.required {
                        (written, separated)
                    } else {
                        (written.or(&first), separated.or(&after))
                    };
                }
                Self::of(open).then(&first)
            }
        }
    }
}

impl Kind {
    fn nullable(&self) -> bool {
        match self {
            Self::Void | Self::Set(_) => false,
            Self::Empty => true,
            Self::Cat(a, b) => a.nullable() && b.nullable(),
            Self::Or(parts) => parts.iter().any(Expr::nullable),
            Self::Times(a, min, _) => *min == 0 || a.nullable(),
            Self::Rest(dfa, state) => dfa.0.accept[*state as usize],
        }
    }

    fn is_void(&self) -> bool {
        match self {
            Self::Void => true,
            Self::Empty | Self::Set(_) => false,
            Self::Cat(a, b) => a.is_void() || b.is_void(),
            Self::Or(parts) => parts.iter().all(Expr::is_void),
            Self::Times(a, min, _) => *min > 0 && a.is_void(),
            Self::Rest(dfa, state) => !reaches_acceptance(&dfa.0, *state),
        }
    }
}

fn reaches_acceptance(dfa: &Dfa, from: i32) -> bool {
    let mut seen = vec![false; dfa.n_states];
    let mut stack = vec![from];
    while let Some(state) = stack.pop() {
        if state == DEAD || std::mem::replace(&mut seen[state as usize], true) {
            continue;
        }
        if dfa.accept[state as usize] {
            return true;
        }
        stack.extend(&dfa.trans[state as usize * 256..][..256]);
    }
    false
}
