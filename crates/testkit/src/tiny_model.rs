//! A model of some 100,000 random weights in a complete, valid GGUF file: everything that a real
//! model has, small enough for property tests.
//!
//! The same description gives the same bytes. The vocabulary has a token for each of the 256 bytes,
//! so every text can be spelled and every grammar completed; merges that build words, pieces of
//! JSON and parts of multi-byte characters; control tokens, an end of text and an end of turn; and
//! user-defined tokens such as `<tool_call>`. The chat template is `ChatML`.

use crate::GgufWriter;

/// How many merges there are is given by the list; every merge's result is a token.
const MERGES: &[&str] = &[
    "Ġ t",
    "h e",
    "i n",
    "Ġ a",
    "r e",
    "o n",
    "e r",
    "Ġt he",
    "y e",
    "ye s",
    "n o",
    "t r",
    "u e",
    "tr ue",
    "f a",
    "l s",
    "ls e",
    "fa lse",
    "n u",
    "l l",
    "nu ll",
    "{ \"",
    "\" :",
    "\": Ġ",
    "\" ,",
    "\", Ġ",
    "\" }",
    "} }",
    "[ \"",
    "\" ]",
    "0 0",
    "1 2",
    "1 23",
    "2 3",
    "2 02",
    "0 2",
    "Ã ©",
    "â Ĥ",
    "âĤ ¬",
    "ð Ł",
    "Ċ Ċ",
    "Ġ Ġ",
    "ĠĠ ĠĠ",
    "a m",
    "Ġa m",
    "n a",
    "na m",
    "nam e",
];

/// Control tokens, the first three of them the end of text and `ChatML`'s turn marks.
const CONTROL: &[&str] = &["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
/// Ordinary vocabulary that happens to look like markup.
const USER_DEFINED: &[&str] =
    &["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"];

const CHAT_TEMPLATE: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + \
     message['content'] + '<|im_end|>' + '\n' }}{% endfor %}\
     {% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/// What a tiny model looks like.
#[derive(Debug, Clone, PartialEq)]
pub struct TinyModel {
    /// Of the weights.
    pub seed: u64,
    /// The `qwen2` architecture instead of `llama`: other rotation, biases, a separate head.
    pub qwen2: bool,
    /// Weights in `Q8_0` instead of f32.
    pub quantised: bool,
    /// Rotation factors per pair, as Llama 3 files have them.
    pub rope_factors: bool,
    /// Transformer layers.
    pub layers: u32,
    /// Positions.
    pub context_length: u32,
}

impl Default for TinyModel {
    fn default() -> Self {
        Self {
            seed: 0,
            qwen2: false,
            quantised: true,
            rope_factors: false,
            layers: 2,
            context_length: 4096,
        }
    }
}

/// Widths. Rows are multiples of 32, for `Q8_0`; queries share key heads.
const HIDDEN: u64 = 64;
const FFN: u64 = 96;
const HEADS: u32 = 4;
const KV_HEADS: u32 = 2;
const HEAD_DIM: u64 = 16;

/// Numbers from a seed: `SplitMix64`.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// `count` numbers with the given standard deviation (the sum of four uniform ones).
    fn normal(&mut self, count: u64, deviation: f32) -> Vec<f32> {
        (0..count)
            .map(|_| {
                let bits = self.next();
                let sum: u64 = (0..4).map(|part| bits >> (16 * part) & 0xffff).sum();
                (sum as f32 / 65535.0 - 2.0) * 3.0_f32.sqrt() * deviation
            })
            .collect()
    }
}

