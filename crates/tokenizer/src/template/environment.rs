//! What a chat template finds around it: the hub's settings, filters and functions.
//!
//! The hub renders with jinja2, `trim_blocks`, `lstrip_blocks`, loop controls, a `tojson` of its
//! own, `raise_exception` and `strftime_now`. Values print as Python prints them. There is nothing
//! to include or import: one template, and no files.

use super::{NAME, clock, python};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, Value, from_args};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State};
use std::time::SystemTime;

/// The message of a `raise_exception`, carried through the engine's own error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Raised(pub(super) String);

/// Compiles a template into an environment of its own.
pub(super) fn compile(source: &str) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.set_formatter(|output, state, value| {
        if let Some(text) = value.as_str() {
            return output.write_str(text).map_err(Error::from);
        }
        output.write_str(&python::display(state, value)?).map_err(Error::from)
    });
    environment.add_filter("tojson", to_json);
    environment.add_filter("string", |state: &State, value: &Value| match value.as_str() {
        Some(_) => Ok(value.clone()),
        None => python::display(state, value).map(Value::from),
    });
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        let raised = Error::new(ErrorKind::InvalidOperation, message.clone());
        Err(raised.with_source(Raised(message)))
    });
    set_clock(&mut environment, SystemTime::now);
    environment.add_template_owned(NAME, without_generation_tags(source))?;
    Ok(environment)
}

/// Defines `strftime_now` over a clock.
pub(super) fn set_clock(
    environment: &mut Environment<'static>,
    clock: impl Fn() -> SystemTime + Send + Sync + 'static,
) {
    environment.add_function("strftime_now", move |format: &str| clock::strftime(clock(), format));
}

/// The hub's `tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
fn to_json(
    state: &State,
    value: &Value,
    arguments: Rest<Value>,
) -> Result<Value, Error> {
    type Optional = Option<Value>;
    let (ascii, indent, separators, sort, named): (Optional, Optional, Optional, Optional, Kwargs) =
        from_args(&arguments)?;
    let argument = |name: &str, positional: Option<Value>| -> Result<Option<Value>, Error> {
        let value = match positional {
            Some(value) => Some(value),
            None => named.get::<Option<Value>>(name)?,
        };
        Ok(value.filter(|value| !value.is_none() && !value.is_undefined()))
    };
    let ascii = argument("ensure_ascii", ascii)?.is_some_and(|value| value.is_true());
    let sort = argument("sort_keys", sort)?.is_some_and(|value| value.is_true());
    let indent = argument("indent", indent)?.map(|value| indentation(&value)).transpose()?;
    let separators = argument("separators", separators)?;
    named.assert_all_used()?;
    let separators = match separators {
        None => None,
        Some(pair) => Some((text_item(&pair, 0)?, text_item(&pair, 1)?)),
    };
    let style = python::JsonStyle::new(ascii, sort, indent, separators);
    python::dumps(state, value, &style).map(Value::from)
}

fn text_item(pair: &Value, index: usize) -> Result<String, Error> {
    pair.get_item_by_index(index)?.as_str().map(str::to_owned).ok_or_else(|| {
        Error::new(ErrorKind::InvalidOperation, "tojson: separators are two strings")
    })
}

fn indentation(value: &Value) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.to_owned());
    }
    let width = value.as_usize().filter(|width| *width <= 64).ok_or_else(|| {
        Error::new(ErrorKind::InvalidOperation, "tojson: indent is a string or 0 to 64 spaces")
    })?;
    Ok(" ".repeat(width))
}

/// `{% generation %}` marks what a model is trained on and renders as its body; the engine does not
/// know it. An `if` is put in its place, on the same line.
fn without_generation_tags(source: &str) -> String {
    let mut text = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(open) = rest.find("{%") {
        let (before, tag) = rest.split_at(open + 2);
        text.push_str(before);
        let inner = tag.trim_start_matches(['-', '+']);
        let (sign, inner) = tag.split_at(tag.len() - inner.len());
        text.push_str(sign);
        let name = inner.trim_start();
        let (space, _) = inner.split_at(inner.len() - name.len());
        text.push_str(space);
        rest = name;
        for (word, replacement) in [("generation", "if true"), ("endgeneration", "endif")] {
            if let Some(after) = name.strip_prefix(word)
                && after.trim_start().trim_start_matches(['-', '+']).starts_with("%}")
            {
                text.push_str(replacement);
                rest = after;
            }
        }
    }
    text.push_str(rest);
    text
}

#[cfg(test)]
mod tests {
    use super::without_generation_tags;

    #[test]
    fn generation_tags_become_ifs_and_nothing_else_changes() {
        assert_eq!(
            without_generation_tags("a{%- generation -%}\nb{% endgeneration %}{% generation_x %}"),
            "a{%- if true -%}\nb{% endif %}{% generation_x %}"
        );
        assert_eq!(without_generation_tags("{{ x }}{% if y %}{%"), "{{ x }}{% if y %}{%");
    }
}
