//! The KV page pool: where keys and values of all sequences live.
//!
//! A page holds 32 positions of every layer and every KV head. A sequence owns a *block table*, a
//! list of [`PageId`]s: position `p` is slot `p % 32` of page `table[p / 32]`, in every layer.
//! Inside a page each (layer, head) has its keys transposed, `[head_dim][32]`, followed by its
//! values, `[32][head_dim]`: scoring reads keys of 32 neighbouring positions with one load, and
//! needs no sum across lanes.
//!
//! How to use it
//! - [`KvPool::new`] reserves the arena; pages that were never written take no memory.
//! - [`allocate`](KvPool::allocate) gives a page with one reference; [`retain`](KvPool::retain) and
//!   [`release`](KvPool::release) count (a prefix cache, a fork); the last release frees it.
//!   Reference counts are the caller's to keep balanced; a page that is not in use is an error
//!   everywhere, never a read of somebody else's memory.
//! - A page with several references is read-only. Before a sequence writes into a shared, partly
//!   filled page it calls [`make_unique`](KvPool::make_unique): copy-on-write.
//! - [`access`](KvPool::access) locks the *contents* for one forward step. All reads and writes go
//!   through it: [`write`](KvAccess::write) appends a position's keys and values,
//!   [`gather`](KvAccess::gather) reads a sequence's as f32.
//!
//! Invariants: `free() + used() == capacity()`, always; a page is free exactly when its count is 0.
//! Aliasing: the arena sits in a mutex, and [`KvAccess`] is its guard, so contents are reached by
//! one owner at a time; a kernel that runs on several threads borrows the guard for the whole call
//! and lets each (page, layer, head, slot) be written by one thread. Counts and the free list lie
//! outside of the arena, so accounting is possible while a step runs.
//!
//! Cost: `2 * layers * kv_heads * head_dim * 32 * size_of(element)` bytes a page (720 KiB for
//! SmolLM2-135M in f16: 22.5 KiB a position). Allocation and release are O(1).

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use crate::arena::Arena;
use crate::error::{KernelError, expect_size};
use crate::f16::{f16_to_f32, f32_to_f16};
use crate::shared::Shared;

/// Positions in a page.
pub const PAGE_POSITIONS: usize = 32;

/// A page of one pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageId(u32);

impl PageId {
    /// The page's place in its pool, below [`KvPool::capacity`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// How keys and values are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KvElement {
    /// Half precision: the packed forward pass.
    F16,
    /// Single precision: the reference forward pass, whose numbers must not be rounded.
    F32,
}

impl KvElement {
    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            KvElement::F16 => 2,
            KvElement::F32 => 4,
        }
    }
}

/// What a pool's pages hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KvShape {
    /// Layers of the model.
    pub layers: usize,
    /// KV heads of a layer.
    pub kv_heads: usize,
    /// Elements of a head's key (and value).
    pub head_dim: usize,
    /// Precision.
    pub element: KvElement,
}

impl KvShape {
    /// Elements of one (layer, head) in a page: its keys and its values.
    fn head_elements(&self) -> usize {
        2 * PAGE_POSITIONS * self.head_dim
    }

    /// Bytes of one page; `None` when they overflow.
    fn page_bytes(&self) -> Option<usize> {
        let elements = self.layers.checked_mul(self.kv_heads)?.checked_mul(self.head_dim)?;
        elements.checked_mul(2 * PAGE_POSITIONS * self.element.bytes())
    }

    /// Bytes from a page's start to the keys of (layer, head).
    fn head_offset(&self, layer: usize, head: usize) -> usize {
        (layer * self.kv_heads + head) * self.head_elements() * self.element.bytes()
    }

    /// Elements of one position in one layer: `kv_heads * head_dim`.
    pub fn row(&self) -> usize {
        self.kv_heads * self.head_dim
    }
}

