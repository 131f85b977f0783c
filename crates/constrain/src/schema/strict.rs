//! The strict subset: what it accepts, its regex texts, and the same languages as trees.
//!
//! A schema is first read into [`Form`]s, which is where everything outside the subset is
//! refused; the text and the tree are then made of the forms. The text is the definition, and
//! grows as n²/2 in optional members and multiplies per level; the tree is linear and denotes
//! the same language, so automata are built from it.

use super::lexeme::{self, byte, literal};
use super::pointer::Pointer;
use crate::ast::{Member, Node};
use crate::error::ConstrainError;
use crate::json::{Json, json_quote};
use crate::limits::{Limits, REPEAT_MAX};
use crate::python;
use crate::regex::escape;
use rustc_hash::FxHashSet;

/// The regex text of a schema of the strict subset, under the default [`Limits`].
pub fn json_schema_to_regex(schema: &Json) -> Result<String, ConstrainError> {
    json_schema_to_regex_within(schema, &Limits::default())
}

/// The regex text of a schema of the strict subset.
pub fn json_schema_to_regex_within(
    schema: &Json,
    limits: &Limits,
) -> Result<String, ConstrainError> {
    let form = read(schema, limits)?;
    text(&form, limits)
}

/// The same language as [`json_schema_to_regex`]'s text, as a tree.
pub(crate) fn schema_to_node(schema: &Json, limits: &Limits) -> Result<Node, ConstrainError> {
    tree(&read(schema, limits)?)
}

enum Form<'a> {
    String,
    Integer,
    Number,
    Boolean,
    Null,
    /// `enum` or `const`: one of these values.
    Values(Vec<&'a Json>),
    AnyOf(Vec<Form<'a>>),
    Array {
        items: Option<Box<Form<'a>>>,
        min: u64,
        max: Option<u64>,
        pointer: String,
    },
    Object(Vec<Property<'a>>),
}

struct Property<'a> {
    key: &'a str,
    value: Form<'a>,
    required: bool,
}

const IGNORED: [&str; 3] = ["title", "description", "default"];

struct Reader<'l> {
    limits: &'l Limits,
    pointer: Pointer,
    depth: usize,
    nodes: usize,
}

fn read<'a>(schema: &'a Json, limits: &Limits) -> Result<Form<'a>, ConstrainError> {
    Reader { limits, pointer: Pointer::default(), depth: 0, nodes: 0 }.schema(schema)
}

fn refuse<T>(message: impl Into<String>, pointer: &str) -> Result<T, ConstrainError> {
    Err(ConstrainError::Schema { message: message.into(), pointer: pointer.to_owned() })
}

