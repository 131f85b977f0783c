//! Where the positions of a sequence are cut: at fixed places, because what is summed inside of a
//! chunk, and the order in which chunks are merged, decide the result's last bits.
//!
//! Shorter chunks would share a short sequence more evenly among threads; what a chunk costs by
//! itself (a maximum, a merge) is more than that gains.

use std::ops::Range;

use crate::pages::PAGE_POSITIONS;

/// Positions of a chunk.
pub(super) const POSITIONS: usize = 256;
/// Pages of a chunk.
pub(super) const CHUNK_PAGES: usize = POSITIONS / PAGE_POSITIONS;

/// The positions of chunk `index`.
pub(super) fn positions(index: usize) -> Range<usize> {
    index * POSITIONS..(index + 1) * POSITIONS
}

/// Chunks of the first `positions` positions.
pub(super) fn count(positions: usize) -> usize {
    positions.div_ceil(POSITIONS)
}
