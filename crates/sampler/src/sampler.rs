//! One token from one row of logits.
//!
//! Passes over the allowed tokens, in id order: the highest logit (greedy ends here), weights,
//! and the draw. `top_k` and `top_p` look for the last token they keep among the likeliest only,
//! and widen the search when those do not suffice; nothing is sorted that is not kept, except on
//! distributions so flat that most tokens are. Buffers are kept between calls.

use crate::error::SamplerError;
use crate::params::SamplingParams;
use crate::pcg::Pcg32;
use std::cmp::Ordering;
use tinyllm_constrain::Mask;

/// What a caller wants besides the token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wanted {
    /// The chosen token's log-probability, and those of this many of the likeliest tokens.
    pub top_logprobs: Option<u32>,
    /// The probability that the mask took away. The logits of tokens that are not allowed must
    /// then be there.
    pub removed_mass: bool,
}

/// A chosen token.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Sampled {
    /// Its id.
    pub token: u32,
    /// Natural logarithm of its probability among the allowed tokens, after bias and penalties
    /// and before temperature. Present when log-probabilities were wanted.
    pub logprob: Option<f64>,
    /// The likeliest allowed tokens with their log-probabilities, most likely first, the lower
    /// id first on ties.
    pub top: Vec<(u32, f64)>,
    /// The probability of the tokens that the mask did not allow. Present when it was wanted.
    pub removed_mass: Option<f64>,
}

/// Chooses tokens, keeping its buffers between calls.
#[derive(Debug, Default)]
pub struct Sampler {
    /// The allowed tokens in id order.
    candidates: Vec<Candidate>,
    /// Places in `candidates`, to be ranked.
    ranked: Vec<u32>,
    /// Per token: occurrences in the output, and [`SEEN`]. All zero between calls.
    counts: Vec<u32>,
    touched: Vec<u32>,
}

#[derive(Debug, Clone, Copy)]
struct Candidate {
    id: u32,
    logit: f32,
    /// Relative to the likeliest token, which has 1.
    weight: f32,
}

/// Marks a token that occurs in the prompt or the output.
const SEEN: u32 = 1 << 31;

/// Most likely first; the lower id first on ties.
fn rank(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id))
}

fn bad_logits<T>(message: impl Into<String>) -> Result<T, SamplerError> {
    Err(SamplerError::Logits { message: message.into() })
}

/// Calls `f` with each allowed id below `len`, in ascending order.
fn each_allowed(
    mask: Option<&[u32]>,
    len: usize,
    mut f: impl FnMut(u32) -> Result<(), SamplerError>,
) -> Result<(), SamplerError> {
    let Some(mask) = mask else {
        return (0..len as u32).try_for_each(f);
    };
    for (i, word) in mask.iter().enumerate() {
        let mut word = *word;
        while word != 0 {
            let id = i as u32 * 32 + word.trailing_zeros();
            if id as usize >= len {
                return Ok(());
            }
            f(id)?;
            word &= word - 1;
        }
    }
    Ok(())
}

impl Sampler {
    /// A sampler with empty buffers; they grow to the vocabulary's size on first use.
    pub fn new() -> Self {
        Self::default()
    }

    /// Chooses a token.
    ///
    /// `logits[id]` is token `id`'s; bias and penalties are applied to them in place. Without a
    /// mask every token is allowed. A logit of −∞ is a token that is never chosen; one that is
    /// +∞ or not a number is an error when it is allowed. Draws one number unless greedy.
    #[allow(clippy::too_many_arguments)] // What the draw depends on, and nothing else.
    pub fn sample(
        &mut self,
        logits: &mut [f32],
        mask: Option<&Mask>,
        params: &SamplingParams,
        prompt: &[u32],
        output: &[u32],
        rng: &mut Pcg32,
        wanted: Wanted,
    ) -> Result<Sampled, SamplerError> {
        self.sample_words(logits, mask.map(Mask::words), params, prompt, output, rng, wanted)
    }

    #[allow(clippy::too_many_arguments)]
    fn sample_words(
        &mut self,
        logits: &mut [f32],
        mask: Option<&[u32]>,
        params: &SamplingParams,
        prompt: &[u32],
        output: &[u32],
        rng: &mut Pcg32,
        wanted: Wanted,
    ) -> Result<Sampled, SamplerError> {
        add_bias(logits, &params.logit_bias)?;
        if params.has_penalties() {
            self.penalise(logits, params, prompt, output)?;
        }
        let best = best_of(logits, mask)?;
        let token = if params.is_greedy() {
            best.id
        } else {
            let draw = rng.next_f64();
            self.weigh(logits, mask, best.logit, params.temperature)?;
            self.draw(params, draw)
        };
        let mut sampled = Sampled { token, ..Sampled::default() };
        if let Some(top) = wanted.top_logprobs {
            self.logprobs(logits, mask, best.logit, top, &mut sampled)?;
        }
        if wanted.removed_mass {
            sampled.removed_mass = Some(removed_mass(logits, mask)?);
        }
        Ok(sampled)
    }