impl Reader<'_> {
    fn refuse<T>(&self, message: impl Into<String>) -> Result<T, ConstrainError> {
        refuse(message, self.pointer.as_str())
    }

    fn below<'a>(&mut self, path: &[&str], schema: &'a Json) -> Result<Form<'a>, ConstrainError> {
        let mark = self.pointer.as_str().len();
        for key in path {
            self.pointer.enter(key);
        }
        let form = self.schema(schema)?;
        self.pointer.leave(mark);
        Ok(form)
    }

    /// Refuses the alphabetically first keyword that is neither ignored nor in `known`.
    fn only(&self, members: &[(String, Json)], known: &[&str]) -> Result<(), ConstrainError> {
        let outside = members
            .iter()
            .map(|(key, _)| key.as_str())
            .filter(|key| !known.contains(key) && !IGNORED.contains(key))
            .min();
        match outside {
            None => Ok(()),
            Some(key) => refuse(
                format!("JSON schema keyword \"{key}\" is not in the subset"),
                &self.pointer.child(key),
            ),
        }
    }

    fn schema<'a>(&mut self, schema: &'a Json) -> Result<Form<'a>, ConstrainError> {
        let Json::Obj(members) = schema else {
            let kind = match schema {
                Json::Null => "NoneType",
                Json::Bool(_) => "bool",
                Json::Int(_) => "int",
                Json::Float(_) => "float",
                Json::Str(_) => "str",
                Json::Arr(_) | Json::Obj(_) => "list",
            };
            return self.refuse(format!("schema must be a dict, got {kind}"));
        };
        self.nodes += 1;
        let limits = self.limits;
        Limits::check(
            "schema_nodes",
            limits.schema_nodes,
            self.nodes,
            self.pointer.as_str(),
            "use fewer subschemas",
        )?;
        self.depth += 1;
        Limits::check(
            "nesting",
            limits.nesting,
            self.depth,
            self.pointer.as_str(),
            "nest the schema less deeply",
        )?;
        let form = self.form(schema, members)?;
        self.depth -= 1;
        Ok(form)
    }

    fn form<'a>(
        &mut self,
        schema: &'a Json,
        members: &'a [(String, Json)],
    ) -> Result<Form<'a>, ConstrainError> {
        if let Some(values) = schema.get("enum") {
            self.only(members, &["enum", "const", "type"])?;
            return match values {
                Json::Arr(values) if !values.is_empty() => {
                    Ok(Form::Values(values.iter().collect()))
                }
                _ => refuse("enum must be a list that is not empty", &self.pointer.child("enum")),
            };
        }
        if let Some(value) = schema.get("const") {
            self.only(members, &["const", "type"])?;
            return Ok(Form::Values(vec![value]));
        }
        if let Some(branches) = schema.get("anyOf") {
            self.only(members, &["anyOf"])?;
            let Json::Arr(branches) = branches else {
                return refuse(
                    "anyOf must be a list that is not empty",
                    &self.pointer.child("anyOf"),
                );
            };
            if branches.is_empty() {
                return refuse(
                    "anyOf must be a list that is not empty",
                    &self.pointer.child("anyOf"),
                );
            }
            let mut forms = Vec::with_capacity(branches.len());
            for (i, branch) in branches.iter().enumerate() {
                forms.push(self.below(&["anyOf", &i.to_string()], branch)?);
            }
            return Ok(Form::AnyOf(forms));
        }
        let scalar = |form| {
            self.only(members, &["type"])?;
            Ok(form)
        };
        match schema.get("type") {
            Some(Json::Str(name)) => match name.as_str() {
                "string" => scalar(Form::String),
                "integer" => scalar(Form::Integer),
                "number" => scalar(Form::Number),
                "boolean" => scalar(Form::Boolean),
                "null" => scalar(Form::Null),
                "array" => self.array(schema, members),
                "object" => self.object(schema, members),
                _ => self.bad_type(schema),
            },
            Some(_) => self.bad_type(schema),
            None => {
                // A keyword that no form knows says more than the missing type.
                self.only(
                    members,
                    &[
                        "items",
                        "minItems",
                        "maxItems",
                        "properties",
                        "required",
                        "additionalProperties",
                    ],
                )?;
                self.bad_type(schema)
            }
        }
    }

    fn bad_type<T>(&self, schema: &Json) -> Result<T, ConstrainError> {
        let (name, pointer) = match schema.get("type") {
            None => ("None".to_owned(), self.pointer.as_str().to_owned()),
            Some(json) => (python::repr(json), self.pointer.child("type")),
        };
        refuse(format!("JSON schema type {name} is not in the subset"), &pointer)
    }

    fn bound(&self, schema: &Json, name: &str) -> Result<Option<u64>, ConstrainError> {
        match schema.get(name) {
            None | Some(Json::Null) => Ok(None),
            Some(Json::Int(digits)) if digits.parse::<u64>().is_ok() => Ok(digits.parse().ok()),
            Some(_) => refuse("bad array bounds", &self.pointer.child(name)),
        }
    }

    fn array<'a>(
        &mut self,
        schema: &'a Json,
        members: &'a [(String, Json)],
    ) -> Result<Form<'a>, ConstrainError> {
        self.only(members, &["type", "items", "minItems", "maxItems"])?;
        let min = self.bound(schema, "minItems")?.unwrap_or(0);
        let max = self.bound(schema, "maxItems")?;
        if max.is_some_and(|max| max < min) {
            return refuse("bad array bounds", &self.pointer.child("maxItems"));
        }
        let pointer = self.pointer.as_str().to_owned();
        // An absent `items` is the empty schema, which has no type; `maxItems` 0 does not save it.
        let nothing = Json::Obj(Vec::new());
        let items = match schema.get("items") {
            Some(items) => self.below(&["items"], items)?,
            None => {
                return Err(self.schema(&nothing).err().unwrap_or(ConstrainError::Schema {
                    message: "JSON schema type None is not in the subset".to_owned(),
                    pointer,
                }));
            }
        };
        let items = (max != Some(0)).then(|| Box::new(items));
        Ok(Form::Array { items, min, max, pointer })
    }

    fn object<'a>(
        &mut self,
        schema: &'a Json,
        members: &'a [(String, Json)],
    ) -> Result<Form<'a>, ConstrainError> {
        self.only(members, &["type", "properties", "required", "additionalProperties"])?;
        if !matches!(schema.get("additionalProperties"), None | Some(Json::Bool(false))) {
            return refuse(
                "additionalProperties must be false (or absent)",
                &self.pointer.child("additionalProperties"),
            );
        }
        let properties: &[(String, Json)] = match schema.get("properties") {
            None => &[],
            Some(Json::Obj(properties)) => properties,
            Some(_) => {
                return refuse("properties must be an object", &self.pointer.child("properties"));
            }
        };
        let names = match schema.get("required") {
            None => Vec::new(),
            Some(Json::Arr(names)) => names
                .iter()
                .filter_map(|name| match name {
                    Json::Str(name) => Some(name.as_str()),
                    _ => None,
                })
                .collect(),
            Some(_) => {
                return refuse(
                    "required must be a list of strings",
                    &self.pointer.child("required"),
                );
            }
        };
        if let Some(Json::Arr(all)) = schema.get("required")
            && all.len() != names.len()
        {
            return refuse("required must be a list of strings", &self.pointer.child("required"));
        }
        let known: FxHashSet<&str> = properties.iter().map(|(key, _)| key.as_str()).collect();
        let unknown: Vec<&str> =
            names.iter().copied().filter(|name| !known.contains(name)).collect();
        if !unknown.is_empty() {
            return refuse(
                format!("required names unknown properties {}", python::repr_list(&unknown)),
                &self.pointer.child("required"),
            );
        }
        let required: FxHashSet<&str> = names.into_iter().collect();
        let mut forms = Vec::with_capacity(properties.len());
        for (key, value) in properties {
            let value = self.below(&["properties", key], value)?;
            forms.push(Property { key, value, required: required.contains(key.as_str()) });
        }
        Ok(Form::Object(forms))
    }
}

