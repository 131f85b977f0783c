//! Text to token ids and back.

use crate::control::{ControlTexts, searcher};
use crate::pretokenize::PreTokenizer;
use crate::vocab::{TokenKind, Vocab, VocabSpec};
use crate::{ChatTemplate, TemplateError, TemplateTokens, TokenizerError, bytelevel};
use aho_corasick::{AhoCorasick, MatchKind};
use std::sync::Arc;
use tokenizers::Model;
use tokenizers::models::bpe::{BPE, Vocab as Spellings};

/// A stretch of a prompt and whose text it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// The text.
    pub text: String,
    /// Whether control tokens may be read out of it.
    pub special: bool,
}

/// The tokenizer of one model file. Immutable and shared between threads.
///
/// Text is split in three steps: control texts where they are allowed, then user-defined tokens
/// (both leftmost first, then longest), then the pre-tokenizer's words, which are merged one by
/// one. A byte that the vocabulary cannot spell is left out, as llama.cpp does: an unknown token
/// would put structure into text. `SmolLM2`, for one, lacks some control characters and the planes
/// of Unicode nobody uses.
pub struct Tokenizer {
    vocab: Vocab,
    merges: BPE,
    pre: PreTokenizer,
    spelled: [bool; 256],
    byte_tokens: [Option<u32>; 256],
    controls: Arc<ControlTexts>,
    user_defined: AhoCorasick,
    user_defined_ids: Vec<u32>,
    add_bos: bool,
    template: Option<String>,
    template_tokens: TemplateTokens,
}

impl Tokenizer {
    /// Builds the tokenizer of a file. Takes some 100 ms for the largest vocabularies.
    pub fn new(spec: &VocabSpec) -> Result<Self, TokenizerError> {
        if spec.model != "gpt2" {
            return Err(TokenizerError::Unsupported {
                what: "model",
                name: spec.model.clone(),
                supported: "gpt2".to_owned(),
            });
        }
        let pre = PreTokenizer::named(&spec.pre)?;
        let (vocab, merges) = Vocab::new(spec)?;
        let spelling = |id: u32| spec.tokens[id as usize].clone();
        let controls = vocab.of_kind(TokenKind::Control).map(|id| (spelling(id), id));
        let controls = ControlTexts::new(controls)?;
        let user_defined_ids: Vec<u32> = vocab.of_kind(TokenKind::UserDefined).collect();
        let user_defined: Vec<String> = user_defined_ids.iter().copied().map(spelling).collect();
        let spellings: Spellings = merges.vocab.into_iter().collect();
        let bpe = BPE::builder()
            .vocab_and_merges(spellings, merges.pairs)
            .ignore_merges(pre.ignore_merges())
            // The crate's cache is per thread and outlives the tokenizer; words are short.
            .cache_capacity(0)
            .build()
            .map_err(|error| TokenizerError::Encode { reason: error.to_string() })?;
        let template_tokens = TemplateTokens {
            bos: spec.bos.map(spelling),
            eos: spec.eos.map(spelling),
            pad: spec.pad.map(spelling),
            unk: spec.unk.map(spelling),
        };
        Ok(Self {
            merges: bpe,
            spelled: merges.spelled,
            byte_tokens: merges.byte_tokens,
            controls: Arc::new(controls),
            user_defined: searcher(&user_defined, MatchKind::LeftmostLongest)?,
            user_defined_ids,
            add_bos: spec.add_bos.unwrap_or(pre.add_bos()) && spec.bos.is_some(),
            template: spec.chat_template.clone(),
            template_tokens,
            pre,
            vocab,
        })
    }

