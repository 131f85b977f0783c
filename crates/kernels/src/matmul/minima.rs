//! What the minima of a format give to a tile's products: a small product of its own, apart from the
//! integers', because kernels of many rows would not have registers for both sums.

use super::Job;
use crate::activations::Group;
use crate::simd::Simd;
use crate::tiles::Format;

/// Adds, for every row of a group that starts at input row `row`, the sum over blocks of minimum
/// times activations' sum to the products of tile `tile`, which are stored.
///
/// # Safety
/// The contract of [`super::product`]; the tier's features are there.
#[inline(always)]
pub(super) unsafe fn add_minima<S: Simd, F: Format>(
    job: &Job,
    tile: usize,
    group: Group,
    row: usize,
) {
    let mut done = 0;
    while done < group.stride {
        // SAFETY: rows `done` to `done + M` are the group's.
        unsafe {
            done += match group.stride - done {
                1..4 => some::<S, F, 1>(job, tile, group, row, done),
                // Where a vector is one register there are enough of them.
                8.. if size_of::<S::F>() == 64 => some::<S, F, 8>(job, tile, group, row, done),
                _ => some::<S, F, 4>(job, tile, group, row, done),
            };
        }
    }
}

/// Rows `done` to `done + M` of the group. Returns `M`.
///
/// # Safety
/// That of [`add_minima`]; the rows are the group's.
#[inline(always)]
unsafe fn some<S: Simd, F: Format, const M: usize>(
    job: &Job,
    tile: usize,
    group: Group,
    row: usize,
    done: usize,
) -> usize {
    // SAFETY: the contract above.
    unsafe {
        let mut acc = [S::splat(0.0); M];
        for b in 0..job.blocks {
            let min = S::load_f16(job.tile(tile).add(b * F::BLOCK + F::SCALES + 32).cast());
            let sums = group.sums.add(b * group.stride + done);
            for (m, acc) in acc.iter_mut().enumerate() {
                *acc = S::fma(min, S::splat(*sums.add(m)), *acc);
            }
        }
        for (m, &acc) in acc.iter().enumerate() {
            let to = job.to(tile, row + done + m);
            S::store(to, S::add(S::load(to), acc));
        }
    }
    M
}
