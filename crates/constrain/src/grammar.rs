//! The description of a grammar: a tagged union of plain values.
//!
//! This is the form in which a grammar crosses the language border, as JSON text. It is data,
//! never pattern text put together by a caller, and it keeps the texts it was given (a schema
//! stays the schema's text, because the order of its keys is part of the language).

use crate::error::ConstrainError;
use crate::json::Json;

/// What an output must look like.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Grammar {
    /// `{"type":"regex","pattern":…}`: the strict regex subset, matching the whole output.
    Regex(String),
    /// `{"type":"choice","choices":[…]}`: one of these texts.
    Choice(Vec<String>),
    /// `{"type":"schema","schema":"<JSON text>",…}`: a JSON value under a schema.
    Schema {
        /// The schema's JSON text.
        text: String,
        /// `"subset"`: which front end reads it; general when absent.
        subset: Subset,
        /// `"whitespace"`: compact when absent.
        whitespace: Whitespace,
        /// `"maxStringLength"`: bounds every string value, in characters. Keys and the values of
        /// `enum` and `const` are the schema's own text and stay as they are.
        max_string_length: Option<u32>,
    },
    /// `{"type":"json_object","depth":3,"finite":true}`: any object, nested at most that deep.
    JsonObject {
        /// Levels of objects and arrays; 0 counts as 1. 3 when absent.
        depth: u32,
        /// Whether numbers must fit a double and `\u` surrogates must pair. True when absent.
        finite: bool,
    },
    /// `{"type":"literal","text":…}`: exactly this text.
    Literal(String),
    /// `{"type":"sequence","items":[…]}`: one after the other.
    Sequence(Vec<Grammar>),
    /// `{"type":"repeat","item":…,"separator":"\n","min":1,"max":4}`
    Repeat {
        /// What is repeated.
        item: Box<Grammar>,
        /// Text between two items; empty when absent.
        separator: String,
        /// Fewest items; 0 when absent.
        min: u32,
        /// Most items; no bound when absent.
        max: Option<u32>,
    },
    /// `{"type":"alternative","options":[…]}`: any one of these.
    Alternative(Vec<Grammar>),
    /// `{"type":"trigger","trigger":"<tool_call>","body":…}`: free text, until the trigger has
    /// been written; from there on the body.
    Trigger {
        /// The text that ends the freedom.
        trigger: String,
        /// What must follow the trigger.
        body: Box<Grammar>,
    },
}

/// The schema front ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Subset {
    /// The strict subset, defined by its regex texts.
    Strict,
    /// The general front end, in the finite form.
    #[default]
    General,
}

/// White space in JSON output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Whitespace {
    /// None.
    #[default]
    Compact,
    /// At most one space after each `:` and `,`.
    Flexible,
}

impl Grammar {
    /// Reads a description; unknown fields are refused.
    pub fn from_json(text: &str) -> Result<Self, ConstrainError> {
        Self::read(&Json::parse(text)?, "")
    }

    // Recursion is bounded by the JSON reader's depth.
    fn read(json: &Json, pointer: &str) -> Result<Self, ConstrainError> {
        let fields = Fields { json, pointer };
        let tag = fields.text("type")?;
        let (grammar, known): (Self, &[&str]) = match tag.as_str() {
            "regex" => (Self::Regex(fields.text("pattern")?), &["pattern"]),
            "choice" => {
                let choices = fields.list("choices", |item, at| match item {
                    Json::Str(s) => Ok(s.clone()),
                    _ => Err(refuse("expected a string", at)),
                })?;
                (Self::Choice(choices), &["choices"])
            }
            "schema" => {
                let subset = match fields.name("subset")?.as_deref() {
                    None | Some("general") => Subset::General,
                    Some("strict") => Subset::Strict,
                    Some(_) => return Err(fields.refuse("subset", "\"strict\" or \"general\"")),
                };
                let whitespace = match fields.name("whitespace")?.as_deref() {
                    None | Some("compact") => Whitespace::Compact,
                    Some("flexible") => Whitespace::Flexible,
                    Some(_) => {
                        return Err(fields.refuse("whitespace", "\"compact\" or \"flexible\""));
                    }
                };
                let max_string_length = fields.count("maxStringLength")?;
                // The strict subset is defined byte for byte; nothing varies it.
                if subset == Subset::Strict && whitespace != Whitespace::Compact {
                    return Err(fields.refuse("whitespace", "\"compact\" in the strict subset"));
                }
                if subset == Subset::Strict && max_string_length.is_some() {
                    return Err(fields.refuse("maxStringLength", "no bound in the strict subset"));
                }
                let text = fields.text("schema")?;
                (
                    Self::Schema { text, subset, whitespace, max_string_length },
                    &["schema", "subset", "whitespace", "maxStringLength"],
                )
            }
            "json_object" => {
                let finite = match json.get("finite") {
                    None => true,
                    Some(Json::Bool(b)) => *b,
                    Some(_) => return Err(fields.refuse("finite", "true or false")),
                };
                let depth = fields.count("depth")?.unwrap_or(3);
                (Self::JsonObject { depth, finite }, &["depth", "finite"])
            }
            "literal" => (Self::Literal(fields.text("text")?), &["text"]),
            "sequence" => (Self::Sequence(fields.list("items", Self::read)?), &["items"]),
            "alternative" => (Self::Alternative(fields.list("options", Self::read)?), &["options"]),
            "repeat" => {
                let min = fields.count("min")?.unwrap_or(0);
                let max = fields.count("max")?;
                if max.is_some_and(|max| max < min) {
                    return Err(fields.refuse("max", "a count that is not below \"min\""));
                }
                (
                    Self::Repeat {
                        item: Box::new(fields.inner("item")?),
                        separator: fields.name("separator")?.unwrap_or_default(),
                        min,
                        max,
                    },
                    &["item", "separator", "min", "max"],
                )
            }
            "trigger" => {
                let trigger = fields.text("trigger")?;
                if trigger.is_empty() {
                    return Err(fields.refuse("trigger", "a text that is not empty"));
                }
                let body = Box::new(fields.inner("body")?);
                (Self::Trigger { trigger, body }, &["trigger", "body"])
            }
            other => {
                return Err(refuse(
                    &format!("unknown type \"{other}\""),
                    &format!("{pointer}/type"),
                ));
            }
        };
        if let Json::Obj(members) = json
            && let Some((key, _)) =
                members.iter().find(|(k, _)| k != "type" && !known.contains(&k.as_str()))
        {
            return Err(refuse(&format!("unknown field \"{key}\" of type \"{tag}\""), pointer));
        }
        Ok(grammar)
    }
}

