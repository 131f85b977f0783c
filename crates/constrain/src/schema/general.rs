//! The general front end: JSON Schema as people and their libraries write it.
//!
//! What it takes it enforces exactly or by a part: every output validates. It is narrower than
//! JSON Schema in these ways, and in no others:
//! - an object without `additionalProperties` is closed, and members come in declared order;
//! - a schema without `type` means the types that its keywords speak of;
//! - numbers are in the finite form (18 digits; 17 of a fraction; 2 of an exponent), `\u`
//!   surrogates pair, keys and constants are spelled as compact printing spells them;
//! - a number with bounds has no exponent;
//! - white space is none, or at most one space after `:` and `,`.
//!
//! Whatever it cannot enforce it refuses, with the JSON pointer, the keyword and a remedy. Trees
//! are built directly; their size is linear in the schema with its references written out, which
//! [`Limits::schema_nodes`] and [`Limits::nfa_states`] bound.

use super::decimals::{self, Bound};
use super::disjoint::Outline;
use super::integers;
use super::lexeme::{self, byte, literal, optional, repeat};
use super::pattern::{self, Refusal};
use super::pointer::Pointer;
use super::product;
use super::spelling::Spellings;
use super::types::Types;
use super::values::{constant, same};
use crate::ast::{Member, Node};
use crate::error::ConstrainError;
use crate::grammar::Whitespace;
use crate::json::{Json, json_quote};
use crate::limits::Limits;
use rustc_hash::FxHashSet;

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
        limits,
        max_string_length,
        colon: gap(b':'),
        comma: gap(b','),
        spellings: Spellings::default(),
        pointer: Pointer::default(),
        path: Vec::new(),
        inner_ids: 0,
        visited: 0,
        states: 0,
        nothing: None,
    };
    match compiler.schema(schema, Types::ALL)? {
        Some(node) => Ok(node),
        None => Err(ConstrainError::Schema {
            message: "no value satisfies the schema".to_owned(),
            pointer: compiler.nothing.unwrap_or_default(),
        }),
    }
}

const ANNOTATIONS: [&str; 12] = [
    "$schema",
    "$id",
    "$comment",
    "$defs",
    "definitions",
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
];

/// Keywords of the general front end besides [`ANNOTATIONS`].
const KEYWORDS: [&str; 23] = [
    "type",
    "enum",
    "const",
    "anyOf",
    "oneOf",
    "allOf",
    "$ref",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "minLength",
    "maxLength",
    "pattern",
    "items",
    "minItems",
    "maxItems",
    "uniqueItems",
    "properties",
    "required",
    "additionalProperties",
    "minProperties",
    "maxProperties",
];

const BOUNDS: [&str; 4] = ["minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"];

/// What to write in place of a keyword that cannot be enforced.
fn remedy(keyword: &str) -> &'static str {
    match keyword {
        "not" | "if" | "then" | "else" | "dependentRequired" | "dependentSchemas"
        | "dependencies" => "list what is allowed, with enum, properties or anyOf",
        "patternProperties" | "propertyNames" | "unevaluatedProperties" => {
            "declare each property by its name"
        }
        "prefixItems" | "additionalItems" | "unevaluatedItems" | "contains" | "minContains"
        | "maxContains" => "give one schema for all items in items, or use an object",
        "multipleOf" => "list the values in enum, or bound an integer",
        "format" | "contentEncoding" | "contentMediaType" | "contentSchema" => {
            "write the form as a pattern, or leave the keyword out"
        }
        "id" | "$anchor" | "$dynamicRef" | "$dynamicAnchor" | "$recursiveRef"
        | "$recursiveAnchor" => "use $defs and a $ref that begins with #/",
        "nullable" => "add \"null\" to type",
        _ => "it is not a keyword that is known here; leave it out",
    }
}

/// A tree, or nothing when no value fits.
type Built = Result<Option<Node>, ConstrainError>;

