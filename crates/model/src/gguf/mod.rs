//! A reader of GGUF headers (versions 2 and 3, little-endian) over a memory map.
//!
//! The file is untrusted. Invariants once [`Gguf::open`] has returned: every string and array of
//! the metadata and the data of every tensor lie inside the file; tensor data is aligned, and no
//! two tensors overlap; keys and tensor names are unique. Nothing panics on any input, every fault
//! names the byte it was found at, and no allocation is in proportion to a count that has not been
//! compared with the bytes there are: opening costs one pass over the header and memory for keys
//! and tensor entries only.
//!
//! The layout is that of the public GGUF specification: magic, version, tensor count, key count,
//! the key-value pairs, the tensor entries, padding, the data.

mod cursor;
mod mapping;
mod tensor;
mod value;

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use cursor::{Cursor, Fault, text};
pub(crate) use mapping::Mapping;
pub use tensor::{TensorInfo, TensorType};
pub use value::{MetadataValue, ValueType};
use value::{Stored, StoredValue};

use crate::ModelError;

/// Most metadata keys. Known files have some dozens.
const MAX_KEYS: u64 = 1 << 16;
/// Most tensors. The largest known models have some thousands.
const MAX_TENSORS: u64 = 1 << 16;
/// Longest key: the specification's own limit.
const MAX_KEY_BYTES: usize = (1 << 16) - 1;
/// Longest tensor name. The specification says 64; a little more does no harm.
const MAX_NAME_BYTES: usize = 256;
/// Most dimensions of a tensor: the specification's own limit.
const MAX_DIMS: u32 = 4;
/// The data section's alignment when the file names none.
const DEFAULT_ALIGNMENT: u64 = 32;
/// Bytes of the shortest key-value pair (an empty key, a type, one byte) and of the shortest tensor
/// entry (an empty name, no dimension, type, offset).
const MIN_PAIR_BYTES: usize = 8 + 4 + 1;
const MIN_ENTRY_BYTES: usize = 8 + 4 + 4 + 8;

/// An open GGUF file: checked metadata and tensor entries, and the mapped data.
#[derive(Debug)]
pub struct Gguf {
    file: String,
    map: Arc<Mapping>,
    version: u32,
    alignment: usize,
    metadata: BTreeMap<String, Stored>,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
}

/// The raw data of a tensor, with the mapping it lies in.
#[derive(Debug)]
pub(crate) struct KeptData {
    map: Arc<Mapping>,
    range: Range<usize>,
}

impl KeptData {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.map.bytes()[self.range.clone()]
    }
}