fn join(parts: &[&str], limits: &Limits) -> Result<String, ConstrainError> {
    let length = parts.iter().map(|part| part.len()).sum();
    Limits::check(
        "pattern_bytes",
        limits.pattern_bytes,
        length,
        "",
        "the regex text of a schema grows with the square of its optional members and multiplies \
         per level; require more members, or compile the schema itself and not its text",
    )?;
    Ok(parts.concat())
}

fn text(form: &Form, limits: &Limits) -> Result<String, ConstrainError> {
    Ok(match form {
        Form::String => lexeme::STRING.to_owned(),
        Form::Integer => lexeme::INTEGER.to_owned(),
        Form::Number => lexeme::NUMBER.to_owned(),
        Form::Boolean => lexeme::BOOLEAN.to_owned(),
        Form::Null => lexeme::NULL.to_owned(),
        Form::Values(values) => {
            let values: Vec<String> = values.iter().map(|value| escape(&value.dumps())).collect();
            join(&["(?:", &values.join("|"), ")"], limits)?
        }
        Form::AnyOf(branches) => {
            let branches: Vec<String> =
                branches.iter().map(|branch| text(branch, limits)).collect::<Result<_, _>>()?;
            join(&["(?:", &branches.join("|"), ")"], limits)?
        }
        Form::Array { items: None, .. } => r"\[\]".to_owned(),
        Form::Array { items: Some(items), min, max, .. } => {
            let item = text(items, limits)?;
            let low = min.saturating_sub(1).to_string();
            let high = max.map(|max| (max - 1).to_string()).unwrap_or_default();
            let many = join(&[&item, "(?:,", &item, "){", &low, ",", &high, "}"], limits)?;
            if *min == 0 {
                join(&[r"\[(?:", &many, r")?\]"], limits)?
            } else {
                join(&[r"\[", &many, r"\]"], limits)?
            }
        }
        Form::Object(properties) => {
            let mut first = String::new();
            let mut after = String::new();
            for property in properties.iter().rev() {
                let value = text(&property.value, limits)?;
                let member = join(&[&escape(&json_quote(property.key)), ":", &value], limits)?;
                if property.required {
                    first = join(&[&member, &after], limits)?;
                    after = join(&[",", &member, &after], limits)?;
                } else {
                    first = join(&["(?:", &member, &after, "|", &first, ")"], limits)?;
                    after = join(&["(?:,", &member, ")?", &after], limits)?;
                }
            }
            join(&[r"\{", &first, r"\}"], limits)?
        }
    })
}

/// A count of the tree, held to what the text's quantifiers allow.
fn count(value: u64, pointer: &str) -> Result<u32, ConstrainError> {
    u32::try_from(value).ok().filter(|count| *count <= REPEAT_MAX).map_or_else(
        || {
            refuse(
                format!("array bounds above {} are not in the subset", u64::from(REPEAT_MAX) + 1),
                pointer,
            )
        },
        Ok,
    )
}

fn tree(form: &Form) -> Result<Node, ConstrainError> {
    Ok(match form {
        Form::String => lexeme::string(false),
        Form::Integer => lexeme::integer(false),
        Form::Number => lexeme::number(false),
        Form::Boolean => lexeme::boolean(),
        Form::Null => literal(lexeme::NULL),
        Form::Values(values) => {
            Node::Alt(values.iter().map(|value| literal(&value.dumps())).collect())
        }
        Form::AnyOf(branches) => Node::Alt(branches.iter().map(tree).collect::<Result<_, _>>()?),
        Form::Array { items: None, .. } => literal("[]"),
        Form::Array { items: Some(items), min, max, pointer } => {
            let item = tree(items)?;
            let low = count(min.saturating_sub(1), pointer)?;
            let high = max.map(|max| count(max - 1, pointer)).transpose()?;
            let min = low + u32::from(*min > 0);
            let items = Node::Separated {
                node: Box::new(item),
                separator: Box::new(byte(b',')),
                min,
                max: high.map(|high| high + 1),
            };
            Node::Concat(vec![byte(b'['), items, byte(b']')])
        }
        Form::Object(properties) => {
            let mut members = Vec::with_capacity(properties.len());
            for property in properties {
                let key = literal(&(json_quote(property.key) + ":"));
                let node = Node::Concat(vec![key, tree(&property.value)?]);
                members.push(Member { node, required: property.required });
            }
            Node::Members {
                open: Box::new(byte(b'{')),
                members,
                separator: Box::new(byte(b',')),
                close: Box::new(byte(b'}')),
            }
        }
    })
}
