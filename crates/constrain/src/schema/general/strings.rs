//! Strings: lengths, patterns and formats, together where there are several.

use super::{Built, Compiler};
use crate::ast::Node;
use crate::error::ConstrainError;
use crate::json::Json;
use crate::schema::lexeme::{self, byte, repeat};
use crate::schema::pattern::{self, Found, Refusal};
use crate::schema::{formats, product};

impl<'a> Compiler<'a> {
    pub(super) fn string(&mut self, schema: &'a Json) -> Built {
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
        let format = match schema.get("format") {
            Some(Json::Str(format)) => formats::pattern(format),
            _ => None,
        };
        let pattern = match schema.get("pattern") {
            None => None,
            Some(Json::Str(pattern)) => Some(self.found("pattern", pattern)?),
            Some(_) => return self.malformed("pattern", "must be a string"),
        };
        let format = match format {
            None => None,
            Some(format) => Some(self.found("format", &format)?),
        };
        let found = match (pattern, format) {
            (None, None) => return Ok(Some(sized)),
            (Some(pattern), Some(format)) => {
                let node = product::both(&pattern.node, &format.node, &mut self.limits)
                    .map_err(|error| error.at(&self.pointer.child("format")))?;
                let Some(node) = node else { return Ok(self.nothing_here()) };
                Found {
                    node,
                    min: pattern.min.max(format.min),
                    max: pattern.max.into_iter().chain(format.max).min(),
                }
            }
            (Some(found), None) | (None, Some(found)) => found,
        };
        let implied = found.min >= min && max.is_none_or(|max| found.max.is_some_and(|m| m <= max));
        let found = quoted(found.node);
        if implied {
            return Ok(Some(found));
        }
        let both = product::both(&found, &sized, &mut self.limits)
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

    /// The texts in which a pattern finds a match.
    fn found(&mut self, keyword: &str, pattern: &str) -> Result<Found, ConstrainError> {
        self.spend(2 * pattern.len())?;
        match pattern::search(pattern, &mut self.limits) {
            Ok(found) => Ok(found),
            Err(Refusal::Pattern(why)) => self.unsupported(keyword, why),
            Err(Refusal::Error(error)) => Err(error.at(&self.pointer.child(keyword))),
        }
    }
}