/// The character that stands for a byte in a byte-level vocabulary: itself where it can be seen,
/// else the next one from U+0100 on.
fn byte_character(byte: u8) -> char {
    let visible = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if visible(byte) {
        return char::from(byte);
    }
    let hidden_before = (0..byte).filter(|&byte| !visible(byte)).count();
    char::from_u32(0x100 + hidden_before as u32).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// Token texts and kinds, in the order of their ids.
fn vocabulary() -> (Vec<String>, Vec<i32>) {
    let mut tokens: Vec<(String, i32)> =
        CONTROL.iter().map(|token| ((*token).to_owned(), 3)).collect();
    tokens.extend((0..=u8::MAX).map(|byte| (byte_character(byte).to_string(), 1)));
    tokens.extend(MERGES.iter().map(|merge| (merge.replace(' ', ""), 1)));
    tokens.extend(USER_DEFINED.iter().map(|token| ((*token).to_owned(), 4)));
    tokens.into_iter().unzip()
}

impl TinyModel {
    /// The file.
    pub fn writer(&self) -> GgufWriter {
        let (tokens, kinds) = vocabulary();
        let arch = if self.qwen2 { "qwen2" } else { "llama" };
        let key = |name: &str| format!("{arch}.{name}");
        let writer = GgufWriter::new()
            .str("general.architecture", arch)
            .str("general.name", "tiny random model")
            .u32(&key("block_count"), self.layers)
            .u32(&key("context_length"), self.context_length)
            .u32(&key("embedding_length"), HIDDEN as u32)
            .u32(&key("feed_forward_length"), FFN as u32)
            .u32(&key("attention.head_count"), HEADS)
            .u32(&key("attention.head_count_kv"), KV_HEADS)
            .f32(&key("attention.layer_norm_rms_epsilon"), 1e-5)
            .f32(&key("rope.freq_base"), 10_000.0)
            .str("tokenizer.ggml.model", "gpt2")
            .str("tokenizer.ggml.pre", "gpt-2")
            .strings("tokenizer.ggml.tokens", &tokens)
            .i32s("tokenizer.ggml.token_type", &kinds)
            .strings("tokenizer.ggml.merges", MERGES)
            .u32("tokenizer.ggml.bos_token_id", 1)
            .u32("tokenizer.ggml.eos_token_id", 2)
            .u32("tokenizer.ggml.padding_token_id", 0)
            .bool("tokenizer.ggml.add_bos_token", false)
            .str("tokenizer.chat_template", CHAT_TEMPLATE);
        self.tensors(writer, tokens.len() as u64)
    }

    /// The file's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        self.writer().bytes()
    }

    fn tensors(&self, writer: GgufWriter, vocab: u64) -> GgufWriter {
        let mut random = Random(self.seed);
        let (q, kv) = (u64::from(HEADS) * HEAD_DIM, u64::from(KV_HEADS) * HEAD_DIM);
        let mut writer = writer;
        let mut matrix = |writer: GgufWriter, name: &str, inputs: u64, outputs: u64| {
            // As large as keeps a unit input's length; a little more, so that tokens differ.
            let values = random.normal(inputs * outputs, 1.4 / (inputs as f32).sqrt());
            let dims = [inputs, outputs];
            if self.quantised {
                writer.q8_0_tensor(name, &dims, &values)
            } else {
                writer.f32_tensor(name, &dims, &values)
            }
        };
        writer = matrix(writer, "token_embd.weight", HIDDEN, vocab);
        if self.qwen2 {
            writer = matrix(writer, "output.weight", HIDDEN, vocab);
        }
        for layer in 0..self.layers {
            for (part, inputs, outputs) in [
                ("attn_q", HIDDEN, q),
                ("attn_k", HIDDEN, kv),
                ("attn_v", HIDDEN, kv),
                ("attn_output", q, HIDDEN),
                ("ffn_gate", HIDDEN, FFN),
                ("ffn_up", HIDDEN, FFN),
                ("ffn_down", FFN, HIDDEN),
            ] {
                writer = matrix(writer, &format!("blk.{layer}.{part}.weight"), inputs, outputs);
            }
        }
        let mut vector = |writer: GgufWriter, name: &str, len: u64, mean: f32| {
            let mut values = random.normal(len, 0.1);
            for value in &mut values {
                *value += mean;
            }
            writer.f32_tensor(name, &[len], &values)
        };
        for layer in 0..self.layers {
            writer = vector(writer, &format!("blk.{layer}.attn_norm.weight"), HIDDEN, 1.0);
            writer = vector(writer, &format!("blk.{layer}.ffn_norm.weight"), HIDDEN, 1.0);
            if self.qwen2 {
                for (part, len) in [("q", q), ("k", kv), ("v", kv)] {
                    writer = vector(writer, &format!("blk.{layer}.attn_{part}.bias"), len, 0.0);
                }
            }
        }
        if self.rope_factors {
            writer = vector(writer, "rope_freqs.weight", HEAD_DIM / 2, 4.0);
        }
        vector(writer, "output_norm.weight", HIDDEN, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_byte_is_a_token_and_every_merge_builds_a_token_from_tokens() {
        let (tokens, _) = vocabulary();
        let known: HashSet<&str> = tokens.iter().map(String::as_str).collect();
        assert_eq!(known.len(), tokens.len(), "a token is there twice");
        for byte in 0..=u8::MAX {
            assert!(known.contains(byte_character(byte).to_string().as_str()));
        }
        for merge in MERGES {
            let (left, right) = merge.split_once(' ').unwrap();
            assert!(known.contains(left) && known.contains(right), "{merge}");
        }
        assert_eq!(
            (byte_character(b' '), byte_character(b'\n'), byte_character(0xad)),
            ('Ġ', 'Ċ', 'Ń')
        );
    }

    #[test]
    fn the_seed_decides_the_bytes() {
        let tiny = TinyModel::default();
        assert_eq!(tiny.bytes(), tiny.bytes());
        assert_ne!(tiny.bytes(), TinyModel { seed: 1, ..tiny }.bytes());
    }
}
