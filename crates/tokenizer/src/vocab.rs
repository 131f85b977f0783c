//! The vocabulary of a model file, checked: what every token spells and who may produce it.

use crate::{TokenizerError, bytelevel};
use std::collections::{HashMap, HashSet};

/// Most tokens of a vocabulary. The largest known have some 260,000.
const MAX_TOKENS: usize = 1 << 20;
/// Most merges. The largest known lists have some 500,000.
const MAX_MERGES: usize = 1 << 21;
/// Most bytes of a token's spelling. The longest known are runs of a few hundred characters.
const MAX_TOKEN_BYTES: usize = 1 << 16;
/// Most bytes of all spellings together.
const MAX_TOTAL_BYTES: usize = 1 << 26;
/// Most bytes of the spellings of the tokens that are searched for in texts. Known vocabularies
/// have some thousands of such tokens of 10 to 30 bytes; the cap bounds the search automaton.
const MAX_SEARCHED_BYTES: usize = 1 << 20;
/// Most bytes of one of them.
const MAX_SEARCHED_TOKEN_BYTES: usize = 1 << 10;

/// Control tokens that end a turn or a text, in the families that have them.
const KNOWN_ENDS: &[&str] = &[
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|end_of_turn|>",
    "<end_of_turn>",
    "<|end|>",
    "<|eos|>",
    "<eos>",
    "</s>",
    "<EOT>",
    "<end_of_utterance>",
    "<|end_of_role|>",
    "<｜end▁of▁sentence｜>",
];

/// A vocabulary as plain values, as a GGUF file has it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VocabSpec {
    /// `tokenizer.ggml.model`; `gpt2` (byte-level BPE) is supported.
    pub model: String,
    /// `tokenizer.ggml.pre`: the name of the pre-tokenizer.
    pub pre: String,
    /// The spelling of every token; the index is the id. Normal tokens are spelled in GPT-2's byte
    /// characters, control and user-defined ones as they are.
    pub tokens: Vec<String>,
    /// The kind of every token as GGUF numbers them (see [`TokenKind`]); as many as `tokens`.
    pub kinds: Vec<u8>,
    /// The merges, first to last, as two spellings with a space between.
    pub merges: Vec<String>,
    /// Beginning of a text.
    pub bos: Option<u32>,
    /// End of a text.
    pub eos: Option<u32>,
    /// End of a turn.
    pub eot: Option<u32>,
    /// End of a message.
    pub eom: Option<u32>,
    /// What stands for the unspellable. Never produced.
    pub unk: Option<u32>,
    /// Padding.
    pub pad: Option<u32>,
    /// Whether a text begins with `bos`. `None` when the file does not say: the pre-tokenizer's
    /// custom then decides (`llama-bpe` adds it, the others do not).
    pub add_bos: Option<bool>,
    /// The chat template of the file.
    pub chat_template: Option<String>,
}

/// What a token is, with GGUF's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TokenKind {
    /// 1: ordinary.
    Normal = 1,
    /// 2: stands for what cannot be spelled. Never produced.
    Unknown = 2,
    /// 3: structure (`<|im_start|>`). From a template or a caller that asks for it, never from text.
    Control = 3,
    /// 4: matched whole in any text (`<tool_call>`), ordinary otherwise.
    UserDefined = 4,
    /// 5: a hole in the numbering. Never produced.
    Unused = 5,
    /// 6: one byte, spelled `<0xNN>`.
    Byte = 6,
}

impl TokenKind {
    fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => return None,
        })
    }
}

/// The checked vocabulary.
pub(crate) struct Vocab {
    pub(crate) kinds: Vec<TokenKind>,
    /// All tokens' bytes, one after the other; token `i` is `bytes[starts[i]..starts[i + 1]]`.
    bytes: Vec<u8>,
    starts: Vec<u32>,
    /// End-of-generation ids: EOS, EOT, EOM, then the known ones in order of id.
    pub(crate) ends: Vec<u32>,
    /// The BOS id.
    pub(crate) bos: Option<u32>,
}

/// What the merge model is built from.
pub(crate) struct Merges {
    /// The spellings merges work on.
    pub(crate) vocab: Vec<(String, u32)>,
    pub(crate) pairs: Vec<(String, String)>,
    /// Whether a byte's character is among the spellings.
    pub(crate) spelled: [bool; 256],
    /// Per byte, a token that is that byte alone.
    pub(crate) byte_tokens: [Option<u32>; 256],
}

