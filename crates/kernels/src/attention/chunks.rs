//! Where the positions of a sequence are cut: at fixed places, because what is summed inside of a
//! chunk, and the order in which chunks are merged, decide the result's last bits.
//!
//! 256 positions make the work that a chunk costs by itself (a maximum, a rescaling) small. The
//! first ones are shorter, so that short sequences can be shared among threads.

use std::ops::Range;

use crate::pages::PAGE_POSITIONS;

/// Positions of all but the first chunks.
const LONG: usize = 256;
/// Where the chunks up to the first long one end.
const FIRST_ENDS: [usize; 3] = [64, 128, LONG];

/// Pages of a chunk at most.
pub(super) const CHUNK_PAGES: usize = LONG / PAGE_POSITIONS;

/// The positions of chunk `index`.
pub(super) fn positions(index: usize) -> Range<usize> {
    let end = |index: usize| {
        let long = |index| (index + 2 - FIRST_ENDS.len()) * LONG;
        FIRST_ENDS.get(index).copied().unwrap_or_else(|| long(index))
    };
    (if index == 0 { 0 } else { end(index - 1) })..end(index)
}

/// Chunks of the first `positions` positions.
pub(super) fn count(positions: usize) -> usize {
    if positions > LONG {
        return FIRST_ENDS.len() - 1 + positions.div_ceil(LONG);
    }
    let before = |end: &&usize| **end < positions;
    FIRST_ENDS.iter().filter(before).count() + usize::from(positions > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_all_positions_in_whole_pages() {
        let mut covered = 0;
        for index in 0..20 {
            let chunk = positions(index);
            assert_eq!(chunk.start, covered);
            assert!(!chunk.is_empty() && chunk.len() <= CHUNK_PAGES * PAGE_POSITIONS);
            assert_eq!(chunk.end % PAGE_POSITIONS, 0);
            for position in chunk.clone() {
                assert_eq!(
                    count(position),
                    if position == chunk.start { index } else { index + 1 }
                );
            }
            covered = chunk.end;
        }
        assert_eq!(covered % LONG, 0);
    }
}