impl Gguf {
    /// Maps and checks a file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ModelError> {
        let path = path.as_ref();
        let file = path.display().to_string();
        match Mapping::open(path) {
            Ok(map) => Self::check(file, map),
            Err(source) => Err(ModelError::Open { file, source }),
        }
    }

    /// Checks a copy of `bytes` as if they were a file's.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ModelError> {
        let file = "(bytes in memory)".to_owned();
        match Mapping::copy_of(bytes) {
            Ok(map) => Self::check(file, map),
            Err(source) => Err(ModelError::Open { file, source }),
        }
    }

    fn check(file: String, map: Mapping) -> Result<Self, ModelError> {
        match Header::read(map.bytes()) {
            Ok(header) => {
                let Header { version, alignment, metadata, tensors, by_name } = header;
                let map = Arc::new(map);
                Ok(Self { file, map, version, alignment, metadata, tensors, by_name })
            }
            Err(Fault { offset, reason }) => Err(ModelError::Gguf { file, offset, reason }),
        }
    }

    /// The path as it was given, for messages.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// The format's version: 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The alignment of tensor data, in bytes.
    pub fn alignment(&self) -> usize {
        self.alignment
    }

    /// All keys with their values, in the order of the keys.
    pub fn metadata(&self) -> impl Iterator<Item = (&str, MetadataValue<'_>)> {
        self.metadata.iter().map(|(key, value)| (key.as_str(), value.view(self.map.bytes())))
    }

    /// All tensors, in the order of the file.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor of that name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).map(|&index| &self.tensors[index])
    }

    /// The raw data of one of this file's tensors.
    pub fn tensor_data(&self, tensor: &TensorInfo) -> &[u8] {
        &self.map.bytes()[tensor.data_offset..tensor.data_offset + tensor.data_bytes]
    }

    /// The same for somebody who outlives the file's reader: the file stays mapped.
    pub(crate) fn kept_data(&self, tensor: &TensorInfo) -> KeptData {
        let range = tensor.data_offset..tensor.data_offset + tensor.data_bytes;
        KeptData { map: Arc::clone(&self.map), range }
    }

    /// Gives back the memory of what was read so far; it can be read again.
    pub(crate) fn let_go(&self) {
        self.map.let_go();
    }

    /// A non-negative integer of any integer type; `None` when the key is absent.
    pub fn u64(&self, key: &str) -> Result<Option<u64>, ModelError> {
        self.scalar(key, "a non-negative integer", |value| match value {
            StoredValue::Unsigned(value) => Some(value),
            StoredValue::Signed(value) => u64::try_from(value).ok(),
            _ => None,
        })
    }

    /// An integer that fits 32 bits; `None` when the key is absent.
    pub fn u32(&self, key: &str) -> Result<Option<u32>, ModelError> {
        let Some(value) = self.u64(key)? else { return Ok(None) };
        u32::try_from(value)
            .map(Some)
            .map_err(|_| self.key_fault(key, format!("{value} does not fit 32 bits")))
    }

    /// A number of either float type; `None` when the key is absent.
    pub fn f64(&self, key: &str) -> Result<Option<f64>, ModelError> {
        self.scalar(key, "a float", |value| match value {
            StoredValue::Float(value) => Some(value),
            _ => None,
        })
    }

    /// A boolean; `None` when the key is absent.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, ModelError> {
        self.scalar(key, "a boolean", |value| match value {
            StoredValue::Bool(value) => Some(value),
            _ => None,
        })
    }

    /// A string; `None` when the key is absent.
    pub fn str(&self, key: &str) -> Result<Option<&str>, ModelError> {
        let span = self.scalar(key, "a string", |value| match value {
            StoredValue::String(span) => Some(span),
            _ => None,
        })?;
        let Some(span) = span else { return Ok(None) };
        text(self.map.bytes(), span, &format!("the value of {key:?}"))
            .map(Some)
            .map_err(|fault| self.fault(fault))
    }

    /// Whether the key is present with an array as its value.
    pub fn is_array(&self, key: &str) -> bool {
        matches!(self.metadata.get(key), Some(Stored { value: StoredValue::Array { .. }, .. }))
    }

    /// An array of strings of at most `limit` elements; `None` when the key is absent.
    pub fn strings(&self, key: &str, limit: usize) -> Result<Option<Vec<&str>>, ModelError> {
        let Some((element, len, start)) = self.array(key, limit)? else { return Ok(None) };
        if element != ValueType::String {
            return Err(
                self.key_fault(key, format!("an array of strings is expected, not {element:?}"))
            );
        }
        let bytes = self.map.bytes();
        let mut cursor = Cursor::new(bytes, start);
        let mut strings = Vec::with_capacity(len);
        for index in 0..len {
            let what = format!("element {index} of {key:?}");
            let string = cursor
                .string(value::MAX_STRING_BYTES, &what)
                .and_then(|span| text(bytes, span, &what))
                .map_err(|fault| self.fault(fault))?;
            strings.push(string);
        }
        Ok(Some(strings))
    }

    /// An array of non-negative integers of at most `limit` elements; `None` when the key is absent.
    pub fn integers(&self, key: &str, limit: usize) -> Result<Option<Vec<u64>>, ModelError> {
        let Some((element, len, start)) = self.array(key, limit)? else { return Ok(None) };
        let mut cursor = Cursor::new(self.map.bytes(), start);
        let mut integers = Vec::with_capacity(len);
        for index in 0..len {
            let stored =
                Stored::read_as(element, &mut cursor, 0).map_err(|fault| self.fault(fault))?;
            let integer = match stored.value {
                StoredValue::Unsigned(value) => Some(value),
                StoredValue::Signed(value) => u64::try_from(value).ok(),
                _ => None,
            };
            integers.push(integer.ok_or_else(|| {
                let reason = format!("element {index} of {key:?} is not a non-negative integer");
                self.fault(Fault::new(stored.offset, reason))
            })?);
        }
        Ok(Some(integers))
    }

    fn array(
        &self,
        key: &str,
        limit: usize,
    ) -> Result<Option<(ValueType, usize, usize)>, ModelError> {
        let array = self.scalar(key, "an array", |value| match value {
            StoredValue::Array { element, len, start } => Some((element, len, start)),
            _ => None,
        })?;
        match array {
            Some((_, len, _)) if len > limit => {
                Err(self.key_fault(key, format!("{len} elements; at most {limit} are accepted")))
            }
            array => Ok(array),
        }
    }

    fn scalar<T>(
        &self,
        key: &str,
        expected: &str,
        take: impl Fn(StoredValue) -> Option<T>,
    ) -> Result<Option<T>, ModelError> {
        let Some(stored) = self.metadata.get(key) else { return Ok(None) };
        match take(stored.value) {
            Some(value) => Ok(Some(value)),
            None => Err(self.key_fault(key, format!("{expected} is expected"))),
        }
    }

    /// An error about the value of `key`, at its place in the file.
    pub(crate) fn key_fault(&self, key: &str, reason: impl std::fmt::Display) -> ModelError {
        let offset = self.metadata.get(key).map_or(0, |stored| stored.offset);
        self.fault(Fault::new(offset, format!("metadata {key:?}: {reason}")))
    }

    fn fault(&self, fault: Fault) -> ModelError {
        ModelError::Gguf { file: self.file.clone(), offset: fault.offset, reason: fault.reason }
    }
}

