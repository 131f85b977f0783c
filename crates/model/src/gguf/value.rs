//! Metadata values. Scalars are copied out of the file; strings and arrays stay where they are and
//! are remembered as checked ranges, so that opening a file allocates a few bytes per key however
//! large its arrays claim to be.

use super::cursor::{Cursor, Fault, Span};

/// Longest string accepted. Chat templates reach some tens of KiB; a tokenizer serialised as JSON
/// into one value, as some converters do, reaches some tens of MiB.
pub(crate) const MAX_STRING_BYTES: usize = 256 << 20;
/// Most elements of one array. The largest known are merge lists of some 500,000.
pub(crate) const MAX_ARRAY_LEN: u64 = 1 << 26;
/// Arrays in arrays in arrays. The format allows any depth and no known file uses two.
const MAX_ARRAY_DEPTH: u32 = 4;

/// The type of a metadata value, as numbered by the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // the names are the format's own
pub enum ValueType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    String,
    Array,
    U64,
    I64,
    F64,
}

impl ValueType {
    fn from_code(code: u32) -> Option<Self> {
        Some(match code {
            0 => Self::U8,
            1 => Self::I8,
            2 => Self::U16,
            3 => Self::I16,
            4 => Self::U32,
            5 => Self::I32,
            6 => Self::F32,
            7 => Self::Bool,
            8 => Self::String,
            9 => Self::Array,
            10 => Self::U64,
            11 => Self::I64,
            12 => Self::F64,
            _ => return None,
        })
    }

    /// Bytes of one value in the file; for strings and arrays, of the shortest one.
    fn min_bytes(self) -> usize {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 | Self::String => 8,
            Self::Array => 12,
        }
    }

    fn read(cursor: &mut Cursor<'_>) -> Result<Self, Fault> {
        let at = cursor.offset();
        let code = cursor.u32("a value type")?;
        Self::from_code(code)
            .ok_or_else(|| Fault::new(at, format!("unknown metadata value type {code}")))
    }
}

/// A metadata value with its place in the file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stored {
    pub(crate) offset: usize,
    pub(crate) value: StoredValue,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum StoredValue {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    String(Span),
    Array { element: ValueType, len: usize, start: usize },
}

/// A metadata value as a reader sees it.
#[derive(Debug, Clone, PartialEq)]
pub enum MetadataValue<'a> {
    /// Any of the unsigned integer types.
    Unsigned(u64),
    /// Any of the signed integer types.
    Signed(i64),
    /// Either of the float types.
    Float(f64),
    /// A boolean.
    Bool(bool),
    /// A string; bytes that are not UTF-8 are shown as U+FFFD.
    String(std::borrow::Cow<'a, str>),
    /// An array, described and not copied.
    Array {
        /// The type of its elements.
        element: ValueType,
        /// How many there are.
        len: usize,
    },
}

impl Stored {
    /// Reads a type and a value of it, and moves past it.
    pub(crate) fn read(cursor: &mut Cursor<'_>) -> Result<Self, Fault> {
        let kind = ValueType::read(cursor)?;
        Self::read_as(kind, cursor, 0)
    }

    /// Reads a value of a known type.
    pub(crate) fn read_as(
        kind: ValueType,
        cursor: &mut Cursor<'_>,
        depth: u32,
    ) -> Result<Self, Fault> {
        let offset = cursor.offset();
        let what = "a metadata value";
        let value = match kind {
            ValueType::U8 => StoredValue::Unsigned(cursor.array::<1>(what)?[0].into()),
            ValueType::I8 => StoredValue::Signed(i8::from_le_bytes(cursor.array(what)?).into()),
            ValueType::U16 => StoredValue::Unsigned(u16::from_le_bytes(cursor.array(what)?).into()),
            ValueType::I16 => StoredValue::Signed(i16::from_le_bytes(cursor.array(what)?).into()),
            ValueType::U32 => StoredValue::Unsigned(cursor.u32(what)?.into()),
            ValueType::I32 => StoredValue::Signed(i32::from_le_bytes(cursor.array(what)?).into()),
            ValueType::U64 => StoredValue::Unsigned(cursor.u64(what)?),
            ValueType::I64 => StoredValue::Signed(i64::from_le_bytes(cursor.array(what)?)),
            ValueType::F32 => StoredValue::Float(f32::from_le_bytes(cursor.array(what)?).into()),
            ValueType::F64 => StoredValue::Float(f64::from_le_bytes(cursor.array(what)?)),
            ValueType::Bool => match cursor.array::<1>(what)?[0] {
                0 => StoredValue::Bool(false),
                1 => StoredValue::Bool(true),
                byte => {
                    return Err(Fault::new(offset, format!("a boolean is 0 or 1, not {byte}")));
                }
            },
            ValueType::String => StoredValue::String(cursor.string(MAX_STRING_BYTES, what)?),
            ValueType::Array => Self::read_array(cursor, depth)?,
        };
        Ok(Self { offset, value })
    }

    fn read_array(cursor: &mut Cursor<'_>, depth: u32) -> Result<StoredValue, Fault> {
        let offset = cursor.offset();
        if depth >= MAX_ARRAY_DEPTH {
            return Err(Fault::new(
                offset,
                format!("arrays nest more than {MAX_ARRAY_DEPTH} deep"),
            ));
        }
        let element = ValueType::read(cursor)?;
        let len = cursor.u64("an array's length")?;
        // Before any work in proportion to it: a count is believed only when the file is long
        // enough to hold that many of the shortest elements.
        let room = cursor.remaining() / element.min_bytes();
        if len > MAX_ARRAY_LEN || len > room as u64 {
            return Err(Fault::new(
                offset,
                format!(
                    "an array claims {len} elements; the rest of the file has room for {room} and \
                     at most {MAX_ARRAY_LEN} are accepted"
                ),
            ));
        }
        let (len, start) = (len as usize, cursor.offset());
        match element {
            // Booleans and variable-length elements are walked, so that later readers need not
            // expect faults; a walk costs as much as the bytes it passes.
            ValueType::String | ValueType::Array | ValueType::Bool => {
                for _ in 0..len {
                    Self::read_as(element, cursor, depth + 1)?;
                }
            }
            fixed => {
                cursor.take(len * fixed.min_bytes(), "an array")?;
            }
        }
        Ok(StoredValue::Array { element, len, start })
    }

    pub(crate) fn view<'a>(&self, bytes: &'a [u8]) -> MetadataValue<'a> {
        match self.value {
            StoredValue::Unsigned(value) => MetadataValue::Unsigned(value),
            StoredValue::Signed(value) => MetadataValue::Signed(value),
            StoredValue::Float(value) => MetadataValue::Float(value),
            StoredValue::Bool(value) => MetadataValue::Bool(value),
            StoredValue::String(span) => {
                MetadataValue::String(String::from_utf8_lossy(span.of(bytes)))
            }
            StoredValue::Array { element, len, .. } => MetadataValue::Array { element, len },
        }
    }
}