impl Vocab {
    /// Checks a specification and takes it apart.
    pub(crate) fn new(spec: &VocabSpec) -> Result<(Self, Merges), TokenizerError> {
        check_sizes(spec)?;
        let mut kinds = kinds(spec)?;
        let ends = ends(spec, &kinds)?;
        check_id(spec, "unk", spec.unk)?;
        check_id(spec, "pad", spec.pad)?;
        check_id(spec, "bos", spec.bos)?;
        let mut bytes = Vec::new();
        let mut starts = vec![0];
        for (index, (token, kind)) in spec.tokens.iter().zip(&kinds).enumerate() {
            match kind {
                // A spelling that is not in byte characters stands for itself, as added tokens do
                // that a file calls normal.
                TokenKind::Normal => match bytelevel::bytes(token) {
                    Some(spelled) => bytes.extend(spelled),
                    None => bytes.extend(token.bytes()),
                },
                TokenKind::Byte => bytes.push(byte_spelling(token).ok_or_else(|| {
                    malformed(
                        "tokens",
                        index,
                        format!("the byte token {token:?} is not spelled <0xNN>"),
                    )
                })?),
                _ => bytes.extend(token.bytes()),
            }
            starts.push(bytes.len() as u32);
        }
        // The ids a file names as a beginning or an end are structure whatever it calls them, or
        // text could end a turn. A single byte stays usable: old files name one for want of better.
        for id in ends.iter().copied().chain(spec.bos) {
            let index = id as usize;
            if starts[index + 1] - starts[index] > 1 {
                kinds[index] = TokenKind::Control;
            }
        }
        let vocab = Self { kinds, bytes, starts, ends, bos: spec.bos };
        let searched = |kind| matches!(kind, TokenKind::Control | TokenKind::UserDefined);
        let mut total = 0;
        for id in vocab.ids().filter(|id| searched(vocab.kinds[*id as usize])) {
            let bytes = vocab.token_bytes(id).len();
            limit("the bytes of a control or user-defined token", bytes, MAX_SEARCHED_TOKEN_BYTES)?;
            total += bytes;
        }
        limit("the bytes of control and user-defined tokens", total, MAX_SEARCHED_BYTES)?;
        let merges = merges(spec, &vocab)?;
        Ok((vocab, merges))
    }

    pub(crate) fn len(&self) -> usize {
        self.kinds.len()
    }

    pub(crate) fn ids(&self) -> std::ops::Range<u32> {
        0..self.kinds.len() as u32
    }

    /// The ids of a kind that are spelled at all.
    pub(crate) fn of_kind(&self, kind: TokenKind) -> impl Iterator<Item = u32> + '_ {
        let wanted = move |id: &u32| self.kinds[*id as usize] == kind;
        self.ids().filter(wanted).filter(|id| !self.token_bytes(*id).is_empty())
    }

    /// The bytes a token stands for; empty for an id past the end.
    pub(crate) fn token_bytes(&self, id: u32) -> &[u8] {
        let id = id as usize;
        match (self.starts.get(id), self.starts.get(id + 1)) {
            (Some(start), Some(end)) => &self.bytes[*start as usize..*end as usize],
            _ => &[],
        }
    }

    /// Whether a token is never part of a text: control, unknown or unused, an end, BOS, or past
    /// the end.
    pub(crate) fn is_special(&self, id: u32) -> bool {
        match self.kinds.get(id as usize) {
            Some(TokenKind::Normal | TokenKind::UserDefined | TokenKind::Byte) => {
                self.bos == Some(id) || self.ends.contains(&id)
            }
            _ => true,
        }
    }
}

fn malformed(list: &'static str, index: usize, reason: impl Into<String>) -> TokenizerError {
    TokenizerError::Malformed { list, index, reason: reason.into() }
}

fn limit(what: &'static str, value: usize, limit: usize) -> Result<(), TokenizerError> {
    if value > limit { Err(TokenizerError::TooLarge { what, value, limit }) } else { Ok(()) }
}

fn check_sizes(spec: &VocabSpec) -> Result<(), TokenizerError> {
    limit("the number of tokens", spec.tokens.len(), MAX_TOKENS)?;
    limit("the number of merges", spec.merges.len(), MAX_MERGES)?;
    limit("the bytes of all tokens", spec.tokens.iter().map(String::len).sum(), MAX_TOTAL_BYTES)?;
    if let Some(index) = spec.tokens.iter().position(|token| token.len() > MAX_TOKEN_BYTES) {
        let reason =
            format!("{} bytes, at most {MAX_TOKEN_BYTES} are allowed", spec.tokens[index].len());
        return Err(malformed("tokens", index, reason));
    }
    if spec.tokens.is_empty() {
        return Err(malformed("tokens", 0, "there are no tokens"));
    }
    if spec.kinds.len() != spec.tokens.len() {
        let reason = format!("{} kinds for {} tokens", spec.kinds.len(), spec.tokens.len());
        return Err(malformed("kinds", spec.kinds.len().min(spec.tokens.len()), reason));
    }
    Ok(())
}

