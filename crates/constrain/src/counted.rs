//! Tokens by the number of characters they begin, and masks of those with at most so many.

use crate::mask::allow;
use crate::vocabulary::Vocabulary;
use std::sync::OnceLock;

/// Limits on characters up to this have a mask of their own.
const NARROW_LIMITS: usize = 32;

/// Bit words with their count.
#[derive(Debug, Clone)]
pub(crate) struct Bits {
    pub(crate) words: Vec<u32>,
    pub(crate) count: u32,
}

/// A set of tokens.
#[derive(Debug)]
pub(crate) struct Counted {
    all: Bits,
    /// The tokens, those with most characters first.
    tokens: Box<[u32]>,
    /// How many of them begin more than so many characters.
    longer: Box<[u32]>,
    /// Those with at most so many characters; made when first needed.
    narrow: [OnceLock<Bits>; NARROW_LIMITS],
}

impl Counted {
    /// The set of some tokens, each with its number of characters.
    pub(crate) fn new(vocabulary: &Vocabulary, tokens: &[(u16, u32)]) -> Self {
        let most = tokens.iter().map(|(chars, _)| *chars).max().unwrap_or(0);
        let mut longer = vec![0_u32; usize::from(most) + 1];
        for (chars, _) in tokens {
            longer[usize::from(*chars)] += 1;
        }
        let mut before = 0;
        for count in longer.iter_mut().rev() {
            before += std::mem::replace(count, before);
        }
        let mut next = longer.clone();
        let mut ordered = vec![0; tokens.len()].into_boxed_slice();
        for (chars, token) in tokens {
            let at = &mut next[usize::from(*chars)];
            ordered[*at as usize] = *token;
            *at += 1;
        }
        let all = Bits::of(vocabulary, &ordered);
        // Nothing is longer than the longest.
        longer.pop();
        let narrow = [const { OnceLock::new() }; NARROW_LIMITS];
        Self { all, tokens: ordered, longer: longer.into(), narrow }
    }

    /// The tokens that begin at most `most` characters.
    pub(crate) fn within(&self, vocabulary: &Vocabulary, most: u32) -> Bits {
        let Some(&longer) = self.longer.get(most as usize) else {
            return self.all.clone();
        };
        let (more, rest) = self.tokens.split_at(longer as usize);
        if let Some(slot) = self.narrow.get(most as usize) {
            return slot.get_or_init(|| Bits::of(vocabulary, rest)).clone();
        }
        let mut bits = self.all.clone();
        for token in more {
            bits.words[*token as usize / 32] &= !(1 << (token % 32));
        }
        bits.count -= longer;
        bits
    }

    /// Bytes of memory held at most.
    pub(crate) fn bytes(&self) -> usize {
        let masks = 1 + self.longer.len().min(NARROW_LIMITS);
        size_of_val(&*self.tokens)
            + size_of_val(&*self.longer)
            + masks * size_of_val(&*self.all.words)
    }
}

impl Bits {
    pub(crate) fn none(vocabulary: &Vocabulary) -> Self {
        Self { words: vec![0; vocabulary.mask_words()], count: 0 }
    }

    /// The bits of some tokens, each named once.
    fn of(vocabulary: &Vocabulary, tokens: &[u32]) -> Self {
        let mut bits = Self::none(vocabulary);
        for token in tokens {
            bits.allow(*token);
        }
        bits
    }

    /// Allows a token that was not allowed before.
    #[inline]
    pub(crate) fn allow(&mut self, token: u32) {
        allow(&mut self.words, token);
        self.count += 1;
    }

    /// Allows tokens of which some may be allowed.
    #[inline]
    pub(crate) fn also_allow_all(&mut self, tokens: &[u32]) {
        for token in tokens {
            let word = &mut self.words[*token as usize / 32];
            let bit = 1 << (token % 32);
            self.count += u32::from(*word & bit == 0);
            *word |= bit;
        }
    }
}
