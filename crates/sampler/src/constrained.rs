use crate::params::SamplingParams;
use crate::pcg::Pcg32;
use crate::sampler::{Allowed, Sampler, Wanted};
use tinyllm_constrain::{ConstrainError, Constraint, apply_mask};

/// Samples under a constraint and advances it. Gives the token and its log-probability among the
/// allowed tokens, after penalties and before temperature.
///
/// The plain form for tests and callers with their own loop: it copies the logits and makes its
/// buffers anew. An engine masks through a [`Sampler`] that it keeps.
pub fn constrained_sample(
    logits: &[f32],
    constraint: &mut Constraint,
    params: &SamplingParams,
    prompt: &[u32],
    output: &[u32],
    rng: &mut Pcg32,
) -> Result<(u32, f64), ConstrainError> {
    let mut masked = apply_mask(logits, &constraint.mask()?)?;
    let wanted = Wanted { top_logprobs: Some(0), ..Wanted::default() };
    let mut sampler = Sampler::new();
    let sampled = sampler.sample(&mut masked, Allowed::All, params, prompt, output, rng, wanted)?;
    constraint.advance(sampled.token)?;
    // It was asked for, so it is there.
    Ok((sampled.token, sampled.logprob.unwrap_or(0.0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tinyllm_constrain::{TokenIndex, regex_to_dfa};

    fn constraint() -> Constraint {
        let vocab = [Some(b"a".to_vec()), Some(b"b".to_vec()), Some(b"c".to_vec()), None];
        let dfa = regex_to_dfa("ab?").unwrap();
        Constraint::new(Arc::new(TokenIndex::new(dfa, &vocab, Some(3)).unwrap()))
    }

    #[test]
    fn constrained_sample_hand_example() {
        let logits = [0.0, 1.0, 5.0, 2.0];
        let mut constraint = constraint();
        let greedy = SamplingParams::default();
        let mut rng = Pcg32::new(0);
        assert_eq!(constraint.mask().unwrap(), [true, false, false, false]);
        let (token, logprob) =
            constrained_sample(&logits, &mut constraint, &greedy, &[], &[], &mut rng).unwrap();
        assert_eq!((token, logprob), (0, 0.0));
        assert_eq!(constraint.mask().unwrap(), [false, true, false, true]);
        let (token, logprob) =
            constrained_sample(&logits, &mut constraint, &greedy, &[], &[0], &mut rng).unwrap();
        assert_eq!(token, 3);
        let expected = 2.0 - (1f64.exp() + 2f64.exp()).ln();
        assert!((logprob - expected).abs() < 1e-12, "{logprob}");
        // After EOS nothing is allowed, and a mask that allows nothing is refused.
        assert!(constrained_sample(&logits, &mut constraint, &greedy, &[], &[], &mut rng).is_err());
    }

    #[test]
    fn whatever_the_seed_only_allowed_tokens_are_drawn() {
        let hot = SamplingParams { temperature: 5.0, ..SamplingParams::default() };
        for seed in 0..50 {
            let (mut constraint, mut rng) = (constraint(), Pcg32::new(seed));
            let mut text = Vec::new();
            while !constraint.done {
                let logits = [0.0, 1.0, 50.0, 2.0];
                let (token, _) =
                    constrained_sample(&logits, &mut constraint, &hot, &[], &text, &mut rng)
                        .unwrap();
                text.push(token);
            }
            assert!(matches!(text[..], [0, 3] | [0, 1, 3]), "{text:?}");
        }
    }

    #[test]
    fn a_failed_draw_leaves_the_constraint_as_it_was() {
        let mut constraint = constraint();
        let greedy = SamplingParams::default();
        let logits = [f32::NAN, 1.0, 5.0, 2.0];
        let state = constraint.state;
        let error =
            constrained_sample(&logits, &mut constraint, &greedy, &[], &[], &mut Pcg32::new(0));
        assert_eq!(error.unwrap_err().code(), "ERR_TINYLLM_LOGITS");
        assert_eq!((constraint.state, constraint.done), (state, false));
    }
}