/// What one pass over the header yields.
struct Header {
    version: u32,
    alignment: usize,
    metadata: BTreeMap<String, Stored>,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
}

impl Header {
    fn read(bytes: &[u8]) -> Result<Self, Fault> {
        let mut cursor = Cursor::new(bytes, 0);
        if cursor.array::<4>("the magic \"GGUF\"")? != *b"GGUF" {
            return Err(Fault::new(0, "not a GGUF file: it does not begin with \"GGUF\""));
        }
        let version = cursor.u32("the version")?;
        match version {
            2 | 3 => {}
            // Version 3 allows big-endian files, whose version reads as a huge number here.
            _ if version.swap_bytes() <= 3 => {
                return Err(Fault::new(4, "a big-endian GGUF file; only little-endian is read"));
            }
            _ => {
                return Err(Fault::new(
                    4,
                    format!("GGUF version {version}; versions 2 and 3 are read"),
                ));
            }
        }
        let n_tensors = Self::count(&mut cursor, "tensors", MAX_TENSORS, MIN_ENTRY_BYTES)?;
        let n_keys = Self::count(&mut cursor, "metadata keys", MAX_KEYS, MIN_PAIR_BYTES)?;

        let metadata = Self::read_metadata(&mut cursor, n_keys)?;
        let alignment = Self::alignment(&metadata)?;
        let mut tensors = Vec::new();
        let mut by_name = HashMap::new();
        for index in 0..n_tensors {
            let tensor = Self::read_tensor(&mut cursor, bytes)?;
            if by_name.insert(tensor.name.clone(), index).is_some() {
                let reason = format!("the tensor {:?} is listed twice", tensor.name);
                return Err(Fault::new(tensor.entry_offset, reason));
            }
            tensors.push(tensor);
        }
        // The data section starts at the next multiple of the alignment; cannot overflow, as the
        // cursor is inside a mapped file and the alignment is small.
        let data_start = cursor.offset().next_multiple_of(alignment);
        Self::place(&mut tensors, data_start, alignment, bytes.len())?;
        Ok(Self { version, alignment, metadata, tensors, by_name })
    }

    /// A count from the file's first bytes, believed only when the file has room for that many.
    fn count(
        cursor: &mut Cursor<'_>,
        what: &str,
        limit: u64,
        min_bytes: usize,
    ) -> Result<usize, Fault> {
        let at = cursor.offset();
        let count = cursor.u64(&format!("the number of {what}"))?;
        let room = (cursor.remaining() / min_bytes) as u64;
        if count > limit || count > room {
            return Err(Fault::new(
                at,
                format!(
                    "the file claims {count} {what}; it has room for {room} and at most {limit} \
                     are accepted"
                ),
            ));
        }
        Ok(count as usize)
    }

    fn read_metadata(
        cursor: &mut Cursor<'_>,
        n_keys: usize,
    ) -> Result<BTreeMap<String, Stored>, Fault> {
        let bytes = cursor.whole();
        let mut metadata = BTreeMap::new();
        for _ in 0..n_keys {
            let at = cursor.offset();
            let key = cursor.string(MAX_KEY_BYTES, "a metadata key")?;
            let key = text(bytes, key, "a metadata key")?;
            let value = Stored::read(cursor)?;
            if metadata.insert(key.to_owned(), value).is_some() {
                return Err(Fault::new(at, format!("the metadata key {key:?} is there twice")));
            }
        }
        Ok(metadata)
    }

