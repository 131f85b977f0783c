//! What a chat template finds around it: the hub's settings, filters and functions.
//!
//! The hub renders with jinja2, `trim_blocks`, `lstrip_blocks`, loop controls, a `tojson` of its
//! own, `raise_exception` and `strftime_now`. Values print as Python prints them. There is nothing
//! to include or import: one template, and no files.

use super::{NAME, clock, python};
use minijinja::machinery::{
    CompiledTemplate, Instruction, TemplateConfig, Token, eval, make_string_output, tokenize,
};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State};
use std::sync::Arc;
use std::time::SystemTime;

/// The message of a `raise_exception`, carried through the engine's own error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Raised(pub(super) String);

/// A template's instructions.
pub(super) struct Program<'source>(CompiledTemplate<'source>);

impl<'source> Program<'source> {
    /// Compiles a source, which must have gone through [`without_generation_tags`].
    pub(super) fn compile(source: &'source str) -> Result<Self, Error> {
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?;
        let config = TemplateConfig {
            syntax_config: syntax,
            default_auto_escape: Arc::new(|_| AutoEscape::None),
        };
        check_expressions(source, &config.syntax_config)?;
        let mut compiled = CompiledTemplate::new(NAME, source, &config)?;
        let blocks = compiled.blocks.values_mut();
        for instructions in std::iter::once(&mut compiled.instructions).chain(blocks) {
            let mut at = 0;
            while let Some(instruction) = instructions.get_mut(at) {
                if matches!(instruction, Instruction::Add) {
                    *instruction = Instruction::ApplyFilter(ADD, Some(2), NO_LOCAL_ID);
                }
                at += 1;
            }
        }
        Ok(Self(compiled))
    }

    /// Runs the program over its variables.
    pub(super) fn run(
        &self,
        environment: &Environment<'source>,
        variables: Value,
    ) -> Result<String, Error> {
        let mut text = String::new();
        let CompiledTemplate { instructions, blocks, .. } = &self.0;
        let output = &mut make_string_output(&mut text);
        eval(environment, instructions, variables, blocks, output, AutoEscape::None)?;
        Ok(text)
    }
}

/// Refuses expressions so long that compiling them, quadratic in their nesting, takes noticeable time.
fn check_expressions(source: &str, syntax: &SyntaxConfig) -> Result<(), Error> {
    let mut tokens = 0;
    for token in tokenize(source, false, syntax.clone()) {
        let Ok((token, _)) = token else {
            // The compiler says it better, with the line.
            return Ok(());
        };
        let within =
            !matches!(token, Token::TemplateData(_) | Token::VariableStart | Token::BlockStart);
        tokens = if within { tokens + 1 } else { 0 };
        if tokens > MAX_EXPRESSION_TOKENS {
            let message = format!("an expression has more than {MAX_EXPRESSION_TOKENS} tokens");
            return Err(Error::new(ErrorKind::SyntaxError, message));
        }
    }
    Ok(())
}

/// Most tokens between `{{` or `{%` and its end. Known templates have some hundreds.
const MAX_EXPRESSION_TOKENS: usize = 2_000;

/// The name under which `+` is a filter; no template can spell it.
const ADD: &str = "+";
/// A filter that is looked up by name each time.
const NO_LOCAL_ID: u8 = !0;

/// What programs run in.
pub(super) fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_unknown_method_callback(method);
    environment.set_formatter(|output, state, value| {
        if let Some(text) = value.as_str() {
            return output.write_str(text).map_err(Error::from);
        }
        output.write_str(&python::display(state, value)?).map_err(Error::from)
    });
    environment.add_filter(ADD, add);
    // Lazy like the engine's `+`, and not jinja2's.
    environment.remove_filter("chain");
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
    environment
}

/// `a + b`. The engine's own adds lists lazily and for free, so that doubling one in a loop makes a
/// list of any length out of a few dozen instructions; here lists are added at once and paid for.
fn add(state: &State, left: &Value, right: &Value) -> Result<Value, Error> {
    let list = |value: &Value| matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable);
    if list(left) && list(right) {
        let mut items = Vec::new();
        for item in left.try_iter()?.chain(right.try_iter()?) {
            if items.len() % ITEMS_PER_FUEL == 0 {
                state.consume_fuel(1)?;
            }
            items.push(item);
        }
        return Ok(Value::from(items));
    }
    if let (Some(left), Some(right)) = (left.as_str(), right.as_str()) {
        state.consume_fuel(((left.len() + right.len()) / BYTES_PER_FUEL) as u64)?;
        return Ok(Value::from([left, right].concat()));
    }
    let numeric = |value: &Value| matches!(value.kind(), ValueKind::Number | ValueKind::Bool);
    let failed = |reason: &str| {
        let (left, right) = (left.kind(), right.kind());
        Error::new(ErrorKind::InvalidOperation, format!("{left} + {right}: {reason}"))
    };
    if !numeric(left) || !numeric(right) {
        return Err(failed("there is no such sum"));
    }
    if let (Ok(left), Ok(right)) = (i128::try_from(left.clone()), i128::try_from(right.clone())) {
        let sum = left.checked_add(right).ok_or_else(|| failed("the sum is too large"))?;
        return Ok(i64::try_from(sum).map_or_else(|_| Value::from(sum), Value::from));
    }
    Ok(Value::from(f64::try_from(left.clone())? + f64::try_from(right.clone())?))
}

/// Items of a list, and bytes of a string, that a unit of fuel pays for while they are added.
const ITEMS_PER_FUEL: usize = 4;
const BYTES_PER_FUEL: usize = 64;

/// Python's methods. `format` pads to any width without asking, so every number in its text is paid
/// for as if it were one.
fn method(
    state: &mut State,
    value: &Value,
    method: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    if let ("format", Some(text)) = (method, value.as_str()) {
        let numbers =
            text.split(|char: char| !char.is_ascii_digit()).filter(|digits| !digits.is_empty());
        let width = |digits: &str| digits.parse().unwrap_or(u64::MAX);
        let widths = numbers.map(width).fold(0, u64::saturating_add);
        state.consume_fuel(widths / BYTES_PER_FUEL as u64)?;
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, method, arguments)
}

/// Defines `strftime_now` over a clock.
pub(super) fn set_clock(
    environment: &mut Environment<'static>,
    clock: impl Fn() -> SystemTime + Send + Sync + 'static,
) {
    environment.add_function("strftime_now", move |format: &str| clock::strftime(clock(), format));
}

/// The hub's `tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`, the
/// last two by name only.
// A filter takes its arguments by value.
#[allow(clippy::needless_pass_by_value)]
fn to_json(
    state: &State,
    value: &Value,
    ascii: Option<Value>,
    indent: Option<Value>,
    named: Kwargs,
) -> Result<Value, Error> {
    let argument = |name: &str, positional: Option<Value>| -> Result<Option<Value>, Error> {
        let value = match positional {
            Some(value) => Some(value),
            None => named.get::<Option<Value>>(name)?,
        };
        Ok(value.filter(|value| !value.is_none() && !value.is_undefined()))
    };
    let ascii = argument("ensure_ascii", ascii)?.is_some_and(|value| value.is_true());
    let sort = argument("sort_keys", None)?.is_some_and(|value| value.is_true());
    let indent = argument("indent", indent)?.map(|value| indentation(&value)).transpose()?;
    let separators = argument("separators", None)?;
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
pub(super) fn without_generation_tags(source: &str) -> String {
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
