//! JSON on its way into a template: read by the project's one reader, handed over as the values the
//! template engine takes, key order kept.

use serde_json::{Map, Number, Value};
use tinyllm_constrain::Json;

use crate::error::EngineError;

/// Reads a JSON text.
pub(crate) fn read(text: &str) -> Result<Value, EngineError> {
    Ok(value(Json::parse(text)?))
}

// Recursion is bounded by the reader's depth.
fn value(json: Json) -> Value {
    match json {
        Json::Null => Value::Null,
        Json::Bool(b) => Value::Bool(b),
        // Integers beyond 64 bits have no place in the template engine; they become doubles, as in
        // JavaScript.
        Json::Int(digits) => digits
            .parse::<i64>()
            .map(Number::from)
            .or_else(|_| digits.parse::<u64>().map(Number::from))
            .map_or_else(|_| float(digits.parse().unwrap_or(f64::INFINITY)), Value::Number),
        Json::Float(x) => float(x),
        Json::Str(s) => Value::String(s),
        Json::Arr(items) => Value::Array(items.into_iter().map(value).collect()),
        Json::Obj(members) => {
            Value::Object(members.into_iter().map(|(k, v)| (k, value(v))).collect::<Map<_, _>>())
        }
    }
}

fn float(x: f64) -> Value {
    Number::from_f64(x).map_or(Value::Null, Value::Number)
}
