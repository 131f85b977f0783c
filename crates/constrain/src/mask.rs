//! Masks: which tokens may come next.
//!
//! Most masks allow a handful of tokens (the rest of a key, a bracket), so a small mask is held as
//! its list of ids and becomes bit words only when somebody asks for them: for a vocabulary of
//! 150,000 tokens that saves 19 KB a state. Larger masks are bit words.

use std::sync::{Arc, OnceLock};

/// Masks that allow at most so many tokens are held as lists.
pub(crate) const FEW: usize = 64;

/// A set of allowed tokens: a cheap handle, shared by every request in the same state.
///
/// Bit `i` of the words is token `i`; bits past the vocabulary are clear.
#[derive(Debug, Clone)]
pub struct Mask(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// The allowed tokens, ascending, when they are few; then `words` waits to be asked for.
    few: Option<Box<[u32]>>,
    words: OnceLock<Box<[u32]>>,
    n_words: usize,
    allowed: u32,
}

impl Mask {
    /// The mask of bit words.
    pub(crate) fn new(words: Vec<u32>) -> Self {
        let allowed = words.iter().map(|w| w.count_ones()).sum();
        Self::counted(words, allowed)
    }

    /// The mask of bit words of which so many are known to be set.
    pub(crate) fn counted(words: Vec<u32>, allowed: u32) -> Self {
        let n_words = words.len();
        let words = OnceLock::from(words.into_boxed_slice());
        Self(Arc::new(Inner { few: None, words, n_words, allowed }))
    }

    /// The mask of a few tokens, in any order, each once.
    pub(crate) fn few(mut tokens: Vec<u32>, n_words: usize) -> Self {
        tokens.sort_unstable();
        let allowed = tokens.len() as u32;
        let few = Some(tokens.into_boxed_slice());
        Self(Arc::new(Inner { few, words: OnceLock::new(), n_words, allowed }))
    }

    /// The bit words: bit `i % 32` of word `i / 32` is token `i`.
    pub fn words(&self) -> &[u32] {
        self.0.words.get_or_init(|| {
            let mut words = vec![0; self.0.n_words];
            for token in self.0.few.iter().flatten() {
                allow(&mut words, *token);
            }
            words.into_boxed_slice()
        })
    }

    /// How many tokens are allowed.
    pub fn allowed(&self) -> u32 {
        self.0.allowed
    }

    /// The allowed token when there is exactly one.
    pub fn single(&self) -> Option<u32> {
        if self.allowed() == 1 { self.iter().next() } else { None }
    }

    /// Whether a token is allowed; ids past the vocabulary are not.
    pub fn is_allowed(&self, token: u32) -> bool {
        if let Some(few) = &self.0.few {
            return few.binary_search(&token).is_ok();
        }
        let word = self.words().get(token as usize / 32);
        word.is_some_and(|word| word >> (token % 32) & 1 == 1)
    }

    /// The allowed tokens, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let few = self.0.few.as_deref();
        let words = if few.is_some() { &[] } else { self.words() };
        let dense = words.iter().enumerate();
        let dense = dense.flat_map(|(i, &word)| Bits(word).map(move |b| i as u32 * 32 + b));
        few.unwrap_or_default().iter().copied().chain(dense)
    }

    /// Bytes of memory held, the words of a small mask included: it may be asked for them.
    pub(crate) fn bytes(&self) -> usize {
        (self.0.n_words + self.0.few.as_ref().map_or(0, |few| few.len())) * size_of::<u32>()
            + size_of::<Inner>()
    }
}

impl PartialEq for Mask {
    fn eq(&self, other: &Self) -> bool {
        self.allowed() == other.allowed() && self.iter().eq(other.iter())
    }
}

impl Eq for Mask {}

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

    #[test]
    fn a_small_mask_is_its_words() {
        let (few, none) = (Mask::few(vec![70, 0, 31], 3), Mask::few(Vec::new(), 3));
        assert_eq!((few.allowed(), few.single(), none.allowed()), (3, None, 0));
        assert!(few.is_allowed(31) && !few.is_allowed(32) && !few.is_allowed(1 << 30));
        assert_eq!(few.words(), [1 << 31 | 1, 0, 1 << 6]);
        assert_eq!(few, Mask::new(few.words().to_vec()));
        assert_eq!(none.words(), [0; 3]);
        assert_eq!(Mask::few(vec![64], 3).single(), Some(64));
    }
}
