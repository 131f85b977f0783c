//! The general front end: JSON Schema as people and their libraries write it.
//!
//! What it takes it enforces exactly or by a part: every output validates. It is narrower than
//! JSON Schema in these ways, and in no others:
//! - an object without `additionalProperties` is closed, and members come in declared order;
//! - a schema without `type` means the types that its keywords speak of;
//! - numbers are in the finite form (18 digits; 17 of a fraction; 2 of an exponent), `\u`
//!   surrogates pair, keys and constants are spelled as compact printing spells them;
//! - a number with bounds has no exponent; a `format` is asserted, by a usual part of its form;
//! - white space is none, or at most one space after `:` and `,`.
//!
//! Whatever it cannot enforce it refuses, with the JSON pointer, the keyword and a remedy. Trees
//! are built directly; their size is linear in the schema with its references written out, which
//! [`Limits::schema_nodes`] and [`Limits::nfa_states`] bound.

mod keywords;
mod numbers;
mod objects;
mod strings;

use crate::ast::Node;
use crate::error::ConstrainError;
use crate::grammar::Whitespace;
use crate::json::Json;
use crate::limits::Limits;
use crate::schema::disjoint::{Fuel, Outline};
use crate::schema::formats;
use crate::schema::lexeme::{self, byte, literal, optional};
use crate::schema::pointer::Pointer;
use crate::schema::types::Types;
use crate::schema::values::{constant, same};
use keywords::{ANNOTATIONS, KEYWORDS, remedy};

/// The tree of a schema.
pub(crate) fn schema_to_node(
    schema: &Json,
    whitespace: Whitespace,
    max_string_length: Option<u32>,
    limits: &Limits,
) -> Result<Node, ConstrainError> {
    let gap = |mark: u8| match whitespace {
        Whitespace::Compact => byte(mark),
        Whitespace::Flexible => Node::Concat(vec![byte(mark), optional(byte(b' '))]),
    };
    let mut compiler = Compiler {
        root: schema,
        fuel: Fuel::new(limits.compile_work),
        limits: limits.clone(),
        max_string_length,
        colon: gap(b':'),
        comma: gap(b','),
        pointer: Pointer::default(),
        path: Vec::new(),
        inner_ids: 0,
        visited: 0,
        states: 0,
        nothing: None,
    };
    let node = compiler.schema(schema, Types::ALL).map_err(|mut error| {
        // The allowance that was passed is the whole one, not what was left of it.
        if let ConstrainError::Limit { limit: "compile_work", value, .. } = &mut error {
            *value = limits.compile_work;
        }
        error
    })?;
    match node {
        Some(node) => Ok(node),
        None => Err(ConstrainError::Schema {
            message: "no value satisfies the schema".to_owned(),
            pointer: compiler.nothing.unwrap_or_default(),
        }),
    }
}

/// A tree, or nothing when no value fits.
type Built = Result<Option<Node>, ConstrainError>;

struct Compiler<'a> {
    root: &'a Json,
    /// What is left of the limits: work that was done is taken off.
    limits: Limits,
    /// Steps left for telling branches of `oneOf` apart.
    fuel: Fuel,
    max_string_length: Option<u32>,
    colon: Node,
    comma: Node,
    pointer: Pointer,
    /// The schemas being compiled, outermost first: a reference to one of them is recursive.
    path: Vec<&'a Json>,
    /// How many schemas below the root on the path have an `$id` of their own.
    inner_ids: usize,
    visited: usize,
    /// States that the tree will cost, about.
    states: usize,
    /// Where it first turned out that nothing fits.
    nothing: Option<String>,
}

impl<'a> Compiler<'a> {
    fn malformed<T>(&self, keyword: &str, message: &str) -> Result<T, ConstrainError> {
        let pointer = self.pointer.child(keyword);
        let message = format!("schema keyword \"{keyword}\" at \"{pointer}\" {message}");
        Err(ConstrainError::Schema { message, pointer })
    }

    fn unsupported<T>(
        &self,
        keyword: &str,
        remedy: impl Into<String>,
    ) -> Result<T, ConstrainError> {
        Err(ConstrainError::Unsupported {
            keyword: keyword.to_owned(),
            pointer: self.pointer.child(keyword),
            remedy: remedy.into(),
        })
    }

    fn nothing_here(&mut self) -> Option<Node> {
        self.nothing.get_or_insert_with(|| self.pointer.as_str().to_owned());
        None
    }

