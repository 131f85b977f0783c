//! Characters as they are written inside a JSON string.
//!
//! A character may be written raw (unless it is a control character, `"` or `\`), by its short
//! escape where it has one, or as `\uXXXX` in either case of the digits, beyond U+FFFF as a pair.
//! All spellings are in the language, so a condition on the decoded text becomes a condition on
//! the written one exactly: no valid JSON string is left out because of how it is spelled.

use super::lexeme::{byte, literal, repeat};
use super::product::automaton;
use crate::ast::{ByteSet, Node};
use crate::error::ConstrainError;

use crate::limits::Limits;
use regex_syntax::utf8::Utf8Sequences;
use rustc_hash::FxHashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

/// A set of code points without surrogates, as sorted ranges that do not touch.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct CharSet(Vec<(u32, u32)>);

const LAST: u32 = 0x0010_ffff;
const SURROGATES: (u32, u32) = (0xd800, 0xdfff);

impl CharSet {
    pub(crate) fn new(mut ranges: Vec<(u32, u32)>) -> Self {
        ranges.sort_unstable();
        let mut merged: Vec<(u32, u32)> = Vec::with_capacity(ranges.len());
        for (low, high) in ranges {
            match merged.last_mut() {
                Some(last) if low <= last.1.saturating_add(1) => last.1 = last.1.max(high),
                _ => merged.push((low, high)),
            }
        }
        Self(merged).without(SURROGATES)
    }

    pub(crate) fn all() -> Self {
        Self::new(vec![(0, LAST)])
    }

    pub(crate) fn complement(&self) -> Self {
        let mut ranges = Vec::with_capacity(self.0.len() + 1);
        let mut next = 0;
        for (low, high) in &self.0 {
            if *low > next {
                ranges.push((next, low - 1));
            }
            next = high + 1;
        }
        if next <= LAST {
            ranges.push((next, LAST));
        }
        Self::new(ranges)
    }

    pub(crate) fn ranges(&self) -> &[(u32, u32)] {
        &self.0
    }

    fn without(&self, (from, to): (u32, u32)) -> Self {
        let mut ranges = Vec::with_capacity(self.0.len() + 1);
        for (low, high) in &self.0 {
            if *low < from {
                ranges.push((*low, (*high).min(from - 1)));
            }
            if *high > to {
                ranges.push(((*low).max(to + 1), *high));
            }
        }
        Self(ranges)
    }

    fn within(&self, from: u32, to: u32) -> impl Iterator<Item = (u32, u32)> {
        self.0.iter().filter_map(move |(low, high)| {
            let (low, high) = ((*low).max(from), (*high).min(to));
            (low <= high).then_some((low, high))
        })
    }

    fn has(&self, c: u32) -> bool {
        self.0.iter().any(|(low, high)| (*low..=*high).contains(&c))
    }
}

/// Trees of character sets. Each set's automaton is made once per process while there is room:
/// the same few classes stand in most patterns.
static SPELLINGS: LazyLock<Mutex<FxHashMap<CharSet, Node>>> = LazyLock::new(Mutex::default);

/// How many sets are kept, and how many ranges a set may have to be kept: some 10 KiB each.
const KEPT_SETS: usize = 1024;
const KEPT_RANGES: usize = 16;

/// One character of the set, written in any way; the empty set is the empty language.
pub(crate) fn spelling(set: &CharSet, limits: &mut Limits) -> Result<Node, ConstrainError> {
    if *set == CharSet::all() {
        // The tree that the run time knows tables for.
        return Ok(super::lexeme::character(true));
    }
    // A poisoned lock still guards a whole map: entries are put in complete.
    let kept = || SPELLINGS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(node) = kept().get(set) {
        return Ok(node.clone());
    }
    let node = match automaton(&spelled(set), limits)? {
        Some(dfa) => Node::Automaton(Arc::new(dfa)),
        None => Node::Set(ByteSet::EMPTY),
    };
    let mut kept = kept();
    if kept.len() < KEPT_SETS && set.0.len() <= KEPT_RANGES {
        kept.insert(set.clone(), node.clone());
    }
    Ok(node)
}

const SHORT: [(u32, u8); 8] = [
    (0x22, b'"'),
    (0x5c, b'\\'),
    (0x2f, b'/'),
    (0x08, b'b'),
    (0x0c, b'f'),
    (0x0a, b'n'),
    (0x0d, b'r'),
    (0x09, b't'),
];

fn spelled(set: &CharSet) -> Node {
    let mut options = Vec::new();
    let raw = set.without((0, 0x1f)).without((0x22, 0x22)).without((0x5c, 0x5c));
    for (low, high) in raw.ranges() {
        // Surrogates are no characters, so every end of a range is one.
        let (Some(low), Some(high)) = (char::from_u32(*low), char::from_u32(*high)) else {
            continue;
        };
        for sequence in Utf8Sequences::new(low, high) {
            let bytes = sequence.as_slice().iter();
            let sets = bytes.map(|r| Node::Set(ByteSet::range(r.start, r.end)));
            options.push(Node::Concat(sets.collect()));
        }
    }
    let mut short = ByteSet::EMPTY;
    for (c, letter) in SHORT {
        if set.has(c) {
            short.insert(letter);
        }
    }
    let mut escapes = vec![Node::Set(short)];
    for (low, high) in set.within(0, 0xffff) {
        escapes.push(Node::Concat(vec![byte(b'u'), hex_range(low, high, 4)]));
    }
    for (low, high) in set.within(0x1_0000, LAST) {
        escapes.extend(pairs(low - 0x1_0000, high - 0x1_0000));
    }
    options.push(Node::Concat(vec![byte(b'\\'), Node::Alt(escapes)]));
    Node::Alt(options)
}

