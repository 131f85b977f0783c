//! Chat templates: a conversation to the text a model was trained on.
//!
//! A template comes with a model file and is untrusted code; the conversation comes from users and
//! tools and is untrusted text. The first is held by [`TemplateLimits`]; the second by sentinels
//! (see [`crate::control`]): of the rendered text only what the template itself wrote may become
//! control tokens. Everything the hub's renderer offers to a template is offered here and gives the
//! same text (`environment`, `python`).
//!
//! A conversation without any control text is rendered once. One with such text is rendered twice,
//! with sentinels and without; both must give the same text, or the template behaves differently
//! because of them and there is no telling its tokens from the conversation's: an error, since a
//! guess would let a user forge a turn.
//!
//! Rendering runs on a thread of its own. What a template builds can be nested as deeply as its
//! fuel lasts, and taking that apart again takes stack in proportion; the thread has it.

mod clock;
mod environment;
mod python;

use crate::control::{ControlTexts, choose_sentinel, insert};
use crate::{Segment, TemplateError};
use environment::{Program, Raised, without_generation_tags};
use minijinja::value::Value;
use minijinja::{Environment, ErrorKind};
use serde_json::{Map, Value as Json};
use std::error::Error as _;
use std::sync::Arc;
use std::time::SystemTime;

/// The name a template goes by in messages.
const NAME: &str = "chat_template";
/// Most nesting of a message or tool.
const MAX_DEPTH: usize = 256;
/// Stack of a rendering thread that every template gets. Reserved, not touched.
const STACK: usize = 32 << 20;
/// More stack per unit of fuel: a level of nesting costs a template some units.
const STACK_PER_FUEL: usize = 128;
/// More stack per byte of source: a chain of operators nests as deeply as it is long.
const STACK_PER_SOURCE_BYTE: usize = 4096;

/// What a template may use up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TemplateLimits {
    /// Bytes of a template's source. Default 128 KiB; the longest known have some 30 KiB.
    pub source_bytes: usize,
    /// Steps of the interpreter. A step pays for one instruction or for 64 bytes of any value made,
    /// so this bounds memory as well as time. Default 1,000,000 (64 MB, some 50 ms).
    pub fuel: u64,
    /// More steps for each byte of messages and tools, so that long conversations render.
    /// Default 1.
    pub fuel_per_input_byte: u64,
    /// Bytes of the rendered text. Default 32 MiB.
    pub output_bytes: usize,
}

impl Default for TemplateLimits {
    fn default() -> Self {
        Self {
            source_bytes: 128 << 10,
            fuel: 1_000_000,
            fuel_per_input_byte: 1,
            output_bytes: 32 << 20,
        }
    }
}

/// The spellings a template may ask for (`bos_token`, …); undefined in it where `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TemplateTokens {
    /// `bos_token`.
    pub bos: Option<String>,
    /// `eos_token`.
    pub eos: Option<String>,
    /// `pad_token`.
    pub pad: Option<String>,
    /// `unk_token`.
    pub unk: Option<String>,
}

/// A rendered conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// The text, as the hub's renderer gives it.
    pub text: String,
    /// The same text in stretches: special ones are control texts the template wrote, one each; the
    /// others hold everything else. For [`Tokenizer::encode_segments`](crate::Tokenizer::encode_segments).
    pub segments: Vec<Segment>,
}

/// A compiled chat template. Immutable and shared between threads.
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// Compiled anew by each rendering: a program borrows its source, and compiling costs less than
    /// tokenizing what it writes.
    source: String,
    tokens: TemplateTokens,
    controls: Arc<ControlTexts>,
    limits: TemplateLimits,
}

impl ChatTemplate {
    /// Compiles a template with the default limits and the system's clock.
    pub(crate) fn new(
        source: &str,
        tokens: TemplateTokens,
        controls: Arc<ControlTexts>,
    ) -> Result<Self, TemplateError> {
        let limits = TemplateLimits::default();
        if source.len() > limits.source_bytes {
            let value = limits.source_bytes as u64;
            return Err(TemplateError::Limit { limit: "source_bytes", value, line: 0 });
        }
        let stack = STACK + source.len() * STACK_PER_SOURCE_BYTE;
        let source = without_generation_tags(source);
        let compile =
            || Program::compile(&source).map(drop).map_err(|error| explain(&error, &limits));
        with_stack(stack, compile)?;
        Ok(Self { environment: environment::environment(), source, tokens, controls, limits })
    }

    /// The same template under other limits. `source_bytes` has done its work by then.
    #[must_use]
    pub fn with_limits(mut self, limits: TemplateLimits) -> Self {
        self.limits = limits;
        self
    }

    /// The same template with another clock for `strftime_now`, which otherwise tells the system's
    /// time in UTC.
    #[must_use]
    pub fn with_clock(mut self, clock: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        environment::set_clock(&mut self.environment, clock);
        self
    }

