//! GPT-2's spelling of bytes as printable characters, in which byte-level vocabularies are written.
//!
//! A byte that prints in Latin-1 stands for itself; the 68 others take the characters from U+0100
//! on, in order. So a space is `Ġ` (U+0120) and a newline `Ċ` (U+010A).

/// The characters for all bytes; the index is the byte.
pub(crate) const CHARS: [char; 256] = chars();

const fn prints(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
}

const fn chars() -> [char; 256] {
    let mut chars = ['\0'; 256];
    let mut byte = 0;
    let mut next = 0x100;
    while byte < 256 {
        let code = if prints(byte as u8) {
            byte as u32
        } else {
            next += 1;
            next - 1
        };
        chars[byte] = match char::from_u32(code) {
            Some(char) => char,
            None => unreachable!(),
        };
        byte += 1;
    }
    chars
}

/// The byte a character stands for.
pub(crate) fn byte(char: char) -> Option<u8> {
    match char as u32 {
        code @ 0..=0xFF if prints(code as u8) => Some(code as u8),
        // The others in order: 0..=0x20, 0x7F..=0xA0, 0xAD.
        code @ 0x100..=0x120 => Some((code - 0x100) as u8),
        code @ 0x121..=0x142 => Some((code - 0x121 + 0x7F) as u8),
        0x143 => Some(0xAD),
        _ => None,
    }
}

/// The bytes of a token's spelling, or `None` when a character of it stands for no byte.
pub(crate) fn bytes(spelling: &str) -> Option<Vec<u8>> {
    spelling.chars().map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::{CHARS, byte, bytes};

    #[test]
    fn every_byte_has_one_character_and_back() {
        for value in 0..=255u8 {
            assert_eq!(byte(CHARS[value as usize]), Some(value));
        }
        assert_eq!((0..=0x400u32).filter_map(char::from_u32).filter_map(byte).count(), 256);
        assert_eq!(bytes("ĠhiĊ").as_deref(), Some(&b" hi\n"[..]));
        assert_eq!(bytes("a b"), None);
    }
}
