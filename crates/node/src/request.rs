//! A request on its way in, a batch on its way out.

use napi::bindgen_prelude::{BigInt, Float64Array, Uint8Array, Uint32Array};
use napi_derive::napi;
use tinyllm_engine::{
    Batch, ContextOverflow, Engine, EngineError, Finish, FinishReason, Logprobs, Request,
};

/// One generation. Types were checked in TypeScript, ranges are checked by the engine.
#[napi(object, object_to_js = false)]
pub struct NativeRequest {
    /// Token ids, or `promptText`.
    pub prompt: Option<Uint32Array>,
    pub prompt_text: Option<String>,
    /// Whether control strings in `promptText` become control tokens.
    pub prompt_special: Option<bool>,
    /// A grammar's description, as JSON text.
    pub grammar: Option<String>,
    pub max_tokens: Option<u32>,
    pub temperature: Option<f64>,
    pub top_k: Option<u32>,
    pub top_p: Option<f64>,
    pub min_p: Option<f64>,
    pub repetition_penalty: Option<f64>,
    pub presence_penalty: Option<f64>,
    pub frequency_penalty: Option<f64>,
    pub seed: Option<BigInt>,
    pub stop: Option<Vec<String>>,
    pub logprobs: Option<u32>,
    pub removed_mass: Option<bool>,
    /// Token ids, with their biases in `logitBias`.
    pub logit_bias_tokens: Option<Uint32Array>,
    pub logit_bias: Option<Float64Array>,
    pub ignore_eos: Option<bool>,
    pub close_within_budget: Option<bool>,
    /// Whether a `maxTokens` that does not fit the context is lowered rather than refused.
    pub truncate: Option<bool>,
}

impl NativeRequest {
    pub fn into_request(self, engine: &Engine) -> Result<Request, EngineError> {
        let prompt = match (self.prompt, self.prompt_text) {
            (Some(ids), _) => ids.to_vec(),
            (None, Some(text)) => {
                engine.encode_prompt(&text, self.prompt_special.unwrap_or(true))?
            }
            (None, None) => Vec::new(),
        };
        let mut request = Request::new(prompt);
        request.grammar = self.grammar;
        request.max_tokens = self.max_tokens.map(|n| n as usize);
        let sampling = &mut request.sampling;
        let set = |field: &mut f32, value: Option<f64>| {
            if let Some(value) = value {
                *field = value as f32;
            }
        };
        set(&mut sampling.temperature, self.temperature);
        set(&mut sampling.top_p, self.top_p);
        set(&mut sampling.min_p, self.min_p);
        set(&mut sampling.repetition_penalty, self.repetition_penalty);
        set(&mut sampling.presence_penalty, self.presence_penalty);
        set(&mut sampling.frequency_penalty, self.frequency_penalty);
        if let Some(k) = self.top_k {
            sampling.top_k = k;
        }
        if let (Some(tokens), Some(biases)) = (self.logit_bias_tokens, self.logit_bias) {
            sampling.logit_bias =
                tokens.iter().zip(biases.iter()).map(|(t, b)| (*t, *b as f32)).collect();
        }
        request.seed = self.seed.map(|seed| seed.get_u64().1);
        request.stop = self.stop.unwrap_or_default();
        request.logprobs = self.logprobs.map(|n| n as usize);
        request.removed_mass = self.removed_mass.unwrap_or(false);
        request.ignore_eos = self.ignore_eos.unwrap_or(false);
        request.close_within_budget = self.close_within_budget.unwrap_or(false);
        if self.truncate == Some(true) {
            request.overflow = ContextOverflow::Truncate;
        }
        Ok(request)
    }
}

/// Everything that became ready since the last batch.
#[napi(object, object_from_js = false)]
pub struct NativeBatch {
    pub tokens: Uint32Array,
    pub bytes: Uint8Array,
    pub text: String,
    /// One per token, when the request asked for them; else empty.
    pub logprobs: Vec<NativeTokenLogprob>,
    /// Only in the last batch.
    pub finish: Option<NativeFinish>,
}

/// A token with its log-probability and the likeliest ones at its place.
#[napi(object, object_from_js = false)]
pub struct NativeTokenLogprob {
    pub id: u32,
    pub text: String,
    pub bytes: Uint8Array,
    pub logprob: f64,
    pub top: Vec<NativeTokenAlternative>,
    pub removed_mass: Option<f64>,
}

#[napi(object, object_from_js = false)]
pub struct NativeTokenAlternative {
    pub id: u32,
    pub text: String,
    pub bytes: Uint8Array,
    pub logprob: f64,
}

/// How a generation ended.
#[napi(object, object_from_js = false)]
pub struct NativeFinish {
    /// `stop` or `length`.
    pub reason: String,
    pub prompt_tokens: u32,
    pub completion_tokens: u32,
    pub cached_tokens: u32,
    /// Whether the text is a whole string of the grammar; absent without one.
    pub complete: Option<bool>,
}

impl From<Finish> for NativeFinish {
    fn from(finish: Finish) -> Self {
        Self {
            reason: match finish.reason {
                FinishReason::Stop => "stop",
                FinishReason::Length => "length",
            }
            .to_owned(),
            prompt_tokens: finish.prompt_tokens as u32,
            completion_tokens: finish.completion_tokens as u32,
            cached_tokens: finish.cached_tokens as u32,
            complete: finish.complete,
        }
    }
}

impl NativeBatch {
    pub fn new(batch: Batch, engine: &Engine) -> Self {
        let logprobs =
            batch.tokens.iter().zip(batch.logprobs).map(|(id, l)| token(*id, l, engine)).collect();
        Self {
            tokens: Uint32Array::new(batch.tokens),
            bytes: Uint8Array::new(batch.bytes),
            text: batch.text,
            logprobs,
            finish: batch.finish.map(NativeFinish::from),
        }
    }
}

fn token(id: u32, logprobs: Logprobs, engine: &Engine) -> NativeTokenLogprob {
    let Logprobs { logprob, top, removed_mass } = logprobs;
    let NativeTokenAlternative { id, text, bytes, logprob } = alternative(id, logprob, engine);
    let top = top.into_iter().map(|(id, logprob)| alternative(id, logprob, engine)).collect();
    NativeTokenLogprob { id, text, bytes, logprob, top, removed_mass }
}

fn alternative(id: u32, logprob: f64, engine: &Engine) -> NativeTokenAlternative {
    let bytes = engine.tokenizer().token_bytes(id);
    NativeTokenAlternative {
        id,
        text: String::from_utf8_lossy(bytes).into_owned(),
        bytes: Uint8Array::new(bytes.to_vec()),
        logprob,
    }
}