fn refuse(message: &str, pointer: &str) -> ConstrainError {
    ConstrainError::Grammar { message: message.to_owned(), pointer: pointer.to_owned() }
}

struct Fields<'a> {
    json: &'a Json,
    pointer: &'a str,
}

impl Fields<'_> {
    fn at(&self, name: &str) -> String {
        format!("{}/{name}", self.pointer)
    }

    fn refuse(&self, name: &str, expected: &str) -> ConstrainError {
        refuse(&format!("expected {expected}"), &self.at(name))
    }

    fn name(&self, name: &str) -> Result<Option<String>, ConstrainError> {
        match self.json.get(name) {
            None => Ok(None),
            Some(Json::Str(s)) => Ok(Some(s.clone())),
            Some(_) => Err(self.refuse(name, "a string")),
        }
    }

    fn text(&self, name: &str) -> Result<String, ConstrainError> {
        self.name(name)?.ok_or_else(|| self.refuse(name, "a string"))
    }

    fn count(&self, name: &str) -> Result<Option<u32>, ConstrainError> {
        match self.json.get(name) {
            None | Some(Json::Null) => Ok(None),
            Some(Json::Int(digits)) => digits
                .parse()
                .map(Some)
                .map_err(|_| self.refuse(name, "a count from 0 to 4294967295")),
            Some(_) => Err(self.refuse(name, "a count")),
        }
    }

    fn inner(&self, name: &str) -> Result<Grammar, ConstrainError> {
        let json = self.json.get(name).ok_or_else(|| self.refuse(name, "a description"))?;
        Grammar::read(json, &self.at(name))
    }

    fn list<T>(
        &self,
        name: &str,
        read: impl Fn(&Json, &str) -> Result<T, ConstrainError>,
    ) -> Result<Vec<T>, ConstrainError> {
        let Some(Json::Arr(items)) = self.json.get(name) else {
            return Err(self.refuse(name, "a list"));
        };
        if items.is_empty() {
            return Err(self.refuse(name, "a list that is not empty"));
        }
        items
            .iter()
            .enumerate()
            .map(|(i, item)| read(item, &format!("{}/{name}/{i}", self.pointer)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_read_back() {
        let text = r#"{"type":"sequence","items":[{"type":"literal","text":"a"},
            {"type":"repeat","item":{"type":"choice","choices":["x","y"]},"separator":"\n","min":1,"max":4},
            {"type":"trigger","trigger":"<t>","body":{"type":"json_object"}}]}"#;
        let Grammar::Sequence(items) = Grammar::from_json(text).unwrap() else {
            panic!("a sequence")
        };
        assert_eq!(items[0], Grammar::Literal("a".into()));
        assert!(
            matches!(&items[1], Grammar::Repeat { separator, min: 1, max: Some(4), .. } if separator == "\n")
        );
        assert!(matches!(&items[2], Grammar::Trigger { body, .. }
            if **body == Grammar::JsonObject { depth: 3, finite: true }));
    }

    #[test]
    fn malformed_descriptions_name_the_place() {
        for (text, pointer) in [
            (r"{}", "/type"),
            (r#"{"type":"regexp"}"#, "/type"),
            (r#"{"type":"regex"}"#, "/pattern"),
            (r#"{"type":"regex","pattern":"a","flags":"i"}"#, ""),
            (r#"{"type":"sequence","items":[{"type":"literal","text":1}]}"#, "/items/0/text"),
            (r#"{"type":"choice","choices":[]}"#, "/choices"),
            (r#"{"type":"repeat","item":{"type":"literal","text":"a"},"min":2,"max":1}"#, "/max"),
            (r#"{"type":"schema","schema":"{}","subset":"full"}"#, "/subset"),
        ] {
            let error = Grammar::from_json(text).expect_err(text);
            assert_eq!(
                (error.code(), error.pointer()),
                ("ERR_TINYLLM_GRAMMAR", Some(pointer)),
                "{text}"
            );
        }
    }
}