    fn penalise(
        &mut self,
        logits: &mut [f32],
        params: &SamplingParams,
        prompt: &[u32],
        output: &[u32],
    ) -> Result<(), SamplerError> {
        if let Some(id) = prompt.iter().chain(output).find(|id| **id as usize >= logits.len()) {
            return bad_logits(format!("token {id} is outside the {} logits", logits.len()));
        }
        if self.counts.len() < logits.len() {
            self.counts.resize(logits.len(), 0);
        }
        for (tokens, one) in [(prompt, 0), (output, 1)] {
            for id in tokens {
                let count = &mut self.counts[*id as usize];
                if *count == 0 {
                    self.touched.push(*id);
                }
                *count = (*count | SEEN) + one;
            }
        }
        for id in self.touched.drain(..) {
            let count = std::mem::take(&mut self.counts[id as usize]) & !SEEN;
            let logit = &mut logits[id as usize];
            *logit = if *logit > 0.0 {
                *logit / params.repetition_penalty
            } else {
                *logit * params.repetition_penalty
            };
            if count > 0 {
                *logit -= params.presence_penalty + params.frequency_penalty * count as f32;
            }
        }
        Ok(())
    }

    /// Fills `candidates` with the allowed tokens and their weights at this temperature.
    fn weigh(
        &mut self,
        logits: &[f32],
        mask: Option<&[u32]>,
        highest: f32,
        temperature: f32,
    ) -> Result<(), SamplerError> {
        self.candidates.clear();
        each_allowed(mask, logits.len(), |id| {
            let logit = logits[id as usize];
            let weight = ((logit - highest) / temperature).exp();
            self.candidates.push(Candidate { id, logit, weight });
            Ok(())
        })
    }

    /// The token at `draw` of [0, 1) along the kept candidates in id order.
    fn draw(&mut self, params: &SamplingParams, draw: f64) -> u32 {
        let last = self.last_kept(params);
        let kept = |c: &Candidate| {
            c.weight > 0.0
                && c.weight >= params.min_p
                && last.is_none_or(|last| rank(c, &last) != Ordering::Greater)
        };
        let total: f64 =
            self.candidates.iter().filter(|c| kept(c)).map(|c| f64::from(c.weight)).sum();
        let target = draw * total;
        let mut sum = 0.0;
        let mut token = 0;
        for c in self.candidates.iter().filter(|c| kept(c)) {
            sum += f64::from(c.weight);
            token = c.id;
            if sum > target {
                break;
            }
        }
        token
    }

    /// The least likely candidate that `top_k` and then `top_p` keep; none when they keep all.
    fn last_kept(&mut self, params: &SamplingParams) -> Option<Candidate> {
        let k = match params.top_k {
            0 => self.candidates.len(),
            k => (k as usize).min(self.candidates.len()),
        };
        let cut_k = k < self.candidates.len();
        let cut_p = params.top_p < 1.0;
        if !cut_k && !cut_p {
            return None;
        }
        // top_p counts from what top_k keeps; without top_k the whole is known before ranking.
        let whole: f64 = if cut_k {
            f64::INFINITY
        } else {
            self.candidates.iter().map(|c| f64::from(c.weight)).sum()
        };
        let wanted_p = f64::from(params.top_p);
        for floor in [1e-2, 1e-4, 0.0f32] {
            self.ranked.clear();
            let places = self.candidates.iter().enumerate();
            self.ranked.extend(places.filter(|(_, c)| c.weight >= floor).map(|(i, _)| i as u32));
            let candidates = &self.candidates;
            let by_rank =
                |a: &u32, b: &u32| rank(&candidates[*a as usize], &candidates[*b as usize]);
            if cut_k {
                if self.ranked.len() < k {
                    continue;
                }
                if k < self.ranked.len() {
                    self.ranked.select_nth_unstable_by(k - 1, by_rank);
                    self.ranked.truncate(k);
                }
            }
            let sum: f64 =
                self.ranked.iter().map(|i| f64::from(candidates[*i as usize].weight)).sum();
            let whole = if cut_k { sum } else { whole };
            if floor > 0.0 && sum < wanted_p * whole {
                continue;
            }
            self.ranked.sort_unstable_by(by_rank);
            let mut reached = 0.0;
            let mut last = None;
            for i in &self.ranked {
                let c = candidates[*i as usize];
                reached += f64::from(c.weight);
                last = Some(c);
                if cut_p && reached >= wanted_p * whole {
                    break;
                }
            }
            return last;
        }
        None
    }