    fn check(
        &self,
        limit: &'static str,
        value: usize,
        used: usize,
        advice: &'static str,
    ) -> Result<(), ConstrainError> {
        Limits::check(limit, value, used, self.pointer.as_str(), advice)
    }

    /// Accounts for states that the tree will cost.
    fn spend(&mut self, states: usize) -> Result<(), ConstrainError> {
        self.states = self.states.saturating_add(states);
        self.check("nfa_states", self.limits.nfa_states, self.states, "use a smaller schema")
    }

    fn below(&mut self, keyword: &str, schema: &'a Json, allowed: Types) -> Built {
        let mark = self.pointer.enter(keyword);
        let node = self.schema(schema, allowed)?;
        self.pointer.leave(mark);
        Ok(node)
    }

    /// The values of `schema` that are of the allowed types.
    fn schema(&mut self, schema: &'a Json, allowed: Types) -> Built {
        self.visited += 1;
        self.check("schema_nodes", self.limits.schema_nodes, self.visited, "use fewer subschemas")?;
        let depth = self.path.len();
        self.check("nesting", self.limits.nesting, depth, "nest the schema less deeply")?;
        match schema {
            Json::Bool(false) => Ok(self.nothing_here()),
            Json::Bool(true) => self.typed(schema, allowed),
            Json::Obj(members) => {
                let inner_id = depth > 0 && schema.get("$id").is_some();
                self.inner_ids += usize::from(inner_id);
                self.path.push(schema);
                let node = self.object_schema(schema, members, allowed)?;
                self.path.pop();
                self.inner_ids -= usize::from(inner_id);
                Ok(node)
            }
            _ => Err(ConstrainError::Schema {
                message: format!(
                    "a schema must be an object or a boolean at \"{}\"",
                    self.pointer.as_str()
                ),
                pointer: self.pointer.as_str().to_owned(),
            }),
        }
    }

    fn object_schema(
        &mut self,
        schema: &'a Json,
        members: &'a [(String, Json)],
        allowed: Types,
    ) -> Built {
        for (key, _) in members {
            let key = key.as_str();
            if !ANNOTATIONS.contains(&key) && !KEYWORDS.contains(&key) {
                return self.unsupported(key, remedy(key));
            }
        }
        match schema.get("format") {
            None => {}
            Some(Json::Str(format)) if formats::pattern(format).is_some() => {}
            Some(format) => {
                return self.unsupported(
                    "format",
                    format!(
                        "{} is not a known format ({} are); write it as a pattern",
                        format.dumps(),
                        formats::KNOWN
                    ),
                );
            }
        }
        let mut allowed = allowed;
        if let Some(types) = schema.get("type") {
            allowed = allowed.and(self.types(types)?);
        }
        let applicators = ["enum", "const", "anyOf", "oneOf", "allOf", "$ref"];
        let Some(first) = applicators.iter().find(|key| schema.get(key).is_some()) else {
            if schema.get("type").is_none() {
                let implied = members
                    .iter()
                    .map(|(key, _)| Types::of_keyword(key))
                    .fold(Types::NONE, Types::or);
                if !implied.is_empty() {
                    allowed = allowed.and(implied);
                }
            }
            return self.typed(schema, allowed);
        };
        // `enum` and `const` may stand together; nothing else may stand beside an applicator.
        let values = *first == "enum" || *first == "const";
        for (key, _) in members {
            let beside = key == "type"
                || key == first
                || ANNOTATIONS.contains(&key.as_str())
                || (values && key == "const");
            if !beside {
                return self.unsupported(
                    key,
                    format!("it stands beside {first}; move it into the schemas it applies to"),
                );
            }
        }
        match *first {
            "anyOf" => self.any_of("anyOf", schema, allowed),
            "oneOf" => {
                self.check_disjoint(schema)?;
                self.any_of("oneOf", schema, allowed)
            }
            "allOf" => match schema.get("allOf") {
                Some(Json::Arr(parts)) if parts.len() == 1 => {
                    let mark = self.pointer.enter("allOf");
                    let node = self.below("0", &parts[0], allowed)?;
                    self.pointer.leave(mark);
                    Ok(node)
                }
                Some(Json::Arr(parts)) if !parts.is_empty() => {
                    self.unsupported("allOf", "merge its schemas into one")
                }
                _ => self.malformed("allOf", "must be a list that is not empty"),
            },
            "$ref" => self.reference(schema, allowed),
            _ => self.values(schema, allowed),
        }
    }