/// A fixed number of reference-counted pages in one arena. See the module's documentation.
#[derive(Debug)]
pub struct KvPool {
    shape: KvShape,
    page_bytes: usize,
    arena: Mutex<Arena>,
    /// References of each page; 0 is free. Changed only while `free` is locked, so that a count
    /// and the free list never disagree; read anywhere.
    references: Box<[AtomicU32]>,
    /// Free pages; the last one is given next.
    free: Mutex<Vec<PageId>>,
}

impl KvPool {
    /// A pool of `capacity` free pages.
    ///
    /// # Errors
    /// A dimension of 0, or sizes that memory cannot hold.
    pub fn new(shape: KvShape, capacity: usize) -> Result<KvPool, KernelError> {
        for (what, size) in [
            ("KV layers", shape.layers),
            ("KV heads", shape.kv_heads),
            ("KV head size", shape.head_dim),
        ] {
            if size == 0 {
                return Err(KernelError::Unsupported {
                    what,
                    found: size,
                    requirement: "it must be positive",
                });
            }
        }
        let too_large = KernelError::OutOfMemory { what: "the KV pages", bytes: usize::MAX };
        let page_bytes = shape.page_bytes().ok_or(too_large.clone())?;
        let bytes = page_bytes.checked_mul(capacity).ok_or(too_large.clone())?;
        let last = u32::try_from(capacity).map_err(|_| too_large)?;
        Ok(KvPool {
            shape,
            page_bytes,
            arena: Mutex::new(Arena::zeroed("the KV pages", bytes)?),
            references: (0..capacity).map(|_| AtomicU32::new(0)).collect(),
            // Low pages first: the pool's memory is taken from the front.
            free: Mutex::new((0..last).rev().map(PageId).collect()),
        })
    }

    /// What a page holds.
    pub fn shape(&self) -> KvShape {
        self.shape
    }

    /// Pages in all.
    pub fn capacity(&self) -> usize {
        self.references.len()
    }

    /// Pages that nobody refers to.
    pub fn free(&self) -> usize {
        self.free_list().len()
    }

    /// Pages with at least one reference.
    pub fn used(&self) -> usize {
        self.capacity() - self.free()
    }

    /// Bytes of one page.
    pub fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    fn free_list(&self) -> MutexGuard<'_, Vec<PageId>> {
        // The list is consistent at every point where a panic could occur.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A page with one reference. Its contents are whatever its last owner left.
    pub fn allocate(&self) -> Result<PageId, KernelError> {
        let mut free = self.free_list();
        let page = free.pop().ok_or(KernelError::OutOfPages { capacity: self.capacity() })?;
        self.references[page.index()].store(1, Ordering::Release);
        Ok(page)
    }

    /// `count` pages with one reference each, or none at all.
    pub fn allocate_many(&self, count: usize) -> Result<Vec<PageId>, KernelError> {
        let mut free = self.free_list();
        let Some(rest) = free.len().checked_sub(count) else {
            return Err(KernelError::OutOfPages { capacity: self.capacity() });
        };
        let mut pages = free.split_off(rest);
        pages.reverse();
        for page in &pages {
            self.references[page.index()].store(1, Ordering::Release);
        }
        Ok(pages)
    }

    /// References of a page; 0 for a free one and for one that the pool never had.
    pub fn references(&self, page: PageId) -> u32 {
        self.references.get(page.index()).map_or(0, |count| count.load(Ordering::Acquire))
    }

    /// One more reference to a page in use.
    pub fn retain(&self, page: PageId) -> Result<(), KernelError> {
        let _guard = self.free_list();
        match self.references(page) {
            0 | u32::MAX => Err(KernelError::PageNotInUse { page }),
            count => {
                self.references[page.index()].store(count + 1, Ordering::Release);
                Ok(())
            }
        }
    }

    /// One reference less; `true` when it was the last one and the page is free now.
    pub fn release(&self, page: PageId) -> Result<bool, KernelError> {
        let mut free = self.free_list();
        let count =
            self.references(page).checked_sub(1).ok_or(KernelError::PageNotInUse { page })?;
        self.references[page.index()].store(count, Ordering::Release);
        if count == 0 {
            free.push(page);
        }
        Ok(count == 0)
    }