    /// Renders a conversation.
    ///
    /// `messages` is an array of objects, `tools` an array or nothing, both passed to the template
    /// as they are with their keys in order; `extra` are further variables (`enable_thinking`).
    /// All text in the three is foreign: nothing in it becomes a control token. A message whose
    /// content is null is rendered as the template does it, and with an empty content should the
    /// template fail on that.
    pub fn render(
        &self,
        messages: &Json,
        tools: Option<&Json>,
        add_generation_prompt: bool,
        extra: Option<&Map<String, Json>>,
    ) -> Result<Rendered, TemplateError> {
        let Json::Array(_) = messages else {
            return Err(TemplateError::Input { message: "messages is not an array".to_owned() });
        };
        let inputs = Inputs { messages, tools, add_generation_prompt, extra };
        let mut survey = Survey::default();
        inputs.values().try_for_each(|value| survey.visit(value, &self.controls, 0))?;
        let fuel = self.limits.fuel_per_input_byte.saturating_mul(survey.bytes as u64);
        let fuel = self.limits.fuel.saturating_add(fuel);
        let stack = (fuel as usize).saturating_mul(STACK_PER_FUEL);
        let stack = stack + self.source.len() * STACK_PER_SOURCE_BYTE + STACK;
        with_stack(stack, || {
            let mut environment = self.environment.clone();
            environment.set_fuel(Some(fuel));
            let program =
                Program::compile(&self.source).map_err(|error| explain(&error, &self.limits))?;
            let run =
                |inputs: &Inputs<'_>, sentinel| self.run(&environment, &program, inputs, sentinel);
            let rendered = self.render_surveyed(run, &inputs, &survey);
            if let Err(TemplateError::Render { .. }) = rendered
                && let Some(filled) = fill_null(messages)
            {
                let inputs = Inputs { messages: &filled, ..inputs };
                return self.render_surveyed(run, &inputs, &survey);
            }
            rendered
        })
    }

    fn render_surveyed(
        &self,
        run: impl Fn(&Inputs<'_>, Option<char>) -> Result<String, TemplateError>,
        inputs: &Inputs<'_>,
        survey: &Survey<'_>,
    ) -> Result<Rendered, TemplateError> {
        let text = run(inputs, None)?;
        let Some(token) = &survey.control else {
            return Ok(Rendered { segments: self.split(&text, None), text });
        };
        let foreign = || TemplateError::Foreign { token: token.clone() };
        let known = survey.texts.iter().copied().chain(std::iter::once(text.as_str()));
        let sentinel = choose_sentinel(&known).ok_or_else(foreign)?;
        let marked = run(inputs, Some(sentinel)).map_err(|_| foreign())?;
        let segments = self.split(&marked, Some(sentinel));
        let unmarked: String = segments.iter().map(|segment| segment.text.as_str()).collect();
        if unmarked != text {
            return Err(foreign());
        }
        Ok(Rendered { text, segments })
    }

    /// One rendering, with sentinels in the conversation or without.
    fn run<'program>(
        &self,
        environment: &Environment<'program>,
        program: &Program<'program>,
        inputs: &Inputs<'_>,
        sentinel: Option<char>,
    ) -> Result<String, TemplateError> {
        let marker = sentinel.map(|sentinel| (&*self.controls, sentinel));
        let foreign = |json: &Json| to_value(json, marker);
        let mut variables: Vec<(&str, Value)> = Vec::new();
        for (name, token) in [
            ("bos_token", &self.tokens.bos),
            ("eos_token", &self.tokens.eos),
            ("pad_token", &self.tokens.pad),
            ("unk_token", &self.tokens.unk),
        ] {
            if let Some(token) = token {
                variables.push((name, token.as_str().into()));
            }
        }
        variables.push(("documents", Value::from(())));
        for (name, value) in inputs.extra.into_iter().flatten() {
            variables.push((name, foreign(value)));
        }
        // Later ones win: `extra` may set the tokens, as at the hub, but not the conversation.
        variables.push(("messages", foreign(inputs.messages)));
        variables.push(("tools", inputs.tools.map_or(Value::from(()), foreign)));
        variables.push(("add_generation_prompt", inputs.add_generation_prompt.into()));
        let text = program.run(environment, Value::from_pairs(variables));
        let text = text.map_err(|error| explain(&error, &self.limits))?;
        if text.len() > self.limits.output_bytes {
            let value = self.limits.output_bytes as u64;
            return Err(TemplateError::Limit { limit: "output_bytes", value, line: 0 });
        }
        Ok(text)
    }

    /// Cuts a rendered text at its unbroken control texts and takes the sentinels out.
    fn split(&self, text: &str, sentinel: Option<char>) -> Vec<Segment> {
        let mut segments = Vec::new();
        let mut push = |text: &str, special| {
            let text =
                sentinel.map_or_else(|| text.to_owned(), |sentinel| text.replace(sentinel, ""));
            if !text.is_empty() {
                segments.push(Segment { text, special });
            }
        };
        let mut at = 0;
        for (range, _) in self.controls.find(text) {
            push(&text[at..range.start], false);
            push(&text[range.clone()], true);
            at = range.end;
        }
        push(&text[at..], false);
        segments
    }
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("ChatTemplate")
            .field("source_bytes", &self.source.len())
            .field("tokens", &self.tokens)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// What a caller gave.
struct Inputs<'a> {
    messages: &'a Json,
    tools: Option<&'a Json>,
    add_generation_prompt: bool,
    extra: Option<&'a Map<String, Json>>,
}

