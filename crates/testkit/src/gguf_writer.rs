//! Writes GGUF files (version 3, little-endian) for tests: sound ones, and through the low-level
//! methods unsound ones as well.

/// Numbers of the format's value types.
const U32: u32 = 4;
const I32: u32 = 5;
const F32: u32 = 6;
const BOOL: u32 = 7;
const STRING: u32 = 8;
const ARRAY: u32 = 9;

/// A tensor to be written.
#[derive(Debug, Clone)]
struct Tensor {
    name: String,
    dims: Vec<u64>,
    kind: u32,
    data: Vec<u8>,
    /// Instead of the next aligned place.
    offset: Option<u64>,
}

/// A GGUF file in the making.
#[derive(Debug, Clone)]
pub struct GgufWriter {
    version: u32,
    alignment: usize,
    pairs: Vec<u8>,
    n_pairs: u64,
    tensors: Vec<Tensor>,
}

impl Default for GgufWriter {
    fn default() -> Self {
        Self { version: 3, alignment: 32, pairs: Vec::new(), n_pairs: 0, tensors: Vec::new() }
    }
}

fn push_string(out: &mut Vec<u8>, text: &[u8]) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text);
}

impl GgufWriter {
    /// An empty file.
    pub fn new() -> Self {
        Self::default()
    }

    /// Writes another version number; the layout stays.
    #[must_use]
    pub fn version(mut self, version: u32) -> Self {
        self.version = version;
        self
    }

    /// A pair with its value's type and bytes as given, sound or not.
    #[must_use]
    pub fn raw(mut self, key: &str, kind: u32, value: &[u8]) -> Self {
        push_string(&mut self.pairs, key.as_bytes());
        self.pairs.extend(kind.to_le_bytes());
        self.pairs.extend(value);
        self.n_pairs += 1;
        self
    }

    /// A `u32`.
    #[must_use]
    pub fn u32(self, key: &str, value: u32) -> Self {
        self.raw(key, U32, &value.to_le_bytes())
    }

    /// An `f32`.
    #[must_use]
    pub fn f32(self, key: &str, value: f32) -> Self {
        self.raw(key, F32, &value.to_le_bytes())
    }

    /// A boolean.
    #[must_use]
    pub fn bool(self, key: &str, value: bool) -> Self {
        self.raw(key, BOOL, &[value.into()])
    }

    /// A string.
    #[must_use]
    pub fn str(self, key: &str, value: &str) -> Self {
        let mut bytes = Vec::new();
        push_string(&mut bytes, value.as_bytes());
        self.raw(key, STRING, &bytes)
    }

    /// An array of strings.
    #[must_use]
    pub fn strings<S: AsRef<str>>(self, key: &str, values: &[S]) -> Self {
        let mut bytes = STRING.to_le_bytes().to_vec();
        bytes.extend((values.len() as u64).to_le_bytes());
        for value in values {
            push_string(&mut bytes, value.as_ref().as_bytes());
        }
        self.raw(key, ARRAY, &bytes)
    }

    /// An array of `i32`.
    #[must_use]
    pub fn i32s(self, key: &str, values: &[i32]) -> Self {
        let mut bytes = I32.to_le_bytes().to_vec();
        bytes.extend((values.len() as u64).to_le_bytes());
        bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        self.raw(key, ARRAY, &bytes)
    }

    /// Sets `general.alignment` and keeps to it.
    #[must_use]
    pub fn alignment(mut self, alignment: u32) -> Self {
        self.alignment = alignment as usize;
        self.u32("general.alignment", alignment)
    }

    /// A tensor with its type's number and data as given, placed after the one before. The length
    /// of a row comes first in `dims`.
    #[must_use]
    pub fn tensor(mut self, name: &str, dims: &[u64], kind: u32, data: Vec<u8>) -> Self {
        self.tensors.push(Tensor {
            name: name.to_owned(),
            dims: dims.to_vec(),
            kind,
            data,
            offset: None,
        });
        self
    }

    /// A tensor entry that claims to be at `offset` in the data section, without data of its own.
    #[must_use]
    pub fn entry(mut self, name: &str, dims: &[u64], kind: u32, offset: u64) -> Self {
        self.tensors.push(Tensor {
            name: name.to_owned(),
            dims: dims.to_vec(),
            kind,
            data: Vec::new(),
            offset: Some(offset),
        });
        self
    }

    /// An `f32` tensor.
    #[must_use]
    pub fn f32_tensor(self, name: &str, dims: &[u64], values: &[f32]) -> Self {
        let data = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.tensor(name, dims, 0, data)
    }

    /// A `Q8_0` tensor: blocks of 32, each an `f16` scale and 32 signed bytes. The length of a row
    /// must be a multiple of 32.
    #[must_use]
    pub fn q8_0_tensor(self, name: &str, dims: &[u64], values: &[f32]) -> Self {
        let mut data = Vec::with_capacity(values.len() / 32 * 34);
        for block in values.chunks_exact(32) {
            let largest = block.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
            let scale = half::f16::from_f32(largest / 127.0);
            let inverse = if scale.to_f32() == 0.0 { 0.0 } else { 1.0 / scale.to_f32() };
            data.extend(scale.to_le_bytes());
            data.extend(block.iter().map(|value| {
                let level = (value * inverse).round().clamp(-127.0, 127.0);
                (level as i8).to_le_bytes()[0]
            }));
        }
        self.tensor(name, dims, 8, data)
    }

    /// The file's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend(self.n_pairs.to_le_bytes());
        out.extend(&self.pairs);
        let mut data = Vec::new();
        for tensor in &self.tensors {
            push_string(&mut out, tensor.name.as_bytes());
            out.extend((tensor.dims.len() as u32).to_le_bytes());
            out.extend(tensor.dims.iter().flat_map(|dim| dim.to_le_bytes()));
            out.extend(tensor.kind.to_le_bytes());
            data.resize(data.len().next_multiple_of(self.alignment), 0);
            out.extend(tensor.offset.unwrap_or(data.len() as u64).to_le_bytes());
            data.extend(&tensor.data);
        }
        out.resize(out.len().next_multiple_of(self.alignment), 0);
        out.extend(data);
        out
    }
}