    /// A page with the contents of `page` that the caller alone owns: `page` itself when it has one
    /// reference, else a copy (and `page` loses the caller's reference).
    ///
    /// # Errors
    /// No free page is left (nothing has changed then); the contents are being accessed.
    pub fn make_unique(&self, page: PageId) -> Result<PageId, KernelError> {
        match self.references(page) {
            0 => Err(KernelError::PageNotInUse { page }),
            1 => Ok(page),
            _ => {
                let mut access = self.access()?;
                let copy = self.allocate()?;
                let (from, to) = (page.index() * self.page_bytes, copy.index() * self.page_bytes);
                access.arena.bytes_mut().copy_within(from..from + self.page_bytes, to);
                drop(access);
                self.release(page)?;
                Ok(copy)
            }
        }
    }

    /// Exclusive access to the contents of all pages, for one forward step.
    ///
    /// # Errors
    /// [`KernelError::PagesBusy`] when there is such access already: an error instead of a deadlock,
    /// because a pool belongs to one engine thread.
    pub fn access(&self) -> Result<KvAccess<'_>, KernelError> {
        match self.arena.try_lock() {
            Ok(arena) => Ok(KvAccess { pool: self, arena }),
            // A step that panicked leaves numbers that no sequence uses any more.
            Err(TryLockError::Poisoned(poisoned)) => {
                Ok(KvAccess { pool: self, arena: poisoned.into_inner() })
            }
            Err(TryLockError::WouldBlock) => Err(KernelError::PagesBusy),
        }
    }
}

/// Exclusive access to the contents of a pool's pages; see [`KvPool::access`].
#[derive(Debug)]
pub struct KvAccess<'a> {
    pool: &'a KvPool,
    arena: MutexGuard<'a, Arena>,
}

impl<'a> KvAccess<'a> {
    /// The pool whose pages these are.
    pub fn pool(&self) -> &'a KvPool {
        self.pool
    }

    /// For kernels: all contents, exclusively.
    pub(crate) fn pages_mut(&mut self) -> Pages<'_> {
        Pages {
            arena: Shared::new(self.arena.bytes_mut()),
            shape: self.pool.shape,
            page_bytes: self.pool.page_bytes,
        }
    }

    /// Byte offset of (page, layer, head) in the arena, after checking all three.
    fn head_offset(&self, page: PageId, layer: usize, head: usize) -> Result<usize, KernelError> {
        let shape = self.pool.shape;
        if self.pool.references(page) == 0 {
            return Err(KernelError::PageNotInUse { page });
        }
        if layer >= shape.layers || head >= shape.kv_heads {
            let (what, expected, found) = if layer >= shape.layers {
                ("layers of a KV page", shape.layers, layer + 1)
            } else {
                ("heads of a KV page", shape.kv_heads, head + 1)
            };
            return Err(KernelError::Shape { what, expected, found });
        }
        Ok(page.index() * self.pool.page_bytes + shape.head_offset(layer, head))
    }

    /// Stores one position of one layer: `keys` and `values` are `[kv_heads][head_dim]`, the keys
    /// with their rotation applied.
    ///
    /// # Errors
    /// A page that is free or shared, and sizes that do not fit the pool's shape.
    pub fn write(
        &mut self,
        table: &[PageId],
        position: usize,
        layer: usize,
        keys: &[f32],
        values: &[f32],
    ) -> Result<(), KernelError> {
        let shape = self.pool.shape;
        expect_size("keys of a position", shape.row(), keys.len())?;
        expect_size("values of a position", shape.row(), values.len())?;
        let (page, slot) = locate(table, position)?;
        if self.pool.references(page) > 1 {
            return Err(KernelError::PageShared { page });
        }
        let size = shape.element.bytes();
        for head in 0..shape.kv_heads {
            let offset = self.head_offset(page, layer, head)?;
            let bytes = &mut self.arena.bytes_mut()[offset..offset + shape.head_elements() * size];
            let (k, v) = bytes.split_at_mut(PAGE_POSITIONS * shape.head_dim * size);
            let range = head * shape.head_dim..(head + 1) * shape.head_dim;
            for (d, &key) in keys[range.clone()].iter().enumerate() {
                store(shape.element, k, d * PAGE_POSITIONS + slot, key);
            }
            for (d, &value) in values[range].iter().enumerate() {
                store(shape.element, v, slot * shape.head_dim + d, value);
            }
        }
        Ok(())
    }

    /// Reads the first `positions` keys and values of one head: `keys` and `values` become
    /// `[positions][head_dim]`, in f32.
    pub fn gather(
        &self,
        table: &[PageId],
        positions: usize,
        layer: usize,
        head: usize,
        keys: &mut [f32],
        values: &mut [f32],
    ) -> Result<(), KernelError> {
        let shape = self.pool.shape;
        let dim = shape.head_dim;
        expect_size("gathered keys", positions * dim, keys.len())?;
        expect_size("gathered values", positions * dim, values.len())?;
        let size = shape.element.bytes();
        let rows =
            keys.chunks_mut(PAGE_POSITIONS * dim).zip(values.chunks_mut(PAGE_POSITIONS * dim));
        for (index, (keys, values)) in rows.enumerate() {
            let (page, _) = locate(table, index * PAGE_POSITIONS)?;
            let offset = self.head_offset(page, layer, head)?;
            let bytes = &self.arena.bytes()[offset..offset + shape.head_elements() * size];
            let (k, v) = bytes.split_at(PAGE_POSITIONS * dim * size);
            for (slot, row) in keys.chunks_mut(dim).enumerate() {
                for (d, key) in row.iter_mut().enumerate() {
                    *key = load(shape.element, k, d * PAGE_POSITIONS + slot);
                }
            }
            for (i, value) in values.iter_mut().enumerate() {
                *value = load(shape.element, v, i);
            }
        }
        Ok(())
    }
}

