//! Whether no value can satisfy two schemas at once, as far as types and constants show.

use super::types::Types;
use super::values::same;
use crate::json::Json;

/// What every value that a schema accepts is known to be. Wider than the schema, never narrower.
#[derive(Debug, Clone)]
pub(crate) struct Outline<'a> {
    pub(crate) types: Types,
    /// The values themselves, when an `enum` or `const` lists them.
    pub(crate) values: Option<Vec<&'a Json>>,
    /// Members that every object has, with the constants that they can be.
    pub(crate) constants: Vec<(&'a str, Vec<&'a Json>)>,
}

impl<'a> Outline<'a> {
    /// The outline of a schema, given a way to follow references. `follow` gives nothing for a
    /// reference that it does not know, and `depth` bounds how many are followed.
    pub(crate) fn of(
        schema: &'a Json,
        follow: &dyn Fn(&str) -> Option<&'a Json>,
        depth: usize,
    ) -> Self {
        let mut outline = Self { types: Types::ALL, values: None, constants: Vec::new() };
        if let Json::Bool(false) = schema {
            outline.types = Types::NONE;
        }
        if let Some(types) = declared_types(schema) {
            outline.types = types;
        }
        let listed = match (schema.get("enum"), schema.get("const")) {
            (_, Some(value)) => Some(vec![value]),
            (Some(Json::Arr(values)), None) => Some(values.iter().collect()),
            _ => None,
        };
        if let Some(values) = listed {
            let types = values.iter().fold(Types::NONE, |types, value| types.or(Types::of(value)));
            outline.types = outline.types.and(types);
            outline.values = Some(values);
        }
        if depth > 0 {
            if let Some(Json::Str(reference)) = schema.get("$ref")
                && let Some(target) = follow(reference)
            {
                outline.narrow(Self::of(target, follow, depth - 1));
            }
            for keyword in ["anyOf", "oneOf"] {
                if let Some(Json::Arr(branches)) = schema.get(keyword) {
                    let types = branches
                        .iter()
                        .map(|branch| Self::of(branch, follow, depth - 1).types)
                        .fold(Types::NONE, Types::or);
                    outline.types = outline.types.and(types);
                }
            }
            if let (Some(Json::Obj(properties)), Some(Json::Arr(required))) =
                (schema.get("properties"), schema.get("required"))
            {
                for name in required {
                    let Json::Str(name) = name else { continue };
                    let Some((_, value)) = properties.iter().find(|(key, _)| key == name) else {
                        continue;
                    };
                    if let Some(values) = Self::of(value, follow, depth - 1).values {
                        outline.constants.push((name, values));
                    }
                }
            }
        }
        outline
    }

    fn narrow(&mut self, other: Self) {
        self.types = self.types.and(other.types);
        self.values = self.values.take().or(other.values);
        self.constants.extend(other.constants);
    }

    /// Whether no value fits both.
    pub(crate) fn excludes(&self, other: &Self) -> bool {
        let common = self.types.and(other.types);
        if common.is_empty() {
            return true;
        }
        if let (Some(a), Some(b)) = (&self.values, &other.values)
            && apart(a, b)
        {
            return true;
        }
        // Only objects are left to tell apart.
        common == Types::OBJECT
            && self.constants.iter().any(|(key, values)| {
                let mut others = other.constants.iter().filter(|(other, _)| other == key);
                others.any(|(_, others)| apart(values, others))
            })
    }
}

fn apart(a: &[&Json], b: &[&Json]) -> bool {
    a.iter().all(|a| b.iter().all(|b| !same(a, b)))
}

fn declared_types(schema: &Json) -> Option<Types> {
    match schema.get("type")? {
        Json::Str(name) => Types::named(name),
        Json::Arr(names) => names.iter().try_fold(Types::NONE, |types, name| match name {
            Json::Str(name) => Types::named(name).map(|named| types.or(named)),
            _ => None,
        }),
        _ => None,
    }
}
