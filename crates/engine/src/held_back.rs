//! Text on its way out: bytes become text, stop strings end it.
//!
//! Tokens go in one by one, text comes out as soon as it is certain. Held back are the bytes of a
//! character that is not whole yet and bytes that may be the start of a stop string. The result
//! does not depend on how the bytes were cut into tokens:
//! 1. the text released in all is the lossy UTF-8 reading of the bytes before the stop string;
//! 2. the stop string that counts is the one completed first; of several completed by the same
//!    byte, the longest;
//! 3. a token is released with the last of its bytes, and after all tokens before it; tokens that
//!    lie in the stop string as a whole are dropped, one that straddles its start is released.
//!
//! Cost: O(1) amortised per byte and stop string (a failure-function matcher for each).

use std::collections::VecDeque;

/// Text that has become certain, with what belongs to it.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Released<T> {
    pub(crate) tokens: Vec<T>,
    pub(crate) bytes: Vec<u8>,
    pub(crate) text: String,
}

/// Bytes and tokens not released yet. `T` is what travels with a token (its id, its logprobs).
#[derive(Debug)]
pub(crate) struct HeldBack<T> {
    stops: Vec<StopMatcher>,
    /// Bytes not released; the first has offset `released`.
    bytes: Vec<u8>,
    released: usize,
    /// Tokens not released, each with the offsets of its first byte and of the byte after its last.
    tokens: VecDeque<(T, usize, usize)>,
}

impl<T> HeldBack<T> {
    /// Stop strings must not be empty.
    pub(crate) fn new(stops: &[String]) -> Self {
        Self {
            stops: stops.iter().map(|s| StopMatcher::new(s.as_bytes())).collect(),
            bytes: Vec::new(),
            released: 0,
            tokens: VecDeque::new(),
        }
    }

    /// Takes a token's bytes. True in the second place: a stop string was completed, and nothing
    /// may be pushed any more.
    pub(crate) fn push(&mut self, token: T, bytes: &[u8]) -> (Released<T>, bool) {
        let start = self.released + self.bytes.len();
        self.tokens.push_back((token, start, start + bytes.len()));
        for &byte in bytes {
            self.bytes.push(byte);
            let mut matched = 0;
            for stop in &mut self.stops {
                if stop.advance(byte) {
                    matched = matched.max(stop.pattern.len());
                }
            }
            if matched > 0 {
                self.bytes.truncate(self.bytes.len() - matched);
                let end = self.released + self.bytes.len();
                self.tokens.retain(|&(_, start, token_end)| start < end || token_end <= end);
                return (self.flush(), true);
            }
        }
        let held = self.stops.iter().map(|s| s.state).max().unwrap_or(0);
        // A stop string begins at a character's start, so what lies before it is judged alone.
        let certain = whole_characters(&self.bytes[..self.bytes.len() - held]);
        (self.release(certain), false)
    }

    /// Releases everything; what is left of a character becomes U+FFFD.
    pub(crate) fn flush(&mut self) -> Released<T> {
        let mut out = self.release(self.bytes.len());
        out.tokens.extend(self.tokens.drain(..).map(|(token, ..)| token));
        out
    }

    fn release(&mut self, count: usize) -> Released<T> {
        let bytes: Vec<u8> = self.bytes.drain(..count).collect();
        self.released += count;
        let mut tokens = Vec::new();
        while self.tokens.front().is_some_and(|&(_, _, end)| end <= self.released) {
            tokens.extend(self.tokens.pop_front().map(|(token, ..)| token));
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        Released { tokens, bytes, text }
    }
}

/// Length of the prefix that does not end in a character's first bytes.
fn whole_characters(bytes: &[u8]) -> usize {
    // The longest unfinished character has three of its four bytes.
    let from = bytes.len().saturating_sub(3);
    (from..bytes.len())
        .find(|&i| {
            std::str::from_utf8(&bytes[i..])
                .is_err_and(|e| e.valid_up_to() == 0 && e.error_len().is_none())
        })
        .unwrap_or(bytes.len())
}

/// Knuth, Morris and Pratt's matcher for one stop string.
#[derive(Debug)]
struct StopMatcher {
    pattern: Vec<u8>,
    /// `failure[n]`: length of the longest proper prefix that is a suffix of the first `n` bytes.
    failure: Vec<usize>,
    /// Bytes of the pattern that the text now ends with.
    state: usize,
}

impl StopMatcher {
    fn new(pattern: &[u8]) -> Self {
        let mut failure = vec![0; pattern.len() + 1];
        for n in 2..=pattern.len() {
            let mut k = failure[n - 1];
            while k > 0 && pattern[k] != pattern[n - 1] {
                k = failure[k];
            }
            failure[n] = if pattern[k] == pattern[n - 1] { k + 1 } else { 0 };
        }
        Self { pattern: pattern.to_vec(), failure, state: 0 }
    }

