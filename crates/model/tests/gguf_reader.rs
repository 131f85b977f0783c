//! The header reader on sound and on hostile files: errors that name a byte, never a panic, and no
//! allocation that a file's claims alone decide.

use proptest::prelude::*;
use tinyllm_model::{Gguf, MetadataValue, ModelError, TensorType, VocabMetadata};
use tinyllm_testkit::GgufWriter;

fn sample() -> GgufWriter {
    GgufWriter::new()
        .str("general.architecture", "llama")
        .u32("llama.block_count", 2)
        .f32("llama.rope.freq_base", 10_000.0)
        .bool("tokenizer.ggml.add_bos_token", true)
        .str("tokenizer.ggml.model", "gpt2")
        .strings("tokenizer.ggml.tokens", &["a", "b", "<eos>"])
        .i32s("tokenizer.ggml.token_type", &[1, 1, 3])
        .strings("tokenizer.ggml.merges", &["a b"])
        .u32("tokenizer.ggml.eos_token_id", 2)
        .f32_tensor("norm", &[3], &[1.0, 2.0, 3.0])
        .q8_0_tensor("weight", &[32, 2], &[0.5; 64])
}

/// The offset and the reason of the fault in `bytes`.
fn fault(bytes: &[u8]) -> (u64, String) {
    match Gguf::from_bytes(bytes) {
        Err(ModelError::Gguf { offset, reason, .. }) => (offset, reason),
        other => panic!("expected a fault, got {other:?}"),
    }
}

fn faulty(writer: &GgufWriter) -> String {
    fault(&writer.bytes()).1
}

#[test]
fn a_sound_file_is_read_back() {
    for version in [2, 3] {
        let gguf = Gguf::from_bytes(&sample().version(version).bytes()).unwrap();
        assert_eq!(gguf.version(), version);
        assert_eq!(gguf.str("general.architecture").unwrap(), Some("llama"));
        assert_eq!(gguf.u32("llama.block_count").unwrap(), Some(2));
        assert_eq!(gguf.f64("llama.rope.freq_base").unwrap(), Some(10_000.0));
        assert_eq!(gguf.u64("absent").unwrap(), None);
        assert_eq!(gguf.metadata().count(), 9);
        assert!(gguf.metadata().any(|(key, value)| {
            key == "general.architecture" && value == MetadataValue::String("llama".into())
        }));
        let norm = gguf.tensor("norm").unwrap();
        assert_eq!((norm.dims(), norm.tensor_type()), (&[3][..], TensorType::F32));
        let values: Vec<f32> = gguf
            .tensor_data(norm)
            .chunks_exact(4)
            .map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
            .collect();
        assert_eq!(values, [1.0, 2.0, 3.0]);
        let weight = gguf.tensor("weight").unwrap();
        assert_eq!((weight.dims(), weight.data_bytes()), (&[32, 2][..], 68));
    }
}

#[test]
fn the_vocabulary_is_read_as_plain_values() {
    let gguf = Gguf::from_bytes(&sample().bytes()).unwrap();
    let vocab = VocabMetadata::from_gguf(&gguf).unwrap();
    assert_eq!(vocab.tokens, ["a", "b", "<eos>"]);
    assert_eq!(vocab.kinds, [1, 1, 3]);
    assert_eq!(vocab.merges, ["a b"]);
    assert_eq!((vocab.eos, vocab.bos, vocab.add_bos), (Some(2), None, Some(true)));
}

#[test]
fn a_vocabulary_that_contradicts_itself_is_refused() {
    let base = || {
        GgufWriter::new()
            .str("tokenizer.ggml.model", "gpt2")
            .strings("tokenizer.ggml.tokens", &["a", "b"])
    };
    let refused = |writer: GgufWriter| {
        let gguf = Gguf::from_bytes(&writer.bytes()).unwrap();
        VocabMetadata::from_gguf(&gguf).unwrap_err().to_string()
    };
    assert!(refused(base().i32s("tokenizer.ggml.token_type", &[1])).contains("1 kinds"));
    assert!(refused(base().i32s("tokenizer.ggml.token_type", &[1, 9])).contains("9 is not"));
    assert!(refused(base().i32s("tokenizer.ggml.token_type", &[1, -1])).contains("element 1"));
    assert!(refused(base().u32("tokenizer.ggml.eos_token_id", 2)).contains("no token 2"));
    assert!(refused(base().str("tokenizer.ggml.eos_token_id", "x")).contains("integer"));
    assert!(refused(GgufWriter::new()).contains("tokenizer.ggml.model"));
}

#[test]
fn a_file_cut_short_anywhere_is_an_error_that_names_a_byte_inside_it() {
    let whole = sample().bytes();
    for len in 0..whole.len() {
        let (offset, reason) = fault(&whole[..len]);
        assert!(offset <= len as u64, "cut at {len}: fault at {offset}: {reason}");
    }
}

