//! A vocabulary's tokens as a byte trie, so that tokens with a common prefix are walked once and
//! a whole subtree is dropped at the first dead byte.
//!
//! Nodes lie in one array, depth-first by parent, the children of a node side by side and in byte
//! order: a node's children are scanned without jumping over their subtrees. A node with many
//! children also has the set of its bytes, so that a state with few live bytes picks its children
//! instead of scanning all. Cost: 16 bytes a node, some two nodes a token; built once per
//! tokenizer in O(total bytes · log tokens).

use crate::ast::ByteSet;
use crate::error::ConstrainError;

/// Most tokens a vocabulary may have: ids are packed with a flag.
const MAX_TOKENS: usize = 1 << 24;

/// Longest token in bytes. Real vocabularies stay below 1,000.
const MAX_TOKEN_BYTES: usize = u16::MAX as usize;

/// Nodes with at least this many children carry the set of their bytes.
const WIDE: usize = 12;

/// Stands for "no token ends here".
pub(crate) const NO_TOKEN: u32 = u32::MAX;

/// Set in [`TrieNode::token`] when several tokens have these bytes: the rest is an index into
/// the lists of equal tokens.
const SEVERAL: u32 = 1 << 31;

/// A node with few children.
pub(crate) const NARROW: u32 = u32::MAX;

/// One node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TrieNode {
    /// The token that ends here, [`NO_TOKEN`], or [`SEVERAL`] and an index.
    pub(crate) token: u32,
    /// First child; children are consecutive.
    pub(crate) child: u32,
    /// Number of children.
    pub(crate) children: u16,
    /// The byte that leads here.
    pub(crate) byte: u8,
    /// Index of the set of the children's bytes, or [`NARROW`].
    pub(crate) wide: u32,
}

/// The trie.
#[derive(Debug)]
pub(crate) struct Trie {
    nodes: Vec<TrieNode>,
    /// The bytes of the children of nodes with many.
    wide: Vec<ByteSet>,
    /// Tokens with equal bytes.
    equal: Vec<Vec<u32>>,
}

/// The root.
pub(crate) const ROOT: u32 = 0;

impl Trie {
    /// The trie of the tokens that have bytes; empty tokens are left out.
    pub(crate) fn new<'a>(
        tokens: impl Iterator<Item = (u32, &'a [u8])>,
    ) -> Result<Self, ConstrainError> {
        let mut sorted: Vec<(&[u8], u32)> =
            tokens.filter(|(_, bytes)| !bytes.is_empty()).map(|(id, bytes)| (bytes, id)).collect();
        sorted.sort_unstable();
        if let Some((bytes, id)) = sorted.iter().find(|(bytes, _)| bytes.len() > MAX_TOKEN_BYTES) {
            return Err(ConstrainError::Vocabulary {
                message: format!(
                    "token {id} has {} bytes, more than {MAX_TOKEN_BYTES}",
                    bytes.len()
                ),
            });
        }
        if sorted.iter().any(|(_, id)| *id as usize >= MAX_TOKENS) {
            return Err(ConstrainError::Vocabulary {
                message: format!("more than {MAX_TOKENS} tokens"),
            });
        }
        let root = TrieNode { token: NO_TOKEN, child: 0, children: 0, byte: 0, wide: NARROW };
        let mut trie = Self { nodes: vec![root], wide: Vec::new(), equal: Vec::new() };
        // A node, the tokens below it, and its depth; the next block is that of the first child.
        let mut stack = vec![(ROOT, 0, sorted.len(), 0)];
        while let Some((node, from, to, depth)) = stack.pop() {
            let first = trie.nodes.len();
            let mut bytes = ByteSet::EMPTY;
            let mut at = from;
            let mut below = Vec::new();
            while at < to {
                let byte = sorted[at].0[depth];
                let end = at + sorted[at..to].partition_point(|(b, _)| b[depth] == byte);
                let whole = at + sorted[at..end].partition_point(|(b, _)| b.len() == depth + 1);
                let token = match &sorted[at..whole] {
                    [] => NO_TOKEN,
                    [(_, only)] => *only,
                    several => {
                        trie.equal.push(several.iter().map(|(_, id)| *id).collect());
                        SEVERAL | (trie.equal.len() as u32 - 1)
                    }
                };
                below.push((trie.nodes.len() as u32, whole, end, depth + 1));
                trie.nodes.push(TrieNode { token, child: 0, children: 0, byte, wide: NARROW });
                bytes.insert(byte);
                at = end;
            }
            let children = trie.nodes.len() - first;
            let parent = &mut trie.nodes[node as usize];
            parent.child = first as u32;
            parent.children = children as u16;
            if children >= WIDE {
                parent.wide = trie.wide.len() as u32;
                trie.wide.push(bytes);
            }
            stack.extend(below.into_iter().rev().filter(|(_, whole, end, _)| whole < end));
        }
        Ok(trie)
    }

    /// Number of nodes; a node comes before its children.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// A node.
    #[inline]
    pub(crate) fn node(&self, node: u32) -> TrieNode {
        self.nodes[node as usize]
    }

    /// The children of a node, in byte order; the first is node `child`.
    #[inline]
    pub(crate) fn children(&self, node: TrieNode) -> &[TrieNode] {
        &self.nodes[node.child as usize..node.child as usize + node.children as usize]
    }

    /// The bytes of a wide node's children: `wide` of the node.
    #[inline]
    pub(crate) fn bytes_below(&self, wide: u32) -> &ByteSet {
        &self.wide[wide as usize]
    }

    /// The tokens that end at a node.
    #[inline]
    pub(crate) fn tokens<'a>(&'a self, token: &'a u32) -> &'a [u32] {
        match *token {
            NO_TOKEN => &[],
            several if several & SEVERAL != 0 => &self.equal[(several & !SEVERAL) as usize],
            _ => std::slice::from_ref(token),
        }
    }
}
