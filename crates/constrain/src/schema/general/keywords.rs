//! Which keywords there are, and what to write in place of those that cannot be enforced.

/// Keywords that say nothing about values.
pub(super) const ANNOTATIONS: [&str; 12] = [
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
pub(super) const KEYWORDS: [&str; 24] = [
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
    "format",
];

pub(super) const BOUNDS: [&str; 4] = ["minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"];

/// What to write in place of a keyword that cannot be enforced.
pub(super) fn remedy(keyword: &str) -> &'static str {
    match keyword {
        "not" | "if" | "then" | "else" | "dependentRequired" | "dependentSchemas"
        | "dependencies" => "list what is allowed, with enum, properties or anyOf",
        "patternProperties" | "propertyNames" | "unevaluatedProperties" => {
            "declare each property by its name"
        }
        "prefixItems" | "additionalItems" | "unevaluatedItems" | "contains" | "minContains"
        | "maxContains" => "give one schema for all items in items, or use an object",
        "multipleOf" => "list the values in enum, or bound an integer",
        "contentEncoding" | "contentMediaType" | "contentSchema" => {
            "write the form as a pattern, or leave the keyword out"
        }
        "id" | "$anchor" | "$dynamicRef" | "$dynamicAnchor" | "$recursiveRef"
        | "$recursiveAnchor" => "use $defs and a $ref that begins with #/",
        "nullable" => "add \"null\" to type",
        _ => "it is not a keyword that is known here; leave it out",
    }
}
