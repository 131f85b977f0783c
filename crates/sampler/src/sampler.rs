//! One token from one row of logits.
//!
//! The passes over the row (the highest logit, where greedy ends; weights; their sum) are vectorised
//! and leave what each block of the row amounts to (see [`crate::passes`]), so that what comes after
//! them visits few blocks: `top_k` and `top_p` look among the likeliest tokens for the last one they
//! keep, halving what is left to look at, and sort nothing but the last few; the draw finds its block
//! first. Sums of weights are exact, so all of this gives the very tokens that sorting the row
//! would. Buffers are kept between calls.

use crate::error::SamplerError;
use crate::params::SamplingParams;
use crate::passes::{self, BLOCK, Scale};
use crate::pcg::Pcg32;
use crate::ranking::{Rank, Ranking, reach};
use pulp::Arch;
use tinyllm_constrain::Mask;

/// Which tokens may be chosen, and whose logits a row holds.
#[derive(Debug, Clone, Copy)]
pub enum Allowed<'a> {
    /// Every token; the row is the vocabulary's.
    All,
    /// The tokens of a mask; the row is the vocabulary's.
    Masked(&'a Mask),
    /// These, in ascending order; the row holds their logits alone.
    Listed(&'a [u32]),
}

/// What a caller wants besides the token.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Wanted {
    /// The chosen token's log-probability, and those of this many of the likeliest tokens.
    pub top_logprobs: Option<u32>,
    /// The probability that the mask took away. Takes the whole row; a list has no mask.
    pub removed_mass: bool,
    /// The logarithm of the sum of the row's exponentials, where the caller has it. It serves when
    /// nothing changes the row.
    pub log_sum_exp: Option<f64>,
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
    arch: Arch,
    /// The highest logit of each block of the row.
    maxima: Vec<f32>,
    /// By place in the row.
    weights: Vec<f32>,
    /// Of the weights that are kept, by block.
    sums: Vec<f64>,
    ranking: Ranking,
    /// Per token: occurrences in the output, and [`SEEN`]. All zero between calls.
    counts: Vec<u32>,
    touched: Vec<u32>,
}

/// Marks a token that occurs in the prompt or the output.
const SEEN: u32 = 1 << 31;

/// Which weights the draw runs over.
#[derive(Debug, Clone, Copy)]
struct Kept {
    /// The least likely place that is kept; `None` when no place is cut off.
    last: Option<Rank>,
    min: f32,
}

impl Kept {
    fn holds(self, rank: Rank, weight: f32) -> bool {
        weight >= self.min && self.last.is_none_or(|last| rank <= last)
    }
}

fn bad_logits<T>(message: impl Into<String>) -> Result<T, SamplerError> {
    Err(SamplerError::Logits { message: message.into() })
}

impl Sampler {
    /// A sampler with empty buffers; they grow to the vocabulary's size on first use.
    pub fn new() -> Self {
        Self::default()
    }

