use crate::error::SamplerError;

/// How a token is chosen from logits. The default is greedy, with nothing else switched on.
///
/// They apply in this order: the mask, `logit_bias`, the penalties, (log-probabilities are taken
/// here), `temperature`, `top_k`, `top_p`, `min_p`.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits. 0, the default, is greedy: the highest logit, the lowest id on ties,
    /// and no random draw. At least 0.
    pub temperature: f32,
    /// Keeps this many of the most likely tokens. 0, the default, keeps all.
    pub top_k: u32,
    /// Keeps the fewest most likely tokens whose probabilities reach this sum. Above 0, up to 1,
    /// the default, which keeps all.
    pub top_p: f32,
    /// Keeps tokens at least this likely relative to the likeliest. From 0, the default, which
    /// keeps all, to 1.
    pub min_p: f32,
    /// Divides the positive and multiplies the negative logits of tokens in the prompt or the
    /// output. Above 0; 1, the default, does nothing.
    pub repetition_penalty: f32,
    /// Taken from the logits of tokens in the output. 0 by default.
    pub presence_penalty: f32,
    /// Taken from the logits of tokens in the output once per occurrence. 0 by default.
    pub frequency_penalty: f32,
    /// Added to the logits of these token ids. An id given twice is biased twice.
    pub logit_bias: Vec<(u32, f32)>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
        }
    }
}

impl SamplingParams {
    /// Checks every field. The sampler relies on this having passed; out-of-range values that
    /// were never checked give some token or an error, never a panic.
    pub fn validate(&self) -> Result<(), SamplerError> {
        let check = |name, ok: bool, message: &str| {
            if ok {
                Ok(())
            } else {
                Err(SamplerError::Parameter { name, message: message.to_owned() })
            }
        };
        let finite = "must be a finite number";
        check(
            "temperature",
            self.temperature.is_finite() && self.temperature >= 0.0,
            "must be a finite number of at least 0",
        )?;
        check("top_p", self.top_p > 0.0 && self.top_p <= 1.0, "must be above 0 and at most 1")?;
        check("min_p", (0.0..=1.0).contains(&self.min_p), "must be from 0 to 1")?;
        check(
            "repetition_penalty",
            self.repetition_penalty.is_finite() && self.repetition_penalty > 0.0,
            "must be a finite number above 0",
        )?;
        check("presence_penalty", self.presence_penalty.is_finite(), finite)?;
        check("frequency_penalty", self.frequency_penalty.is_finite(), finite)?;
        check("logit_bias", self.logit_bias.iter().all(|(_, bias)| bias.is_finite()), finite)
    }

    /// Whether the choice is greedy, so that no random number is drawn.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }

    /// Whether the choice is the highest of the logits as they are.
    pub fn takes_the_likeliest(&self) -> bool {
        self.is_greedy() && !self.has_penalties() && self.logit_bias.is_empty()
    }

    pub(crate) fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
    }
}