struct Compiler<'a> {
    root: &'a Json,
    limits: &'a Limits,
    max_string_length: Option<u32>,
    colon: Node,
    comma: Node,
    spellings: Spellings,
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
            branches.iter().map(|branch| Outline::of(branch, &follow, 8)).collect();
        self.check(
            "schema_nodes",
            self.limits.schema_nodes,
            outlines.len() * outlines.len() / 2,
            "use fewer branches in oneOf",
        )?;
        for (i, a) in outlines.iter().enumerate() {
            for (j, b) in outlines.iter().enumerate().skip(i + 1) {
                if !a.excludes(b) {
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

    fn number(&mut self, schema: &'a Json, allowed: Types) -> Built {
        self.spend(24)?;
        if !BOUNDS.iter().any(|key| schema.get(key).is_some()) {
            return Ok(Some(if allowed.has(Types::FRACTION) {
                lexeme::number(true)
            } else {
                lexeme::integer(true)
            }));
        }
        self.spend(256)?;
        if allowed.has(Types::FRACTION) {
            return self.bounded_number(schema);
        }
        let (mut low, mut high) = (-integers::LARGEST, integers::LARGEST);
        for keyword in BOUNDS {
            let Some(value) = schema.get(keyword) else { continue };
            let (floor, whole) = match value {
                Json::Int(digits) => (saturated(digits), true),
                Json::Float(x) => (x.floor() as i128, x.fract() == 0.0),
                Json::Bool(_) => {
                    return self.unsupported(keyword, "give the bound itself, as a number");
                }
                _ => return self.malformed(keyword, "must be a number"),
            };
            if keyword.starts_with("exclusive") && floor.abs() >= 1 << 53 {
                return self.unsupported(keyword, "doubles do not tell integers past 2^53 apart");
            }
            match keyword {
                "minimum" => low = low.max(floor + i128::from(!whole)),
                "exclusiveMinimum" => low = low.max(floor + 1),
                "maximum" => high = high.min(floor),
                _ => high = high.min(floor - i128::from(whole)),
            }
        }
        match integers::between(low, high) {
            Some(node) => Ok(Some(node)),
            None => Ok(self.nothing_here()),
        }
    }

    fn bounded_number(&mut self, schema: &'a Json) -> Built {
        let (mut low, mut high) = (Vec::new(), Vec::new());
        for keyword in BOUNDS {
            let Some(value) = schema.get(keyword) else { continue };
            let text = match value {
                Json::Int(_) | Json::Float(_) => value.dumps(),
                Json::Bool(_) => {
                    return self.unsupported(keyword, "give the bound itself, as a number");
                }
                _ => return self.malformed(keyword, "must be a number"),
            };
            let Some(bound) = Bound::read(&text, keyword.starts_with("exclusive")) else {
                return self.unsupported(keyword, "use a bound of fewer digits");
            };
            if keyword.ends_with("inimum") { low.push(bound) } else { high.push(bound) }
        }
        match decimals::between(&low, &high) {
            Some(node) => Ok(Some(node)),
            None => Ok(self.nothing_here()),
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

    fn string(&mut self, schema: &'a Json) -> Built {
        let min = self.count(schema, "minLength")?.unwrap_or(0);
        let declared = self.count(schema, "maxLength")?;
        let max = match (declared, self.max_string_length) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        if max.is_some_and(|max| max < min) {
            return Ok(self.nothing_here());
        }
        self.spend(64)?;
        let quoted = |body: Node| Node::Concat(vec![byte(b'"'), body, byte(b'"')]);
        let sized = quoted(repeat(lexeme::character(true), min, max));
        let pattern = match schema.get("pattern") {
            None => return Ok(Some(sized)),
            Some(Json::Str(pattern)) => pattern,
            Some(_) => return self.malformed("pattern", "must be a string"),
        };
        let found = match pattern::search(pattern, &mut self.spellings, self.limits) {
            Ok(found) => found,
            Err(Refusal::Pattern(why)) => return self.unsupported("pattern", why),
            Err(Refusal::Error(error)) => return Err(error.at(&self.pointer.child("pattern"))),
        };
        self.spend(2 * pattern.len())?;
        let implied = found.min >= min && max.is_none_or(|max| found.max.is_some_and(|m| m <= max));
        let found = quoted(found.node);
        if implied {
            return Ok(Some(found));
        }
        let both = product::both(&found, &sized, self.limits)
            .map_err(|error| error.at(&self.pointer.child("pattern")))?;
        match both {
            Some(Node::Automaton(dfa)) => {
                self.spend(dfa.n_states)?;
                Ok(Some(Node::Automaton(dfa)))
            }
            Some(node) => Ok(Some(node)),
            None => Ok(self.nothing_here()),
        }
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

    fn object(&mut self, schema: &'a Json) -> Built {
        match schema.get("additionalProperties") {
            None | Some(Json::Bool(false)) => {}
            Some(Json::Obj(members)) if is_not_anything(members) => {}
            Some(_) => {
                return self.unsupported(
                    "additionalProperties",
                    "members of any name cannot be enforced; declare them in properties and leave \
                     additionalProperties out or false",
                );
            }
        }
        let properties: &[(String, Json)] = match schema.get("properties") {
            None => &[],
            Some(Json::Obj(properties)) => properties,
            Some(_) => return self.malformed("properties", "must be an object"),
        };
        let required = self.required(schema)?;
        for name in &required {
            if !properties.iter().any(|(key, _)| key == name) {
                return self.malformed(
                    "required",
                    &format!("names \"{name}\", which properties does not declare"),
                );
            }
        }
        self.property_count(schema, required.len(), properties.len())?;
        let mark = self.pointer.enter("properties");
        let mut members = Vec::with_capacity(properties.len());
        for (key, value) in properties {
            let required = required.contains(key.as_str());
            let Some(value) = self.below(key, value, Types::ALL)? else {
                if required {
                    return Ok(None);
                }
                // A member that has no value is never written.
                continue;
            };
            let key = json_quote(key);
            self.spend(key.len() + 8)?;
            let node = Node::Concat(vec![literal(&key), self.colon.clone(), value]);
            members.push(Member { node, required });
        }
        self.pointer.leave(mark);
        Ok(Some(Node::Members {
            open: Box::new(byte(b'{')),
            members,
            separator: Box::new(self.comma.clone()),
            close: Box::new(byte(b'}')),
        }))
    }

    fn required(&self, schema: &'a Json) -> Result<FxHashSet<&'a str>, ConstrainError> {
        let names = match schema.get("required") {
            None => return Ok(FxHashSet::default()),
            Some(Json::Arr(names)) => names.iter().map(|name| match name {
                Json::Str(name) => Some(name.as_str()),
                _ => None,
            }),
            Some(_) => return self.malformed("required", "must be a list of strings"),
        };
        match names.collect() {
            Some(names) => Ok(names),
            None => self.malformed("required", "must be a list of strings"),
        }
    }

    /// Counts of members, where they follow from what is declared.
    fn property_count(
        &self,
        schema: &Json,
        required: usize,
        declared: usize,
    ) -> Result<(), ConstrainError> {
        let advice = "require the properties that must be there";
        match self.count(schema, "minProperties")? {
            Some(min) if min as usize > required => self.unsupported("minProperties", advice),
            _ => match self.count(schema, "maxProperties")? {
                Some(max) if (max as usize) < declared => self.unsupported("maxProperties", advice),
                _ => Ok(()),
            },
        }
    }
}

/// `{"not":{}}`, which some libraries write for `false`.
fn is_not_anything(members: &[(String, Json)]) -> bool {
    matches!(members, [(key, Json::Obj(inner))] if key == "not" && inner.is_empty())
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
