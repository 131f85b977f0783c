//! Finds pages that hold a prompt's beginning already.
//!
//! A tree over *full* pages: a node is one page's 32 token ids after its parent's. Nodes hold one
//! reference to their page. Ids are compared, never hashes alone, so a hit is exact. A sequence
//! that shares only a part of a page gets a copy of it (copy-on-write) and goes on behind the part.
//!
//! Invariants
//! 1. A node's page is in use (its count is at least 1) and holds exactly the keys and values of
//!    the path's tokens.
//! 2. Whoever holds a node's page holds its ancestors' pages too; so a page that only the cache
//!    holds has no descendant that somebody else holds, and can be given up, leaves first.
//!
//! Cost: a look-up hashes 128 bytes per page; giving up a page is O(leaves in use) at worst. The
//! tree takes some 300 bytes per page, beside pages of hundreds of KiB.

use std::collections::BTreeSet;

use rustc_hash::FxHashMap;
use tinyllm_kernels::{KvPool, PAGE_POSITIONS, PageId};

use crate::error::EngineError;

/// A node of the tree. `ROOT` is the empty prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct NodeId(u32);

/// The empty prefix.
pub(crate) const ROOT: NodeId = NodeId(0);

type PageTokens = [u32; PAGE_POSITIONS];

#[derive(Debug)]
struct Node {
    parent: NodeId,
    tokens: PageTokens,
    /// `None` for the root.
    page: Option<PageId>,
    children: Vec<NodeId>,
    last_used: u64,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct PrefixCache {
    nodes: Vec<Node>,
    vacant: Vec<NodeId>,
    by_tokens: FxHashMap<(NodeId, PageTokens), NodeId>,
    /// Nodes without children, least recently used first.
    leaves: BTreeSet<(u64, NodeId)>,
    clock: u64,
}

impl PrefixCache {
    pub(crate) fn new() -> Self {
        let root = Node {
            parent: ROOT,
            tokens: [0; PAGE_POSITIONS],
            page: None,
            children: Vec::new(),
            last_used: 0,
        };
        Self {
            nodes: vec![root],
            vacant: Vec::new(),
            by_tokens: FxHashMap::default(),
            leaves: BTreeSet::new(),
            clock: 0,
        }
    }

    /// Pages it holds.
    pub(crate) fn len(&self) -> usize {
        self.by_tokens.len()
    }

    /// Pages that only the cache holds.
    pub(crate) fn evictable(&self, pool: &KvPool) -> usize {
        self.by_tokens.values().filter(|&&id| self.is_idle(id, pool)).count()
    }

    fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize]
    }

    fn is_idle(&self, id: NodeId, pool: &KvPool) -> bool {
        self.node(id).page.is_some_and(|page| pool.references(page) == 1)
    }

    fn touch(&mut self, id: NodeId) {
        self.clock += 1;
        let clock = self.clock;
        let node = &mut self.nodes[id.0 as usize];
        let before = (node.last_used, id);
        node.last_used = clock;
        if self.leaves.remove(&before) {
            self.leaves.insert((clock, id));
        }
    }

    /// The page that follows `at` with these tokens. The caller gets a reference to it.
    pub(crate) fn follow(
        &mut self,
        pool: &KvPool,
        at: NodeId,
        tokens: &[u32],
    ) -> Result<Option<(NodeId, PageId)>, EngineError> {
        let Ok(key) = PageTokens::try_from(tokens) else {
            return Ok(None);
        };
        let Some(&id) = self.by_tokens.get(&(at, key)) else {
            return Ok(None);
        };
        let Some(page) = self.node(id).page else {
            return Ok(None);
        };
        pool.retain(page)?;
        self.touch(id);
        Ok(Some((id, page)))
    }

    /// A copy of the page after `at` that shares the most leading tokens with `tokens` (at least
    /// one), and how many. The caller owns the copy. `None` as well when no page is free for it.
    pub(crate) fn follow_partly(
        &mut self,
        pool: &KvPool,
        at: NodeId,
        tokens: &[u32],
    ) -> Result<Option<(PageId, usize)>, EngineError> {
        let shared = |id: NodeId| {
            self.node(id).tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count()
        };
        let best = self.node(at).children.iter().map(|&id| (shared(id), id)).max();
        let Some((count, id)) = best.filter(|(count, _)| *count > 0) else {
            return Ok(None);
        };
        let Some(page) = self.node(id).page.filter(|_| pool.free() > 0) else {
            return Ok(None);
        };
        pool.retain(page)?;
        self.touch(id);
        Ok(Some((pool.make_unique(page)?, count)))
    }

    /// Adds a full page after `at`. When the tree has a page with these tokens already, the
    /// caller's reference moves over to it. Gives the node and the page the caller now refers to.
    pub(crate) fn insert(
        &mut self,
        pool: &KvPool,
        at: NodeId,
        tokens: &[u32],
        page: PageId,
    ) -> Result<(NodeId, PageId), EngineError> {
        let key = PageTokens::try_from(tokens)
            .map_err(|_| EngineError::Internal("a cached page must be full".to_owned()))?;
        if let Some((id, known)) = self.follow(pool, at, tokens)? {
            pool.release(page)?;
            return Ok((id, known));
        }
        pool.retain(page)?;
        self.clock += 1;
        let node = Node {
            parent: at,
            tokens: key,
            page: Some(page),
            children: Vec::new(),
            last_used: self.clock,
        };
        let id = if let Some(id) = self.vacant.pop() {
            self.nodes[id.0 as usize] = node;
            id
        } else {
            self.nodes.push(node);
            NodeId((self.nodes.len() - 1) as u32)
        };
        self.by_tokens.insert((at, key), id);
        let parent = &mut self.nodes[at.0 as usize];
        parent.children.push(id);
        self.leaves.remove(&(parent.last_used, at));
        self.leaves.insert((self.clock, id));
        Ok((id, page))
    }

    /// Gives up the least recently used page that nobody else holds. False when there is none.
    pub(crate) fn evict(&mut self, pool: &KvPool) -> Result<bool, EngineError> {
        let Some(&(used, id)) = self.leaves.iter().find(|(_, id)| self.is_idle(*id, pool)) else {
            return Ok(false);
        };
        self.leaves.remove(&(used, id));
        let Node { parent, tokens, page, .. } = &mut self.nodes[id.0 as usize];
        let (parent, tokens, page) = (*parent, *tokens, page.take());
        self.by_tokens.remove(&(parent, tokens));
        self.vacant.push(id);
        let above = &mut self.nodes[parent.0 as usize];
        above.children.retain(|child| *child != id);
        if above.children.is_empty() && parent != ROOT {
            self.leaves.insert((above.last_used, parent));
        }
        if let Some(page) = page {
            pool.release(page)?;
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tinyllm_kernels::{KvElement, KvShape};

    fn pool(capacity: usize) -> KvPool {
        let shape = KvShape { layers: 1, kv_heads: 1, head_dim: 1, element: KvElement::F16 };
        KvPool::new(shape, capacity).expect("a pool")
    }

    /// A sequence's page: all its ids are the letter.
    fn page_of(letter: u32) -> PageTokens {
        [letter; PAGE_POSITIONS]
    }

    /// Adds the pages of a text of letters and lets go of them.
    fn add(cache: &mut PrefixCache, pool: &KvPool, text: &[u32]) {
        let mut at = ROOT;
        let mut held = Vec::new();
        for &letter in text {
            let page = pool.allocate().expect("a free page");
            let (next, page) = cache.insert(pool, at, &page_of(letter), page).expect("inserted");
            held.push(page);
            at = next;
        }
        for page in held {
            pool.release(page).expect("held");
        }
    }

    /// How many pages of a text the cache has; the references are given back.
    fn find(cache: &mut PrefixCache, pool: &KvPool, text: &[u32]) -> usize {
        let mut at = ROOT;
        for (i, &letter) in text.iter().enumerate() {
            match cache.follow(pool, at, &page_of(letter)).expect("sound") {
                None => return i,
                Some((next, page)) => {
                    pool.release(page).expect("retained");
                    at = next;
                }
            }
        }
        text.len()
    }

    proptest! {
        #[test]
        fn it_finds_the_longest_prefix_of_anything_added(
            added in prop::collection::vec(prop::collection::vec(0_u32..3, 0..5), 0..20),
            sought in prop::collection::vec(prop::collection::vec(0_u32..3, 0..6), 0..20),
        ) {
            let pool = pool(200);
            let mut cache = PrefixCache::new();
            for text in &added {
                add(&mut cache, &pool, text);
            }
            prop_assert_eq!(pool.used(), cache.len());
            for text in &sought {
                let longest = added
                    .iter()
                    .map(|a| a.iter().zip(text).take_while(|(x, y)| x == y).count())
                    .max();
                prop_assert_eq!(find(&mut cache, &pool, text), longest.unwrap_or(0));
            }
            while cache.evict(&pool).expect("sound") {}
            prop_assert_eq!((pool.used(), cache.len()), (0, 0));
        }
    }

    #[test]
    fn leaves_that_were_used_longest_ago_go_first() {
        let pool = pool(8);
        let mut cache = PrefixCache::new();
        for text in [&[1, 2][..], &[1, 3], &[4]] {
            add(&mut cache, &pool, text);
        }
        assert_eq!(find(&mut cache, &pool, &[1, 2]), 2, "used last");
        for expected in [[2, 1, 1], [2, 1, 0], [1, 1, 0], [0, 0, 0]] {
            assert!(cache.evict(&pool).expect("sound"));
            // Peeking counts as use, in the same order every time.
            let found = [&[1, 2][..], &[1, 3], &[4]].map(|text| {
                text.iter()
                    .enumerate()
                    .fold((ROOT, 0), |(at, n), (i, &letter)| {
                        match cache.by_tokens.get(&(at, page_of(letter))) {
                            Some(&next) if n == i => (next, n + 1),
                            _ => (at, n),
                        }
                    })
                    .1
            });
            assert_eq!(found, expected);
        }
        assert!(!cache.evict(&pool).expect("sound"));
    }

    #[test]
    fn a_page_that_somebody_holds_stays() {
        let pool = pool(2);
        let mut cache = PrefixCache::new();
        add(&mut cache, &pool, &[1]);
        let held = cache.follow(&pool, ROOT, &page_of(1)).expect("sound").expect("there");
        assert_eq!(cache.evictable(&pool), 0);
        assert!(!cache.evict(&pool).expect("sound"));
        pool.release(held.1).expect("held");
        assert_eq!(cache.evictable(&pool), 1);
    }

    #[test]
    fn a_page_that_is_shared_in_part_is_copied() {
        let pool = pool(3);
        let mut cache = PrefixCache::new();
        add(&mut cache, &pool, &[1]);
        let mut tokens = vec![1; 20];
        tokens.push(2);
        let (copy, shared) =
            cache.follow_partly(&pool, ROOT, &tokens).expect("sound").expect("there");
        assert_eq!((shared, pool.references(copy), pool.used()), (20, 1, 2));
        assert_eq!(cache.follow_partly(&pool, ROOT, &[5]).expect("sound"), None);
    }
}