#[test]
fn what_is_not_gguf_is_named() {
    assert!(fault(b"").1.contains("magic"));
    assert!(fault(b"GGML\x03\0\0\0").1.contains("not a GGUF file"));
    assert!(faulty(&sample().version(1)).contains("version 1"));
    assert!(faulty(&sample().version(4)).contains("version 4"));
    assert!(faulty(&sample().version(3_u32.swap_bytes())).contains("big-endian"));
}

#[test]
fn counts_are_not_believed_beyond_the_bytes_there_are() {
    for count in [5_u64, 1 << 16, 1 << 32, u64::MAX] {
        for at in [8, 16] {
            let mut bytes = GgufWriter::new().bytes();
            bytes[at..at + 8].copy_from_slice(&count.to_le_bytes());
            let (offset, reason) = fault(&bytes);
            assert_eq!(offset, at as u64);
            assert!(reason.contains(&count.to_string()), "{reason}");
        }
        let mut array = 8_u32.to_le_bytes().to_vec();
        array.extend(count.to_le_bytes());
        assert!(faulty(&GgufWriter::new().raw("k", 9, &array)).contains("elements"));
        if count > 1 << 16 {
            assert!(
                faulty(&GgufWriter::new().raw("k", 8, &count.to_le_bytes())).contains("claims")
            );
        }
    }
}

#[test]
fn values_of_unknown_types_and_forms_are_refused() {
    assert!(faulty(&GgufWriter::new().raw("k", 13, &[0; 8])).contains("type 13"));
    assert!(faulty(&GgufWriter::new().raw("k", 7, &[2])).contains("boolean"));
    assert!(faulty(&sample().u32("llama.block_count", 3)).contains("there twice"));
    let mut nested = Vec::new();
    for _ in 0..10_000 {
        nested.extend(9_u32.to_le_bytes());
        nested.extend(1_u64.to_le_bytes());
    }
    assert!(faulty(&GgufWriter::new().raw("k", 9, &nested)).contains("nest"));
    let text = GgufWriter::new().raw("k", 8, &[2, 0, 0, 0, 0, 0, 0, 0, b'a', 0xff]);
    let error = Gguf::from_bytes(&text.bytes()).unwrap().str("k").unwrap_err();
    assert!(error.to_string().contains("UTF-8"), "{error}");
    let error = Gguf::from_bytes(&sample().bytes()).unwrap().u32("general.architecture");
    assert!(error.unwrap_err().to_string().contains("general.architecture"));
}

#[test]
fn alignments_the_format_does_not_allow_are_refused() {
    for alignment in [0, 1, 4, 24, 8192, u32::MAX] {
        let writer = GgufWriter::new().u32("general.alignment", alignment);
        assert!(faulty(&writer).contains("general.alignment"));
    }
    let writer = GgufWriter::new().str("general.alignment", "32");
    assert!(faulty(&writer).contains("general.alignment"));
    let aligned = sample().alignment(64).bytes();
    let gguf = Gguf::from_bytes(&aligned).unwrap();
    assert_eq!(gguf.alignment(), 64);
    assert!(gguf.tensors().iter().all(|tensor| tensor.data_offset() % 64 == 0));
}

#[test]
fn tensors_that_cannot_be_are_refused() {
    let entry = |dims: &[u64], kind, offset| faulty(&sample().entry("bad", dims, kind, offset));
    assert!(entry(&[], 0, 128).contains("0 dimensions"));
    assert!(entry(&[1; 5], 0, 128).contains("5 dimensions"));
    assert!(entry(&[0], 0, 128).contains("impossible dimension"));
    assert!(entry(&[1 << 32, 1 << 32], 0, 128).contains("impossible dimension"));
    assert!(entry(&[u64::MAX], 0, 128).contains("overflows"));
    assert!(entry(&[32], 77, 128).contains("type number 77"));
    assert!(entry(&[33], 8, 128).contains("multiple"));
    assert!(entry(&[8], 0, 4).contains("alignment"));
    assert!(entry(&[8], 0, 1 << 20).contains("not inside the file"));
    assert!(entry(&[8], 0, u64::MAX - 31).contains("not inside the file"));
    assert!(entry(&[8], 0, 0).contains("overlaps"));
    assert!(faulty(&sample().f32_tensor("norm", &[1], &[0.0])).contains("listed twice"));
}

#[test]
fn a_missing_file_and_a_folder_are_errors_that_name_them() {
    for path in ["/nonexistent/model.gguf", env!("CARGO_MANIFEST_DIR")] {
        let error = Gguf::open(path).unwrap_err();
        assert_eq!(error.code(), "ERR_TINYLLM_MODEL_OPEN");
        assert!(error.to_string().contains(path), "{error}");
    }
}

proptest! {
    /// Any change to a sound file gives a file or an error, and whatever opens can be read whole.
    #[test]
    fn changed_bytes_never_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = sample().bytes();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(gguf) = Gguf::from_bytes(&bytes) {
            prop_assert!(gguf.metadata().count() < 100);
            for tensor in gguf.tensors() {
                prop_assert_eq!(gguf.tensor_data(tensor).len(), tensor.data_bytes());
            }
            let _ = VocabMetadata::from_gguf(&gguf);
        }
    }
}
