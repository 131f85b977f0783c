//! Objects: declared members in declared order.

use super::{Built, Compiler};
use crate::ast::{Member, Node};
use crate::error::ConstrainError;
use crate::json::{Json, json_quote};
use crate::schema::lexeme::{byte, literal};
use crate::schema::types::Types;
use rustc_hash::FxHashSet;

impl<'a> Compiler<'a> {
    pub(super) fn object(&mut self, schema: &'a Json) -> Built {
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
        let declared: FxHashSet<&str> = properties.iter().map(|(key, _)| key.as_str()).collect();
        if let Some(name) = required.iter().find(|name| !declared.contains(*name)) {
            let message = format!("names \"{name}\", which properties does not declare");
            return self.malformed("required", &message);
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
