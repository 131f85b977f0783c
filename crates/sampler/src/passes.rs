//! Passes over a row of logits, each compiled for several instruction sets.
//!
//! A row is cut into blocks of [`BLOCK`] places, and what a block amounts to is kept, so that later
//! passes visit only blocks that matter. The same bits come out on every machine: elements are
//! computed one by one in the same operations (nothing is fused), and a sum is either exact in any
//! order or has one fixed order.
//!
//! Weights are multiples of 2^-34 and at most 1, so the sum of up to 2^19 of them is exact in f64:
//! it does not matter in which order tokens are added, and a search among them need not sort.

use pulp::{Arch, NullaryFnOnce};

/// Places of a block.
pub(crate) const BLOCK: usize = 64;
/// Places of a block that are computed side by side.
const LANES: usize = 16;

/// The largest logit of each block; the last block may be short. False when one is not a number.
pub(crate) fn maxima(arch: Arch, logits: &[f32], maxima: &mut Vec<f32>) -> bool {
    maxima.clear();
    maxima.resize(logits.len().div_ceil(BLOCK), f32::NEG_INFINITY);
    arch.dispatch(Maxima { logits, maxima })
}

struct Maxima<'a> {
    logits: &'a [f32],
    maxima: &'a mut [f32],
}

impl NullaryFnOnce for Maxima<'_> {
    type Output = bool;

    #[inline(always)]
    fn call(self) -> bool {
        // The bits of what is not a number are above those of infinity, when the sign is left out.
        let mut strange = [0_i32; LANES];
        let (blocks, rest) = self.logits.as_chunks::<BLOCK>();
        for (block, to) in blocks.iter().zip(&mut *self.maxima) {
            let mut most = [f32::NEG_INFINITY; LANES];
            for lanes in block.as_chunks::<LANES>().0 {
                for lane in 0..LANES {
                    let x = lanes[lane];
                    most[lane] = if x > most[lane] { x } else { most[lane] };
                    let bits = (x.to_bits() & (i32::MAX as u32)) as i32;
                    strange[lane] = if bits > strange[lane] { bits } else { strange[lane] };
                }
            }
            for half in [8, 4, 2, 1] {
                for lane in 0..half {
                    let other = most[lane + half];
                    most[lane] = if other > most[lane] { other } else { most[lane] };
                }
            }
            *to = most[0];
        }
        if let Some(to) = self.maxima.get_mut(blocks.len()) {
            *to = rest.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        }
        let rest_strange = rest.iter().any(|x| x.is_nan());
        let infinity = f32::INFINITY.to_bits() as i32;
        !rest_strange && strange.into_iter().all(|lane| lane <= infinity)
    }
}

/// Gives −∞ to the places whose bit is not set.
pub(crate) fn mask_out(arch: Arch, logits: &mut [f32], words: &[u32]) {
    arch.dispatch(MaskOut { logits, words });
}

struct MaskOut<'a> {
    logits: &'a mut [f32],
    words: &'a [u32],
}

impl NullaryFnOnce for MaskOut<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let covered = self.logits.len().min(self.words.len() * 32);
        let (covered, beyond) = self.logits.split_at_mut(covered);
        beyond.fill(f32::NEG_INFINITY);
        let (chunks, rest) = covered.as_chunks_mut::<32>();
        for (chunk, &word) in chunks.iter_mut().zip(self.words) {
            if word != u32::MAX {
                for (bit, logit) in chunk.iter_mut().enumerate() {
                    let set = word.wrapping_shr(bit as u32) & 1 == 1;
                    *logit = if set { *logit } else { f32::NEG_INFINITY };
                }
            }
        }
        let last = self.words.get(chunks.len()).copied().unwrap_or(0);
        for (bit, logit) in rest.iter_mut().enumerate() {
            if last >> bit & 1 == 0 {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
}

/// How logits become weights: relative to the highest logit, whose weight is 1.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scale {
    highest: f32,
    inverse: f32,
}

/// Below this many nats a weight is less than half of 2^-34, and 0.
const LOWEST: f32 = -25.0;

impl Scale {
    pub(crate) fn new(highest: f32, temperature: f32) -> Self {
        // A temperature of almost nothing leaves the highest its weight.
        Self { highest, inverse: (1.0 / temperature).min(f32::MAX) }
    }