/// The contents of all pages, for kernels on several threads.
pub(crate) struct Pages<'a> {
    arena: Shared<'a, u8>,
    shape: KvShape,
    page_bytes: usize,
}

impl Pages<'_> {
    /// Where the keys of (page, layer, head) start; the values follow.
    ///
    /// # Safety
    /// Layer and head exist. Whoever writes there is the only one to use what is written.
    #[inline(always)]
    pub(crate) unsafe fn head(&self, page: PageId, layer: usize, head: usize) -> *mut u8 {
        // `at` asserts that the page is the pool's.
        self.arena.at(page.index() * self.page_bytes + self.shape.head_offset(layer, head))
    }
}

/// The page and the slot of a position.
fn locate(table: &[PageId], position: usize) -> Result<(PageId, usize), KernelError> {
    let index = position / PAGE_POSITIONS;
    let page = table.get(index).ok_or(KernelError::Shape {
        what: "pages in a block table",
        expected: index + 1,
        found: table.len(),
    })?;
    Ok((*page, position % PAGE_POSITIONS))
}

fn store(element: KvElement, bytes: &mut [u8], index: usize, value: f32) {
    match element {
        KvElement::F16 => bytes[index * 2..][..2].copy_from_slice(&f32_to_f16(value).to_ne_bytes()),
        KvElement::F32 => bytes[index * 4..][..4].copy_from_slice(&value.to_ne_bytes()),
    }
}

