//! A slow, obvious matcher: Brzozowski derivatives of expressions over bytes.
//!
//! An oracle for the automata of `tinyllm-constrain`: it shares no code with them, builds no
//! states and knows no classes. A token is allowed when the derivative by its bytes is not void.

use std::rc::Rc;
use tinyllm_constrain::{DEAD, Dfa, Node};

/// An expression; shared parts are not copied.
#[derive(Debug, Clone)]
pub struct Expr(Rc<Kind>);

#[derive(Debug)]
enum Kind {
    /// No string.
    Void,
    /// The empty string.
    Empty,
    /// One of these bytes.
    Set(Vec<u8>),
    Cat(Expr, Expr),
    Or(Expr, Expr),
    /// `min` to `max` times.
    Times(Expr, u32, Option<u32>),
    /// What an automaton accepts from a state.
    Rest(Rc<Dfa>, i32),
}

impl Expr {
    fn new(kind: Kind) -> Self {
        Self(Rc::new(kind))
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
        let bytes: Vec<u8> = bytes.into_iter().collect();
        if bytes.is_empty() { Self::void() } else { Self::new(Kind::Set(bytes)) }
    }

    /// Exactly these bytes.
    pub fn literal(bytes: &[u8]) -> Self {
        bytes.iter().rev().fold(Self::empty(), |rest, byte| Self::set([*byte]).then(&rest))
    }

    /// One after the other.
    #[must_use]
    pub fn then(&self, next: &Self) -> Self {
        match (&*self.0, &*next.0) {
            (Kind::Void, _) | (_, Kind::Void) => Self::void(),
            (Kind::Empty, _) => next.clone(),
            (_, Kind::Empty) => self.clone(),
            _ => Self::new(Kind::Cat(self.clone(), next.clone())),
        }
    }

    /// Either.
    #[must_use]
    pub fn or(&self, other: &Self) -> Self {
        match (&*self.0, &*other.0) {
            (Kind::Void, _) => other.clone(),
            (_, Kind::Void) => self.clone(),
            _ if Rc::ptr_eq(&self.0, &other.0) => self.clone(),
            _ => Self::new(Kind::Or(self.clone(), other.clone())),
        }
    }

    /// `min` to `max` times.
    #[must_use]
    pub fn times(&self, min: u32, max: Option<u32>) -> Self {
        if max.is_some_and(|max| max < min) {
            return Self::void();
        }
        match (&*self.0, max) {
            (_, Some(0)) => Self::empty(),
            (Kind::Void, _) if min > 0 => Self::void(),
            (Kind::Void | Kind::Empty, _) => Self::empty(),
            (_, Some(1)) if min == 1 => self.clone(),
            _ => Self::new(Kind::Times(self.clone(), min, max)),
        }
    }

    /// Whether the empty string is in the language.
    pub fn nullable(&self) -> bool {
        match &*self.0 {
            Kind::Void | Kind::Set(_) => false,
            Kind::Empty => true,
            Kind::Cat(a, b) => a.nullable() && b.nullable(),
            Kind::Or(a, b) => a.nullable() || b.nullable(),
            Kind::Times(a, min, _) => *min == 0 || a.nullable(),
            Kind::Rest(dfa, state) => dfa.accept[*state as usize],
        }
    }

    /// Whether the language is empty.
    pub fn is_void(&self) -> bool {
        match &*self.0 {
            Kind::Void => true,
            Kind::Empty | Kind::Set(_) => false,
            Kind::Cat(a, b) => a.is_void() || b.is_void(),
            Kind::Or(a, b) => a.is_void() && b.is_void(),
            Kind::Times(a, min, _) => *min > 0 && a.is_void(),
            Kind::Rest(dfa, state) => !reaches_acceptance(dfa, *state),
        }
    }

    /// What may follow a byte.
    #[must_use]
    pub fn after(&self, byte: u8) -> Self {
        match &*self.0 {
            Kind::Void | Kind::Empty => Self::void(),
            Kind::Set(bytes) if bytes.contains(&byte) => Self::empty(),
            Kind::Set(_) => Self::void(),
            Kind::Cat(a, b) => {
                let first = a.after(byte).then(b);
                if a.nullable() { first.or(&b.after(byte)) } else { first }
            }
            Kind::Or(a, b) => a.after(byte).or(&b.after(byte)),
            Kind::Times(a, min, max) => {
                a.after(byte).then(&a.times(min.saturating_sub(1), max.map(|max| max - 1)))
            }
            Kind::Rest(dfa, state) => match dfa.step(*state, &[byte]) {
                Ok(DEAD) | Err(_) => Self::void(),
                Ok(next) => Self::new(Kind::Rest(Rc::clone(dfa), next)),
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
            Node::Automaton(dfa) => Self::new(Kind::Rest(Rc::new((**dfa).clone()), 0)),
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
