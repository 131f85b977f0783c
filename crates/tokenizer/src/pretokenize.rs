//! Splitting text into the words that merges never cross, by the rule a model was trained with.
//!
//! The published rules are backtracking regexes that end in `\s+(?!\S)|\s+`: a run of white space
//! leaves its last character to the word after it. Here the look-ahead is taken out of the pattern
//! and done by hand, so that a search is one anchored, forward run of a finite automaton: time is
//! linear in the text, whatever the text, and there is no backtracking limit to run into.

use crate::TokenizerError;
use regex_automata::{Anchored, Input, meta::Regex};
use std::ops::Range;

/// One family of rules, as `tokenizer.ggml.pre` names them.
// Independent facts of a rule, not a state in disguise.
#[allow(clippy::struct_excessive_bools)]
struct Rule {
    names: &'static [&'static str],
    /// The words, `\s+` for a run of white space last.
    pattern: &'static str,
    /// Digits are words of their own before the pattern is applied to what is between them.
    isolate_digits: bool,
    /// The pattern has `\s*[\r\n]+`: white space up to a line's end is one word, whole.
    line_ends: bool,
    /// A word that is a token is that token, whatever the merges would make of it.
    ignore_merges: bool,
    /// Whether a text begins with BOS when the file does not say.
    add_bos: bool,
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+";

/// What a `pre` name means. The facts (which name has which rule, whole words, BOS by default) are
/// those of llama.cpp, which gave the names.
const RULES: &[Rule] = &[
    Rule {
        names: &["gpt-2", "phi-2", "mpt", "olmo", "jais", "exaone4"],
        pattern: GPT2,
        isolate_digits: false,
        line_ends: false,
        ignore_merges: false,
        add_bos: false,
    },
    Rule {
        names: &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"],
        pattern: GPT2,
        isolate_digits: true,
        line_ends: false,
        ignore_merges: false,
        add_bos: false,
    },
    Rule {
        names: &["qwen2", "deepseek-r1-qwen", "stablelm2"],
        pattern: concat!(
            r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]",
            r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
        ),
        isolate_digits: false,
        line_ends: true,
        ignore_merges: false,
        add_bos: false,
    },
    Rule {
        names: &["qwen35"],
        pattern: concat!(
            r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]",
            r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}",
            r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
        ),
        isolate_digits: false,
        line_ends: true,
        ignore_merges: false,
        add_bos: false,
    },
    Rule {
        names: &["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2"],
        pattern: LLAMA3,
        isolate_digits: false,
        line_ends: true,
        ignore_merges: true,
        add_bos: true,
    },
    Rule {
        names: &["dbrx", "smaug-bpe"],
        pattern: LLAMA3,
        isolate_digits: false,
        line_ends: true,
        ignore_merges: false,
        add_bos: false,
    },
];

const LLAMA3: &str = concat!(
    r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]",
    r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
);

/// A rule, compiled.
pub(crate) struct PreTokenizer {
    rule: &'static Rule,
    regex: Regex,
}

impl PreTokenizer {
    /// The pre-tokenizer a file names.
    pub(crate) fn named(name: &str) -> Result<Self, TokenizerError> {
        let unsupported = || TokenizerError::Unsupported {
            what: "pre-tokenizer",
            name: name.to_owned(),
            supported: RULES
                .iter()
                .flat_map(|rule| rule.names)
                .copied()
                .collect::<Vec<_>>()
                .join(", "),
        };
        let rule = RULES.iter().find(|rule| rule.names.contains(&name)).ok_or_else(unsupported)?;
        let regex = Regex::new(rule.pattern)
            .map_err(|error| TokenizerError::Encode { reason: error.to_string() })?;
        Ok(Self { rule, regex })
    }

    pub(crate) fn ignore_merges(&self) -> bool {
        self.rule.ignore_merges
    }

    pub(crate) fn add_bos(&self) -> bool {
        self.rule.add_bos
    }

    /// Calls `each` with the words of a text in order; joined they are the text.
    pub(crate) fn words<E>(
        &self,
        text: &str,
        mut each: impl FnMut(&str) -> Result<(), E>,
    ) -> Result<(), E> {
        if !self.rule.isolate_digits {
            return self.split(text, 0..text.len(), &mut each);
        }
        let mut start = 0;
        // `char::is_numeric` is the general category N, the regexes' `\p{N}`.
        for (at, digit) in text.char_indices().filter(|(_, char)| char.is_numeric()) {
            self.split(text, start..at, &mut each)?;
            start = at + digit.len_utf8();
            each(&text[at..start])?;
        }
        self.split(text, start..text.len(), &mut each)
    }

