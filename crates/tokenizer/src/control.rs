//! The texts of control tokens: finding them, and keeping them apart from texts of other origin.
//!
//! A template and a conversation are rendered into one string, and only the template's control
//! texts may become control tokens. So before rendering, control texts in the conversation are
//! broken by a *sentinel*, a noncharacter that occurs nowhere else; after rendering, what is
//! unbroken is the template's, and the sentinels are taken out again. They sit
//! - after the first character of every control text inside a string;
//! - after the first character of what could be the beginning of one at a string's end (`<|im_`),
//!   with and without the white space there, since templates trim;
//! - before what could be the end of one at a string's beginning, likewise.
//!
//! So a control text cannot be put together from a conversation's strings, nor from one of them and
//! its surroundings. A template that writes a control text *around* a string (Phi's
//! `'<|' + role + '|>'`) still makes the token: that is the template's doing.
//!
//! A control token of a single character cannot be broken; such tokens are never read out of text.

use crate::TokenizerError;
use aho_corasick::{AhoCorasick, MatchKind};
use std::ops::Range;

/// Candidates for the sentinel: the noncharacters of the Arabic block.
const SENTINELS: std::ops::RangeInclusive<char> = '\u{FDD0}'..='\u{FDEF}';

/// Whether a character may be a sentinel, and so must pass unchanged through whatever escapes text.
pub(crate) fn may_be_sentinel(char: char) -> bool {
    SENTINELS.contains(&char)
}

/// A sentinel that occurs in none of the texts.
pub(crate) fn choose_sentinel<'t>(texts: &(impl Iterator<Item = &'t str> + Clone)) -> Option<char> {
    SENTINELS.into_iter().find(|sentinel| texts.clone().all(|text| !text.contains(*sentinel)))
}

/// The control tokens that can be written as text.
pub(crate) struct ControlTexts {
    /// Sorted.
    texts: Vec<String>,
    /// Character-wise reversed, sorted.
    reversed: Vec<String>,
    ids: Vec<u32>,
    longest: usize,
    whole: AhoCorasick,
    overlapping: AhoCorasick,
}

impl ControlTexts {
    pub(crate) fn new(tokens: impl Iterator<Item = (String, u32)>) -> Result<Self, TokenizerError> {
        let mut tokens: Vec<_> = tokens.filter(|(text, _)| text.chars().nth(1).is_some()).collect();
        tokens.sort_unstable();
        let (texts, ids): (Vec<String>, Vec<u32>) = tokens.into_iter().unzip();
        let mut reversed: Vec<String> =
            texts.iter().map(|text| text.chars().rev().collect()).collect();
        reversed.sort_unstable();
        Ok(Self {
            longest: texts.iter().map(String::len).max().unwrap_or(0),
            whole: searcher(&texts, MatchKind::LeftmostLongest)?,
            overlapping: searcher(&texts, MatchKind::Standard)?,
            texts,
            reversed,
            ids,
        })
    }

    /// Where control texts are, leftmost first and then longest, with their ids.
    pub(crate) fn find<'t>(
        &'t self,
        text: &'t str,
    ) -> impl Iterator<Item = (Range<usize>, u32)> + 't {
        self.whole
            .find_iter(text)
            .map(|found| (found.range(), self.ids[found.pattern().as_usize()]))
    }

    /// Where sentinels belong in a text of the conversation: byte offsets, ascending.
    pub(crate) fn breaks(&self, text: &str) -> Vec<usize> {
        let mut breaks: Vec<usize> = self
            .overlapping
            .find_overlapping_iter(text)
            .map(|found| found.start() + first_char(&text[found.start()..]))
            .collect();
        let trimmed = text.trim_end();
        self.beginnings(text, &mut breaks);
        if trimmed.len() < text.len() {
            self.beginnings(trimmed, &mut breaks);
        }
        let trimmed = text.trim_start();
        let at = text.len() - trimmed.len();
        if self.begins_with_an_end(trimmed) || self.begins_with_an_end(text) {
            breaks.push(at);
        }
        breaks.sort_unstable();
        breaks.dedup();
        breaks
    }

    /// One control text that occurs in a text, whole or in part.
    pub(crate) fn example(&self, text: &str) -> Option<&str> {
        let found = self.overlapping.find(text).map(|found| found.pattern().as_usize());
        Some(&self.texts[found?])
    }

    /// Breaks after the first character of every suffix that begins a control text.
    fn beginnings(&self, text: &str, breaks: &mut Vec<usize>) {
        for (at, _) in
            text.char_indices().rev().take_while(|(at, _)| text.len() - at < self.longest)
        {
            let suffix = &text[at..];
            // Ordinary texts end in white space; a sentinel there would only stop `trim`.
            if begins_longer(&self.texts, suffix) && !suffix.trim().is_empty() {
                breaks.push(at + first_char(suffix));
            }
        }
    }

    /// Whether a prefix of a text ends a control text.
    fn begins_with_an_end(&self, text: &str) -> bool {
        let mut left = self.longest;
        let head = text.chars().take_while(|char| {
            let fits = left > char.len_utf8();
            left = left.saturating_sub(char.len_utf8());
            fits
        });
        let head: Vec<char> = head.collect();
        let head: String = head.into_iter().rev().collect();
        // A prefix backwards is a suffix of the head backwards.
        head.char_indices().any(|(at, _)| {
            begins_longer(&self.reversed, &head[at..]) && !head[at..].trim().is_empty()
        })
    }
}