impl<'a> Inputs<'a> {
    fn values(&self) -> impl Iterator<Item = &'a Json> + use<'a> {
        let extra = self.extra.into_iter().flat_map(Map::values);
        [self.messages].into_iter().chain(self.tools).chain(extra)
    }
}

/// One walk over the conversation before rendering.
#[derive(Default)]
struct Survey<'a> {
    /// All strings that hold control texts, whole or in part, and all that hold noncharacters.
    texts: Vec<&'a str>,
    /// A control text in the conversation, or a text with a part of one; `None` when there is none.
    control: Option<String>,
    /// Roughly the size of the conversation as JSON.
    bytes: usize,
}

impl<'a> Survey<'a> {
    fn visit(
        &mut self,
        value: &'a Json,
        controls: &ControlTexts,
        depth: usize,
    ) -> Result<(), TemplateError> {
        if depth > MAX_DEPTH {
            let message = format!("messages or tools are nested more than {MAX_DEPTH} deep");
            return Err(TemplateError::Input { message });
        }
        self.bytes += 2;
        match value {
            Json::String(text) => self.text(text, controls),
            Json::Array(items) => {
                items.iter().try_for_each(|item| self.visit(item, controls, depth + 1))?;
            }
            Json::Object(members) => {
                for (key, value) in members {
                    self.text(key, controls);
                    self.visit(value, controls, depth + 1)?;
                }
            }
            Json::Null | Json::Bool(_) | Json::Number(_) => {}
        }
        Ok(())
    }

    fn text(&mut self, text: &'a str, controls: &ControlTexts) {
        self.bytes += text.len();
        let broken = !controls.breaks(text).is_empty();
        if broken && self.control.is_none() {
            let excerpt = || text.chars().take(32).collect();
            self.control = Some(controls.example(text).map_or_else(excerpt, str::to_owned));
        }
        if broken || text.contains(crate::control::may_be_sentinel) {
            self.texts.push(text);
        }
    }
}

/// The messages with null contents made empty, or `None` if there are none.
fn fill_null(messages: &Json) -> Option<Json> {
    let mut messages = messages.clone();
    let mut changed = false;
    for message in messages.as_array_mut()? {
        if let Some(content @ Json::Null) = message.get_mut("content") {
            *content = Json::String(String::new());
            changed = true;
        }
    }
    changed.then_some(messages)
}

/// JSON as a template sees it: keys in order, and with a marker all text guarded by sentinels.
fn to_value(json: &Json, marker: Option<(&ControlTexts, char)>) -> Value {
    let text = |text: &str| match marker {
        Some((controls, sentinel)) => Value::from(insert(text, &controls.breaks(text), sentinel)),
        None => Value::from(text),
    };
    match json {
        Json::Null => Value::from(()),
        Json::Bool(value) => Value::from(*value),
        Json::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(number), _, _) => Value::from(number),
            (_, Some(number), _) => Value::from(number),
            (_, _, number) => Value::from(number),
        },
        Json::String(string) => text(string),
        Json::Array(items) => items.iter().map(|item| to_value(item, marker)).collect(),
        Json::Object(members) => Value::from_pairs(
            members.iter().map(|(key, value)| (text(key), to_value(value, marker))),
        ),
    }
}

/// The template engine's error in this crate's terms.
fn explain(error: &minijinja::Error, limits: &TemplateLimits) -> TemplateError {
    let line = error.line().unwrap_or(0);
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(Raised(message)) = error.downcast_ref() {
            return TemplateError::Raised { line, message: message.clone() };
        }
        cause = error.source();
    }
    let message = match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    };
    match error.kind() {
        ErrorKind::OutOfFuel => TemplateError::Limit { limit: "fuel", value: limits.fuel, line },
        ErrorKind::SyntaxError | ErrorKind::InvalidDelimiter | ErrorKind::BadEscape => {
            TemplateError::Syntax { line, message }
        }
        _ => TemplateError::Render { line, message },
    }
}

/// Runs on a thread with this much stack.
fn with_stack<T: Send>(
    bytes: usize,
    run: impl FnOnce() -> Result<T, TemplateError> + Send,
) -> Result<T, TemplateError> {
    let builder = std::thread::Builder::new().name("tinyllm-template".to_owned()).stack_size(bytes);
    std::thread::scope(|scope| {
        let thread = builder
            .spawn_scoped(scope, run)
            .map_err(|error| TemplateError::Thread { reason: error.to_string() })?;
        thread.join().unwrap_or_else(|_| {
            let message = "the template engine panicked".to_owned();
            Err(TemplateError::Render { line: 0, message })
        })
    })
}