    fn advance(&mut self, byte: u8) -> bool {
        while self.state > 0 && self.pattern[self.state] != byte {
            self.state = self.failure[self.state];
        }
        if self.pattern[self.state] == byte {
            self.state += 1;
        }
        self.state == self.pattern.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The text before the stop string that is completed first, found the slow way.
    fn slow(bytes: &[u8], stops: &[String]) -> (String, bool) {
        for end in 1..=bytes.len() {
            let longest = stops
                .iter()
                .filter(|stop| bytes[..end].ends_with(stop.as_bytes()))
                .map(String::len)
                .max();
            if let Some(length) = longest {
                return (String::from_utf8_lossy(&bytes[..end - length]).into_owned(), true);
            }
        }
        (String::from_utf8_lossy(bytes).into_owned(), false)
    }

    fn pieces() -> impl Strategy<Value = Vec<Vec<u8>>> {
        // Few bytes, so that stop strings and characters come about: é, €, 😀 and their halves.
        let byte = prop::sample::select(vec![
            b'a', b'b', b'a', b'b', 0xc3, 0xa9, 0xe2, 0x82, 0xac, 0xf0, 0x9f, 0x98, 0x80, 0xff,
        ]);
        prop::collection::vec(prop::collection::vec(byte, 0..5), 0..20)
    }

    proptest! {
        #[test]
        fn text_does_not_depend_on_how_bytes_were_cut(
            pieces in pieces(),
            stops in prop::collection::vec("[ab]{1,4}|é|aé|€b|[ab]😀", 0..4),
        ) {
            let (expected, stopped) = slow(&pieces.concat(), &stops);
            let mut held = HeldBack::new(&stops);
            let (mut text, mut bytes, mut tokens) = (String::new(), Vec::new(), Vec::new());
            let mut ended = false;
            for (i, piece) in pieces.iter().enumerate() {
                let (released, stop) = held.push(i, piece);
                text.push_str(&released.text);
                bytes.extend(released.bytes);
                tokens.extend(released.tokens);
                // A token comes with its last byte, and not after it.
                let spelled: usize = tokens.iter().map(|i: &usize| pieces[*i].len()).sum();
                prop_assert!(stop || spelled <= bytes.len());
                if stop {
                    ended = true;
                    break;
                }
            }
            if !ended {
                let released = held.flush();
                text.push_str(&released.text);
                bytes.extend(released.bytes);
                tokens.extend(released.tokens);
                prop_assert_eq!(tokens.len(), pieces.len());
            }
            prop_assert_eq!(ended, stopped);
            prop_assert_eq!(&text, &expected);
            prop_assert_eq!(String::from_utf8_lossy(&bytes).into_owned(), expected);
            // Tokens are a prefix, without gaps, that spells the text and at most goes past it.
            prop_assert!(tokens.iter().copied().eq(0..tokens.len()));
            let spelled = pieces[..tokens.len()].concat();
            prop_assert!(spelled.starts_with(&bytes));
        }
    }

    #[test]
    fn what_may_be_the_start_of_a_stop_string_is_held_back() {
        let mut held = HeldBack::new(&["abcd".to_owned(), "bx".to_owned()]);
        assert_eq!(held.push(0, b"zab").0.text, "z");
        assert_eq!(held.push(1, b"c").0.text, "");
        let (released, stopped) = held.push(2, b"e");
        assert_eq!((released.text.as_str(), stopped), ("abce", false));
        assert_eq!(released.tokens, [0, 1, 2]);
    }
}
