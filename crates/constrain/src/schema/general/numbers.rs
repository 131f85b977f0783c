//! Numbers, with and without bounds.

use super::keywords::BOUNDS;
use super::{Built, Compiler, saturated};
use crate::json::Json;
use crate::schema::decimals::{self, Bound};
use crate::schema::types::Types;
use crate::schema::{integers, lexeme};

impl<'a> Compiler<'a> {
    pub(super) fn number(&mut self, schema: &'a Json, allowed: Types) -> Built {
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
            if keyword.starts_with("exclusive") && floor.unsigned_abs() >= 1 << 53 {
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
}