    /// Splits one range of the text, as if it were a text of its own.
    fn split<E>(
        &self,
        text: &str,
        range: Range<usize>,
        each: &mut impl FnMut(&str) -> Result<(), E>,
    ) -> Result<(), E> {
        let text = &text[range];
        let mut at = 0;
        while at < text.len() {
            let input = Input::new(text).range(at..).anchored(Anchored::Yes);
            // Every character begins a word in every rule; should one not, it is a word alone.
            let one = || text[at..].chars().next().map_or(text.len(), |char| at + char.len_utf8());
            let mut end = self.regex.search_half(&input).map_or_else(one, |half| half.offset());
            if end < text.len()
                && let Some((last, char)) = text[at..end].char_indices().next_back()
                && last > 0
                && char.is_whitespace()
                && !(self.rule.line_ends && matches!(char, '\r' | '\n'))
            {
                // A run of white space with a word after it: `\s+(?!\S)` gives the last one back.
                // No other alternative ends in white space, but for line ends in the rules that
                // have those.
                end = at + last;
            }
            each(&text[at..end])?;
            at = end;
        }
        Ok(())
    }
}

impl std::fmt::Debug for PreTokenizer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("PreTokenizer").field(&self.rule.names[0]).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::{PreTokenizer, RULES};
    use proptest::prelude::*;
    use std::convert::Infallible;

    fn words(name: &str, text: &str) -> Vec<String> {
        let mut words = Vec::new();
        let result: Result<(), Infallible> =
            PreTokenizer::named(name).expect("a rule").words(text, |word| {
                words.push(word.to_owned());
                Ok(())
            });
        result.expect("infallible");
        words
    }

    #[test]
    fn gpt2_splits_contractions_numbers_and_spaces() {
        assert_eq!(
            words("gpt-2", "I'm  12 a!?\n\nb \t"),
            ["I", "'m", " ", " 12", " a", "!?", "\n", "\n", "b", " \t"]
        );
    }

    #[test]
    fn smollm_isolates_every_digit_before_splitting() {
        assert_eq!(words("smollm", "x 12  3"), ["x", " ", "1", "2", "  ", "3"]);
    }

    #[test]
    fn llama_takes_three_digits_and_whole_line_ends() {
        assert_eq!(
            words("llama-bpe", "a 1234 \n\n  b\r\n.\n"),
            ["a", " ", "123", "4", " \n\n", " ", " b", "\r\n", ".\n"]
        );
        assert_eq!(words("qwen2", "12 I'M"), ["1", "2", " I", "'M"]);
    }

    #[test]
    fn an_unknown_name_is_an_error_that_says_it() {
        let error = PreTokenizer::named("klingon").expect_err("unknown");
        assert_eq!(error.code(), "ERR_TINYLLM_TOKENIZER");
        assert!(error.to_string().contains("\"klingon\"") && error.to_string().contains("smollm"));
    }

    /// The rules as published, with the look-ahead, through a backtracking engine.
    fn published(rule: &super::Rule, text: &str) -> Vec<String> {
        use tokenizers::pre_tokenizers::{digits::Digits, sequence::Sequence, split::Split};
        use tokenizers::tokenizer::{
            OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _,
            SplitDelimiterBehavior,
        };
        let pattern =
            format!(r"{}|\s+(?!\S)|\s+", rule.pattern.strip_suffix(r"|\s+").expect("runs last"));
        let split = Split::new(
            tokenizers::pre_tokenizers::split::SplitPattern::Regex(pattern),
            SplitDelimiterBehavior::Isolated,
            false,
        )
        .expect("a regex");
        let mut steps = Vec::new();
        if rule.isolate_digits {
            steps.push(Digits::new(true).into());
        }
        steps.push(split.into());
        let mut string = PreTokenizedString::from(text);
        Sequence::new(steps).pre_tokenize(&mut string).expect("no limit on short texts");
        string
            .get_splits(OffsetReferential::Original, OffsetType::Byte)
            .into_iter()
            .map(|(word, _, _)| word.to_owned())
            .collect()
    }

    fn text() -> impl Strategy<Value = String> {
        let piece = prop::sample::select(
            &[
                " ", "  ", "\t", "\n", "\r\n", "\u{a0}", "\u{2028}", "\u{85}", "'", "s", "re",
                "LL", "a", "É", "日", "\u{301}", "1", "²", "٣", "Ⅷ", "!", "-", "😀", "_",
                "\u{200b}",
            ][..],
        );
        prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn every_rule_splits_as_published(text in text()) {
            for rule in RULES {
                prop_assert_eq!(words(rule.names[0], &text), published(rule, &text), "{}", rule.names[0]);
            }
        }
    }
}
