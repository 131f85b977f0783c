//! A vocabulary small enough to read: all bytes, a few merges, and a token of every kind.

use tinyllm_tokenizer::{Tokenizer, VocabSpec};

/// The byte characters in which normal tokens are spelled: the token of byte `b` has the id `b`.
pub(crate) fn byte_char(byte: u8) -> char {
    let mut next = 0x100;
    for other in 0..=255u8 {
        let prints = matches!(other, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
        let code = if prints { u32::from(other) } else { next };
        next += u32::from(!prints);
        if other == byte {
            return char::from_u32(code).expect("a character");
        }
    }
    unreachable!("all bytes were looked at")
}

pub(crate) const AB: u32 = 256;
pub(crate) const ABC: u32 = 257;
pub(crate) const START: u32 = 259;
pub(crate) const END: u32 = 260;
pub(crate) const CALL: u32 = 261;
pub(crate) const UNKNOWN: u32 = 262;
pub(crate) const UNUSED: u32 = 263;

/// Ids 0 to 255 are the bytes; then the named ones; 258 is `Ġa`.
pub(crate) fn spec() -> VocabSpec {
    let mut tokens: Vec<String> = (0..=255).map(|byte| byte_char(byte).to_string()).collect();
    let mut kinds = vec![1; 256];
    for (token, kind) in [
        ("ab", 1),
        ("abc", 1),
        ("Ġa", 1),
        ("<|start|>", 3),
        ("<|im_end|>", 3),
        ("<call>", 4),
        ("<unk>", 2),
        ("[hole]", 5),
    ] {
        tokens.push(token.to_owned());
        kinds.push(kind);
    }
    VocabSpec {
        model: "gpt2".to_owned(),
        pre: "gpt-2".to_owned(),
        tokens,
        kinds,
        merges: ["a b", "ab c", "Ġ a"].map(str::to_owned).to_vec(),
        bos: Some(START),
        eos: Some(END),
        ..VocabSpec::default()
    }
}

pub(crate) fn tokenizer() -> Tokenizer {
    Tokenizer::new(&spec()).expect("a sound vocabulary")
}