    /// Chooses a token.
    ///
    /// The row is changed in place: bias and penalties, and −∞ for what is not allowed. A logit of
    /// −∞ is a token that is never chosen; one that is +∞ or not a number is an error when it is
    /// allowed. Draws one number unless greedy.
    #[allow(clippy::too_many_arguments)] // What the draw depends on, and nothing else.
    pub fn sample(
        &mut self,
        logits: &mut [f32],
        allowed: Allowed<'_>,
        params: &SamplingParams,
        prompt: &[u32],
        output: &[u32],
        rng: &mut Pcg32,
        wanted: Wanted,
    ) -> Result<Sampled, SamplerError> {
        match allowed {
            Allowed::All => self.choose(logits, None, None, params, prompt, output, rng, wanted),
            Allowed::Masked(mask) => {
                let words = Some(mask.words());
                self.choose(logits, None, words, params, prompt, output, rng, wanted)
            }
            Allowed::Listed(ids) if ids.len() == logits.len() => {
                self.choose(logits, Some(ids), None, params, prompt, output, rng, wanted)
            }
            Allowed::Listed(ids) => {
                bad_logits(format!("{} tokens are listed, not {}", ids.len(), logits.len()))
            }
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn choose(
        &mut self,
        logits: &mut [f32],
        ids: Option<&[u32]>,
        mask: Option<&[u32]>,
        params: &SamplingParams,
        prompt: &[u32],
        output: &[u32],
        rng: &mut Pcg32,
        wanted: Wanted,
    ) -> Result<Sampled, SamplerError> {
        add_bias(logits, ids, &params.logit_bias)?;
        if params.has_penalties() {
            self.penalise(logits, ids, params, prompt, output)?;
        }
        // The whole row's highest logit and sum, while it is whole.
        let whole = if wanted.removed_mass { Some(self.highest_and_sum(logits)?) } else { None };
        if let Some(words) = mask {
            passes::mask_out(self.arch, logits, words);
        }
        let highest = self.highest(logits, ids)?;
        let place = if params.is_greedy() {
            self.first(logits, highest)
        } else {
            let draw = rng.next_f64();
            self.draw(logits, highest, params, draw)
        };
        let token = |place: usize| ids.map_or(place as u32, |ids| ids[place]);
        let mut sampled = Sampled { token: token(place), ..Sampled::default() };
        if let Some(top) = wanted.top_logprobs {
            let changed = mask.is_some() || !params.logit_bias.is_empty() || params.has_penalties();
            let whole = match wanted.log_sum_exp.filter(|_| !changed) {
                Some(known) => known,
                None => f64::from(highest) + self.sum_exp(logits, highest).ln(),
            };
            sampled.logprob = Some(f64::from(logits[place]) - whole);
            let top = self.ranking.likeliest(logits, &self.maxima, top as usize);
            top.sort_unstable();
            let logprob = |place: usize| f64::from(logits[place]) - whole;
            sampled.top =
                top.iter().map(|rank| (token(rank.place()), logprob(rank.place()))).collect();
        }
        if let Some((most, sum)) = whole {
            let allowed = self.sum_exp(logits, highest) * f64::from(highest - most).exp();
            sampled.removed_mass = Some((1.0 - allowed / sum).clamp(0.0, 1.0));
        }
        Ok(sampled)
    }

    fn penalise(
        &mut self,
        logits: &mut [f32],
        ids: Option<&[u32]>,
        params: &SamplingParams,
        prompt: &[u32],
        output: &[u32],
    ) -> Result<(), SamplerError> {
        let seen = || prompt.iter().chain(output);
        if ids.is_none()
            && let Some(id) = seen().find(|id| **id as usize >= logits.len())
        {
            return bad_logits(format!("token {id} is outside the {} logits", logits.len()));
        }
        let most = seen().max().map_or(0, |id| *id as usize + 1);
        if self.counts.len() < most {
            self.counts.resize(most, 0);
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
        let change = |logit: &mut f32, count: u32| {
            *logit = if *logit > 0.0 {
                *logit / params.repetition_penalty
            } else {
                *logit * params.repetition_penalty
            };
            let count = count & !SEEN;
            if count > 0 {
                *logit -= params.presence_penalty + params.frequency_penalty * count as f32;
            }
        };
        for (id, logit) in ids.unwrap_or(&[]).iter().zip(&mut *logits) {
            if let Some(&count) = self.counts.get(*id as usize).filter(|count| **count > 0) {
                change(logit, count);
            }
        }
        for id in self.touched.drain(..) {
            let count = std::mem::take(&mut self.counts[id as usize]);
            if ids.is_none() {
                change(&mut logits[id as usize], count);
            }
        }
        Ok(())
    }

    /// The highest logit, which must be a finite number; and the blocks' maxima.
    fn highest(&mut self, logits: &[f32], ids: Option<&[u32]>) -> Result<f32, SamplerError> {
        let numbers = passes::maxima(self.arch, logits, &mut self.maxima);
        let highest = self.maxima.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if !numbers || highest == f32::INFINITY {
            let strange = |logit: &f32| logit.is_nan() || *logit == f32::INFINITY;
            let place = logits.iter().position(strange).unwrap_or(0);
            let token = ids.map_or(place as u32, |ids| ids[place]);
            return bad_logits(format!("the logit of token {token} is {}", logits[place]));
        }
        if highest == f32::NEG_INFINITY {
            return bad_logits("no token is left to choose from");
        }
        Ok(highest)
    }

    /// The first place with this logit, the highest.
    fn first(&self, logits: &[f32], highest: f32) -> usize {
        let block = self.maxima.iter().position(|most| *most == highest).unwrap_or(0);
        let places = logits.iter().enumerate().skip(block * BLOCK);
        places.filter(|(_, logit)| **logit == highest).map(|(place, _)| place).next().unwrap_or(0)
    }

    fn sum_exp(&self, logits: &[f32], highest: f32) -> f64 {
        passes::sum_exp(self.arch, logits, &self.maxima, highest)
    }

    fn highest_and_sum(&mut self, logits: &[f32]) -> Result<(f32, f64), SamplerError> {
        let highest = self.highest(logits, None)?;
        Ok((highest, self.sum_exp(logits, highest)))
    }

    /// The place at `draw` of [0, 1) along the kept weights, in the order of places.
    fn draw(&mut self, logits: &[f32], highest: f32, params: &SamplingParams, draw: f64) -> usize {
        let kept = self.keep(logits, highest, params);
        let target = draw * self.sums.iter().sum::<f64>();
        let mut sum = 0.0;
        let mut place = 0;
        for (block, of_block) in self.sums.iter().enumerate() {
            if sum + of_block <= target {
                sum += of_block;
                continue;
            }
            let start = block * BLOCK;
            let end = logits.len().min(start + BLOCK);
            for (at, &logit) in logits[start..end].iter().enumerate() {
                let at = start + at;
                let rank = Rank::new(logit, at);
                // A place that is cut off may have no weight of this row's.
                if kept.last.is_none_or(|last| rank <= last) && kept.holds(rank, self.weights[at]) {
                    sum += f64::from(self.weights[at]);
                    place = at;
                    if sum > target {
                        return place;
                    }
                }
            }
        }
        place
    }

    /// Weighs the row and leaves in `sums` what is kept.
    fn keep(&mut self, logits: &[f32], highest: f32, params: &SamplingParams) -> Kept {
        let scale = Scale::new(highest, params.temperature);
        let k = params.top_k as usize;
        let cut_k = k > 0 && k < logits.len();
        let cut_p = params.top_p < 1.0;
        let wanted = f64::from(params.top_p);
        let min = params.min_p.max(f32::MIN_POSITIVE);
        let ranks: &[Rank] = if cut_k {
            let ranks = self.ranking.likeliest(logits, &self.maxima, k);
            self.weights.resize(logits.len(), 0.0);
            let mut whole = 0.0;
            for rank in &*ranks {
                let weight = scale.weight(logits[rank.place()]);
                self.weights[rank.place()] = weight;
                whole += f64::from(weight);
            }
            let count = if cut_p {
                reach(ranks, |rank| self.weights[rank.place()], wanted * whole)
            } else {
                ranks.len()
            };
            &ranks[..count]
        } else {
            let (weights, sums) = (&mut self.weights, &mut self.sums);
            passes::weigh(self.arch, logits, &self.maxima, scale, weights, sums);
            if !cut_p {
                if params.min_p > 0.0 {
                    for (weights, sum) in self.weights.chunks(BLOCK).zip(&mut self.sums) {
                        let kept = weights.iter().filter(|weight| **weight >= min);
                        *sum = kept.map(|weight| f64::from(*weight)).sum();
                    }
                }
                return Kept { last: None, min };
            }
            let wanted = wanted * self.sums.iter().sum::<f64>();
            let weight = |rank: Rank| self.weights[rank.place()];
            // Most rows need no more than what is within some nats of the highest.
            let mut count = 0;
            for nats in [4.6, 9.2, f32::INFINITY] {
                let floor = highest - nats * params.temperature;
                let ranks = self.ranking.at_least(logits, &self.maxima, floor);
                let sum: f64 = ranks.iter().map(|rank| f64::from(weight(*rank))).sum();
                if sum >= wanted || nats == f32::INFINITY {
                    count = reach(ranks, weight, wanted);
                    break;
                }
            }
            self.ranking.first(count)
        };
        self.sums.clear();
        self.sums.resize(self.maxima.len(), 0.0);
        for rank in ranks {
            let weight = self.weights[rank.place()];
            if weight >= min {
                self.sums[rank.place() / BLOCK] += f64::from(weight);
            }
        }
        Kept { last: ranks.iter().max().copied(), min }
    }
}

/// Adds to the logits of these tokens; to those that are listed, where some are.
fn add_bias(
    logits: &mut [f32],
    ids: Option<&[u32]>,
    bias: &[(u32, f32)],
) -> Result<(), SamplerError> {
    let len = logits.len();
    for (id, bias) in bias {
        let place = match ids {
            Some(ids) => match ids.binary_search(id) {
                Ok(place) => place,
                Err(_) => continue,
            },
            None => *id as usize,
        };
        let Some(logit) = logits.get_mut(place) else {
            return Err(SamplerError::Parameter {
                name: "logit_bias",
                message: format!("token {id} is outside the vocabulary of {len}"),
            });
        };
        *logit += bias;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The kept tokens with their weights, by sorting everything and adding in that order.
    fn oracle(logits: &[f32], mask: &[u32], params: &SamplingParams) -> Vec<(u32, f64)> {
        let mut ids: Vec<u32> = (0..logits.len() as u32)
            .filter(|i| mask[*i as usize / 32] >> (i % 32) & 1 == 1)
            .collect();
        ids.sort_by(|a, b| {
            let (a_logit, b_logit) = (logits[*a as usize], logits[*b as usize]);
            b_logit.partial_cmp(&a_logit).unwrap().then(a.cmp(b))
        });
        let scale = Scale::new(logits[ids[0] as usize], params.temperature);
        let weight = |id: &u32| f64::from(scale.weight(logits[*id as usize]));
        if params.top_k > 0 {
            ids.truncate(params.top_k as usize);
        }
        if params.top_p < 1.0 {
            let whole: f64 = ids.iter().map(weight).sum();
            let mut reached = 0.0;
            let kept = ids.iter().position(|id| {
                reached += weight(id);
                reached >= f64::from(params.top_p) * whole
            });
            ids.truncate(kept.map_or(ids.len(), |last| last + 1));
        }
        ids.retain(|id| weight(id) > 0.0 && weight(id) >= f64::from(params.min_p));
        ids.sort_unstable();
        ids.iter().map(|id| (*id, weight(id))).collect()
    }

    /// Rows with many equal logits, and rows with none.
    fn rows() -> impl Strategy<Value = Vec<f32>> {
        let few = prop_oneof![(-20..20i32).prop_map(|n| n as f32 / 2.0), Just(-0.0)];
        prop_oneof![
            prop::collection::vec(-20.0..20.0f32, 384),
            prop::collection::vec(few, 384),
            prop::collection::vec(-0.001..0.001f32, 384),
        ]
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
        fn draws_are_those_of_the_sorted_row(
            logits in rows(),
            mask in masks(12),
            params in parameters(),
            seed in any::<u64>(),
        ) {
            let kept = oracle(&logits, &mask, &params);
            let whole: f64 = kept.iter().map(|(_, weight)| weight).sum();
            let list: Vec<u32> =
                (0..384).filter(|i| mask[*i as usize / 32] >> (i % 32) & 1 == 1).collect();
            let mut sampler = Sampler::new();
            let mut rng = Pcg32::new(seed);
            for _ in 0..4 {
                let target = rng.clone().next_f64() * whole;
                let mut sum = 0.0;
                let expected = kept.iter().find(|(_, weight)| {
                    sum += weight;
                    sum > target
                });
                let mut again = rng.clone();
                let wanted = Wanted::default();
                let mut row = logits.clone();
                let sampled = sampler
                    .choose(&mut row, None, Some(&mask), &params, &[], &[], &mut rng, wanted)
                    .unwrap();
                prop_assert_eq!(Some(sampled.token), expected.map(|(id, _)| *id));
                let mut few: Vec<f32> = list.iter().map(|id| logits[*id as usize]).collect();
                let listed = sampler
                    .sample(&mut few, Allowed::Listed(&list), &params, &[], &[], &mut again, wanted)
                    .unwrap();
                prop_assert_eq!(listed, sampled);
            }
        }

        #[test]
        fn a_list_is_its_mask(
            logits in rows(),
            mask in masks(12),
            params in parameters(),
            greedy in any::<bool>(),
            tokens in prop::collection::vec(0..384u32, 0..30),
            seed in any::<u64>(),
        ) {
            let params = SamplingParams {
                temperature: if greedy { 0.0 } else { params.temperature },
                repetition_penalty: 1.3,
                presence_penalty: 0.2,
                frequency_penalty: 0.1,
                logit_bias: vec![(5, 3.0), (100, -2.0), (5, 1.0)],
                ..params
            };
            let wanted = Wanted { top_logprobs: Some(3), ..Wanted::default() };
            let list: Vec<u32> =
                (0..384).filter(|i| mask[*i as usize / 32] >> (i % 32) & 1 == 1).collect();
            let (prompt, output) = tokens.split_at(tokens.len() / 2);
            let mut sampler = Sampler::new();
            let (mut one, mut other) = (Pcg32::new(seed), Pcg32::new(seed));
            let mut row = logits.clone();
            let dense = sampler
                .choose(&mut row, None, Some(&mask), &params, prompt, output, &mut one, wanted)
                .unwrap();
            let mut few: Vec<f32> = list.iter().map(|id| logits[*id as usize]).collect();
            let listed = sampler
                .sample(&mut few, Allowed::Listed(&list), &params, prompt, output, &mut other, wanted)
                .unwrap();
            prop_assert_eq!(dense.token, listed.token);
            for ((id, p), (other, q)) in dense.top.iter().zip(&listed.top) {
                prop_assert_eq!(id, other);
                prop_assert!((p - q).abs() < 1e-12);
            }
        }

        #[test]
        fn logprobs_are_those_of_the_masked_logits(
            logits in prop::collection::vec(-20.0..20.0f32, 160),
            mask in masks(5),
            top in 0..170u32,
        ) {
            let params = SamplingParams::default();
            let wanted =
                Wanted { top_logprobs: Some(top), removed_mass: true, log_sum_exp: None };
            let sampled = Sampler::new()
                .choose(&mut logits.clone(), None, Some(&mask), &params, &[], &[], &mut Pcg32::new(0), wanted)
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
        let wanted = Wanted { top_logprobs: Some(2), ..Wanted::default() };
        Sampler::new().sample(
            &mut logits.to_vec(),
            Allowed::All,
            params,
            &[1, 1],
            &[2, 2, 0],
            rng,
            wanted,
        )
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
            let wanted = Wanted { top_logprobs: Some(0), ..Wanted::default() };
            let sampled = sampler
                .sample(
                    &mut logits,
                    Allowed::All,
                    &params,
                    &[1, 1],
                    &[2, 2, 0],
                    &mut Pcg32::new(0),
                    wanted,
                )
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
