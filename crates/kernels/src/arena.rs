//! One large, zeroed, aligned region of memory: the KV pages' or the packed weights'.
//!
//! On Linux the region is mapped at a 2 MiB boundary and huge pages are asked for (4 KiB pages cost
//! up to 15 % of the read bandwidth); untouched parts take no memory. Elsewhere it is an ordinary
//! zeroed allocation at a 64-byte boundary. The region never moves and is freed with the value.

use std::ptr::NonNull;

use crate::error::KernelError;

/// Boundary and granule of a huge page.
const HUGE: usize = 2 << 20;

/// An owned region of `len` zeroed bytes, at least 64-byte aligned.
pub(crate) struct Arena {
    base: NonNull<u8>,
    len: usize,
    mapping: os::Mapping,
}

// SAFETY: an `Arena` owns its region as a `Box<[u8]>` does; nothing in it is tied to a thread.
unsafe impl Send for Arena {}
// SAFETY: through `&Arena` the region can only be read.
unsafe impl Sync for Arena {}

impl std::fmt::Debug for Arena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Arena").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Arena {
    /// A region of `len` zeroed bytes; `what` names it in the error.
    pub(crate) fn zeroed(what: &'static str, len: usize) -> Result<Arena, KernelError> {
        let failed = KernelError::OutOfMemory { what, bytes: len };
        if len > isize::MAX as usize - 2 * HUGE {
            return Err(failed);
        }
        let (base, mapping) = os::map(len.max(1)).ok_or(failed)?;
        Ok(Arena { base, len, mapping })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: `base` is valid for `len` initialised bytes while `self` lives.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes this the only access.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: `mapping` came from `os::map` and is released exactly once, here.
        unsafe { os::unmap(&self.mapping) }
    }
}

#[cfg(all(target_os = "linux", target_pointer_width = "64", not(miri)))]
mod os {
    use super::HUGE;
    use std::ffi::c_void;
    use std::ptr::NonNull;

    // The C library is linked by std; these are its functions, declared with Linux' 64-bit types.
    unsafe extern "C" {
        fn mmap(
            addr: *mut c_void,
            len: usize,
            prot: i32,
            flags: i32,
            fd: i32,
            offset: i64,
        ) -> *mut c_void;
        fn munmap(addr: *mut c_void, len: usize) -> i32;
        fn madvise(addr: *mut c_void, len: usize, advice: i32) -> i32;
    }
    const PROT_READ_WRITE: i32 = 1 | 2;
    const MAP_PRIVATE_ANONYMOUS: i32 = 0x02 | 0x20;
    const MADV_HUGEPAGE: i32 = 14;

    pub(super) struct Mapping {
        start: *mut c_void,
        len: usize,
    }

    pub(super) fn map(len: usize) -> Option<(NonNull<u8>, Mapping)> {
        // A small region gains nothing from huge pages and would hold 2 MiB of memory.
        let large = len >= HUGE;
        let total = if large { len.next_multiple_of(HUGE) + HUGE } else { len };
        // SAFETY: a fresh private anonymous mapping touches no existing memory.
        let start = unsafe {
            mmap(std::ptr::null_mut(), total, PROT_READ_WRITE, MAP_PRIVATE_ANONYMOUS, -1, 0)
        };
        if start as isize == -1 {
            return None;
        }
        let skip = if large { start.align_offset(HUGE) } else { 0 };
        // SAFETY: `skip < HUGE`, and the mapping is at least `len + HUGE` long when `large`.
        let base = unsafe { start.add(skip) };
        if large {
            // SAFETY: the range lies inside the mapping; the call is advice and its failure harmless.
            unsafe { madvise(base, len.next_multiple_of(HUGE), MADV_HUGEPAGE) };
        }
        Some((NonNull::new(base.cast())?, Mapping { start, len: total }))
    }

    /// # Safety
    /// `mapping` came from [`map`] and nothing refers to its memory any more.
    pub(super) unsafe fn unmap(mapping: &Mapping) {
        // SAFETY: exactly the range that `map` made.
        unsafe { munmap(mapping.start, mapping.len) };
    }
}

#[cfg(not(all(target_os = "linux", target_pointer_width = "64", not(miri))))]
mod os {
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::ptr::NonNull;

    const ALIGN: usize = 64;

    pub(super) struct Mapping {
        start: *mut u8,
        layout: Layout,
    }

    pub(super) fn map(len: usize) -> Option<(NonNull<u8>, Mapping)> {
        // Aligned by hand: at a small alignment the allocator hands out pages that are already zero
        // instead of clearing (and so touching) all of them.
        let layout = Layout::from_size_align(len + ALIGN, 16).ok()?;
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        if start.is_null() {
            return None;
        }
        // SAFETY: the offset is below ALIGN, and ALIGN extra bytes were allocated.
        let base = unsafe { start.add(start.align_offset(ALIGN)) };
        Some((NonNull::new(base)?, Mapping { start, layout }))
    }

    /// # Safety
    /// `mapping` came from [`map`] and nothing refers to its memory any more.
    pub(super) unsafe fn unmap(mapping: &Mapping) {
        // SAFETY: the pointer and the layout are those of the allocation.
        unsafe { dealloc(mapping.start, mapping.layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_is_zeroed_aligned_and_writable_to_its_last_byte() {
        for len in [1, 4096, HUGE - 1, HUGE, HUGE + 1, 3 * HUGE + 17] {
            let mut arena = Arena::zeroed("a test", len).expect("memory");
            assert_eq!(arena.bytes().len(), len);
            assert_eq!(arena.bytes().as_ptr() as usize % 64, 0);
            assert!(arena.bytes().iter().all(|&b| b == 0));
            arena.bytes_mut()[len - 1] = 7;
            assert_eq!(arena.bytes()[len - 1], 7);
        }
    }

    #[test]
    fn an_impossible_size_is_an_error() {
        let error = Arena::zeroed("a test", usize::MAX / 2).expect_err("too large");
        assert_eq!(error.code(), "ERR_TINYLLM_OUT_OF_MEMORY");
    }
}