    /// The weight of a logit of at most the highest: `exp((logit - highest) / temperature)`, to a
    /// relative error of some 10^-7, as a multiple of 2^-34.
    #[inline(always)]
    #[allow(clippy::excessive_precision)] // As the constants are usually written.
    pub(crate) fn weight(self, logit: f32) -> f32 {
        /// Adding it leaves the nearest integer in the low bits.
        const ROUND: f32 = 12_582_912.0;
        /// From here on every f32 is a multiple of 2^-34.
        const COARSE: f32 = 1.0 / 2048.0;
        /// Adding and taking it away rounds what is smaller to such a multiple.
        const GRID: f32 = 1.5 / 2048.0;
        let x = (logit - self.highest) * self.inverse;
        let x = if x > LOWEST { x } else { LOWEST };
        let turned = x * std::f32::consts::LOG2_E + ROUND;
        let n = turned - ROUND;
        let r = (x - n * 0.693_359_375) - n * -2.121_944_4e-4;
        let p = 1.987_569_15e-4;
        let p = p * r + 1.398_199_95e-3;
        let p = p * r + 8.333_451_9e-3;
        let p = p * r + 4.166_579_6e-2;
        let p = p * r + 1.666_666_5e-1;
        let p = p * r + 5.000_000_1e-1;
        let p = (p * (r * r) + r) + 1.0;
        let exponent = turned.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127);
        let weight = p * f32::from_bits(exponent.wrapping_shl(23));
        let rounded = (weight + GRID) - GRID;
        if weight < COARSE { rounded } else { weight }
    }
}

/// The weights of a row, and their sum in each block.
pub(crate) fn weigh(
    arch: Arch,
    logits: &[f32],
    maxima: &[f32],
    scale: Scale,
    weights: &mut Vec<f32>,
    sums: &mut Vec<f64>,
) {
    weights.resize(logits.len(), 0.0);
    sums.clear();
    sums.resize(maxima.len(), 0.0);
    arch.dispatch(Weigh { logits, maxima, scale, weights, sums });
}

struct Weigh<'a> {
    logits: &'a [f32],
    maxima: &'a [f32],
    scale: Scale,
    weights: &'a mut [f32],
    sums: &'a mut [f64],
}

impl NullaryFnOnce for Weigh<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { scale, .. } = self;
        let blocks = self.logits.chunks(BLOCK).zip(self.weights.chunks_mut(BLOCK));
        for ((logits, weights), (most, sum)) in blocks.zip(self.maxima.iter().zip(self.sums)) {
            if (most - scale.highest) * scale.inverse <= LOWEST {
                weights.fill(0.0);
                continue;
            }
            // Two loops: as one they are unrolled before they can be vectorised.
            for (to, from) in weights.iter_mut().zip(logits) {
                *to = scale.weight(*from);
            }
            let mut lanes = [0.0_f64; LANES];
            let (whole, rest) = weights.as_chunks::<LANES>();
            for weights in whole {
                for lane in 0..LANES {
                    lanes[lane] += f64::from(weights[lane]);
                }
            }
            *sum = lanes.iter().sum::<f64>() + rest.iter().map(|w| f64::from(*w)).sum::<f64>();
        }
    }
}

/// The sum of `exp(logit - highest)`, to a relative error of some 10^-15.
pub(crate) fn sum_exp(arch: Arch, logits: &[f32], maxima: &[f32], highest: f32) -> f64 {
    arch.dispatch(SumExp { logits, maxima, highest: f64::from(highest) })
}

/// Logits this far below the highest cannot be seen in a sum of millions.
const UNSEEN: f64 = -60.0;

struct SumExp<'a> {
    logits: &'a [f32],
    maxima: &'a [f32],
    highest: f64,
}

impl NullaryFnOnce for SumExp<'_> {
    type Output = f64;

    #[inline(always)]
    fn call(self) -> f64 {
        const WIDE: usize = 16;
        let mut lanes = [0.0_f64; WIDE];
        for (logits, most) in self.logits.chunks(BLOCK).zip(self.maxima) {
            if f64::from(*most) - self.highest < UNSEEN {
                continue;
            }
            let mut terms = [0.0_f64; BLOCK];
            for (term, logit) in terms.iter_mut().zip(logits) {
                *term = exp(f64::from(*logit) - self.highest);
            }
            for terms in terms.as_chunks::<WIDE>().0 {
                for lane in 0..WIDE {
                    lanes[lane] += terms[lane];
                }
            }
        }
        lanes.iter().sum()
    }
}