    fn logprobs(
        &mut self,
        logits: &[f32],
        mask: Option<&[u32]>,
        highest: f32,
        top: u32,
        sampled: &mut Sampled,
    ) -> Result<(), SamplerError> {
        let mut sum = 0.0f64;
        self.candidates.clear();
        each_allowed(mask, logits.len(), |id| {
            let logit = logits[id as usize];
            sum += (f64::from(logit) - f64::from(highest)).exp();
            self.candidates.push(Candidate { id, logit, weight: 0.0 });
            Ok(())
        })?;
        let whole = f64::from(highest) + sum.ln();
        sampled.logprob = Some(f64::from(logits[sampled.token as usize]) - whole);
        let top = (top as usize).min(self.candidates.len());
        if top == 0 {
            return Ok(());
        }
        self.candidates.select_nth_unstable_by(top - 1, rank);
        self.candidates.truncate(top);
        self.candidates.sort_unstable_by(rank);
        let likeliest = self.candidates.iter();
        sampled.top = likeliest.map(|c| (c.id, f64::from(c.logit) - whole)).collect();
        Ok(())
    }
}

fn add_bias(logits: &mut [f32], bias: &[(u32, f32)]) -> Result<(), SamplerError> {
    let len = logits.len();
    for (id, bias) in bias {
        let Some(logit) = logits.get_mut(*id as usize) else {
            return Err(SamplerError::Parameter {
                name: "logit_bias",
                message: format!("token {id} is outside the vocabulary of {len}"),
            });
        };
        *logit += bias;
    }
    Ok(())
}

/// The likeliest allowed token, the lowest id on ties.
fn best_of(logits: &[f32], mask: Option<&[u32]>) -> Result<Candidate, SamplerError> {
    let mut best = Candidate { id: 0, logit: f32::NEG_INFINITY, weight: 1.0 };
    each_allowed(mask, logits.len(), |id| {
        let logit = logits[id as usize];
        if logit > best.logit {
            best.id = id;
            best.logit = logit;
        } else if logit.is_nan() {
            return bad_logits(format!("the logit of token {id} is not a number"));
        }
        Ok(())
    })?;
    if best.logit == f32::INFINITY {
        return bad_logits(format!("the logit of token {} is infinite", best.id));
    }
    if best.logit == f32::NEG_INFINITY {
        return bad_logits("no token is left to choose from");
    }
    Ok(best)
}

