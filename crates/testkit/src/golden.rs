//! The golden files of `fixtures/golden`, and the shapes they share. A missing or malformed file
//! fails the test that reads it.

use serde_json::Value;
use std::path::Path;

/// A golden file as JSON.
pub fn read(file: &str) -> Value {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/golden");
    let path = folder.join(file);
    let text = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_slice(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The cases of one model in `logits.json`.
pub fn logits(model: &str) -> Vec<Value> {
    read("logits.json")["models"][model].as_array().expect("a list of cases").clone()
}

/// A list of token ids.
pub fn ids(value: &Value) -> Vec<u32> {
    let list = value.as_array().expect("a list of ids").iter();
    list.map(|id| id.as_u64().expect("an id") as u32).collect()
}

/// A list of numbers.
pub fn floats(value: &Value) -> Vec<f64> {
    let list = value.as_array().expect("a list of numbers").iter();
    list.map(|float| float.as_f64().expect("a number")).collect()
}

/// Bytes written as pairs of hexadecimal digits.
pub fn unhex(text: &str) -> Vec<u8> {
    let byte = |i| u8::from_str_radix(&text[i..i + 2], 16).expect("two hexadecimal digits");
    (0..text.len()).step_by(2).map(byte).collect()
}

/// The vocabulary and the end token of `constrain.json`.
pub fn vocabulary(golden: &Value) -> (Vec<Option<Vec<u8>>>, Option<u32>) {
    let tokens = golden["vocab"].as_array().expect("a list of tokens");
    (
        tokens.iter().map(|t| t.as_str().map(unhex)).collect(),
        golden["eos_id"].as_u64().map(|e| e as u32),
    )
}