/// `exp` of a number of at most 0, to a few units in the last place; 0 below [`UNSEEN`].
#[inline(always)]
#[allow(clippy::excessive_precision)] // As the constants are usually written.
fn exp(x: f64) -> f64 {
    /// Adding it leaves the nearest integer in the low bits.
    const ROUND: f64 = 6_755_399_441_055_744.0;
    const LN_2_LOW: f64 = 1.908_214_929_270_587_7e-10;
    const LN_2_HIGH: f64 = 0.693_147_180_369_123_816_49;
    // 1/13! down to 1/2!.
    const TERMS: [f64; 12] = [
        1.605_904_383_682_161_46e-10,
        2.087_675_698_786_809_9e-9,
        2.505_210_838_544_171_88e-8,
        2.755_731_922_398_589_07e-7,
        2.755_731_922_398_589_07e-6,
        2.480_158_730_158_730_16e-5,
        1.984_126_984_126_984_13e-4,
        1.388_888_888_888_888_89e-3,
        8.333_333_333_333_333_33e-3,
        4.166_666_666_666_666_67e-2,
        1.666_666_666_666_666_67e-1,
        0.5,
    ];
    let seen = if x > UNSEEN { x } else { UNSEEN };
    let turned = seen * std::f64::consts::LOG2_E + ROUND;
    let n = turned - ROUND;
    let r = (seen - n * LN_2_HIGH) - n * LN_2_LOW;
    let mut p = TERMS[0];
    for term in &TERMS[1..] {
        p = p * r + term;
    }
    let p = (p * (r * r) + r) + 1.0;
    let exponent = turned.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(1023);
    let power = f64::from_bits(exponent.wrapping_shl(52));
    if x > UNSEEN { p * power } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn exponentials_are_close() {
        let scale = Scale::new(3.0, 0.7);
        for step in 0..60_000 {
            let x = f64::from(step) / -1000.0;
            let (found, exact) = (exp(x), x.exp());
            assert!((found - exact).abs() <= 1e-15 * exact || x <= UNSEEN, "{x}: {found} {exact}");
            let logit = (3.0 + x * 0.7) as f32;
            let exact = ((f64::from(logit) - 3.0) / 0.7).exp();
            let found = f64::from(scale.weight(logit));
            // The exponent itself is rounded to f32.
            let error = 1e-7 * (2.0 + x.abs()) * exact + 0.51 / f64::from(1_u32 << 17).powi(2);
            assert!((found - exact).abs() <= error, "{x}: {found} {exact}");
            assert_eq!(found * (1_u64 << 34) as f64 % 1.0, 0.0);
        }
        assert_eq!((scale.weight(3.0), scale.weight(f32::NEG_INFINITY)), (1.0, 0.0));
        let cold = Scale::new(3.0, f32::MIN_POSITIVE / 4.0);
        assert_eq!((cold.weight(3.0), cold.weight(2.999)), (1.0, 0.0));
    }

    proptest! {
        #[test]
        fn blocks_are_what_they_hold(
            logits in prop::collection::vec(prop_oneof![-60.0..20.0f32, Just(f32::NEG_INFINITY)], 1..400),
            words in prop::collection::vec(prop_oneof![Just(u32::MAX), Just(0), any::<u32>()], 0..13),
            spoiled in any::<prop::sample::Index>(),
        ) {
            let arch = Arch::new();
            let mut masked = logits.clone();
            mask_out(arch, &mut masked, &words);
            for (i, (&after, &before)) in masked.iter().zip(&logits).enumerate() {
                let set = words.get(i / 32).is_some_and(|word| word >> (i % 32) & 1 == 1);
                prop_assert_eq!(after, if set { before } else { f32::NEG_INFINITY });
            }
            let (mut most, mut weights, mut sums) = (Vec::new(), Vec::new(), Vec::new());
            prop_assert!(maxima(arch, &logits, &mut most));
            let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let blocks = logits.chunks(BLOCK).map(|b| b.iter().copied().fold(f32::NEG_INFINITY, f32::max));
            prop_assert!(blocks.eq(most.iter().copied()));
            if highest > f32::NEG_INFINITY {
                let scale = Scale::new(highest, 1.5);
                weigh(arch, &logits, &most, scale, &mut weights, &mut sums);
                prop_assert!(logits.iter().map(|l| scale.weight(*l)).eq(weights.iter().copied()));
                let of_blocks = weights.chunks(BLOCK).map(|b| b.iter().map(|w| f64::from(*w)).sum::<f64>());
                prop_assert!(of_blocks.eq(sums.iter().copied()));
                let exact: f64 = logits.iter().map(|l| (f64::from(*l) - f64::from(highest)).exp()).sum();
                let found = sum_exp(arch, &logits, &most, highest);
                prop_assert!((found - exact).abs() < 1e-12 * exact, "{} {}", found, exact);
            }
            let mut strange = logits.clone();
            strange[spoiled.index(logits.len())] = f32::NAN;
            prop_assert!(!maxima(arch, &strange, &mut most));
        }
    }
}
