//! Schemas and the documents that go with them.

use serde_json::{Map, Value};
use std::io::{BufRead, BufReader, Error, Result};
use std::path::Path;
use std::process::{Command, Stdio};

/// A schema and its valid documents, as compact JSON with keys in the schema's order.
pub struct Case {
    pub name: String,
    pub schema: Value,
    pub documents: Vec<String>,
}

/// Reads JSON lines `{name, schema, tests: [{valid, data}]}`, through `xz` when the name says so.
pub fn read(path: &Path, most: usize) -> Result<Vec<Case>> {
    let reader: Box<dyn BufRead> = if path.extension().is_some_and(|e| e == "xz") {
        let child = Command::new("xz").arg("-dc").arg(path).stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.ok_or_else(|| Error::other("xz has no output"))?;
        Box::new(BufReader::new(output))
    } else {
        Box::new(BufReader::new(std::fs::File::open(path)?))
    };
    let mut cases = Vec::new();
    for line in reader.lines().take(most) {
        let mut entry: Value = serde_json::from_str(&line?)?;
        let schema = entry["schema"].take();
        let tests = entry["tests"].as_array().into_iter().flatten();
        let valid = tests.filter(|test| test["valid"] == Value::Bool(true));
        let documents = valid.map(|test| ordered(&test["data"], &schema).to_string()).collect();
        cases.push(Case {
            name: entry["name"].as_str().unwrap_or_default().into(),
            schema,
            documents,
        });
    }
    Ok(cases)
}

/// The value with keys in the order of the schema's `properties`, where those are in plain sight.
fn ordered(value: &Value, schema: &Value) -> Value {
    match value {
        Value::Object(members) => {
            let empty = Map::new();
            let properties = schema["properties"].as_object().unwrap_or(&empty);
            let declared = properties
                .iter()
                .filter_map(|(key, inner)| Some((key.clone(), ordered(members.get(key)?, inner))));
            let others = members.iter().filter(|(key, _)| !properties.contains_key(*key));
            let others = others.map(|(key, value)| (key.clone(), value.clone()));
            Value::Object(declared.chain(others).collect())
        }
        Value::Array(items) => {
            Value::Array(items.iter().map(|item| ordered(item, &schema["items"])).collect())
        }
        scalar => scalar.clone(),
    }
}
