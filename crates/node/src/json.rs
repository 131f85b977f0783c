//! The project's JSON reader and printer, for TypeScript.
//!
//! A value crosses as flat arrays, which cost one call for any text. `nodes` has four numbers per
//! value, depth first: kind (0 null, 1 bool, 2 int, 3 float, 4 string, 5 array, 6 object), start and
//! end in UTF-16 units, and one more: the bool, an index into `strings` or `floats`, the number of
//! items, the number of members. An object has a second group of four: two zeroes, the number of
//! its repeated keys, and the index of its first key; keys and then repeated keys stand in a row.

use napi::bindgen_prelude::{Float64Array, Uint32Array};
use napi_derive::napi;
use tinyllm_constrain::{ConstrainError, Json, SpannedJson, SpannedValue};

use crate::outcome::{NativeFailure, TextOutcome, outcomes};

/// See the module's documentation.
#[napi(object, object_from_js = false)]
pub struct NativeJson {
    pub nodes: Uint32Array,
    pub strings: Vec<String>,
    pub floats: Float64Array,
}

outcomes! {
    JsonOutcome(NativeJson);
}

/// Reads a JSON text.
#[napi(catch_unwind)]
pub fn parse_json(text: String) -> JsonOutcome {
    let units = Utf16Offsets::new(&text);
    match SpannedJson::parse(&text) {
        Ok(value) => {
            let mut flat =
                Flat { units, nodes: Vec::new(), strings: Vec::new(), floats: Vec::new() };
            flat.add(value);
            let json = NativeJson {
                nodes: Uint32Array::new(flat.nodes),
                strings: flat.strings,
                floats: Float64Array::new(flat.floats),
            };
            Ok::<_, ConstrainError>(json).into()
        }
        Err(error) => {
            let position = error.position().map(|byte| units.at(byte));
            let mut failure = NativeFailure::from(error);
            if let Some(details) = &mut failure.details {
                details.position = position;
            }
            JsonOutcome { ok: None, failure: Some(failure) }
        }
    }
}

/// Prints a JSON text compactly, as Python would.
#[napi(catch_unwind)]
pub fn dump_json(text: String) -> TextOutcome {
    Json::parse(&text).map(|json| json.dumps()).into()
}

struct Flat<'a> {
    units: Utf16Offsets<'a>,
    nodes: Vec<u32>,
    strings: Vec<String>,
    floats: Vec<f64>,
}

impl Flat<'_> {
    fn string(&mut self, s: String) -> u32 {
        self.strings.push(s);
        (self.strings.len() - 1) as u32
    }

    // Recursion is bounded by the reader's depth.
    fn add(&mut self, SpannedJson { start, end, value }: SpannedJson) {
        let (start, end) = (self.units.at(start), self.units.at(end));
        let mut node = |kind, extra| self.nodes.extend([kind, start, end, extra]);
        match value {
            SpannedValue::Null => node(0, 0),
            SpannedValue::Bool(b) => node(1, u32::from(b)),
            SpannedValue::Int(digits) => {
                node(2, self.strings.len() as u32);
                self.string(digits);
            }
            SpannedValue::Float(x) => {
                node(3, self.floats.len() as u32);
                self.floats.push(x);
            }
            SpannedValue::Str(s) => {
                node(4, self.strings.len() as u32);
                self.string(s);
            }
            SpannedValue::Arr(items) => {
                node(5, items.len() as u32);
                for item in items {
                    self.add(item);
                }
            }
            SpannedValue::Obj { members, repeated } => {
                node(6, members.len() as u32);
                self.nodes.extend([0, 0, repeated.len() as u32, self.strings.len() as u32]);
                let (keys, values): (Vec<_>, Vec<_>) = members.into_iter().unzip();
                self.strings.extend(keys);
                self.strings.extend(repeated);
                for value in values {
                    self.add(value);
                }
            }
        }
    }
}

/// Byte offsets to UTF-16 offsets: counts at every 64th byte, the rest counted on demand.
struct Utf16Offsets<'a> {
    bytes: &'a [u8],
    /// UTF-16 units before byte `64 * i`; empty for ASCII.
    before: Vec<u32>,
}

const STRIDE: usize = 64;

/// Units that begin at each of these bytes: two at the first byte of a surrogate pair's character.
fn units(bytes: &[u8]) -> u32 {
    bytes.iter().map(|b| u32::from(b & 0xc0 != 0x80) + u32::from(*b >= 0xf0)).sum()
}

impl<'a> Utf16Offsets<'a> {
    fn new(text: &'a str) -> Self {
        let bytes = text.as_bytes();
        let mut before = Vec::new();
        if !text.is_ascii() {
            let mut count = 0;
            for block in bytes.chunks(STRIDE) {
                before.push(count);
                count += units(block);
            }
        }
        Self { bytes, before }
    }

    fn at(&self, byte: usize) -> u32 {
        let byte = byte.min(self.bytes.len());
        if self.before.is_empty() {
            return byte as u32;
        }
        let block = (byte / STRIDE).min(self.before.len() - 1);
        self.before[block] + units(&self.bytes[block * STRIDE..byte])
    }
}