    fn alignment(metadata: &BTreeMap<String, Stored>) -> Result<usize, Fault> {
        let Some(stored) = metadata.get("general.alignment") else {
            return Ok(DEFAULT_ALIGNMENT as usize);
        };
        match stored.value {
            // A multiple of 8, by the specification, which is also what reading blocks in place
            // needs; a page is more than any file uses.
            StoredValue::Unsigned(value)
                if value.is_power_of_two() && (8..=4096).contains(&value) =>
            {
                Ok(value as usize)
            }
            _ => Err(Fault::new(
                stored.offset,
                "\"general.alignment\" must be a power of two from 8 to 4096",
            )),
        }
    }

    /// Reads one entry; `data_offset` is still relative to the data section.
    fn read_tensor(cursor: &mut Cursor<'_>, bytes: &[u8]) -> Result<TensorInfo, Fault> {
        let entry_offset = cursor.offset();
        let name = cursor.string(MAX_NAME_BYTES, "a tensor name")?;
        let name = text(bytes, name, "a tensor name")?.to_owned();
        let at = cursor.offset();
        let n_dims = cursor.u32("a tensor's number of dimensions")?;
        if n_dims == 0 || n_dims > MAX_DIMS {
            let reason =
                format!("the tensor {name:?} has {n_dims} dimensions; 1 to 4 are accepted");
            return Err(Fault::new(at, reason));
        }
        let mut dims = Vec::with_capacity(n_dims as usize);
        let mut elements = 1_usize;
        for _ in 0..n_dims {
            let at = cursor.offset();
            let dim = cursor.u64("a tensor's dimension")?;
            elements = usize::try_from(dim)
                .ok()
                .filter(|&dim| dim > 0)
                .and_then(|dim| {
                    dims.push(dim);
                    elements.checked_mul(dim)
                })
                .ok_or_else(|| {
                    Fault::new(
                        at,
                        format!("the tensor {name:?} has an impossible dimension, {dim}"),
                    )
                })?;
        }
        let at = cursor.offset();
        let code = cursor.u32("a tensor's type")?;
        let kind = TensorType::from_code(code).ok_or_else(|| {
            Fault::new(at, format!("the tensor {name:?} has the unknown type number {code}"))
        })?;
        if !dims[0].is_multiple_of(kind.block_elements()) {
            let reason = format!(
                "the rows of the tensor {name:?} have {} elements, which is not a multiple of the \
                 {} in a block of {kind}",
                dims[0],
                kind.block_elements()
            );
            return Err(Fault::new(entry_offset, reason));
        }
        let data_bytes =
            (elements / kind.block_elements()).checked_mul(kind.block_bytes()).ok_or_else(
                || Fault::new(entry_offset, format!("the size of the tensor {name:?} overflows")),
            )?;
        let at = cursor.offset();
        let data_offset = cursor.u64("a tensor's data offset")?;
        let data_offset = usize::try_from(data_offset).map_err(|_| {
            Fault::new(at, format!("the tensor {name:?} has an impossible offset, {data_offset}"))
        })?;
        Ok(TensorInfo { name, dims, kind, elements, data_offset, data_bytes, entry_offset })
    }

    /// Turns relative offsets into absolute ones and checks where the data lies.
    fn place(
        tensors: &mut [TensorInfo],
        data_start: usize,
        alignment: usize,
        file_bytes: usize,
    ) -> Result<(), Fault> {
        for tensor in tensors.iter_mut() {
            let TensorInfo { name, data_offset, data_bytes, entry_offset, .. } = tensor;
            if !data_offset.is_multiple_of(alignment) {
                let reason = format!(
                    "the data of the tensor {name:?} is at {data_offset} in the data section, \
                     which is not a multiple of the alignment {alignment}"
                );
                return Err(Fault::new(*entry_offset, reason));
            }
            let start = data_start.checked_add(*data_offset);
            let end = start.and_then(|start| start.checked_add(*data_bytes));
            match (start, end) {
                (Some(start), Some(end)) if end <= file_bytes => *data_offset = start,
                _ => {
                    let reason = format!(
                        "the data of the tensor {name:?} ({data_bytes} bytes at {data_offset} in \
                         the data section, which starts at {data_start}) is not inside the file \
                         of {file_bytes} bytes; was the download cut short?"
                    );
                    return Err(Fault::new(*entry_offset, reason));
                }
            }
        }
        let mut order: Vec<&TensorInfo> = tensors.iter().collect();
        order.sort_by_key(|tensor| tensor.data_offset);
        for pair in order.windows(2) {
            if pair[0].data_offset + pair[0].data_bytes > pair[1].data_offset {
                let reason = format!(
                    "the data of the tensor {:?} overlaps that of {:?}",
                    pair[1].name, pair[0].name
                );
                return Err(Fault::new(pair[1].entry_offset, reason));
            }
        }
        Ok(())
    }
}
