//! Buffers of f32 that start at a cache line, so that rows of whole lines stay whole.

use std::ops::{Deref, DerefMut};

/// Elements of a line.
const LINE: usize = 16;

#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; LINE]);

/// A growing buffer; its memory is kept when it shrinks.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    lines: Vec<Line>,
    len: usize,
}

impl Lines {
    /// Makes room for `len` elements; contents are unspecified.
    pub(crate) fn resize(&mut self, len: usize) {
        self.len = len;
        let lines = len.div_ceil(LINE);
        if self.lines.len() < lines {
            self.lines.resize(lines, Line([0.0; LINE]));
        }
    }
}

impl Deref for Lines {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        // SAFETY: a line is 16 initialised elements without padding, and there are enough lines.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }
}

impl DerefMut for Lines {
    fn deref_mut(&mut self) -> &mut [f32] {
        // SAFETY: as above, and `&mut self` makes this the only access.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }
}
