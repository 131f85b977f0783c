//! What is known of queries' softmax: weights of a chunk, and how chunks are merged.

use crate::simd::{LANES, Simd, exp2};

/// What is known of some queries' softmax over the positions so far.
#[repr(align(64))]
pub(super) struct Softmax {
    /// The largest score.
    pub(super) most: [f32; LANES],
    /// The sum of the weights.
    pub(super) sum: [f32; LANES],
}

/// What the sums so far and those of a new chunk are multiplied with.
pub(super) struct Factors {
    pub(super) old: [f32; LANES],
    pub(super) new: [f32; LANES],
    /// For the last chunk: one over the sum of weights.
    pub(super) mean: [f32; LANES],
    pub(super) first: bool,
    pub(super) last: bool,
}

impl Softmax {
    /// Takes in a later chunk's.
    #[inline(always)]
    pub(super) unsafe fn merge<S: Simd>(
        &mut self,
        new: &Softmax,
        first: bool,
        last: bool,
    ) -> Factors {
        let mut factors = Factors { first, last, ..Factors::NONE };
        // SAFETY: all are vectors.
        unsafe {
            let (most, sum) = (S::load(new.most.as_ptr()), S::load(new.sum.as_ptr()));
            let sum = if first {
                S::store(self.most.as_mut_ptr(), most);
                sum
            } else {
                let before = S::load(self.most.as_ptr());
                let both = S::max(before, most);
                let (x, y) = (exp2::<S>(S::sub(before, both)), exp2::<S>(S::sub(most, both)));
                S::store(self.most.as_mut_ptr(), both);
                S::store(factors.old.as_mut_ptr(), x);
                S::store(factors.new.as_mut_ptr(), y);
                S::fma(S::load(self.sum.as_ptr()), x, S::mul(sum, y))
            };
            S::store(self.sum.as_mut_ptr(), sum);
            if last {
                S::store(factors.mean.as_mut_ptr(), S::div(S::splat(1.0), sum));
            }
        }
        factors
    }
}

impl Factors {
    /// For sums that are kept as they are.
    pub(super) const NONE: Factors = Factors {
        old: [0.0; LANES],
        new: [0.0; LANES],
        mean: [0.0; LANES],
        first: true,
        last: false,
    };

    /// Merges a new chunk's sums of values into the output.
    #[inline(always)]
    pub(super) unsafe fn store<S: Simd>(&self, query: usize, mut sum: S::F, to: *mut f32) {
        // SAFETY: `to` is a vector of the output.
        unsafe {
            if !self.first {
                let new = S::mul(sum, S::splat(self.new[query]));
                sum = S::fma(S::load(to), S::splat(self.old[query]), new);
            }
            if self.last {
                sum = S::mul(sum, S::splat(self.mean[query]));
            }
            S::store(to, sum);
        }
    }
}

/// Turns the first `seen` scores of a query (exponents of 2) into weights. Returns the largest
/// score and the sum of the weights.
#[inline(always)]
pub(super) unsafe fn weights<S: Simd>(scores: *mut f32, seen: usize) -> (f32, f32) {
    let whole = seen / LANES * LANES;
    // SAFETY: a row of scores, up to whole pages.
    unsafe {
        let mut most = S::splat(f32::NEG_INFINITY);
        for i in (0..whole).step_by(LANES) {
            most = S::max(most, S::load(scores.add(i)));
        }
        if whole < seen {
            let last = S::load(scores.add(whole));
            most = S::max(most, S::keep_below(last, seen - whole, f32::NEG_INFINITY));
        }
        let most = S::max_lane(most);
        let shift = S::splat(most);
        let mut sum = S::splat(0.0);
        for i in (0..whole).step_by(LANES) {
            let w = exp2::<S>(S::sub(S::load(scores.add(i)), shift));
            S::store(scores.add(i), w);
            sum = S::add(sum, w);
        }
        if whole < seen {
            let w = exp2::<S>(S::sub(S::load(scores.add(whole)), shift));
            S::store(scores.add(whole), w);
            sum = S::add(sum, S::keep_below(w, seen - whole, 0.0));
        }
        (most, S::sum(sum))
    }
}
