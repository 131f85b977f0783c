//! A mutable slice that several threads write in disjoint parts.

use std::marker::PhantomData;

/// Hands out disjoint parts of a slice to the chunks of one parallel region.
pub(crate) struct Shared<'a, T> {
    start: *mut T,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: like `&mut [T]`, which may be sent to another thread when `T` may; the only access is
// `part`, whose caller promises that no two threads have overlapping parts.
unsafe impl<T: Send> Sync for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Shared { start: slice.as_mut_ptr(), len: slice.len(), slice: PhantomData }
    }

    /// The elements from `start` to `start + len`.
    ///
    /// # Safety
    /// Until this part's last use nobody else has a part that overlaps it.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn part(&self, start: usize, len: usize) -> &mut [T] {
        assert!(start <= self.len && len <= self.len - start, "a part beyond its slice");
        // SAFETY: in bounds by the assertion; exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start), len) }
    }

    /// The address of element `index`, for a kernel that writes with a stride.
    pub(crate) fn at(&self, index: usize) -> *mut T {
        assert!(index <= self.len, "an address beyond its slice");
        // SAFETY: in bounds, or one past the end, by the assertion.
        unsafe { self.start.add(index) }
    }
}