/// The kinds of all tokens; also sees that no two tokens that can be produced are spelled alike.
fn kinds(spec: &VocabSpec) -> Result<Vec<TokenKind>, TokenizerError> {
    let mut kinds = Vec::with_capacity(spec.kinds.len());
    let mut seen = HashMap::with_capacity(spec.tokens.len());
    for (index, (token, number)) in spec.tokens.iter().zip(&spec.kinds).enumerate() {
        let kind = TokenKind::from_number(*number)
            .ok_or_else(|| malformed("kinds", index, format!("{number} is not a token kind")))?;
        kinds.push(kind);
        // Holes are often all named alike, and nothing is ever matched against an empty spelling.
        if token.is_empty() || matches!(kind, TokenKind::Unknown | TokenKind::Unused) {
            continue;
        }
        if let Some(first) = seen.insert(token.as_str(), index) {
            let reason = format!("{token:?} is token {first} already");
            return Err(malformed("tokens", index, reason));
        }
    }
    Ok(kinds)
}

fn check_id(spec: &VocabSpec, name: &'static str, id: Option<u32>) -> Result<(), TokenizerError> {
    match id {
        Some(id) if id as usize >= spec.tokens.len() => {
            let reason = format!("there is no such token: there are {}", spec.tokens.len());
            Err(malformed(name, id as usize, reason))
        }
        _ => Ok(()),
    }
}

fn ends(spec: &VocabSpec, kinds: &[TokenKind]) -> Result<Vec<u32>, TokenizerError> {
    let mut ends = Vec::new();
    for (name, id) in [("eos", spec.eos), ("eot", spec.eot), ("eom", spec.eom)] {
        check_id(spec, name, id)?;
        ends.extend(id);
    }
    let known = spec.tokens.iter().zip(kinds).enumerate().filter(|(_, (token, kind))| {
        **kind == TokenKind::Control && KNOWN_ENDS.contains(&token.as_str())
    });
    ends.extend(known.map(|(id, _)| id as u32));
    let mut seen = HashSet::new();
    ends.retain(|id| seen.insert(*id));
    Ok(ends)
}

fn byte_spelling(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    let hex = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    hex.then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

/// Which tokens merges may work on, and the merges among them.
fn merges(spec: &VocabSpec, vocab: &Vocab) -> Result<Merges, TokenizerError> {
    let mut ids: HashMap<&str, (u32, bool)> = HashMap::with_capacity(spec.tokens.len());
    for (token, id) in spec.tokens.iter().zip(vocab.ids()) {
        let merged = match vocab.kinds[id as usize] {
            TokenKind::Normal => true,
            // Spelled as it is, not in byte characters; where both spellings are the same the token
            // may also come about by merges.
            TokenKind::UserDefined => token.bytes().all(|byte| byte.is_ascii_graphic()),
            _ => false,
        } && !token.is_empty();
        let slot = ids.entry(token).or_insert((id, merged));
        // A hole may be named like a token.
        if merged {
            *slot = (id, true);
        }
    }
    let spelling =
        |byte: u8| ids.get(bytelevel::CHARS[byte as usize].encode_utf8(&mut [0; 4]) as &str);
    let spelled =
        std::array::from_fn(|byte| spelling(byte as u8).is_some_and(|(_, merged)| *merged));
    let mut byte_tokens = [None; 256];
    for id in vocab.ids() {
        let ordinary = matches!(vocab.kinds[id as usize], TokenKind::Normal | TokenKind::Byte);
        if let (true, [byte]) = (ordinary, vocab.token_bytes(id)) {
            byte_tokens[*byte as usize].get_or_insert(id);
        }
    }
    let mut pairs = HashSet::with_capacity(spec.merges.len());
    let mut merges = Vec::with_capacity(spec.merges.len());
    for (index, merge) in spec.merges.iter().enumerate() {
        // The separator cannot be the first character: a piece is never empty.
        let after_first = merge.chars().next().map_or(0, char::len_utf8);
        let space = merge[after_first..].find(' ').map(|at| at + after_first);
        let Some((left, right)) = space.map(|at| (&merge[..at], &merge[at + 1..])) else {
            return Err(malformed("merges", index, format!("{merge:?} is not two pieces")));
        };
        let result = [left, right].concat();
        let mut usable = true;
        for piece in [left, right, &result] {
            let Some((_, merged)) = ids.get(piece) else {
                return Err(malformed("merges", index, format!("there is no token {piece:?}")));
            };
            usable &= merged;
        }
        if !pairs.insert((left, right)) {
            return Err(malformed("merges", index, format!("{merge:?} was there already")));
        }
        // A merge that makes or needs structure is passed over: text never becomes structure.
        if usable {
            merges.push((left.to_owned(), right.to_owned()));
        }
    }
    let vocab = ids.iter().filter(|(_, (_, merged))| *merged);
    let vocab = vocab.map(|(token, (id, _))| ((*token).to_owned(), *id)).collect();
    Ok(Merges { vocab, pairs: merges, spelled, byte_tokens })
}