impl std::fmt::Debug for ControlTexts {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("ControlTexts").field(&self.texts).finish()
    }
}

/// A searcher for several texts.
pub(crate) fn searcher(texts: &[String], kind: MatchKind) -> Result<AhoCorasick, TokenizerError> {
    AhoCorasick::builder()
        .match_kind(kind)
        .build(texts)
        .map_err(|error| TokenizerError::Encode { reason: error.to_string() })
}

fn first_char(text: &str) -> usize {
    text.chars().next().map_or(0, char::len_utf8)
}

/// Whether one of the sorted texts begins with `prefix` and goes on after it.
fn begins_longer(sorted: &[String], prefix: &str) -> bool {
    let after = sorted.partition_point(|text| text.as_str() <= prefix);
    sorted.get(after).is_some_and(|text| text.starts_with(prefix))
}

/// A text with a sentinel at every break.
pub(crate) fn insert(text: &str, breaks: &[usize], sentinel: char) -> String {
    let mut marked = String::with_capacity(text.len() + breaks.len() * sentinel.len_utf8());
    let mut at = 0;
    for next in breaks {
        marked.push_str(&text[at..*next]);
        marked.push(sentinel);
        at = *next;
    }
    marked.push_str(&text[at..]);
    marked
}

#[cfg(test)]
mod tests {
    use super::{ControlTexts, choose_sentinel, insert};
    use proptest::prelude::*;

    fn controls() -> ControlTexts {
        let texts = ["<|a|>", "<|ab|>", "<s>", "x", ""];
        let texts = texts.iter().zip(0..).map(|(text, id)| ((*text).to_owned(), id));
        ControlTexts::new(texts).expect("a searcher")
    }

    fn marked(text: &str) -> String {
        insert(text, &controls().breaks(text), '^')
    }

    #[test]
    fn whole_and_partial_control_texts_are_broken() {
        assert_eq!(marked("a <|a|> b <|ab|>"), "a <^|a|> b <^|ab|>");
        assert_eq!(marked("plain < text > x"), "plain < text > x");
        assert_eq!(marked("end <|a"), "end <^|a");
        assert_eq!(marked("end <| \n"), "end <^| \n");
        assert_eq!(marked("<"), "<^");
        assert_eq!(marked("> quote"), "^> quote");
        assert_eq!(marked("  |> x"), "  ^|> x");
        assert_eq!(marked("<<s"), "<<^s");
        assert_eq!(marked("<|a<s>"), "<|a<^s>");
        assert_eq!(marked(""), "");
    }

    #[test]
    fn the_sentinel_is_a_noncharacter_no_text_has() {
        assert_eq!(choose_sentinel(&["a", "b\u{FDD0}"].into_iter()), Some('\u{FDD1}'));
        let all: String = super::SENTINELS.collect();
        assert_eq!(choose_sentinel(&[all.as_str()].into_iter()), None);
    }

    fn fragments() -> impl Strategy<Value = String> {
        let fragment =
            prop::sample::select(&["<", "|", "a", "b", ">", "<|a", "|>", "<s", " ", "x"][..]);
        prop::collection::vec(fragment, 0..8).prop_map(|fragments| fragments.concat())
    }

    proptest! {
        /// Strings of a conversation, trimmed or not, put one after another, with a template's half
        /// of a control text before them or after: no control text is whole.
        #[test]
        fn no_control_text_survives_any_neighbourhood(
            fields in prop::collection::vec((fragments(), any::<bool>()), 1..4),
            (before, after) in prop::sample::select(
                &[("", ""), ("<", ""), ("<|", ""), ("<|a", ""), ("<|a|", ""), ("", ">"), ("", "|>")][..],
            ),
        ) {
            let controls = controls();
            let mut rendered = before.to_owned();
            for (text, trim) in &fields {
                let text = insert(text, &controls.breaks(text), '\u{FDD0}');
                rendered += if *trim { text.trim() } else { &text };
            }
            rendered += after;
            prop_assert_eq!(controls.find(&rendered).count(), 0, "{:?}", rendered);
        }
    }
}
