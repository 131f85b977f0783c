//! Well-formed UTF-8 as an automaton of eight states, so that walks over bytes can tell where a
//! character ends.

use crate::ast::ByteSet;

/// Between two characters.
pub(crate) const BETWEEN: u8 = 0;

/// Not well-formed.
pub(crate) const ILL: u8 = u8::MAX;

/// Bytes that begin a character.
pub(crate) const LEADS: ByteSet = ByteSet::range(0, 0x7f).union(&ByteSet::range(0xc2, 0xf4));

/// The bytes that go on within a character and the state after them, by state; the state between
/// characters goes on by [`lead`].
const MORE: [(u8, u8, u8); 8] = [
    (1, 0, ILL),
    (0x80, 0xbf, BETWEEN),
    (0x80, 0xbf, 1),
    // After E0, ED.
    (0xa0, 0xbf, 1),
    (0x80, 0x9f, 1),
    // After F1 to F3, F0, F4.
    (0x80, 0xbf, 2),
    (0x90, 0xbf, 2),
    (0x80, 0x8f, 2),
];

/// The state after a character's first byte.
#[inline]
pub(crate) const fn lead(byte: u8) -> u8 {
    match byte {
        0..=0x7f => BETWEEN,
        0xc2..=0xdf => 1,
        0xe0 => 3,
        0xed => 4,
        0xe1..=0xef => 2,
        0xf0 => 6,
        0xf1..=0xf3 => 5,
        0xf4 => 7,
        _ => ILL,
    }
}

/// The state after a byte.
#[inline]
pub(crate) const fn step(state: u8, byte: u8) -> u8 {
    if state == BETWEEN {
        return lead(byte);
    }
    let (low, high, next) = MORE[state as usize];
    if low <= byte && byte <= high { next } else { ILL }
}

/// The bytes that go on within a character.
pub(crate) const fn more(state: u8) -> ByteSet {
    let (low, high, _) = MORE[state as usize];
    ByteSet::range(low, high)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_well_formed_is_what_the_standard_library_takes() {
        let ends = |bytes: &[u8]| {
            bytes.iter().fold(BETWEEN, |state, byte| match state {
                ILL => ILL,
                state => step(state, *byte),
            })
        };
        let edges: Vec<u8> =
            (0..=255).filter(|b| b & 0x0f < 2 || b & 0x0f > 13 || *b > 0xc0).collect();
        for &a in &edges {
            assert_eq!(ends(&[a]) == BETWEEN, std::str::from_utf8(&[a]).is_ok());
            assert_eq!(LEADS.contains(a), lead(a) != ILL);
            for &b in &edges {
                assert_eq!(ends(&[a, b]) == BETWEEN, std::str::from_utf8(&[a, b]).is_ok());
                for &c in &edges {
                    let text = [a, b, c];
                    assert_eq!(ends(&text) == BETWEEN, std::str::from_utf8(&text).is_ok());
                    for d in [0x7f, 0x80, 0xbf, 0xc0] {
                        let text = [a, b, c, d];
                        assert_eq!(ends(&text) == BETWEEN, std::str::from_utf8(&text).is_ok());
                    }
                }
            }
        }
        for state in 1..8 {
            assert!((0..=255).all(|b| more(state).contains(b) == (step(state, b) != ILL)));
        }
    }
}
