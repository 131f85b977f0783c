//! A model file's vocabulary as plain values, for whoever builds a tokenizer from it.

use crate::{Gguf, ModelError};

/// Most tokens of a vocabulary. The largest known have some 260,000; the cap bounds what a file of
/// empty strings can make us allocate.
const MAX_TOKENS: usize = 1 << 20;
/// Most merges. The largest known lists have some 500,000.
const MAX_MERGES: usize = 1 << 21;
/// Most named chat templates.
const MAX_TEMPLATES: usize = 64;

/// The `tokenizer.*` metadata of a file. Ids are checked to be below the number of tokens, and the
/// lists that belong together have the same length.
#[derive(Debug, Clone, PartialEq)]
pub struct VocabMetadata {
    /// `tokenizer.ggml.model`: `gpt2` for byte-level BPE.
    pub model: String,
    /// `tokenizer.ggml.pre`: the name of the pre-tokenizer.
    pub pre: Option<String>,
    /// The text of every token in the file's spelling; the index is the id.
    pub tokens: Vec<String>,
    /// The kind of every token as the format numbers them: 1 normal, 2 unknown, 3 control,
    /// 4 user-defined, 5 unused, 6 byte. All 1 when the file does not say.
    pub kinds: Vec<u8>,
    /// BPE merges, the first the most eager, as two pieces with a space between.
    pub merges: Vec<String>,
    /// Beginning of a text.
    pub bos: Option<u32>,
    /// End of a text.
    pub eos: Option<u32>,
    /// End of a turn.
    pub eot: Option<u32>,
    /// End of a message.
    pub eom: Option<u32>,
    /// What stands for the unspellable.
    pub unk: Option<u32>,
    /// Padding.
    pub pad: Option<u32>,
    /// Whether a text begins with [`Self::bos`]; `None` when the file does not say.
    pub add_bos: Option<bool>,
    /// Whether a text ends with [`Self::eos`]; `None` when the file does not say.
    pub add_eos: Option<bool>,
    /// Whether a space is put before a text; `None` when the file does not say.
    pub add_space_prefix: Option<bool>,
    /// The chat template, in Jinja.
    pub chat_template: Option<String>,
    /// Further templates by name, such as `tool_use`.
    pub named_chat_templates: Vec<(String, String)>,
}

impl VocabMetadata {
    /// Reads the vocabulary of a file.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, ModelError> {
        let missing = |key: &str| ModelError::Inconsistent {
            file: gguf.file().to_owned(),
            reason: format!("the metadata has no {key:?}"),
        };
        let model_key = "tokenizer.ggml.model";
        let tokens_key = "tokenizer.ggml.tokens";
        let kinds_key = "tokenizer.ggml.token_type";
        let model = gguf.str(model_key)?.ok_or_else(|| missing(model_key))?.to_owned();
        let tokens = gguf.strings(tokens_key, MAX_TOKENS)?.ok_or_else(|| missing(tokens_key))?;
        // Rows beyond the tokens are padding; a token without a row could be chosen, not computed.
        if let Some(rows) = gguf.tensor("token_embd.weight").and_then(|t| t.dims().get(1).copied())
            && tokens.len() > rows
        {
            return Err(ModelError::Inconsistent {
                file: gguf.file().to_owned(),
                reason: format!("{tokens_key} has {} tokens for {rows} embeddings", tokens.len()),
            });
        }
        let kinds = match gguf.integers(kinds_key, MAX_TOKENS)? {
            None => vec![1; tokens.len()],
            Some(kinds) if kinds.len() == tokens.len() => kinds
                .into_iter()
                .map(|kind| match kind {
                    1..=6 => Ok(kind as u8),
                    _ => Err(gguf.key_fault(kinds_key, format!("{kind} is not a token kind"))),
                })
                .collect::<Result<_, _>>()?,
            Some(kinds) => {
                let reason = format!("{} kinds for {} tokens", kinds.len(), tokens.len());
                return Err(gguf.key_fault(kinds_key, reason));
            }
        };
        let id = |name: &str| -> Result<Option<u32>, ModelError> {
            let key = format!("tokenizer.ggml.{name}_token_id");
            match gguf.u32(&key)? {
                Some(id) if id as usize >= tokens.len() => {
                    let reason = format!("there is no token {id}: there are {}", tokens.len());
                    Err(gguf.key_fault(&key, reason))
                }
                id => Ok(id),
            }
        };
        let owned = |strings: Vec<&str>| strings.into_iter().map(str::to_owned).collect();
        Ok(Self {
            model,
            pre: gguf.str("tokenizer.ggml.pre")?.map(str::to_owned),
            kinds,
            merges: gguf
                .strings("tokenizer.ggml.merges", MAX_MERGES)?
                .map(owned)
                .unwrap_or_default(),
            bos: id("bos")?,
            eos: id("eos")?,
            eot: id("eot")?,
            eom: id("eom")?,
            unk: id("unknown")?,
            pad: id("padding")?,
            add_bos: gguf.bool("tokenizer.ggml.add_bos_token")?,
            add_eos: gguf.bool("tokenizer.ggml.add_eos_token")?,
            add_space_prefix: gguf.bool("tokenizer.ggml.add_space_prefix")?,
            chat_template: gguf.str("tokenizer.chat_template")?.map(str::to_owned),
            named_chat_templates: Self::named_templates(gguf)?,
            tokens: owned(tokens),
        })
    }

    fn named_templates(gguf: &Gguf) -> Result<Vec<(String, String)>, ModelError> {
        let names = gguf.strings("tokenizer.chat_templates", MAX_TEMPLATES)?.unwrap_or_default();
        let mut templates = Vec::new();
        for name in names {
            let key = format!("tokenizer.chat_template.{name}");
            if let Some(template) = gguf.str(&key)? {
                templates.push((name.to_owned(), template.to_owned()));
            }
        }
        Ok(templates)
    }
}
