//! Numbers for the tests: a small generator with a seed, so that a failure repeats.

/// A xorshift generator.
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// Uniform between -1 and 1.
    pub(crate) fn signed(&mut self) -> f32 {
        (self.next() % (1 << 24)) as f32 / (1 << 23) as f32 - 1.0
    }

    /// About normal: a sum of uniform numbers.
    pub(crate) fn normal(&mut self) -> f32 {
        (0..6).map(|_| self.signed()).sum::<f32>() / std::f32::consts::SQRT_2
    }

    pub(crate) fn normals(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.normal()).collect()
    }
}
