//! A slow validator of the keywords that the general front end knows, for tests.

use serde_json::Value;
use tinyllm_constrain::{Json, SpannedJson, SpannedValue, json_quote};

/// Whether JSON Schema accepts the value, objects closed as the front end closes them.
pub(crate) fn is_valid(root: &Value, schema: &Value, value: &Value) -> bool {
    let Value::Object(keywords) = schema else {
        return schema == &Value::Bool(true);
    };
    let number = |key: &str| schema.get(key).and_then(Value::as_f64);
    let count = |key: &str| schema.get(key).and_then(Value::as_f64).map(|n| n as usize);
    let within = |n: usize, min: &str, max: &str| {
        count(min).is_none_or(|min| n >= min) && count(max).is_none_or(|max| n <= max)
    };
    let branches = |key: &str| {
        let branches = schema[key].as_array().expect("branches");
        branches.iter().filter(|branch| is_valid(root, branch, value)).count()
    };
    keywords.iter().all(|(key, argument)| match key.as_str() {
        "type" => match argument {
            Value::Array(names) => names.iter().any(|name| has_type(value, name)),
            name => has_type(value, name),
        },
        "enum" => argument.as_array().expect("values").iter().any(|option| same(option, value)),
        "const" => same(argument, value),
        "anyOf" => branches("anyOf") > 0,
        "oneOf" => branches("oneOf") == 1,
        "allOf" => branches("allOf") == argument.as_array().expect("branches").len(),
        "$ref" => {
            let path = argument.as_str().expect("a reference").trim_start_matches('#');
            is_valid(root, root.pointer(path).expect("a target"), value)
        }
        _ => true,
    }) && match value {
        Value::String(text) => {
            within(text.chars().count(), "minLength", "maxLength")
                && schema.get("pattern").is_none_or(|pattern| {
                    let pattern = pattern.as_str().expect("a pattern");
                    fancy_regex::Regex::new(pattern)
                        .expect("a pattern")
                        .is_match(text)
                        .expect("a match")
                })
        }
        Value::Number(n) => {
            let n = n.as_f64().expect("a double");
            number("minimum").is_none_or(|bound| n >= bound)
                && number("maximum").is_none_or(|bound| n <= bound)
                && number("exclusiveMinimum").is_none_or(|bound| n > bound)
                && number("exclusiveMaximum").is_none_or(|bound| n < bound)
        }
        Value::Array(items) => {
            within(items.len(), "minItems", "maxItems")
                && schema
                    .get("items")
                    .is_none_or(|schema| items.iter().all(|item| is_valid(root, schema, item)))
        }
        Value::Object(members) => {
            let required = schema.get("required").and_then(Value::as_array);
            let properties = schema.get("properties").and_then(Value::as_object);
            // Only a schema that speaks of objects closes them.
            let closed = properties.is_some()
                || keywords.get("type").is_some_and(|types| has_type(value, types));
            required.is_none_or(|names| {
                names.iter().all(|name| members.contains_key(name.as_str().expect("a name")))
            }) && members.iter().all(|(key, member)| {
                match properties.and_then(|properties| properties.get(key)) {
                    Some(schema) => is_valid(root, schema, member),
                    None => !closed,
                }
            })
        }
        _ => true,
    }
}

fn has_type(value: &Value, name: &Value) -> bool {
    match name.as_str().expect("a type") {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "number" => value.is_number(),
        "integer" => value.as_f64().is_some_and(|n| n.fract() == 0.0),
        "string" => value.is_string(),
        "array" => value.is_array(),
        _ => value.is_object(),
    }
}

fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        (a, b) => a == b,
    }
}

/// Whether the front end's language for the schema holds the text, said value by value: the value
/// is valid, it is spelled in the finite form, and members stand in declared order.
pub(crate) fn canonical(schema: &Value, text: &str) -> bool {
    SpannedJson::parse(text).is_ok_and(|value| {
        value.end == text.len() && value.start == 0 && spelled(schema, &value, text)
    })
}

fn spelled(schema: &Value, value: &SpannedJson, text: &str) -> bool {
    let slice = &text[value.start..value.end];
    let dumps = |value: &Value| Json::parse(&value.to_string()).expect("JSON").dumps();
    if let Some(options) = schema.get("enum") {
        return options.as_array().expect("values").iter().any(|option| dumps(option) == slice);
    }
    if let Some(option) = schema.get("const") {
        return dumps(option) == slice;
    }
    if let Some(branches) = schema.get("anyOf") {
        let branches = branches.as_array().expect("branches");
        return branches.iter().any(|branch| spelled(branch, value, text));
    }
    let Ok(plain) = serde_json::from_str::<Value>(slice) else {
        // A lone surrogate.
        return false;
    };
    let matches = |pattern: &str| {
        fancy_regex::Regex::new(pattern).expect("a pattern").is_match(slice).expect("a match")
    };
    match &value.value {
        SpannedValue::Int(_) | SpannedValue::Float(_) => {
            let fraction = schema.get("type") == Some(&Value::from("number"));
            is_valid(schema, schema, &plain)
                && matches(match (fraction, schema.get("minimum")) {
                    (true, None) => r"^-?(0|[1-9]\d{0,17})(\.\d{1,17})?([eE][+-]?\d{1,2})?$",
                    (true, Some(_)) => r"^-?(0|[1-9]\d{0,17})(\.\d{1,17})?$",
                    (false, _) => r"^-?(0|[1-9]\d{0,17})$",
                })
                // Bounds are held to as decimals, where a validator would round first.
                && (!fraction
                    || ["minimum", "maximum"].iter().all(|key| {
                        let Some(bound) = schema.get(*key) else { return true };
                        let bound = scaled(&format!("{}", bound.as_f64().expect("a double")));
                        let value = scaled(slice);
                        if *key == "minimum" { value >= bound } else { value <= bound }
                    }))
        }
        SpannedValue::Arr(items) => {
            let joined: Vec<&str> = items.iter().map(|item| &text[item.start..item.end]).collect();
            schema.get("type") == Some(&Value::from("array"))
                && is_count(schema, items.len())
                && slice == format!("[{}]", joined.join(","))
                && items.iter().all(|item| spelled(&schema["items"], item, text))
        }
        SpannedValue::Obj { members, repeated } => {
            let Some(properties) = schema.get("properties").and_then(Value::as_object) else {
                return false;
            };
            let joined: Vec<String> = members
                .iter()
                .map(|(key, value)| {
                    format!("{}:{}", json_quote(key), &text[value.start..value.end])
                })
                .collect();
            let places: Vec<Option<usize>> = members
                .iter()
                .map(|(key, _)| properties.keys().position(|property| property == key))
                .collect();
            repeated.is_empty()
                && slice == format!("{{{}}}", joined.join(","))
                && places.iter().all(Option::is_some)
                && places.is_sorted()
                && schema["required"]
                    .as_array()
                    .expect("names")
                    .iter()
                    .all(|name| members.iter().any(|(key, _)| Some(key.as_str()) == name.as_str()))
                && members.iter().all(|(key, value)| spelled(&properties[key], value, text))
        }
        _ => is_valid(schema, schema, &plain),
    }
}

/// A decimal without an exponent, in units of the 17th digit of its fraction.
fn scaled(text: &str) -> i128 {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    format!("{whole}{fraction:0<17}").parse().expect("a decimal")
}

fn is_count(schema: &Value, n: usize) -> bool {
    let bound = |key: &str| schema.get(key).and_then(Value::as_u64);
    bound("minItems").is_none_or(|min| n as u64 >= min)
        && bound("maxItems").is_none_or(|max| n as u64 <= max)
}
