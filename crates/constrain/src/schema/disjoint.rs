//! Whether no value can satisfy two schemas at once, as far as types and constants show.
//!
//! Looking is bounded by [`Fuel`]; what was not looked at counts as able to be anything, which is
//! always a safe answer.

use super::types::Types;
use super::values::same;
use crate::json::Json;
use rustc_hash::FxHashSet;
use std::cell::Cell;

/// Steps that may still be taken.
#[derive(Debug)]
pub(crate) struct Fuel(Cell<u64>);

impl Fuel {
    pub(crate) fn new(steps: u64) -> Self {
        Self(Cell::new(steps))
    }

    /// Whether steps were asked for that were not there.
    pub(crate) fn is_spent(&self) -> bool {
        self.0.get() == 0
    }

    /// Takes steps; false, once there are not enough left.
    fn burn(&self, steps: u64) -> bool {
        let left = self.0.get().checked_sub(steps);
        self.0.set(left.unwrap_or(0));
        left.is_some()
    }
}

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
    /// reference that it does not know, and `depth` bounds how deep they are followed.
    pub(crate) fn of(
        schema: &'a Json,
        follow: &dyn Fn(&str) -> Option<&'a Json>,
        depth: usize,
        fuel: &Fuel,
    ) -> Self {
        let mut outline = Self { types: Types::ALL, values: None, constants: Vec::new() };
        let Json::Obj(keywords) = schema else {
            if let Json::Bool(false) = schema {
                outline.types = Types::NONE;
            }
            return outline;
        };
        if !fuel.burn(1 + keywords.len() as u64) {
            return outline;
        }
        if let Some(types) = declared_types(schema) {
            outline.types = types;
        }
        let listed = match (schema.get("enum"), schema.get("const")) {
            (_, Some(value)) => Some(vec![value]),
            (Some(Json::Arr(values)), None) => Some(values.iter().collect()),
            _ => None,
        };
        if let Some(values) = listed
            && fuel.burn(values.len() as u64)
        {
            let types = values.iter().fold(Types::NONE, |types, value| types.or(Types::of(value)));
            outline.types = outline.types.and(types);
            outline.values = Some(values);
        }
        if depth > 0 {
            if let Some(Json::Str(reference)) = schema.get("$ref")
                && let Some(target) = follow(reference)
            {
                outline.narrow(Self::of(target, follow, depth - 1, fuel));
            }
            for keyword in ["anyOf", "oneOf"] {
                if let Some(Json::Arr(branches)) = schema.get(keyword) {
                    let types = branches
                        .iter()
                        .map(|branch| Self::of(branch, follow, depth - 1, fuel).types)
                        .fold(Types::NONE, Types::or);
                    outline.types = outline.types.and(types);
                }
            }
            if let (Some(Json::Obj(properties)), Some(Json::Arr(required))) =
                (schema.get("properties"), schema.get("required"))
            {
                let required: FxHashSet<&str> = required
                    .iter()
                    .filter_map(|name| match name {
                        Json::Str(name) => Some(name.as_str()),
                        _ => None,
                    })
                    .collect();
                for (key, value) in properties {
                    if required.contains(key.as_str())
                        && let Some(values) = Self::of(value, follow, depth - 1, fuel).values
                    {
                        outline.constants.push((key, values));
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
    pub(crate) fn excludes(&self, other: &Self, fuel: &Fuel) -> bool {
        let constants = self.constants.len() as u64 * other.constants.len() as u64;
        if !fuel.burn(1 + constants) {
            return false;
        }
        let common = self.types.and(other.types);
        if common.is_empty() {
            return true;
        }
        if let (Some(a), Some(b)) = (&self.values, &other.values)
            && apart(a, b, fuel)
        {
            return true;
        }
        // Only objects are left to tell apart.
        common == Types::OBJECT
            && self.constants.iter().any(|(key, values)| {
                let mut others = other.constants.iter().filter(|(other, _)| other == key);
                others.any(|(_, others)| apart(values, others, fuel))
            })
    }
}

fn apart(a: &[&Json], b: &[&Json], fuel: &Fuel) -> bool {
    fuel.burn(a.len() as u64 * b.len() as u64) && a.iter().all(|a| b.iter().all(|b| !same(a, b)))
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
