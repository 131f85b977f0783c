//! What a model file can get wrong beyond its header: each fault is refused by name before any
//! compute, and no change to a sound file makes anything panic.

use proptest::prelude::*;
use tinyllm_kernels::KvPool;
use tinyllm_model::{
    Architecture, Device, Feed, Gguf, Logits, Model, ModelError, ModelSpec, RopeStyle,
    VocabMetadata,
};
use tinyllm_testkit::{GgufWriter, TinyModel};

fn spec(bytes: &[u8]) -> Result<ModelSpec, ModelError> {
    ModelSpec::from_gguf(&Gguf::from_bytes(bytes).unwrap())
}

/// The message of the refusal, after checking its code.
fn refused(bytes: &[u8], code: &str) -> String {
    let error = spec(bytes).unwrap_err();
    assert_eq!(error.code(), code, "{error}");
    error.to_string()
}

fn unsupported(writer: &GgufWriter) -> String {
    refused(&writer.bytes(), "ERR_TINYLLM_MODEL_UNSUPPORTED")
}

/// The tiny model with another value for one of its 32-bit integers.
fn with_u32(key: &str, value: u32) -> Vec<u8> {
    let mut bytes = TinyModel::default().bytes();
    let at = bytes.windows(key.len()).position(|window| window == key.as_bytes()).unwrap();
    let at = at + key.len() + 4;
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    bytes
}

fn inconsistent(key: &str, value: u32) -> String {
    refused(&with_u32(key, value), "ERR_TINYLLM_MODEL_INCONSISTENT")
}

#[test]
fn the_description_of_a_sound_file() {
    let llama = spec(&TinyModel::default().bytes()).unwrap();
    assert_eq!(llama.architecture, Architecture::Llama);
    assert_eq!(llama.rope_style, RopeStyle::Interleaved);
    assert_eq!((llama.n_layers, llama.hidden, llama.ffn), (2, 64, 96));
    assert_eq!((llama.n_heads, llama.n_kv_heads, llama.head_dim), (4, 2, 16));
    assert!(llama.tied_head && !llama.qkv_bias);
    let qwen2 = spec(&TinyModel { qwen2: true, ..TinyModel::default() }.bytes()).unwrap();
    assert_eq!(qwen2.architecture, Architecture::Qwen2);
    assert_eq!(qwen2.rope_style, RopeStyle::Halves);
    assert!(!qwen2.tied_head && qwen2.qkv_bias);
}

#[test]
fn what_is_not_computed_is_refused_by_name() {
    let tiny = || TinyModel::default().writer();
    let other = GgufWriter::new().str("general.architecture", "mamba");
    assert!(unsupported(&other).contains("\"mamba\""));
    for scaling in ["linear", "yarn", "longrope", "something new"] {
        let message = unsupported(&tiny().str("llama.rope.scaling.type", scaling));
        assert!(message.contains(scaling), "{message}");
    }
    assert!(unsupported(&tiny().f32("llama.rope.scaling.factor", 8.0)).contains("linear"));
    assert!(unsupported(&tiny().f32("llama.rope.scale_linear", 2.0)).contains("linear"));
    assert!(unsupported(&tiny().u32("llama.expert_count", 8)).contains("experts"));
    assert!(unsupported(&tiny().u32("llama.attention.sliding_window", 8)).contains("sliding"));
    assert!(unsupported(&tiny().u32("llama.rope.dimension_count", 8)).contains("dimension_count"));
    let stranger = tiny().f32_tensor("blk.0.attn_q_norm.weight", &[16], &[1.0; 16]);
    assert!(unsupported(&stranger).contains("blk.0.attn_q_norm.weight"));
    let none = tiny().str("llama.rope.scaling.type", "none").f32("llama.rope.scaling.factor", 8.0);
    assert!(spec(&none.bytes()).is_ok());
    let mut rare_type = TinyModel { quantised: false, layers: 1, ..TinyModel::default() }.bytes();
    let name = b"blk.0.attn_q.weight";
    let at = rare_type.windows(name.len()).position(|window| window == name).unwrap();
    // Past the name, the number of dimensions and two dimensions: the type.
    let at = at + name.len() + 4 + 16;
    rare_type[at..at + 4].copy_from_slice(&26_u32.to_le_bytes());
    let message = refused(&rare_type, "ERR_TINYLLM_MODEL_UNSUPPORTED");
    assert!(message.contains("I32") && message.contains("blk.0.attn_q.weight"), "{message}");
}

#[test]
fn parts_that_do_not_fit_together_are_refused() {
    assert!(inconsistent("llama.attention.head_count_kv", 3).contains("share"));
    assert!(inconsistent("llama.attention.head_count", 0).contains("is 0"));
    assert!(inconsistent("llama.embedding_length", 128).contains("shape"));
    assert!(inconsistent("llama.feed_forward_length", u32::MAX).contains("ffn_gate"));
    assert!(inconsistent("llama.block_count", 3).contains("blk.2"));
    assert!(inconsistent("llama.block_count", u32::MAX).contains("layers"));
    let fewer = refused(&with_u32("llama.block_count", 1), "ERR_TINYLLM_MODEL_UNSUPPORTED");
    assert!(fewer.contains("blk.1"), "{fewer}");
    let bare = GgufWriter::new().str("general.architecture", "llama").bytes();
    let message = refused(&bare, "ERR_TINYLLM_MODEL_INCONSISTENT");
    assert!(message.contains("llama.embedding_length"), "{message}");
    let message = refused(&GgufWriter::new().bytes(), "ERR_TINYLLM_MODEL_INCONSISTENT");
    assert!(message.contains("general.architecture"), "{message}");
}