fn load(element: KvElement, bytes: &[u8], index: usize) -> f32 {
    match element {
        KvElement::F16 => f16_to_f32(u16::from_ne_bytes([bytes[index * 2], bytes[index * 2 + 1]])),
        KvElement::F32 => f32::from_ne_bytes([
            bytes[index * 4],
            bytes[index * 4 + 1],
            bytes[index * 4 + 2],
            bytes[index * 4 + 3],
        ]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    const SHAPE: KvShape = KvShape { layers: 2, kv_heads: 3, head_dim: 8, element: KvElement::F32 };

    /// Distinct numbers for (position, layer): what a test writes and expects to read.
    fn row(seed: usize, position: usize, layer: usize) -> (Vec<f32>, Vec<f32>) {
        let base = (seed * 100_000 + position * 100 + layer * 50) as f32;
        let keys: Vec<f32> = (0..SHAPE.row()).map(|i| base + i as f32).collect();
        let values = keys.iter().map(|k| -k - 0.5).collect();
        (keys, values)
    }

    #[test]
    fn what_is_written_is_read_back_across_pages() {
        let pool = KvPool::new(SHAPE, 4).expect("a pool");
        let table = pool.allocate_many(3).expect("pages");
        let positions = 70;
        let mut access = pool.access().expect("idle");
        for position in 0..positions {
            for layer in 0..2 {
                let (k, v) = row(0, position, layer);
                access.write(&table, position, layer, &k, &v).expect("room");
            }
        }
        for layer in 0..2 {
            for head in 0..3 {
                let (mut keys, mut values) = (vec![0.0; positions * 8], vec![0.0; positions * 8]);
                access
                    .gather(&table, positions, layer, head, &mut keys, &mut values)
                    .expect("written");
                for position in 0..positions {
                    let (k, v) = row(0, position, layer);
                    assert_eq!(keys[position * 8..][..8], k[head * 8..][..8]);
                    assert_eq!(values[position * 8..][..8], v[head * 8..][..8]);
                }
            }
        }
    }

    #[test]
    fn halves_are_rounded_to_nearest() {
        let shape = KvShape { layers: 1, kv_heads: 1, head_dim: 2, element: KvElement::F16 };
        let pool = KvPool::new(shape, 1).expect("a pool");
        let table = [pool.allocate().expect("a page")];
        let mut access = pool.access().expect("idle");
        access.write(&table, 0, 0, &[0.1, 1.0], &[2049.0, -3.0]).expect("room");
        let (mut k, mut v) = ([0.0; 2], [0.0; 2]);
        access.gather(&table, 1, 0, 0, &mut k, &mut v).expect("written");
        assert_eq!((k, v), ([0.099_975_586, 1.0], [2048.0, -3.0]));
    }

    #[test]
    fn wrong_sizes_and_foreign_pages_are_errors() {
        let pool = KvPool::new(SHAPE, 2).expect("a pool");
        let page = pool.allocate().expect("a page");
        let (k, v) = row(0, 0, 0);
        let mut access = pool.access().expect("idle");
        assert!(matches!(pool.access(), Err(KernelError::PagesBusy)));
        assert!(access.write(&[page], 32, 0, &k, &v).is_err(), "position beyond the table");
        assert!(access.write(&[page], 0, 2, &k, &v).is_err(), "no such layer");
        assert!(access.write(&[page], 0, 0, &k[1..], &v).is_err(), "short keys");
        assert!(access.write(&[PageId(1)], 0, 0, &k, &v).is_err(), "a free page");
        assert!(access.write(&[PageId(9)], 0, 0, &k, &v).is_err(), "no such page");
        let mut out = vec![0.0; 8];
        assert!(
            access.gather(&[page], 1, 0, 3, &mut out.clone(), &mut out).is_err(),
            "no such head"
        );
        assert!(
            access.gather(&[page], 2, 0, 0, &mut out.clone(), &mut out).is_err(),
            "short output"
        );
        drop(access);
        assert!(pool.release(PageId(9)).is_err());
        assert!(KvPool::new(KvShape { layers: 0, ..SHAPE }, 1).is_err());
        assert!(KvPool::new(KvShape { layers: usize::MAX, ..SHAPE }, 1).is_err());
        assert!(KvPool::new(SHAPE, usize::MAX).is_err());
    }

    #[test]
    fn a_shared_page_is_copied_before_it_is_written() {
        let pool = KvPool::new(SHAPE, 2).expect("a pool");
        let page = pool.allocate().expect("a page");
        let (k, v) = row(1, 0, 0);
        pool.access().expect("idle").write(&[page], 0, 0, &k, &v).expect("owned");
        pool.retain(page).expect("in use");
        let refused = pool.access().expect("idle").write(&[page], 1, 0, &k, &v);
        assert_eq!(refused, Err(KernelError::PageShared { page }));
        let copy = pool.make_unique(page).expect("a free page");
        assert_ne!(copy, page);
        assert_eq!((pool.references(page), pool.references(copy), pool.free()), (1, 1, 0));
        let (mut keys, mut values) = (vec![0.0; 8], vec![0.0; 8]);
        let access = pool.access().expect("idle");
        access.gather(&[copy], 1, 0, 2, &mut keys, &mut values).expect("copied");
        assert_eq!((&keys[..], &values[..]), (&k[16..24], &v[16..24]));
        drop(access);
        assert_eq!(pool.make_unique(copy), Ok(copy), "alone already");
        pool.retain(copy).expect("in use");
        assert_eq!(pool.make_unique(copy), Err(KernelError::OutOfPages { capacity: 2 }));
        assert_eq!(pool.references(copy), 2, "a failed copy changes nothing");
    }

    #[derive(Debug, Clone)]
    enum Action {
        Allocate,
        AllocateMany(usize),
        Retain(usize),
        Release(usize),
        MakeUnique(usize),
    }

    fn action() -> impl Strategy<Value = Action> {
        prop_oneof![
            3 => Just(Action::Allocate),
            1 => (0_usize..6).prop_map(Action::AllocateMany),
            2 => (0_usize..8).prop_map(Action::Retain),
            4 => (0_usize..9).prop_map(Action::Release),
            2 => (0_usize..9).prop_map(Action::MakeUnique),
        ]
    }

    proptest! {
        #[test]
        fn no_page_is_leaked_or_freed_twice(actions in prop::collection::vec(action(), 0..200)) {
            let shape = KvShape { layers: 1, kv_heads: 1, head_dim: 1, element: KvElement::F16 };
            let pool = KvPool::new(shape, 8).expect("a pool");
            let mut model: HashMap<usize, u32> = HashMap::new();
            for action in actions {
                match action {
                    Action::Allocate => {
                        let result = pool.allocate().map(PageId::index).ok();
                        prop_assert_eq!(result.is_none(), model.len() == 8);
                        if let Some(index) = result {
                            prop_assert_eq!(model.insert(index, 1), None);
                        }
                    }
                    Action::AllocateMany(count) => match pool.allocate_many(count) {
                        Ok(pages) => {
                            prop_assert_eq!(pages.len(), count);
                            for page in pages {
                                prop_assert_eq!(model.insert(page.index(), 1), None);
                            }
                        }
                        Err(_) => prop_assert!(model.len() + count > 8),
                    },
                    Action::Retain(index) => {
                        let result = pool.retain(PageId(index as u32));
                        match model.get_mut(&index) {
                            Some(count) => { *count += 1; prop_assert!(result.is_ok()); }
                            None => prop_assert!(result.is_err()),
                        }
                    }
                    Action::Release(index) => {
                        let result = pool.release(PageId(index as u32));
                        match model.get_mut(&index) {
                            Some(1) => { model.remove(&index); prop_assert_eq!(result, Ok(true)); }
                            Some(count) => { *count -= 1; prop_assert_eq!(result, Ok(false)); }
                            None => prop_assert!(result.is_err()),
                        }
                    }
                    Action::MakeUnique(index) => {
                        let result = pool.make_unique(PageId(index as u32));
                        match model.get(&index).copied() {
                            None => prop_assert!(result.is_err()),
                            Some(1) => prop_assert_eq!(result, Ok(PageId(index as u32))),
                            Some(count) if model.len() < 8 => {
                                let copy = result.expect("a page is free").index();
                                prop_assert_eq!(model.insert(copy, 1), None);
                                model.insert(index, count - 1);
                            }
                            Some(_) => prop_assert!(result.is_err()),
                        }
                    }
                }
                prop_assert_eq!(pool.used(), model.len());
                prop_assert_eq!(pool.free() + pool.used(), pool.capacity());
                for index in 0..9 {
                    let expected = model.get(&index).copied().unwrap_or(0);
                    prop_assert_eq!(pool.references(PageId(index as u32)), expected);
                }
            }
        }
    }
}
