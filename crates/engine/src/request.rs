//! What a caller asks for, and what it is told at the end.

use tinyllm_sampler::SamplingParams;

use crate::error::EngineError;

/// Alternatives reported per token at most.
pub const LOGPROBS_MAX: usize = 20;
/// Stop strings at most.
pub const STOPS_MAX: usize = 16;

/// One generation.
#[derive(Debug, Clone)]
pub struct Request {
    /// Token ids of the prompt; at least one.
    pub prompt: Vec<u32>,
    /// Description of the grammar, as JSON text (see `tinyllm_constrain::Grammar::from_json`).
    pub grammar: Option<String>,
    /// Bound on the sampled tokens, the end token included. `None`: what is left of the context.
    pub max_tokens: Option<usize>,
    /// How a token is chosen.
    pub sampling: SamplingParams,
    /// Seed of the generator; `None` draws one from the system.
    pub seed: Option<u64>,
    /// Strings that end the text before them; none may be empty.
    pub stop: Vec<String>,
    /// Report log-probabilities, with this many alternatives.
    pub logprobs: Option<usize>,
    /// With `logprobs`: also report the probability that the grammar's mask took away. The whole head
    /// is then computed for every token, forced ones included.
    pub removed_mass: bool,
    /// Go on after end-of-generation tokens.
    pub ignore_eos: bool,
    /// Steer the grammar so that it is complete when the budget is spent.
    pub close_within_budget: bool,
    /// What to do when the prompt and `max_tokens` together pass the context.
    pub overflow: ContextOverflow,
}

/// What to do when the prompt and `max_tokens` together pass the context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ContextOverflow {
    /// Refuse the request.
    #[default]
    Error,
    /// Lower `max_tokens` to what is left; the generation then ends with `length`.
    Truncate,
}

impl Request {
    /// A greedy generation without a grammar.
    pub fn new(prompt: Vec<u32>) -> Self {
        Self {
            prompt,
            grammar: None,
            max_tokens: None,
            sampling: SamplingParams::default(),
            seed: None,
            stop: Vec::new(),
            logprobs: None,
            removed_mass: false,
            ignore_eos: false,
            close_within_budget: false,
            overflow: ContextOverflow::default(),
        }
    }

    /// Checks ranges, and the prompt against the vocabulary and the context. Returns the length,
    /// prompt included, at which the generation ends.
    pub(crate) fn check(&self, vocab_size: usize, context: usize) -> Result<usize, EngineError> {
        let SamplingParams {
            temperature,
            top_p,
            min_p,
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
            logit_bias,
            ..
        } = &self.sampling;
        within("temperature", *temperature, 0.0, 100.0)?;
        within("topP", *top_p, f32::MIN_POSITIVE, 1.0)?;
        within("minP", *min_p, 0.0, 1.0)?;
        within("repetitionPenalty", *repetition_penalty, f32::MIN_POSITIVE, 100.0)?;
        within("presencePenalty", *presence_penalty, -2.0, 2.0)?;
        within("frequencyPenalty", *frequency_penalty, -2.0, 2.0)?;
        for &(token, bias) in logit_bias {
            known("logitBias", token, vocab_size)?;
            within("logitBias", bias, -100.0, 100.0)?;
        }
        if self.logprobs.is_some_and(|n| n > LOGPROBS_MAX) {
            return Err(EngineError::invalid(
                "logprobs",
                format!("must be at most {LOGPROBS_MAX}"),
            ));
        }
        if self.stop.len() > STOPS_MAX || self.stop.iter().any(String::is_empty) {
            return Err(EngineError::invalid(
                "stop",
                format!("takes at most {STOPS_MAX} strings, none of them empty"),
            ));
        }
        if self.max_tokens == Some(0) {
            return Err(EngineError::invalid("maxTokens", "must be at least 1"));
        }
        if self.prompt.is_empty() {
            return Err(EngineError::invalid("prompt", "must have at least one token"));
        }
        for &token in &self.prompt {
            known("prompt", token, vocab_size)?;
        }
        let overflow = EngineError::ContextLength {
            prompt_tokens: self.prompt.len(),
            max_tokens: self.max_tokens,
            limit: context,
        };
        if self.prompt.len() >= context {
            return Err(overflow);
        }
        match self.max_tokens.map(|n| self.prompt.len().saturating_add(n)) {
            Some(limit) if limit <= context => Ok(limit),
            Some(_) if self.overflow == ContextOverflow::Error => Err(overflow),
            _ => Ok(context),
        }
    }
}

fn within(param: &'static str, value: f32, min: f32, max: f32) -> Result<(), EngineError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    let range = if min == f32::MIN_POSITIVE {
        format!("must be above 0 and at most {max}")
    } else {
        format!("must be from {min} to {max}")
    };
    Err(EngineError::invalid(param, range))
}

fn known(param: &'static str, token: u32, vocab_size: usize) -> Result<(), EngineError> {
    if (token as usize) < vocab_size {
        return Ok(());
    }
    Err(EngineError::invalid(
        param,
        format!("token id {token} is not in the vocabulary of {vocab_size} tokens"),
    ))
}

/// Log-probabilities of one token: of the logits after mask, bias and penalties, before
/// temperature.
#[derive(Debug, Clone, PartialEq)]
pub struct Logprobs {
    /// Of the token itself.
    pub logprob: f64,
    /// The likeliest tokens at this place, likeliest first.
    pub top: Vec<(u32, f64)>,
    /// The probability of the tokens that the mask did not allow; when it was asked for.
    pub removed_mass: Option<f64>,
}

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// An end token, a stop string or a finished grammar.
    Stop,
    /// The budget or the context was used up.
    Length,
}

/// The end of a generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Finish {
    /// Why it ended.
    pub reason: FinishReason,
    /// Tokens in the prompt.
    pub prompt_tokens: usize,
    /// Every sampled token, the end token and those of a stop string included.
    pub completion_tokens: usize,
    /// Tokens of the prompt that needed no forward pass.
    pub cached_tokens: usize,
    /// Whether the text is a whole string of the grammar; `None` without a grammar.
    pub complete: Option<bool>,
}