#[test]
fn every_token_has_an_embedding() {
    let file = |tokens: &[&str]| {
        let bytes = GgufWriter::new()
            .str("tokenizer.ggml.model", "gpt2")
            .strings("tokenizer.ggml.tokens", tokens)
            .f32_tensor("token_embd.weight", &[4, 2], &[0.0; 8])
            .bytes();
        VocabMetadata::from_gguf(&Gguf::from_bytes(&bytes).unwrap())
    };
    assert_eq!(file(&["a"]).unwrap().tokens, ["a"]);
    assert_eq!(file(&["a", "b"]).unwrap().tokens, ["a", "b"]);
    let error = file(&["a", "b", "c"]).unwrap_err();
    assert_eq!(error.code(), "ERR_TINYLLM_MODEL_INCONSISTENT");
    assert!(error.to_string().contains("3 tokens for 2 embeddings"), "{error}");
}

#[test]
fn a_device_other_than_the_cpu_is_an_error_that_names_it() {
    assert_eq!("cpu".parse::<Device>().unwrap(), Device::Cpu);
    let error = "cuda".parse::<Device>().unwrap_err();
    assert_eq!(error.code(), "ERR_TINYLLM_DEVICE");
    assert!(error.to_string().contains("cuda"));
}

#[test]
fn steps_that_do_not_fit_the_model_or_its_pages_are_errors() {
    let tiny = TinyModel { context_length: 40, ..TinyModel::default() };
    let gguf = Gguf::from_bytes(&tiny.bytes()).unwrap();
    let model = Model::load_with_threads(&gguf, Device::Cpu, 1).unwrap();
    let pool = KvPool::new(model.kv_shape(), 2).unwrap();
    let pages = pool.allocate_many(2).unwrap();
    let feed =
        |tokens, position, logits| Feed { tokens, position, pages: &pages, logits, prompt: false };
    let code = |feed| model.step(&[feed], &pool).unwrap_err().code();
    assert_eq!(code(feed(&[], 0, Logits::Last)), "ERR_TINYLLM_MODEL_INPUT");
    assert_eq!(code(feed(&[100_000], 0, Logits::Last)), "ERR_TINYLLM_MODEL_INPUT");
    assert_eq!(code(feed(&[1], 0, Logits::Only(&[100_000]))), "ERR_TINYLLM_MODEL_INPUT");
    assert_eq!(code(feed(&[1], 40, Logits::Last)), "ERR_TINYLLM_CONTEXT_LENGTH");
    assert_eq!(code(feed(&[1], usize::MAX, Logits::Last)), "ERR_TINYLLM_CONTEXT_LENGTH");
    assert_eq!(code(Feed { pages: &[], ..feed(&[1], 0, Logits::Last) }), "ERR_TINYLLM_MODEL_INPUT");
    pool.retain(pages[0]).unwrap();
    assert_eq!(code(feed(&[1], 0, Logits::Last)), "ERR_TINYLLM_INTERNAL", "a shared page");
    let other = TinyModel { layers: 1, ..tiny };
    let other = Gguf::from_bytes(&other.bytes()).unwrap();
    let other = Model::load_with_threads(&other, Device::Cpu, 1).unwrap();
    let error = other.step(&[feed(&[1], 0, Logits::Last)], &pool).unwrap_err();
    assert_eq!(error.code(), "ERR_TINYLLM_MODEL_INPUT", "pages of another model");
    assert!(model.step(&[], &pool).unwrap().is_empty());

    let mut cache = model.new_cache(3).unwrap();
    assert!(model.forward(&[1, 2, 3, 4], &mut cache, Logits::Last).is_err());
    assert_eq!(cache.len(), 0, "a refused call leaves the cache as it was");
    assert!(model.new_cache(41).is_err());
    assert_eq!(model.forward_tokens(), 0);
}

proptest! {
    /// The tiny model with a few header bytes changed: an error, or a model that computes.
    #[test]
    fn a_changed_model_never_panics(
        qwen2 in any::<bool>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = TinyModel { qwen2, layers: 1, ..TinyModel::default() }.bytes();
        let gguf = Gguf::from_bytes(&bytes).unwrap();
        let header = gguf.tensors()[0].data_offset();
        for (at, byte) in changes {
            bytes[at.index(header)] = byte;
        }
        if let Ok(gguf) = Gguf::from_bytes(&bytes) {
            let _ = VocabMetadata::from_gguf(&gguf);
            if let Ok(model) = Model::load_with_threads(&gguf, Device::Cpu, 1) {
                let mut cache = model.new_cache(2.min(model.context_length())).unwrap();
                let tokens = [0; 2];
                let tokens = &tokens[..cache.capacity()];
                let logits = model.forward(tokens, &mut cache, Logits::Last).unwrap();
                prop_assert_eq!(logits.len(), model.vocab_size());
            }
        }
    }
}