    fn types(&self, types: &Json) -> Result<Types, ConstrainError> {
        let named = |name: &Json| match name {
            Json::Str(name) => Types::named(name),
            _ => None,
        };
        let found = match types {
            Json::Arr(names) if !names.is_empty() => {
                names.iter().try_fold(Types::NONE, |types, name| named(name).map(|n| types.or(n)))
            }
            name => named(name),
        };
        match found {
            Some(types) => Ok(types),
            None => self.malformed("type", "must be a JSON type's name or a list of such names"),
        }
    }

    fn values(&mut self, schema: &'a Json, allowed: Types) -> Built {
        let listed: Vec<&Json> = match schema.get("enum") {
            None => schema.get("const").into_iter().collect(),
            Some(Json::Arr(values)) if !values.is_empty() => values.iter().collect(),
            Some(_) => return self.malformed("enum", "must be a list that is not empty"),
        };
        let only = schema.get("const");
        let mut options = Vec::new();
        for value in listed {
            if !allowed.has(Types::of(value)) || only.is_some_and(|only| !same(only, value)) {
                continue;
            }
            self.spend(value.dumps().len())?;
            options.push(constant(value, &self.colon, &self.comma));
        }
        if options.is_empty() { Ok(self.nothing_here()) } else { Ok(Some(Node::Alt(options))) }
    }

    fn any_of(&mut self, keyword: &'static str, schema: &'a Json, allowed: Types) -> Built {
        let branches = match schema.get(keyword) {
            Some(Json::Arr(branches)) if !branches.is_empty() => branches,
            _ => return self.malformed(keyword, "must be a list that is not empty"),
        };
        let mark = self.pointer.enter(keyword);
        let mut options = Vec::with_capacity(branches.len());
        for (i, branch) in branches.iter().enumerate() {
            options.extend(self.below(&i.to_string(), branch, allowed)?);
        }
        self.pointer.leave(mark);
        Ok((!options.is_empty()).then_some(Node::Alt(options)))
    }

    fn check_disjoint(&self, schema: &'a Json) -> Result<(), ConstrainError> {
        let Some(Json::Arr(branches)) = schema.get("oneOf") else {
            return Ok(());
        };
        let follow = |reference: &str| self.resolve(reference).map(|(target, _)| target);
        let outlines: Vec<Outline> =
            branches.iter().map(|branch| Outline::of(branch, &follow, 8, &self.fuel)).collect();
        self.check(
            "schema_nodes",
            self.limits.schema_nodes,
            outlines.len() * outlines.len() / 2,
            "use fewer branches in oneOf",
        )?;
        for (i, a) in outlines.iter().enumerate() {
            for (j, b) in outlines.iter().enumerate().skip(i + 1) {
                let excludes = a.excludes(b, &self.fuel);
                if self.fuel.is_spent() {
                    return Err(ConstrainError::Limit {
                        limit: "compile_work",
                        value: self.limits.compile_work,
                        pointer: self.pointer.child("oneOf"),
                        advice: "use fewer branches and constants in oneOf",
                    });
                }
                if !excludes {
                    return self.unsupported(
                        "oneOf",
                        format!(
                            "branches {i} and {j} may accept the same value; use anyOf, or give \
                             each a required property with a constant of its own"
                        ),
                    );
                }
            }
        }
        Ok(())
    }

    /// The target of a local reference, and its pointer.
    fn resolve(&self, reference: &str) -> Option<(&'a Json, Pointer)> {
        let path = percent_decoded(reference.strip_prefix('#')?)?;
        let mut target = self.root;
        let mut pointer = Pointer::default();
        if path.is_empty() {
            return Some((target, pointer));
        }
        for key in path.strip_prefix('/')?.split('/') {
            let key = key.replace("~1", "/").replace("~0", "~");
            pointer.enter(&key);
            target = match target {
                Json::Arr(items) => items.get(key.parse::<usize>().ok()?)?,
                object => object.get(&key)?,
            };
        }
        Some((target, pointer))
    }

    fn reference(&mut self, schema: &'a Json, allowed: Types) -> Built {
        let Some(Json::Str(reference)) = schema.get("$ref") else {
            return self.malformed("$ref", "must be a string");
        };
        if self.inner_ids > 0 {
            return self
                .unsupported("$ref", "a reference below an $id of its own; remove that $id");
        }
        if !reference.starts_with('#') {
            return self.unsupported("$ref", "copy the schema into $defs and refer to it there");
        }
        let Some((target, pointer)) = self.resolve(reference) else {
            if reference.len() > 1 && !reference.starts_with("#/") {
                return self.unsupported("$ref", "use $defs and a $ref that begins with #/");
            }
            return self.malformed("$ref", &format!("leads nowhere: {reference}"));
        };
        if self.path.iter().any(|open| std::ptr::eq(*open, target)) {
            return self.unsupported(
                "$ref",
                "it is recursive, and values nested without bound are not regular; write the \
                 levels out",
            );
        }
        let back = std::mem::replace(&mut self.pointer, pointer);
        let node = self.schema(target, allowed)?;
        self.pointer = back;
        Ok(node)
    }

