//! Masks: which tokens may come next.

use std::sync::Arc;

/// A set of allowed tokens: a cheap handle, shared by every request in the same state.
///
/// Bit `i` of the words is token `i`; bits past the vocabulary are clear.
#[derive(Debug, Clone)]
pub struct Mask(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    words: Box<[u32]>,
    allowed: u32,
    single: Option<u32>,
}

impl Mask {
    /// The mask of bit words.
    pub(crate) fn new(words: Vec<u32>) -> Self {
        let allowed = words.iter().map(|w| w.count_ones()).sum();
        Self::counted(words, allowed)
    }

    /// The mask of bit words of which so many are known to be set.
    pub(crate) fn counted(words: Vec<u32>, allowed: u32) -> Self {
        let single = (allowed == 1).then(|| first(&words)).flatten();
        Self(Arc::new(Inner { words: words.into_boxed_slice(), allowed, single }))
    }

    /// The bit words: bit `i % 32` of word `i / 32` is token `i`.
    pub fn words(&self) -> &[u32] {
        &self.0.words
    }

    /// How many tokens are allowed.
    pub fn allowed(&self) -> u32 {
        self.0.allowed
    }

    /// The allowed token when there is exactly one.
    pub fn single(&self) -> Option<u32> {
        self.0.single
    }

    /// Whether a token is allowed; ids past the vocabulary are not.
    pub fn is_allowed(&self, token: u32) -> bool {
        self.0.words.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
    }

    /// The allowed tokens, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.words.iter().enumerate().flat_map(|(i, &word)| Bits(word).map(move |b| i as u32 * 32 + b))
    }

    /// Bytes of memory held.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.0.words) + size_of::<Inner>()
    }
}

impl PartialEq for Mask {
    fn eq(&self, other: &Self) -> bool {
        self.0.words == other.0.words
    }
}

impl Eq for Mask {}

fn first(words: &[u32]) -> Option<u32> {
    let (i, word) = words.iter().enumerate().find(|(_, word)| **word != 0)?;
    Some(i as u32 * 32 + word.trailing_zeros())
}

/// The positions of a word's set bits, ascending.
struct Bits(u32);

impl Iterator for Bits {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        (self.0 != 0).then(|| {
            let bit = self.0.trailing_zeros();
            self.0 &= self.0 - 1;
            bit
        })
    }
}

/// Sets the bit of a token.
#[inline]
pub(crate) fn allow(words: &mut [u32], token: u32) {
    words[token as usize / 32] |= 1 << (token % 32);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_counts_and_lists_its_tokens() {
        let mut words = vec![0; 3];
        for token in [0, 31, 32, 70] {
            allow(&mut words, token);
        }
        let mask = Mask::new(words);
        assert_eq!((mask.allowed(), mask.single()), (4, None));
        assert_eq!(mask.iter().collect::<Vec<_>>(), [0, 31, 32, 70]);
        assert!(mask.is_allowed(70) && !mask.is_allowed(71) && !mask.is_allowed(1 << 30));
        let mut words = vec![0; 3];
        allow(&mut words, 64);
        assert_eq!(Mask::new(words).single(), Some(64));
        assert_eq!(Mask::new(vec![0; 3]).single(), None);
    }
}
