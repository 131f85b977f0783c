//! Sets of JSON types.

use crate::json::Json;

/// A set of the types of JSON values. `number` is two of them, so that `integer` is a part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Types(u8);

impl Types {
    pub(crate) const NONE: Self = Self(0);
    pub(crate) const NULL: Self = Self(1);
    pub(crate) const BOOLEAN: Self = Self(2);
    pub(crate) const INTEGER: Self = Self(4);
    /// Numbers that are not integers.
    pub(crate) const FRACTION: Self = Self(8);
    pub(crate) const NUMBER: Self = Self(4 | 8);
    pub(crate) const STRING: Self = Self(16);
    pub(crate) const ARRAY: Self = Self(32);
    pub(crate) const OBJECT: Self = Self(64);
    pub(crate) const ALL: Self = Self(127);

    pub(crate) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "null" => Self::NULL,
            "boolean" => Self::BOOLEAN,
            "integer" => Self::INTEGER,
            "number" => Self::NUMBER,
            "string" => Self::STRING,
            "array" => Self::ARRAY,
            "object" => Self::OBJECT,
            _ => return None,
        })
    }

    /// The type of a value. A float without a fraction is an integer, as in JSON Schema.
    pub(crate) fn of(value: &Json) -> Self {
        match value {
            Json::Null => Self::NULL,
            Json::Bool(_) => Self::BOOLEAN,
            Json::Int(_) => Self::INTEGER,
            Json::Float(x) if x.fract() == 0.0 => Self::INTEGER,
            Json::Float(_) => Self::FRACTION,
            Json::Str(_) => Self::STRING,
            Json::Arr(_) => Self::ARRAY,
            Json::Obj(_) => Self::OBJECT,
        }
    }

    /// The types that a schema's keyword speaks of; none for a keyword that speaks of all.
    pub(crate) fn of_keyword(keyword: &str) -> Self {
        match keyword {
            "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => Self::NUMBER,
            "minLength" | "maxLength" | "pattern" | "format" => Self::STRING,
            "items" | "minItems" | "maxItems" | "uniqueItems" => Self::ARRAY,
            "properties" | "required" | "additionalProperties" => Self::OBJECT,
            _ => Self::NONE,
        }
    }

    pub(crate) fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub(crate) fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}
