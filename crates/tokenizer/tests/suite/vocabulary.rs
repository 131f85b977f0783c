//! What a vocabulary must be, and what each of its tokens is for.

use crate::toy;
use tinyllm_tokenizer::{TokenKind, Tokenizer, TokenizerError, VocabSpec};

fn refused(change: impl FnOnce(&mut VocabSpec)) -> TokenizerError {
    let mut spec = toy::spec();
    change(&mut spec);
    Tokenizer::new(&spec).expect_err("a malformed vocabulary")
}

fn malformed(change: impl FnOnce(&mut VocabSpec)) -> (String, usize) {
    let error = refused(change);
    assert_eq!(error.code(), "ERR_TINYLLM_VOCABULARY", "{error}");
    let index = error.index().expect("an index");
    (error.to_string(), index)
}

#[test]
fn a_malformed_vocabulary_is_an_error_with_its_place() {
    let (message, index) = malformed(|spec| spec.merges[1] = "ab zz".to_owned());
    assert_eq!((message.as_str(), index), ("vocabulary: merges[1]: there is no token \"zz\"", 1));
    assert_eq!(malformed(|spec| spec.merges[2] = "b c".to_owned()).1, 2);
    assert_eq!(malformed(|spec| spec.merges[0] = "ab".to_owned()).1, 0);
    assert_eq!(malformed(|spec| spec.merges[0] = String::new()).1, 0);
    assert_eq!(malformed(|spec| spec.merges[0] = " ".to_owned()).1, 0);
    assert_eq!(malformed(|spec| spec.merges.push("a b".to_owned())).1, 3);
    assert_eq!(malformed(|spec| spec.tokens[257] = "ab".to_owned()).1, 257);
    assert_eq!(malformed(|spec| spec.kinds[3] = 0).1, 3);
    assert_eq!(malformed(|spec| spec.kinds[3] = 7).1, 3);
    assert_eq!(malformed(|spec| spec.kinds.truncate(200)).1, 200);
    assert_eq!(malformed(|spec| spec.kinds.push(1)).1, spec_len());
    assert_eq!(malformed(|spec| spec.kinds[259] = 6).1, 259);
    for change in [
        (|spec: &mut VocabSpec| spec.eos = Some(999)) as fn(&mut VocabSpec),
        |spec| spec.bos = Some(999),
        |spec| spec.eot = Some(999),
        |spec| spec.eom = Some(999),
        |spec| spec.unk = Some(999),
        |spec| spec.pad = Some(999),
    ] {
        assert_eq!(malformed(change).1, 999);
    }
    let empty = |spec: &mut VocabSpec| {
        *spec = VocabSpec { model: "gpt2".into(), pre: "gpt-2".into(), ..VocabSpec::default() }
    };
    assert_eq!(malformed(empty).1, 0);
}

fn spec_len() -> usize {
    toy::spec().tokens.len()
}

#[test]
fn sizes_are_capped() {
    assert_eq!(malformed(|spec| spec.tokens[256] = "x".repeat(1 << 17)).1, 256);
    let long = refused(|spec| spec.tokens[259] = "x".repeat(1 << 12));
    assert!(matches!(long, TokenizerError::TooLarge { limit: 1024, .. }), "{long}");
    let many = refused(|spec| spec.tokens = vec![String::new(); (1 << 20) + 1]);
    assert!(matches!(many, TokenizerError::TooLarge { .. }), "{many}");
    let merges = refused(|spec| spec.merges = vec![String::new(); (1 << 21) + 1]);
    assert_eq!(merges.code(), "ERR_TINYLLM_VOCABULARY");
}

#[test]
fn an_unsupported_tokenizer_is_named() {
    let error = refused(|spec| spec.model = "unigram".to_owned());
    assert_eq!(error.code(), "ERR_TINYLLM_TOKENIZER");
    assert!(error.to_string().contains("\"unigram\""));
    let error = refused(|spec| spec.pre = "default".to_owned());
    assert!(error.to_string().contains("\"default\""));
}

#[test]
fn holes_may_be_named_alike_and_like_tokens() {
    let mut spec = toy::spec();
    for _ in 0..2 {
        spec.tokens.extend(["ab".to_owned(), String::new()]);
        spec.kinds.extend([5, 1]);
    }
    let tokenizer = Tokenizer::new(&spec).expect("holes are harmless");
    assert_eq!(tokenizer.encode("ab", true).expect("ids"), [toy::AB]);
}

#[test]
fn vocab_bytes_marks_specials() {
    let tokenizer = toy::tokenizer();
    let bytes = tokenizer.vocab_bytes();
    assert_eq!(bytes.len(), tokenizer.vocab_size());
    for special in [toy::START, toy::END, toy::UNKNOWN, toy::UNUSED] {
        assert_eq!(bytes[special as usize], None);
        assert!(tokenizer.is_special(special));
    }
    assert_eq!(bytes[toy::CALL as usize].as_deref(), Some(&b"<call>"[..]));
    assert_eq!(bytes[258].as_deref(), Some(&b" a"[..]));
    assert_eq!(bytes[0xFF].as_deref(), Some(&[0xFF][..]));
    assert!(tokenizer.is_special(1_000_000));
    assert_eq!(tokenizer.token_bytes(1_000_000), b"");
    assert_eq!(tokenizer.kind(1_000_000), None);
}

#[test]
fn ends_are_the_files_own_and_the_known_ones() {
    assert_eq!(toy::tokenizer().eog_ids(), [toy::END]);
    let mut spec = toy::spec();
    spec.eos = Some(toy::START);
    spec.eot = Some(toy::START);
    spec.eom = Some(toy::CALL);
    let tokenizer = Tokenizer::new(&spec).expect("a sound vocabulary");
    assert_eq!(tokenizer.eog_ids(), [toy::START, toy::CALL, toy::END]);
}

/// A file that calls its end of turn user-defined must not let text end a turn.
#[test]
fn what_a_file_names_as_an_end_is_control_whatever_its_kind() {
    for kind in [1, 2, 4, 5] {
        let mut spec = toy::spec();
        spec.kinds[toy::END as usize] = kind;
        let tokenizer = Tokenizer::new(&spec).expect("a sound vocabulary");
        assert_eq!(tokenizer.kind(toy::END), Some(TokenKind::Control));
        assert!(!tokenizer.encode("<|im_end|>", false).expect("ids").contains(&toy::END));
        assert_eq!(tokenizer.encode("<|im_end|>", true).expect("ids"), [toy::END]);
    }
    let mut spec = toy::spec();
    spec.bos = Some(u32::from(b'"'));
    let tokenizer = Tokenizer::new(&spec).expect("a sound vocabulary");
    assert_eq!(tokenizer.encode("\"", false).expect("ids"), [34]);
    assert_eq!(tokenizer.vocab_bytes()[34], None);
}

#[test]
fn bos_is_added_when_the_file_says_so_or_its_pre_tokenizer_does() {
    let add_bos = |pre: &str, add_bos, bos| {
        let spec = VocabSpec { pre: pre.to_owned(), add_bos, bos, ..toy::spec() };
        Tokenizer::new(&spec).expect("a sound vocabulary").add_bos()
    };
    assert!(!add_bos("gpt-2", None, Some(toy::START)));
    assert!(add_bos("gpt-2", Some(true), Some(toy::START)));
    assert!(add_bos("llama-bpe", None, Some(toy::START)));
    assert!(!add_bos("llama-bpe", Some(false), Some(toy::START)));
    assert!(!add_bos("llama-bpe", Some(true), None));
}