    /// The ids of a text. With `special` the texts of control tokens become those tokens; without,
    /// they are text like any other. BOS is never added: see [`add_bos`](Self::add_bos).
    pub fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = Vec::with_capacity(text.len() / 3);
        let mut at = 0;
        if special {
            for (range, id) in self.controls.find(text) {
                self.encode_text(&text[at..range.start], &mut ids)?;
                ids.push(id);
                at = range.end;
            }
        }
        self.encode_text(&text[at..], &mut ids)?;
        Ok(ids)
    }

    /// The ids of a prompt whose stretches have different origins. Control tokens come out of
    /// special segments only and never reach over a border; all other text is tokenized as if it
    /// had no borders, so that origin alone changes nothing.
    pub fn encode_segments(&self, segments: &[Segment]) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = Vec::new();
        let mut plain = String::new();
        for Segment { text, special } in segments {
            let mut at = 0;
            if *special {
                for (range, id) in self.controls.find(text) {
                    plain.push_str(&text[at..range.start]);
                    self.encode_text(&plain, &mut ids)?;
                    plain.clear();
                    ids.push(id);
                    at = range.end;
                }
            }
            plain.push_str(&text[at..]);
        }
        self.encode_text(&plain, &mut ids)?;
        Ok(ids)
    }

    /// Text without control tokens.
    fn encode_text(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), TokenizerError> {
        let mut at = 0;
        for found in self.user_defined.find_iter(text) {
            self.encode_words(&text[at..found.start()], ids)?;
            ids.push(self.user_defined_ids[found.pattern().as_usize()]);
            at = found.end();
        }
        self.encode_words(&text[at..], ids)
    }

    fn encode_words(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), TokenizerError> {
        let mut spelling = String::new();
        self.pre.words(text, |word| {
            for byte in word.bytes() {
                if self.spelled[byte as usize] {
                    spelling.push(bytelevel::CHARS[byte as usize]);
                } else {
                    // Nothing merges across it.
                    self.merge(&mut spelling, ids)?;
                    ids.extend(self.byte_tokens[byte as usize]);
                }
            }
            self.merge(&mut spelling, ids)
        })
    }

    /// Merges a spelling into tokens and clears it.
    fn merge(&self, spelling: &mut String, ids: &mut Vec<u32>) -> Result<(), TokenizerError> {
        let tokens = self
            .merges
            .tokenize(spelling)
            .map_err(|error| TokenizerError::Encode { reason: error.to_string() })?;
        ids.extend(tokens.into_iter().map(|token| token.id));
        spelling.clear();
        Ok(())
    }

    /// The text of tokens, control tokens included as they are spelled. Bytes that are no character
    /// become U+FFFD; ids past the end are nothing. For a stream of tokens there is
    /// [`Decoder`](crate::Decoder).
    pub fn decode(&self, ids: &[u32]) -> String {
        String::from_utf8_lossy(&self.decode_bytes(ids)).into_owned()
    }

    /// The bytes of tokens, one after the other.
    pub fn decode_bytes(&self, ids: &[u32]) -> Vec<u8> {
        ids.iter().flat_map(|id| self.token_bytes(*id)).copied().collect()
    }

    /// The bytes one token stands for, a control token's being its spelling. Empty for an id past
    /// the end. Whoever prints generated text leaves out what [`is_special`](Self::is_special).
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.vocab.token_bytes(id)
    }

    /// Whether a token is never part of a text: control, unknown or unused, an end, BOS, or past
    /// the end of the vocabulary.
    pub fn is_special(&self, id: u32) -> bool {
        self.vocab.is_special(id)
    }

    /// What a token is; `None` past the end. Tokens that the file names as BOS or an end are
    /// control tokens, whatever kind it gives them.
    pub fn kind(&self, id: u32) -> Option<TokenKind> {
        self.vocab.kinds.get(id as usize).copied()
    }

    /// How many ids there are. A model's head may have more rows than this.
    pub fn vocab_size(&self) -> usize {
        self.vocab.len()
    }

    /// Every token's bytes, `None` for the special ones: what a grammar may be spelled with.
    pub fn vocab_bytes(&self) -> Vec<Option<Vec<u8>>> {
        let bytes = |id| (!self.is_special(id)).then(|| self.token_bytes(id).to_vec());
        self.vocab.ids().map(bytes).collect()
    }

    /// The ids that end a generation: the file's EOS, EOT and EOM, then control tokens that are
    /// known turn ends. The first is the one a grammar ends with; empty when there is none.
    pub fn eog_ids(&self) -> &[u32] {
        &self.vocab.ends
    }

    /// Beginning of a text.
    pub fn bos(&self) -> Option<u32> {
        self.vocab.bos
    }

    /// Whether a raw text is to begin with [`bos`](Self::bos). It is the caller who puts it there,
    /// and not before a rendered conversation: templates write their own.
    pub fn add_bos(&self) -> bool {
        self.add_bos
    }

    /// The chat template of the file; `None` when it has none.
    pub fn chat_template(&self) -> Result<Option<ChatTemplate>, TemplateError> {
        self.template.as_deref().map(|source| self.template(source)).transpose()
    }

    /// Another chat template for this vocabulary.
    pub fn template(&self, source: &str) -> Result<ChatTemplate, TemplateError> {
        ChatTemplate::new(source, self.template_tokens.clone(), Arc::clone(&self.controls))
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Tokenizer")
            .field("tokens", &self.vocab.len())
            .field("pre", &self.pre)
            .field("eog", &self.vocab.ends)
            .finish_non_exhaustive()
    }
}
