/// PCG-XSH-RR 64/32 (O'Neill 2014): 64 bits of state, 32 bits per draw.
///
/// Seeding is that of the reference implementation's `pcg32_srandom`: from state 0, one step, add
/// the seed, one step. So a seed gives the same draws as the reference with the same stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pcg32 {
    state: u64,
    increment: u64,
}

const MULTIPLIER: u64 = 6_364_136_223_846_793_005;

/// The stream whose increment is the reference's default, 1442695040888963407.
const DEFAULT_STREAM: u64 = 721_347_520_444_481_703;

impl Pcg32 {
    /// The generator of a seed, on the default stream.
    pub fn new(seed: u64) -> Self {
        Self::with_stream(seed, DEFAULT_STREAM)
    }

    /// The generator of a seed on one of 2^63 streams; the stream's top bit is not used.
    pub fn with_stream(seed: u64, stream: u64) -> Self {
        let mut rng = Self { state: 0, increment: (stream << 1) | 1 };
        rng.next_u32();
        rng.state = rng.state.wrapping_add(seed);
        rng.next_u32();
        rng
    }

    /// One draw.
    pub fn next_u32(&mut self) -> u32 {
        let old = self.state;
        self.state = old.wrapping_mul(MULTIPLIER).wrapping_add(self.increment);
        let xored = (((old >> 18) ^ old) >> 27) as u32;
        xored.rotate_right((old >> 59) as u32)
    }

    /// One draw as a number of [0, 1), a multiple of 2^-32.
    pub fn next_f64(&mut self) -> f64 {
        f64::from(self.next_u32()) / 4_294_967_296.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_the_reference_implementations() {
        let mut rng = Pcg32::with_stream(42, 54);
        let draws: Vec<u32> = (0..6).map(|_| rng.next_u32()).collect();
        assert_eq!(
            draws,
            [0xa15c_02b7, 0x7b47_f409, 0xba1d_3330, 0x83d2_f293, 0xbfa4_784b, 0xcbed_606e]
        );
    }

    #[test]
    fn every_bit_of_the_seed_counts() {
        let first = |seed| Pcg32::new(seed).next_u32();
        for bit in 0..64 {
            assert_ne!(first(0), first(1 << bit), "bit {bit}");
        }
    }
}
