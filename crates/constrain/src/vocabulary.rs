//! A tokenizer's vocabulary, as the grammar side sees it: bytes, and the tables made from them
//! once and used by every grammar.

use crate::ast::ByteSet;
use crate::counted::Counted;
use crate::error::ConstrainError;
use crate::json_chars::FORMS;
use crate::regions;
use crate::runs::Runs;
use crate::string_tables::StringTables;
use crate::subtrees::Subtrees;
use crate::trie::Trie;
use std::sync::{Arc, OnceLock};

/// The tokens' bytes, the end token, and tables over them. Built once per tokenizer.
#[derive(Debug)]
pub struct Vocabulary {
    pub(crate) trie: Trie,
    bytes: Vec<u8>,
    /// Where each token's bytes end; they start where the token before ends.
    ends: Vec<u32>,
    eos: Option<u32>,
    /// Longest token in bytes.
    pub(crate) longest: usize,
    /// Bytes that are tokens by themselves.
    pub(crate) singles: ByteSet,
    /// How many tokens begin with each byte.
    beginnings: Box<[u32; 256]>,
    strings: [OnceLock<StringTables>; FORMS.len()],
    subtrees: OnceLock<Subtrees>,
    runs: Runs,
}

impl Vocabulary {
    /// The vocabulary in which token `id` has the bytes `bytes[id]`. `None` is a special token,
    /// which no grammar ever allows; an empty token is never allowed either. `eos` ends the
    /// output and is allowed exactly where the grammar is complete, whatever its own bytes.
    #[allow(clippy::needless_pass_by_value)] // The caller has no further use for them.
    pub fn new(bytes: Vec<Option<Vec<u8>>>, eos: Option<u32>) -> Result<Arc<Self>, ConstrainError> {
        Self::build(&bytes, eos).map(Arc::new)
    }

    pub(crate) fn build(
        tokens: &[Option<Vec<u8>>],
        eos: Option<u32>,
    ) -> Result<Self, ConstrainError> {
        if let Some(eos) = eos
            && eos as usize >= tokens.len()
        {
            return Err(ConstrainError::Vocabulary {
                message: format!(
                    "end token {eos} is outside a vocabulary of {} tokens",
                    tokens.len()
                ),
            });
        }
        // The end token's own bytes are text to nobody.
        let text = |id: usize| {
            if eos == Some(id as u32) { &[][..] } else { tokens[id].as_deref().unwrap_or_default() }
        };
        let trie = Trie::new((0..tokens.len()).map(|id| (id as u32, text(id))))?;
        let mut bytes = Vec::new();
        let mut ends = Vec::with_capacity(tokens.len());
        let mut longest = 0;
        let mut singles = ByteSet::EMPTY;
        let mut beginnings = Box::new([0; 256]);
        for id in 0..tokens.len() {
            let text = text(id);
            bytes.extend_from_slice(text);
            ends.push(bytes.len() as u32);
            longest = longest.max(text.len());
            if let Some(first) = text.first() {
                beginnings[*first as usize] += 1;
            }
            if let [byte] = text {
                singles.insert(*byte);
            }
        }
        if u32::try_from(bytes.len()).is_err() {
            return Err(ConstrainError::Vocabulary { message: "more than 4 GiB of bytes".into() });
        }
        Ok(Self {
            trie,
            bytes,
            ends,
            eos,
            longest,
            singles,
            beginnings,
            strings: [const { OnceLock::new() }; FORMS.len()],
            subtrees: OnceLock::new(),
            runs: Runs::default(),
        })
    }

    /// Number of tokens, special ones included.
    pub fn size(&self) -> usize {
        self.ends.len()
    }

    /// The token that ends the output.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// A token's bytes; empty for special and empty tokens, for the end token, and past the end.
    pub fn token(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else {
            return &[];
        };
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.bytes[start as usize..end as usize]
    }

    /// Makes the tables that are otherwise made when a grammar first needs them.
    pub fn prepare(&self) {
        for form in FORMS {
            self.strings(form).prepare(self);
        }
        self.subtrees();
        self.run(&regions::RAW);
    }

    /// Words of a mask.
    pub(crate) fn mask_words(&self) -> usize {
        self.size().div_ceil(32)
    }

    /// Tables for one form of JSON string characters, made on first use.
    pub(crate) fn strings(&self, form: crate::json_chars::CharForm) -> &StringTables {
        self.strings[form as usize].get_or_init(|| StringTables::new(form))
    }

    /// What lies below each node of the trie, made on first use.
    pub(crate) fn subtrees(&self) -> &Subtrees {
        self.subtrees.get_or_init(|| Subtrees::new(&self.trie))
    }

    /// The tokens made of characters that begin with one of `leads`.
    pub(crate) fn run(&self, leads: &ByteSet) -> Arc<Counted> {
        self.runs.get(self, leads)
    }

    /// How many tokens begin with one of these bytes.
    pub(crate) fn beginning_with(&self, bytes: &ByteSet) -> usize {
        bytes.iter().map(|byte| self.beginnings[byte as usize] as usize).sum()
    }
}
