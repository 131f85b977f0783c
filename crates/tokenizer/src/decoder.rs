//! Bytes to text, a piece at a time.

/// Turns the bytes of successive tokens into text without ever splitting a character.
///
/// The text is that of [`String::from_utf8_lossy`] over all the bytes, however they were cut into
/// pieces: a character whose bytes are not all there yet is held back, bytes that can be no
/// character become U+FFFD (one for each maximal prefix of a character, as the Unicode standard
/// recommends), and [`finish`](Self::finish) gives up what is still held. At most three bytes are
/// held.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decoder {
    held: Vec<u8>,
}

impl Decoder {
    /// A decoder at the beginning of a text.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the bytes of the next token ([`Tokenizer::token_bytes`](crate::Tokenizer::token_bytes))
    /// and returns the text that is now certain; often empty inside a character.
    #[must_use]
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.held.extend_from_slice(bytes);
        let mut text = String::new();
        let mut rest = &self.held[..];
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    rest = &[];
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    rest = after;
                    if let Some(bad) = error.error_len() {
                        text.push(char::REPLACEMENT_CHARACTER);
                        rest = &rest[bad..];
                        continue;
                    }
                }
            }
            break;
        }
        let held = rest.len();
        self.held.drain(..self.held.len() - held);
        text
    }

    /// How many bytes of an unfinished character are held back.
    pub fn held_bytes(&self) -> usize {
        self.held.len()
    }

    /// The end of the text: U+FFFD if a character was left unfinished, else nothing. The decoder is
    /// then at the beginning of a text again.
    #[must_use]
    pub fn finish(&mut self) -> String {
        let held = std::mem::take(&mut self.held);
        String::from_utf8_lossy(&held).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::Decoder;
    use proptest::prelude::*;

    #[test]
    fn a_character_comes_out_whole() {
        let mut decoder = Decoder::new();
        let smile = "😀".as_bytes();
        assert_eq!(decoder.push(&smile[..1]), "");
        assert_eq!(decoder.push(&smile[1..3]), "");
        assert_eq!(decoder.held_bytes(), 3);
        assert_eq!(decoder.push(&[smile[3], b'!', 0xE2]), "😀!");
        assert_eq!(decoder.push(b"x"), "\u{FFFD}x");
        assert_eq!(decoder.push(&smile[..2]), "");
        assert_eq!(decoder.finish(), "\u{FFFD}");
        assert_eq!(decoder.finish(), "");
    }

    /// Bytes that often begin, continue and break characters.
    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![
            any::<u8>(),
            prop::sample::select(
                &[0x61u8, 0x80, 0xBF, 0xC2, 0xE2, 0x82, 0xAC, 0xED, 0xF0, 0x9F, 0xF4][..]
            ),
        ];
        prop::collection::vec(byte, 0..40)
    }

    proptest! {
        #[test]
        fn text_does_not_depend_on_how_the_bytes_were_cut(
            bytes in bytes(),
            cuts in prop::collection::vec(0usize..40, 0..10),
        ) {
            let mut cuts: Vec<usize> = cuts.into_iter().filter(|cut| *cut < bytes.len()).collect();
            cuts.sort_unstable();
            cuts.push(bytes.len());
            let mut decoder = Decoder::new();
            let mut text = String::new();
            let mut at = 0;
            for cut in cuts {
                text += &decoder.push(&bytes[at..cut]);
                prop_assert!(decoder.held_bytes() <= 3);
                at = cut;
            }
            text += &decoder.finish();
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes).into_owned());
        }
    }
}
