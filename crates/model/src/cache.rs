//! One sequence and its own pages: the forward pass without a scheduler.

use tinyllm_kernels::{KvPool, PAGE_POSITIONS, PageId};

use crate::batch::{Feed, Logits};
use crate::{Model, ModelError};

/// Rows that go through the layers at once; bounds the memory of a long prompt's activations and
/// changes no result.
const CHUNK_ROWS: usize = 512;

/// The keys and values of one sequence.
#[derive(Debug)]
pub struct KvCache {
    pool: KvPool,
    pages: Vec<PageId>,
    len: usize,
    capacity: usize,
}

impl KvCache {
    /// Positions it holds.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Positions it has room for.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Forgets all positions from `len` on; does nothing when there are fewer.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}

impl Model {
    /// An empty cache with room for `positions` positions, at most the model's context length.
    pub fn new_cache(&self, positions: usize) -> Result<KvCache, ModelError> {
        let available = self.context_length();
        if positions > available {
            return Err(ModelError::ContextLength { needed: positions, available });
        }
        let count = positions.div_ceil(PAGE_POSITIONS);
        let pool = KvPool::new(self.kv_shape(), count)?;
        let pages = pool.allocate_many(count)?;
        Ok(KvCache { pool, pages, len: 0, capacity: positions })
    }

    /// Appends `tokens` to the cache and gives the logits asked for, one row after the other.
    pub fn forward(
        &self,
        tokens: &[u32],
        cache: &mut KvCache,
        logits: Logits<'_>,
    ) -> Result<Vec<f32>, ModelError> {
        let needed = cache.len.saturating_add(tokens.len());
        if needed > cache.capacity {
            return Err(ModelError::ContextLength { needed, available: cache.capacity });
        }
        let mut gathered = Vec::new();
        let mut rest = tokens;
        while !rest.is_empty() {
            let (tokens, others) = rest.split_at(rest.len().min(CHUNK_ROWS));
            rest = others;
            let last = rest.is_empty();
            let logits = if last || matches!(logits, Logits::All) { logits } else { Logits::None };
            let feed =
                Feed { tokens, position: cache.len, pages: &cache.pages, logits, prompt: false };
            for rows in self.step(&[feed], &cache.pool)? {
                gathered.extend(rows);
            }
            cache.len += tokens.len();
        }
        Ok(gathered)
    }
}
