//! The tree that every front end builds and the automaton is built from.
//!
//! Nodes denote languages over bytes. Depth is bounded by the front ends' nesting limits, so
//! walks over a tree may recurse.

use crate::dfa::Dfa;
use std::sync::Arc;

/// A set of bytes; bit `b % 64` of word `b / 64` is byte `b`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ByteSet(pub [u64; 4]);

impl ByteSet {
    /// No byte.
    pub const EMPTY: Self = Self([0; 4]);
    /// Every byte.
    pub const FULL: Self = Self([u64::MAX; 4]);

    /// The set of one byte.
    pub const fn single(byte: u8) -> Self {
        let mut words = [0; 4];
        words[byte as usize / 64] = 1 << (byte % 64);
        Self(words)
    }

    /// The bytes from `low` to `high`, both included; empty when they are out of order.
    pub const fn range(low: u8, high: u8) -> Self {
        let mut words = [0; 4];
        let mut byte = low as usize;
        while byte <= high as usize {
            words[byte / 64] |= 1 << (byte % 64);
            byte += 1;
        }
        Self(words)
    }

    /// The bytes listed.
    pub const fn of(bytes: &[u8]) -> Self {
        let mut words = [0; 4];
        let mut i = 0;
        while i < bytes.len() {
            words[bytes[i] as usize / 64] |= 1 << (bytes[i] % 64);
            i += 1;
        }
        Self(words)
    }

    /// Whether the byte is in the set.
    pub const fn contains(&self, byte: u8) -> bool {
        self.0[byte as usize / 64] >> (byte % 64) & 1 == 1
    }

    /// Adds a byte.
    pub const fn insert(&mut self, byte: u8) {
        self.0[byte as usize / 64] |= 1 << (byte % 64);
    }

    /// The bytes in either set.
    #[must_use]
    pub const fn union(&self, other: &Self) -> Self {
        let (a, b) = (&self.0, &other.0);
        Self([a[0] | b[0], a[1] | b[1], a[2] | b[2], a[3] | b[3]])
    }

    /// The bytes in both sets.
    #[must_use]
    pub const fn intersection(&self, other: &Self) -> Self {
        let (a, b) = (&self.0, &other.0);
        Self([a[0] & b[0], a[1] & b[1], a[2] & b[2], a[3] & b[3]])
    }

    /// The bytes not in the set.
    #[must_use]
    pub const fn complement(&self) -> Self {
        let a = &self.0;
        Self([!a[0], !a[1], !a[2], !a[3]])
    }

    /// Whether no byte is in the set.
    pub const fn is_empty(&self) -> bool {
        let a = &self.0;
        a[0] | a[1] | a[2] | a[3] == 0
    }

    /// How many bytes are in the set.
    pub const fn len(&self) -> u32 {
        let a = &self.0;
        a[0].count_ones() + a[1].count_ones() + a[2].count_ones() + a[3].count_ones()
    }

    /// The bytes in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u8> + use<> {
        let Self(mut words) = *self;
        let mut word = 0;
        std::iter::from_fn(move || {
            while words[word] == 0 {
                word += 1;
                if word == words.len() {
                    word = 0;
                    words = [0; 4];
                    return None;
                }
            }
            let bit = words[word].trailing_zeros();
            words[word] &= words[word] - 1;
            Some((word as u32 * 64 + bit) as u8)
        })
    }
}

/// A language over bytes.
#[derive(Debug, Clone, PartialEq)]
pub enum Node {
    /// The empty string.
    Empty,
    /// One byte of a set; the empty set is the empty language.
    Set(ByteSet),
    /// One after the other.
    Concat(Vec<Node>),
    /// Any of these; no alternative is the empty language.
    Alt(Vec<Node>),
    /// `min` to `max` times; no `max` is no bound.
    Repeat {
        /// What is repeated.
        node: Box<Node>,
        /// Fewest times.
        min: u32,
        /// Most times.
        max: Option<u32>,
    },
    /// `node`, `min` to `max` times with `separator` between two: a list of items holds one copy
    /// of its item, whatever the counts, so nested lists stay linear.
    Separated {
        /// What is repeated.
        node: Box<Node>,
        /// Between two of them.
        separator: Box<Node>,
        /// Fewest times.
        min: u32,
        /// Most times.
        max: Option<u32>,
    },
    /// What an automaton accepts.
    Automaton(Arc<Dfa>),
    /// An object's members in their order, each at most once: `open`, the members that occur
    /// with a `separator` between two of them, `close`.
    Members {
        /// Before the first member.
        open: Box<Node>,
        /// The members in order.
        members: Vec<Member>,
        /// Between two members that occur.
        separator: Box<Node>,
        /// After the last member.
        close: Box<Node>,
    },
}

/// One member of [`Node::Members`].
#[derive(Debug, Clone, PartialEq)]
pub struct Member {
    /// Key, colon and value.
    pub node: Node,
    /// Whether it must occur.
    pub required: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_lists_its_bytes() {
        for bytes in [&b""[..], b"\x00", b"\xff", b"\x00\x3f\x40\x7f\x80\xbf\xc0\xff", b"abz"] {
            let set = ByteSet::of(bytes);
            assert_eq!(set.iter().collect::<Vec<_>>(), bytes);
            assert_eq!((set.len() as usize, set.is_empty()), (bytes.len(), bytes.is_empty()));
        }
        assert_eq!(ByteSet::FULL.iter().collect::<Vec<_>>(), (0..=255).collect::<Vec<_>>());
        let mut ended = ByteSet::single(7).iter();
        assert_eq!((ended.next(), ended.next(), ended.next()), (Some(7), None, None));
    }
}
