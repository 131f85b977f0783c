//! The likeliest tokens of a row without sorting it.
//!
//! A rank is a number: the logit's bits turned so that higher logits come first, then the place. So
//! ranks are distinct, ties go to the lower place, and comparing is comparing integers.

use crate::passes::BLOCK;

/// A place's rank: smaller is likelier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank(u64);

impl Rank {
    /// Of a logit that is a number.
    #[inline]
    pub(crate) fn new(logit: f32, place: usize) -> Self {
        // Adding 0 makes one zero of the two.
        let bits = (logit + 0.0).to_bits();
        let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
        Self(u64::from(!ascending) << 32 | place as u64)
    }

    pub(crate) fn place(self) -> usize {
        self.0 as u32 as usize
    }
}

/// Some of a row's ranks; which is up to the method called last.
#[derive(Debug, Default)]
pub(crate) struct Ranking {
    ranks: Vec<Rank>,
    bounds: Vec<f32>,
}

/// Places that are passed over together.
const CHUNK: usize = 8;
/// From this many on, halves are looked at before anything is sorted.
const SORTED: usize = 32;

impl Ranking {
    /// All places with a logit of at least `floor`, in no order; never those with −∞.
    pub(crate) fn at_least(&mut self, logits: &[f32], maxima: &[f32], floor: f32) -> &mut [Rank] {
        self.ranks.clear();
        let floor = floor.max(f32::MIN);
        for (block, (logits, most)) in logits.chunks(BLOCK).zip(maxima).enumerate() {
            if *most < floor {
                continue;
            }
            for (chunk, logits) in logits.chunks(CHUNK).enumerate() {
                let most = logits.iter().fold(f32::MIN, |most, &x| if x > most { x } else { most });
                if most < floor {
                    continue;
                }
                // Every place is written, and stays when the next one does not take its room.
                let start = self.ranks.len();
                self.ranks.resize(start + CHUNK, Rank(0));
                let room = &mut self.ranks[start..];
                let mut count = 0;
                for (i, &logit) in logits.iter().enumerate() {
                    room[count] = Rank::new(logit, block * BLOCK + chunk * CHUNK + i);
                    count += usize::from(logit >= floor);
                }
                self.ranks.truncate(start + count);
            }
        }
        &mut self.ranks
    }

    /// The `k` likeliest places, in no order; fewer when there are not so many above −∞.
    pub(crate) fn likeliest(&mut self, logits: &[f32], maxima: &[f32], k: usize) -> &mut [Rank] {
        // As many blocks have a logit of at least the k-th largest maximum.
        let mut floor = f32::MIN;
        if (1..maxima.len()).contains(&k) {
            self.bounds.clear();
            self.bounds.extend_from_slice(maxima);
            floor = *self.bounds.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a)).1;
        }
        self.at_least(logits, maxima, floor);
        if k < self.ranks.len() {
            if k > 0 {
                self.ranks.select_nth_unstable(k - 1);
            }
            self.ranks.truncate(k);
        }
        &mut self.ranks
    }

    /// The first `count` of them, as [`reach`] left them.
    pub(crate) fn first(&self, count: usize) -> &[Rank] {
        &self.ranks[..count]
    }
}

/// The shortest run of the likeliest ranks whose weights reach `wanted`; all when they do not.
/// Brings them to the front, in no order, and gives their number. Sums must be exact.
pub(crate) fn reach(ranks: &mut [Rank], weights: impl Fn(Rank) -> f32, wanted: f64) -> usize {
    let (mut low, mut high) = (0, ranks.len());
    let mut reached = 0.0;
    while high - low > SORTED {
        let half = (high - low) / 2;
        ranks[low..high].select_nth_unstable(half);
        let sum: f64 = ranks[low..low + half].iter().map(|rank| f64::from(weights(*rank))).sum();
        if reached + sum >= wanted {
            high = low + half;
        } else {
            reached += sum;
            low += half;
        }
    }
    ranks[low..high].sort_unstable();
    for (i, rank) in ranks[low..high].iter().enumerate() {
        reached += f64::from(weights(*rank));
        if reached >= wanted {
            return low + i + 1;
        }
    }
    high
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::passes;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn runs_of_the_likeliest_are_those_of_the_sorted_row(
            // Few different values, so that ties are everywhere.
            logits in prop::collection::vec(
                prop_oneof![(-8..8i32).prop_map(|n| n as f32 / 4.0), Just(f32::NEG_INFINITY), Just(-0.0)],
                1..700,
            ),
            k in 0..800usize,
            share in 0.0..1.1f64,
        ) {
            let mut sorted: Vec<usize> = (0..logits.len()).filter(|i| logits[*i] > f32::NEG_INFINITY).collect();
            sorted.sort_by(|a, b| logits[*b].partial_cmp(&logits[*a]).unwrap().then(a.cmp(b)));
            let mut maxima = Vec::new();
            passes::maxima(pulp::Arch::new(), &logits, &mut maxima);
            let places = |ranks: &[Rank]| {
                let mut ranks = ranks.to_vec();
                ranks.sort_unstable();
                ranks.into_iter().map(Rank::place).collect::<Vec<_>>()
            };
            let mut ranking = Ranking::default();
            let found = places(ranking.likeliest(&logits, &maxima, k));
            prop_assert_eq!(&found, &sorted[..k.min(sorted.len())]);
            let found = places(ranking.at_least(&logits, &maxima, 0.5));
            let expected: Vec<usize> = sorted.iter().copied().filter(|i| logits[*i] >= 0.5).collect();
            prop_assert_eq!(found, expected);
            let weight = |place: usize| f32::from((place * 7919 % 64) as u8) / 64.0;
            let whole: f64 = sorted.iter().map(|i| f64::from(weight(*i))).sum();
            let mut reached = 0.0;
            let count = sorted.iter().position(|i| {
                reached += f64::from(weight(*i));
                reached >= share * whole
            });
            let ranks = ranking.at_least(&logits, &maxima, f32::MIN);
            let found = reach(ranks, |rank| weight(rank.place()), share * whole);
            prop_assert_eq!(found, count.map_or(sorted.len(), |last| last + 1));
            prop_assert_eq!(places(&ranks[..found]), &sorted[..found]);
        }
    }
}
