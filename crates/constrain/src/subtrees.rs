//! What lies below each node of a vocabulary's trie: which kinds of bytes, and how deep.
//!
//! A walk that already knows every token made of certain bytes needs only the tokens that hold
//! another byte; by kind, whole subtrees without one are passed over. 9 bytes a node.

use crate::ast::ByteSet;
use crate::trie::Trie;
use crate::utf8;

/// Kinds of bytes, one bit each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kinds(u64);

/// Punctuation is what borders are made of, so each has a bit of its own.
const KIND: [u8; 256] = {
    let mut kinds = [0; 256];
    let (mut byte, mut punctuation) = (0_usize, 0);
    while byte < 256 {
        kinds[byte] = match byte as u8 {
            0..=0x1f => 33,
            b'0'..=b'9' => 34,
            b'A'..=b'F' => 35,
            b'G'..=b'Z' => 36,
            b'a'..=b'f' => 37,
            b'g'..=b'z' => 38,
            0x7f => 39,
            0x80..=0xbf => 40,
            0xc0..=0xdf => 41,
            0xe0..=0xef => 42 + (byte as u8 - 0xe0),
            0xf0.. => 58,
            _ => {
                punctuation += 1;
                punctuation - 1
            }
        };
        byte += 1;
    }
    kinds
};

/// A byte at which the token, read from its beginning, is no longer UTF-8.
const ILL: u64 = 1 << 59;

impl Kinds {
    /// Bytes at which a token is no longer UTF-8.
    pub(crate) const ILL: Self = Self(ILL);

    /// The kinds of some bytes.
    pub(crate) fn of(bytes: &ByteSet) -> Self {
        Self(bytes.iter().fold(0, |kinds, byte| kinds | 1 << KIND[byte as usize]))
    }

    #[must_use]
    pub(crate) fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    #[inline]
    pub(crate) fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// By node of a trie.
#[derive(Debug)]
pub(crate) struct Subtrees {
    kinds: Vec<Kinds>,
    /// Bytes of the longest token below; saturates.
    heights: Vec<u8>,
}

impl Subtrees {
    pub(crate) fn new(trie: &Trie) -> Self {
        let n = trie.len();
        let mut at = vec![utf8::BETWEEN; n];
        // Parents lie before their children.
        for node in 0..n {
            let parent = trie.node(node as u32);
            for (index, child) in trie.children(parent).iter().enumerate() {
                let state = at[node];
                let next =
                    if state == utf8::ILL { utf8::ILL } else { utf8::step(state, child.byte) };
                at[parent.child as usize + index] = next;
            }
        }
        let (mut kinds, mut heights) = (vec![Kinds(0); n], vec![0_u8; n]);
        for node in (0..n).rev() {
            let parent = trie.node(node as u32);
            let (mut below, mut height) = (0, 0);
            for (index, child) in trie.children(parent).iter().enumerate() {
                let index = parent.child as usize + index;
                let ill = if at[index] == utf8::ILL { ILL } else { 0 };
                below |= kinds[index].0 | 1 << KIND[child.byte as usize] | ill;
                height = height.max(heights[index].saturating_add(1));
            }
            (kinds[node], heights[node]) = (Kinds(below), height);
        }
        Self { kinds, heights }
    }

    /// The kinds of bytes below a node.
    #[inline]
    pub(crate) fn kinds(&self, node: u32) -> Kinds {
        self.kinds[node as usize]
    }

    /// Bytes of the longest token below a node, up to 255.
    #[inline]
    pub(crate) fn height(&self, node: u32) -> u32 {
        u32::from(self.heights[node as usize])
    }
}
