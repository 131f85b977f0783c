//! The vocabulary of a GGUF file: enough of the format to read the header's tokenizer fields.

use std::fs::File;
use std::io::{BufReader, Error, ErrorKind, Read, Result};
use std::path::Path;

/// A vocabulary as bytes.
pub struct Vocab {
    /// `None` for control, unknown and unused tokens.
    pub tokens: Vec<Option<Vec<u8>>>,
    /// The end token.
    pub eos: u32,
}

/// Values the reader keeps.
enum Value {
    Number(u64),
    Texts(Vec<Vec<u8>>),
    Numbers(Vec<u64>),
    Other,
}

struct Reader<R>(R);

impl<R: Read> Reader<R> {
    fn bytes(&mut self, n: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; n];
        self.0.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn number(&mut self, n: usize) -> Result<u64> {
        let mut wide = [0; 8];
        self.0.read_exact(&mut wide[..n])?;
        Ok(u64::from_le_bytes(wide))
    }

    fn text(&mut self) -> Result<Vec<u8>> {
        let n = self.number(8)? as usize;
        self.bytes(n)
    }

    fn value(&mut self, kind: u64) -> Result<Value> {
        let width = |kind| match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            _ => 8,
        };
        Ok(match kind {
            8 => {
                self.text()?;
                Value::Other
            }
            9 => {
                let (inner, n) = (self.number(4)?, self.number(8)?);
                match inner {
                    8 => Value::Texts((0..n).map(|_| self.text()).collect::<Result<_>>()?),
                    9 => return Err(Error::new(ErrorKind::InvalidData, "nested arrays")),
                    _ => Value::Numbers(
                        (0..n).map(|_| self.number(width(inner))).collect::<Result<_>>()?,
                    ),
                }
            }
            _ => Value::Number(self.number(width(kind))?),
        })
    }
}

/// Reads a file's vocabulary; the byte-level BPE alphabet is undone.
pub fn read(path: &Path) -> Result<Vocab> {
    let mut reader = Reader(BufReader::new(File::open(path)?));
    if reader.bytes(4)? != b"GGUF" {
        return Err(Error::new(ErrorKind::InvalidData, "not a GGUF file"));
    }
    reader.number(4)?;
    reader.number(8)?;
    let fields = reader.number(8)?;
    let (mut texts, mut kinds, mut eos) = (Vec::new(), Vec::new(), 0);
    for _ in 0..fields {
        let key = reader.text()?;
        let kind = reader.number(4)?;
        match (key.as_slice(), reader.value(kind)?) {
            (b"tokenizer.ggml.tokens", Value::Texts(list)) => texts = list,
            (b"tokenizer.ggml.token_type", Value::Numbers(list)) => kinds = list,
            (b"tokenizer.ggml.eos_token_id", Value::Number(id)) => eos = id as u32,
            _ => {}
        }
    }
    let alphabet = alphabet();
    let tokens = texts.iter().zip(&kinds).map(|(text, kind)| {
        let text = String::from_utf8_lossy(text);
        match kind {
            1 => text
                .chars()
                .map(|c| alphabet.iter().position(|a| *a == c).map(|b| b as u8))
                .collect(),
            4 => Some(text.as_bytes().to_vec()),
            _ => None,
        }
    });
    Ok(Vocab { tokens: tokens.collect(), eos })
}

/// GPT-2's printable stand-in for each byte.
fn alphabet() -> Vec<char> {
    let printable = |b: u32| matches!(b, 33..=126 | 161..=172 | 174..=255);
    let mut next = 256;
    (0..256)
        .map(|byte| {
            let code = if printable(byte) {
                byte
            } else {
                next += 1;
                next - 1
            };
            char::from_u32(code).unwrap_or('?')
        })
        .collect()
}