/// Surrogate pairs of the 20-bit numbers from `low` to `high`, after the first backslash.
fn pairs(low: u32, high: u32) -> Vec<Node> {
    let pair = |first: u32, last: u32, low: u32, high: u32| {
        Node::Concat(vec![
            byte(b'u'),
            hex_range(0xd800 + first, 0xd800 + last, 4),
            literal("\\u"),
            hex_range(0xdc00 + low, 0xdc00 + high, 4),
        ])
    };
    let (first, last) = (low >> 10, high >> 10);
    let (l, h) = (low & 0x3ff, high & 0x3ff);
    if first == last {
        return vec![pair(first, first, l, h)];
    }
    let mut options = vec![pair(first, first, l, 0x3ff), pair(last, last, 0, h)];
    if first + 1 < last {
        options.push(pair(first + 1, last - 1, 0, 0x3ff));
    }
    options
}

/// The numbers from `low` to `high` in hexadecimal of `digits` digits, in either case.
fn hex_range(low: u32, high: u32, digits: u32) -> Node {
    if digits == 0 {
        return Node::Empty;
    }
    let shift = 4 * (digits - 1);
    let (l, h) = (low >> shift, high >> shift);
    let rest = (1u32 << shift) - 1;
    let (low_rest, high_rest) = (low & rest, high & rest);
    let any = || repeat(Node::Set(hex_digits(0, 15)), digits - 1, Some(digits - 1));
    if l == h {
        return Node::Concat(vec![
            Node::Set(hex_digits(l, l)),
            hex_range(low_rest, high_rest, digits - 1),
        ]);
    }
    let (mut from, mut to) = (l, h);
    let mut options = Vec::new();
    if low_rest > 0 {
        options.push(Node::Concat(vec![
            Node::Set(hex_digits(l, l)),
            hex_range(low_rest, rest, digits - 1),
        ]));
        from += 1;
    }
    if high_rest < rest {
        options.push(Node::Concat(vec![
            Node::Set(hex_digits(h, h)),
            hex_range(0, high_rest, digits - 1),
        ]));
        to -= 1;
    }
    if from <= to {
        options.push(Node::Concat(vec![Node::Set(hex_digits(from, to)), any()]));
    }
    Node::Alt(options)
}

fn hex_digits(low: u32, high: u32) -> ByteSet {
    let mut set = ByteSet::EMPTY;
    for digit in low..=high {
        for table in [b"0123456789abcdef", b"0123456789ABCDEF"] {
            set.insert(table[digit as usize]);
        }
    }
    set
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dfa::{Dfa, node_to_dfa};
    use crate::json::json_quote;
    use crate::json_chars::{self, CharForm};

    fn spelled_automaton(set: &CharSet) -> Dfa {
        node_to_dfa(&spelled(set), &Limits::default()).unwrap().unwrap()
    }

    #[test]
    fn all_characters_spelled_are_what_plain_strings_hold() {
        let limits = Limits::default();
        let plain = node_to_dfa(&json_chars::tree(CharForm::Finite), &limits).unwrap().unwrap();
        assert_eq!(spelled_automaton(&CharSet::all()), plain);
    }

    #[test]
    fn every_spelling_of_a_member_and_of_nothing_else_matches() {
        let set = CharSet::new(vec![
            (0x08, 0x0b),
            (0x22, 0x22),
            (0x2f, 0x39),
            (0x5c, 0x5c),
            (0xe9, 0xe9),
            (0x7ff, 0x812),
            (0xd700, 0xe010),
            (0xffff, 0x1_0400),
            (0x1_f5ff, 0x1_fa00),
            (0x10_fff0, LAST),
        ]);
        let dfa = spelled_automaton(&set);
        let other = spelled_automaton(&set.complement());
        for c in (0..=0x1_0fff).chain(0x1_f000..=0x1_fbff).chain(0x10_ff00..=LAST) {
            let Some(c) = char::from_u32(c) else { continue };
            let inside = set.has(c as u32);
            let mut units = [0; 2];
            let units = c.encode_utf16(&mut units);
            let spelled = |case: fn(&u16) -> String| units.iter().map(case).collect::<String>();
            let (lower, upper) =
                (spelled(|u| format!("\\u{u:04x}")), spelled(|u| format!("\\u{u:04X}")));
            let quoted = json_quote(&c.to_string());
            for text in [&lower, &upper, &quoted[1..quoted.len() - 1]] {
                assert_eq!(dfa.matches(text.as_bytes()), inside, "{text}");
                assert_eq!(other.matches(text.as_bytes()), !inside, "{text}");
            }
        }
        assert_eq!(dfa.matches(b"\\/"), set.has(0x2f));
        assert!(!dfa.matches(b"\\ud83d") && !other.matches(b"\\ud83d"));
    }
}
