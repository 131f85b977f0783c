//! Text to ids and back, on a vocabulary one can read.

use crate::toy;
use proptest::prelude::*;
use tinyllm_tokenizer::{Decoder, Segment, Tokenizer, VocabSpec};

fn plain(text: &str) -> Vec<u32> {
    toy::tokenizer().encode(text, false).expect("ids")
}

fn special(text: &str) -> Vec<u32> {
    toy::tokenizer().encode(text, true).expect("ids")
}

#[test]
fn merges_are_applied_in_their_order() {
    assert_eq!(plain("abc"), [toy::ABC]);
    assert_eq!(plain("abab a"), [toy::AB, toy::AB, 258]);
    // `Ġ a` comes last, so `ab` is made first.
    assert_eq!(plain(" ab"), [u32::from(b' '), toy::AB]);
    assert_eq!(plain(""), [0u32; 0]);
}

#[test]
fn control_tokens_come_only_when_asked_for() {
    assert_eq!(special("<|start|>ab<|im_end|>"), [toy::START, toy::AB, toy::END]);
    let ids = plain("<|start|>ab<|im_end|>");
    assert!(!ids.contains(&toy::START) && !ids.contains(&toy::END));
    assert_eq!(toy::tokenizer().decode(&ids), "<|start|>ab<|im_end|>");
}

#[test]
fn user_defined_tokens_are_for_everybody_and_unknown_and_unused_for_nobody() {
    assert_eq!(plain("ab<call>ab"), [toy::AB, toy::CALL, toy::AB]);
    assert_eq!(special("<call>"), [toy::CALL]);
    for text in ["<unk>", "[hole]"] {
        assert_eq!(special(text).len(), text.len());
    }
}

#[test]
fn a_merge_never_makes_structure() {
    let mut spec = toy::spec();
    spec.tokens[toy::START as usize] = "xy".to_owned();
    spec.merges.push("x y".to_owned());
    let tokenizer = Tokenizer::new(&spec).expect("a sound vocabulary");
    assert_eq!(tokenizer.encode("xy", false).expect("ids"), [120, 121]);
    assert_eq!(tokenizer.encode("xy", true).expect("ids"), [toy::START]);
}

#[test]
fn whole_words_go_before_merges_where_the_pre_tokenizer_says_so() {
    let mut spec = toy::spec();
    spec.merges.retain(|merge| merge != "ab c");
    let encode = |spec: &VocabSpec| Tokenizer::new(spec).expect("sound").encode("abc", false);
    assert_eq!(encode(&spec).expect("ids"), [toy::AB, u32::from(b'c')]);
    spec.pre = "llama-bpe".to_owned();
    assert_eq!(encode(&spec).expect("ids"), [toy::ABC]);
}

#[test]
fn a_byte_without_a_spelling_takes_its_byte_token_or_is_left_out() {
    let mut spec = toy::spec();
    spec.tokens[b'!' as usize] = "gone".to_owned();
    let encode = |spec: &VocabSpec, text| Tokenizer::new(spec).expect("sound").encode(text, false);
    assert_eq!(encode(&spec, "a!b").expect("ids"), [97, 98], "nothing merges across the gap");
    spec.tokens.push("<0x21>".to_owned());
    spec.kinds.push(6);
    let id = spec.tokens.len() as u32 - 1;
    assert_eq!(encode(&spec, "a!b").expect("ids"), [97, id, 98]);
    let tokenizer = Tokenizer::new(&spec).expect("sound");
    assert_eq!(tokenizer.decode(&[97, id]), "a!");
}

#[test]
fn segments_without_structure_are_one_text() {
    let tokenizer = toy::tokenizer();
    let segment = |text: &str, special| Segment { text: text.to_owned(), special };
    let segments =
        [segment("a", false), segment("b", true), segment("c <cal", false), segment("l>", true)];
    assert_eq!(tokenizer.encode_segments(&segments).expect("ids"), special("abc <call>"));
    let split = [segment("<|sta", true), segment("rt|>", false)];
    assert!(!tokenizer.encode_segments(&split).expect("ids").contains(&toy::START));
    let mixed = [segment("<|start|>", false), segment("<|start|>a", true), segment("b", false)];
    let ids = tokenizer.encode_segments(&mixed).expect("ids");
    assert_eq!(ids[ids.len() - 2..], [toy::START, toy::AB]);
    assert_eq!(ids.iter().filter(|id| **id == toy::START).count(), 1);
}

/// Text that a backtracking splitter or a naive merge loop would choke on. It has to end, and
/// to come back whole.
#[test]
fn long_monotonous_text_is_not_quadratic() {
    for pre in ["gpt-2", "smollm", "qwen2", "llama-bpe"] {
        let tokenizer =
            Tokenizer::new(&VocabSpec { pre: pre.to_owned(), ..toy::spec() }).expect("sound");
        for unit in
            ["a", " ", "ab", "\n", " \n", "1", "é", "!", "<|", "<|im_end|", "<|start|>", "<call>"]
        {
            let bytes = if matches!(unit, "a" | " ") { 1 << 20 } else { 1 << 16 };
            let text = unit.repeat(bytes / unit.len());
            let ids = tokenizer.encode(&text, true).expect("ids");
            assert!(tokenizer.decode(&ids) == text, "{pre} {unit:?}");
        }
    }
}

#[test]
fn a_tokenizer_is_shared_between_threads() {
    fn shared<T: Send + Sync>(_: &T) {}
    let tokenizer = toy::tokenizer();
    shared(&tokenizer);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                assert_eq!(
                    tokenizer.encode("abc<call>", true).expect("ids"),
                    [toy::ABC, toy::CALL]
                );
            });
        }
    });
}

fn text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        prop::sample::select(
            &[
                "a",
                "b",
                "c",
                " ",
                "\n",
                "<|start|>",
                "<|im_end|>",
                "<call>",
                "<|",
                "|>",
                "<unk>",
                "é",
                "😀"
            ][..]
        )
        .prop_map(str::to_owned),
        any::<String>(),
    ];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn decoding_is_the_inverse_of_encoding(text in text(), special in any::<bool>()) {
        let tokenizer = toy::tokenizer();
        let ids = tokenizer.encode(&text, special).expect("ids");
        prop_assert_eq!(tokenizer.decode(&ids), text.as_str());
        let mut decoder = Decoder::new();
        let mut streamed: String = ids.iter().map(|id| decoder.push(tokenizer.token_bytes(*id))).collect();
        streamed += &decoder.finish();
        prop_assert_eq!(streamed, text);
    }

    #[test]
    fn borders_between_segments_of_text_change_nothing(text in text(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..4)) {
        let tokenizer = toy::tokenizer();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).filter(|cut| text.is_char_boundary(*cut)).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let segments: Vec<Segment> = cuts
            .windows(2)
            .map(|range| Segment { text: text[range[0]..range[1]].to_owned(), special: false })
            .collect();
        prop_assert_eq!(tokenizer.encode_segments(&segments).expect("ids"), tokenizer.encode(&text, false).expect("ids"));
    }
}