    /// A schema without applicators: each allowed type under its own keywords.
    fn typed(&mut self, schema: &'a Json, allowed: Types) -> Built {
        let mut options = Vec::new();
        if allowed.has(Types::NULL) {
            options.push(literal("null"));
        }
        if allowed.has(Types::BOOLEAN) {
            options.push(lexeme::boolean());
        }
        if allowed.has(Types::NUMBER) {
            options.extend(self.number(schema, allowed)?);
        }
        if allowed.has(Types::STRING) {
            options.extend(self.string(schema)?);
        }
        if allowed.has(Types::ARRAY) {
            options.extend(self.array(schema)?);
        }
        if allowed.has(Types::OBJECT) {
            options.extend(self.object(schema)?);
        }
        self.spend(16 * options.len())?;
        match options.len() {
            0 => Ok(self.nothing_here()),
            1 => Ok(options.pop()),
            _ => Ok(Some(Node::Alt(options))),
        }
    }

    /// A count, where the schema has one.
    fn count(&self, schema: &Json, keyword: &str) -> Result<Option<u32>, ConstrainError> {
        let count = match schema.get(keyword) {
            None => return Ok(None),
            Some(Json::Int(digits)) => saturated(digits),
            Some(Json::Float(x)) if x.fract() == 0.0 => *x as i128,
            Some(_) => -1,
        };
        if count < 0 {
            return self.malformed(keyword, "must be an integer of at least 0");
        }
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        Limits::check(
            "repeat_count",
            self.limits.repeat_count as usize,
            count as usize,
            &self.pointer.child(keyword),
            "use a smaller bound, or leave it out",
        )?;
        Ok(Some(count))
    }

    fn array(&mut self, schema: &'a Json) -> Built {
        let min = self.count(schema, "minItems")?.unwrap_or(0);
        let max = self.count(schema, "maxItems")?;
        match schema.get("uniqueItems") {
            None | Some(Json::Bool(false)) => {}
            // One item at most is always unique.
            Some(Json::Bool(true)) if max.is_some_and(|max| max <= 1) => {}
            Some(Json::Bool(true)) => {
                return self.unsupported("uniqueItems", "leave it out and remove duplicates later");
            }
            Some(_) => return self.malformed("uniqueItems", "must be true or false"),
        }
        if max.is_some_and(|max| max < min) {
            return Ok(self.nothing_here());
        }
        let empty = || literal("[]");
        if max == Some(0) {
            return Ok(Some(empty()));
        }
        let item = match schema.get("items") {
            None | Some(Json::Bool(true)) => {
                return self.unsupported(
                    "items",
                    "an array without a schema for its items may hold any value, which is not \
                     regular; give the items a schema",
                );
            }
            Some(Json::Arr(_)) => {
                return self.unsupported("items", remedy("prefixItems"));
            }
            Some(items) => self.below("items", items, Types::ALL)?,
        };
        let Some(item) = item else {
            // No item can be written.
            return if min == 0 { Ok(Some(empty())) } else { Ok(self.nothing_here()) };
        };
        let items = Node::Separated {
            node: Box::new(item),
            separator: Box::new(self.comma.clone()),
            min,
            max,
        };
        Ok(Some(Node::Concat(vec![byte(b'['), items, byte(b']')])))
    }
}

/// An integer literal, held to what no bound of the finite form reaches.
fn saturated(digits: &str) -> i128 {
    let far = i128::from(i64::MAX) * 4;
    digits.parse::<i128>().map_or_else(
        |_| if digits.starts_with('-') { -far } else { far },
        |value| value.clamp(-far, far),
    )
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((b, tail)) = rest.split_first() {
        rest = tail;
        if *b == b'%' {
            let digit = |i: usize| tail.get(i).and_then(|b| char::from(*b).to_digit(16));
            bytes.push((digit(0)? * 16 + digit(1)?) as u8);
            rest = tail.get(2..)?;
        } else {
            bytes.push(*b);
        }
    }
    String::from_utf8(bytes).ok()
}