/// The share of all tokens' probability that the mask did not allow.
fn removed_mass(logits: &[f32], mask: Option<&[u32]>) -> Result<f64, SamplerError> {
    let highest = f64::from(best_of(logits, None)?.logit);
    let weight = |id: u32| (f64::from(logits[id as usize]) - highest).exp();
    let mut whole = 0.0;
    each_allowed(None, logits.len(), |id| {
        whole += weight(id);
        Ok(())
    })?;
    let mut allowed = 0.0;
    each_allowed(mask, logits.len(), |id| {
        allowed += weight(id);
        Ok(())
    })?;
    Ok((1.0 - allowed / whole).clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The kept tokens with their probabilities, by sorting everything, in double precision.
    fn oracle(logits: &[f32], mask: &[u32], params: &SamplingParams) -> Vec<(u32, f64)> {
        let mut ids: Vec<u32> = (0..logits.len() as u32)
            .filter(|i| mask[*i as usize / 32] >> (i % 32) & 1 == 1)
            .collect();
        ids.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b)));
        let highest = logits[ids[0] as usize];
        let weight =
            |id: &u32| f64::from(((logits[*id as usize] - highest) / params.temperature).exp());
        if params.top_k > 0 {
            ids.truncate(params.top_k as usize);
        }
        if params.top_p < 1.0 {
            let whole: f64 = ids.iter().map(weight).sum();
            let mut reached = 0.0;
            let kept = ids.iter().position(|id| {
                reached += weight(id);
                reached >= f64::from(params.top_p) * whole * (1.0 - 1e-12)
            });
            ids.truncate(kept.map_or(ids.len(), |last| last + 1));
        }
        ids.retain(|id| weight(id) >= f64::from(params.min_p));
        ids.sort_unstable();
        let whole: f64 = ids.iter().map(weight).sum();
        ids.iter().map(|id| (*id, weight(id) / whole)).collect()
    }

    fn masks(words: usize) -> impl Strategy<Value = Vec<u32>> {
        prop::collection::vec(prop_oneof![Just(u32::MAX), Just(0), any::<u32>()], words)
            .prop_filter("something is allowed", |words| words.iter().any(|w| *w != 0))
    }

    fn parameters() -> impl Strategy<Value = SamplingParams> {
        let top_k = prop_oneof![Just(0u32), 1..200u32];
        let top_p = prop_oneof![Just(1.0f32), 0.01..1.0f32];
        let min_p = prop_oneof![Just(0.0f32), 0.0..1.0f32];
        (0.05..3.0f32, top_k, top_p, min_p).prop_map(|(temperature, top_k, top_p, min_p)| {
            SamplingParams { temperature, top_k, top_p, min_p, ..SamplingParams::default() }
        })
    }

    proptest! {
        #[test]
        fn draws_follow_the_sorted_oracle(
            logits in prop::collection::vec(-20.0..20.0f32, 160),
            mask in masks(5),
            params in parameters(),
            seed in any::<u64>(),
        ) {
            let kept = oracle(&logits, &mask, &params);
            let mut sampler = Sampler::new();
            let mut rng = Pcg32::new(seed);
            for _ in 0..8 {
                let draw = rng.clone().next_f64();
                let mut logits = logits.clone();
                let sampled = sampler
                    .sample_words(&mut logits, Some(&mask), &params, &[], &[], &mut rng, Wanted::default())
                    .unwrap();
                let mut sum = 0.0;
                let below = |id: &u32| *id < sampled.token;
                for (id, p) in &kept {
                    if below(id) {
                        sum += p;
                    }
                }
                let own = kept.iter().find(|(id, _)| *id == sampled.token);
                prop_assert!(own.is_some(), "{} is kept", sampled.token);
                let own = own.map_or(0.0, |(_, p)| *p);
                prop_assert!(sum - 1e-6 <= draw && draw <= sum + own + 1e-6, "{sum} {draw} {own}");
            }
        }

        #[test]
        fn logprobs_are_those_of_the_masked_logits(
            logits in prop::collection::vec(-20.0..20.0f32, 160),
            mask in masks(5),
            top in 0..170u32,
        ) {
            let params = SamplingParams::default();
            let wanted = Wanted { top_logprobs: Some(top), removed_mass: true };
            let sampled = Sampler::new()
                .sample_words(&mut logits.clone(), Some(&mask), &params, &[], &[], &mut Pcg32::new(0), wanted)
                .unwrap();
            let allowed = |id: usize| mask[id / 32] >> (id % 32) & 1 == 1;
            let mass = |only: bool| -> f64 {
                (0..160).filter(|id| !only || allowed(*id)).map(|id| f64::from(logits[id]).exp()).sum()
            };
            let logprob = |id: u32| f64::from(logits[id as usize]) - mass(true).ln();
            prop_assert!((sampled.logprob.unwrap() - logprob(sampled.token)).abs() < 1e-9);
            let removed = sampled.removed_mass.unwrap();
            prop_assert!((removed - (1.0 - mass(true) / mass(false))).abs() < 1e-9);
            let mut ids: Vec<u32> = (0..160).filter(|id| allowed(*id as usize)).collect();
            ids.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b)));
            ids.truncate(top as usize);
            prop_assert_eq!(sampled.top.iter().map(|(id, _)| *id).collect::<Vec<_>>(), ids);
            for (id, p) in sampled.top {
                prop_assert!((p - logprob(id)).abs() < 1e-9);
            }
        }
    }

    fn sample(
        logits: &[f32],
        params: &SamplingParams,
        rng: &mut Pcg32,
    ) -> Result<Sampled, SamplerError> {
        let wanted = Wanted { top_logprobs: Some(2), removed_mass: false };
        Sampler::new().sample(&mut logits.to_vec(), None, params, &[1, 1], &[2, 2, 0], rng, wanted)
    }

    #[test]
    fn greedy_draws_nothing_and_takes_the_lowest_id_on_ties() {
        let mut rng = Pcg32::new(7);
        let before = rng.clone();
        let sampled = sample(&[1.0, 3.0, 3.0], &SamplingParams::default(), &mut rng).unwrap();
        assert_eq!((sampled.token, &rng), (1, &before));
        assert_eq!(sampled.top.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn one_token_left_still_takes_one_draw() {
        let params = SamplingParams { temperature: 1.0, top_k: 1, ..SamplingParams::default() };
        let (mut rng, mut expected) = (Pcg32::new(7), Pcg32::new(7));
        expected.next_u32();
        assert_eq!(sample(&[0.0, 5.0, 1.0], &params, &mut rng).unwrap().token, 1);
        assert_eq!(rng, expected);
    }

    #[test]
    fn penalised_tokens_must_be_in_the_vocabulary() {
        let params = SamplingParams { presence_penalty: 1.0, ..SamplingParams::default() };
        let error = sample(&[0.0, 5.0], &params, &mut Pcg32::new(7)).unwrap_err();
        assert_eq!(error.code(), "ERR_TINYLLM_LOGITS");
    }

    #[test]
    fn bias_then_penalties_then_logprobs() {
        // Prompt 1, 1; output 2, 2, 0.
        let params = SamplingParams {
            logit_bias: vec![(3, 10.0), (0, -1.0)],
            repetition_penalty: 2.0,
            presence_penalty: 0.5,
            frequency_penalty: 0.25,
            ..SamplingParams::default()
        };
        let mut logits = [1.0f32, 4.0, -3.0, -2.0];
        let mut sampler = Sampler::new();
        for _ in 0..2 {
            logits = [2.0, 4.0, -3.0, -2.0];
            let wanted = Wanted { top_logprobs: Some(0), removed_mass: false };
            let sampled = sampler
                .sample(&mut logits, None, &params, &[1, 1], &[2, 2, 0], &mut Pcg32::new(0), wanted)
                .unwrap();
            assert_eq!(sampled.token, 3);
            let whole: f64 = logits.iter().map(|x| f64::from(*x).exp()).sum();
            assert!((sampled.logprob.unwrap() - (8.0 - whole.ln())).abs() < 1e-9);
        }
        // (2 - 1) / 2 - 0.5 - 0.25; 4 / 2; -3 * 2 - 0.5 - 2 * 0.25; -2 + 10.
        assert_eq!(logits, [-0.25, 2.0, -7.0, 8.0]);
    }

    #[test]
    fn logits_that_cannot_be_ranked_are_an_error() {
        let greedy = SamplingParams::default();
        let hot = SamplingParams { temperature: 1.0, ..SamplingParams::default() };
        for params in [&greedy, &hot] {
            for bad in [f32::NAN, f32::INFINITY] {
                let mut rng = Pcg32::new(0);
                let error = sample(&[0.0, bad, 0.0], params, &mut rng).unwrap_err();
                assert_eq!(error.code(), "ERR_TINYLLM_LOGITS");
            }
            let none = [f32::NEG_INFINITY; 3];
            assert!(sample(&none, params, &mut Pcg32::new(0)).is_err());
            assert!(sample(&[], params, &mut Pcg32::new(0)).is_err());
            let one = [f32::NEG_INFINITY, f32::NEG_INFINITY, -5.0];
            assert_eq!(sample(&one, params, &mut Pcg32::new(0)).unwrap().token, 2);
        }
    }

    #[test]
    fn parameters_are_checked() {
        let good = SamplingParams::default();
        assert!(good.validate().is_ok());
        for (name, bad) in [
            ("temperature", SamplingParams { temperature: -1.0, ..good.clone() }),
            ("temperature", SamplingParams { temperature: f32::NAN, ..good.clone() }),
            ("top_p", SamplingParams { top_p: 0.0, ..good.clone() }),
            ("top_p", SamplingParams { top_p: 1.5, ..good.clone() }),
            ("min_p", SamplingParams { min_p: f32::NAN, ..good.clone() }),
            ("repetition_penalty", SamplingParams { repetition_penalty: 0.0, ..good.clone() }),
            (
                "presence_penalty",
                SamplingParams { presence_penalty: f32::INFINITY, ..good.clone() },
            ),
            ("frequency_penalty", SamplingParams { frequency_penalty: f32::NAN, ..good.clone() }),
            ("logit_bias", SamplingParams { logit_bias: vec![(0, f32::NAN)], ..good.clone() }),
        ] {
            match bad.validate() {
                Err(SamplerError::Parameter { name: found, .. }) => assert_eq!(found, name),
                other => panic!("{name}: {other:?}"),
            }
        }
        let outside = SamplingParams { logit_bias: vec![(3, 1.0)], ..good };
        assert!(sample(&[0.0; 3], &outside, &mut Pcg32::new(0)).is_err());
    }
}
