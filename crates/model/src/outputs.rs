//! What a forward step gives, in buffers that are kept from step to step.
//!
//! A row of logits is as long as the vocabulary, hundreds of kilobytes: asking the system for fresh
//! memory and copying the row about costs more than choosing a token from it. So a step writes its
//! rows where they stay until the next one, and its caller works on them in place.
//!
//! Some tokens of a vocabulary are never chosen (unknown and unused ones, rows that only pad the
//! head). They are named once, when the buffers are made; their logits are −∞ and they are never
//! the likeliest.

use crate::Logits;

/// See the module's documentation. The default has no tokens that are never chosen.
#[derive(Debug, Default)]
pub struct Outputs {
    /// Ascending.
    never: Vec<u32>,
    /// Rows from here on are padding; 0: there is none.
    tokens: usize,
    /// `[rows][stride]`
    rows: Vec<f32>,
    stride: usize,
    /// Rows that belong to a feed already.
    rows_taken: usize,
    few: Vec<f32>,
    given: Vec<Given>,
}

#[derive(Debug, Clone, Copy)]
enum Given {
    Nothing,
    Best(u32),
    /// The first place in `rows`, and the length of a row.
    Row {
        start: usize,
        width: usize,
        log_sum_exp: Option<f64>,
    },
    Rows {
        start: usize,
        width: usize,
        count: usize,
    },
    /// Places in `few`.
    Few {
        start: usize,
        end: usize,
    },
}

/// What a step gave for one feed.
#[derive(Debug)]
pub enum Output<'a> {
    /// Nothing was asked for.
    Nothing,
    /// The token with the largest logit; the first of several.
    Best(u32),
    /// The logits after the last token.
    Row {
        /// One per token of the vocabulary.
        logits: &'a mut [f32],
        /// The logarithm of the sum of their exponentials, where the step has it.
        log_sum_exp: Option<f64>,
    },
    /// The logits after every token.
    Rows(Vec<&'a [f32]>),
    /// The logits of the tokens asked for.
    Few(&'a mut [f32]),
}

impl Output<'_> {
    /// All logits, one row after the other.
    pub fn to_vec(&self) -> Vec<f32> {
        match self {
            Self::Nothing | Self::Best(_) => Vec::new(),
            Self::Row { logits, .. } | Self::Few(logits) => logits.to_vec(),
            Self::Rows(rows) => rows.concat(),
        }
    }
}

impl Outputs {
    /// Buffers for a vocabulary of so many tokens, of which these are never chosen.
    pub fn new(mut never: Vec<u32>, tokens: usize) -> Self {
        never.sort_unstable();
        Self { never, tokens, ..Self::default() }
    }

    /// Forgets the step before. To be called by a step, first.
    pub fn clear(&mut self) {
        self.rows_taken = 0;
        self.few.clear();
        self.given.clear();
    }

    /// Room for `count` whole rows, `[count][stride]`, for a step to fill in the order of its feeds.
    /// What it holds is not specified.
    pub fn rows(&mut self, count: usize, stride: usize) -> &mut [f32] {
        self.stride = stride;
        if self.rows.len() < count * stride {
            self.rows.resize(count * stride, 0.0);
        }
        &mut self.rows[..count * stride]
    }

    /// Gives the next feed nothing.
    pub fn give_nothing(&mut self) {
        self.given.push(Given::Nothing);
    }

    /// Gives the next feed its likeliest token, which must be one that can be chosen.
    pub fn give_best(&mut self, token: u32) {
        self.given.push(Given::Best(token));
    }

    /// Gives the next feed the logits of the tokens it asked for.
    pub fn give_few(&mut self, logits: &[f32]) {
        let start = self.few.len();
        self.few.extend_from_slice(logits);
        self.given.push(Given::Few { start, end: self.few.len() });
    }

    /// Gives the next feed the next of [`Self::rows`], as it asked ([`Logits::Last`], or
    /// [`Logits::Best`], for which a row without a likeliest token is given as it is); rows are
    /// `width` long. What is known of the row's logits as they are there may be told: the likeliest
    /// token, and the logarithm of the sum of exponentials.
    pub fn give_row(
        &mut self,
        wanted: Logits<'_>,
        width: usize,
        best: Option<u32>,
        log_sum_exp: Option<f64>,
    ) {
        let start = self.rows_taken * self.stride;
        self.rows_taken += 1;
        let known =
            best.filter(|token| !self.is_never(*token) && log_sum_exp.is_none_or(f64::is_finite));
        if let (Logits::Best, Some(best)) = (wanted, known) {
            self.given.push(Given::Best(best));
            return;
        }
        let changed = self.suppress(start, width);
        if let Logits::Best = wanted
            && let Some(best) = likeliest(&self.rows[start..start + width])
        {
            self.given.push(Given::Best(best));
            return;
        }
        let log_sum_exp = log_sum_exp.filter(|_| !changed);
        self.given.push(Given::Row { start, width, log_sum_exp });
    }

    /// Gives the next feed the next `count` of [`Self::rows`].
    pub fn give_rows(&mut self, count: usize, width: usize) {
        let start = self.rows_taken * self.stride;
        self.rows_taken += count;
        for row in 0..count {
            self.suppress(start + row * self.stride, width);
        }
        self.given.push(Given::Rows { start, width, count });
    }

    /// What the step gave for a feed; nothing for one that it did not have.
    pub fn get(&mut self, feed: usize) -> Output<'_> {
        match self.given.get(feed).copied().unwrap_or(Given::Nothing) {
            Given::Nothing => Output::Nothing,
            Given::Best(token) => Output::Best(token),
            Given::Row { start, width, log_sum_exp } => {
                Output::Row { logits: &mut self.rows[start..start + width], log_sum_exp }
            }
            Given::Rows { start, width, count } => {
                let rows = self.rows[start..].chunks(self.stride).take(count);
                Output::Rows(rows.map(|row| &row[..width]).collect())
            }
            Given::Few { start, end } => Output::Few(&mut self.few[start..end]),
        }
    }

    /// Feeds that the step gave something for, or nothing.
    pub fn len(&self) -> usize {
        self.given.len()
    }

    /// Whether there was no feed.
    pub fn is_empty(&self) -> bool {
        self.given.is_empty()
    }

    fn is_padding(&self, place: usize) -> bool {
        self.tokens > 0 && place >= self.tokens
    }

    fn is_never(&self, token: u32) -> bool {
        self.is_padding(token as usize) || self.never.binary_search(&token).is_ok()
    }

    /// Gives −∞ to what is never chosen. Whether there is anything.
    fn suppress(&mut self, start: usize, width: usize) -> bool {
        let row = &mut self.rows[start..start + width];
        for &token in &self.never {
            if let Some(logit) = row.get_mut(token as usize) {
                *logit = f32::NEG_INFINITY;
            }
        }
        if self.tokens > 0
            && let Some(padding) = row.get_mut(self.tokens..)
        {
            padding.fill(f32::NEG_INFINITY);
        }
        !self.never.is_empty() || self.is_padding(width - 1)
    }
}

/// The first place of the largest logit, when all of them can be compared and one is finite.
fn likeliest(row: &[f32]) -> Option<u32> {
    let mut best: Option<(usize, f32)> = None;
    for (place, &logit) in row.iter().enumerate() {
        if logit.is_nan() {
            return None;
        }
        if best.is_none_or(|(_, most)| logit > most) {
            best = Some((place, logit));
        }
    }
    best.filter(|(_, most)| most.is_finite()).map(|(place, _)| place as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_never_chosen_is_never_the_likeliest_and_has_no_chance() {
        let row = [1.0, 7.0, 3.0, 5.0, 5.0, 9.0, 0.0, 0.0];
        for (never, tokens, best, sum) in
            [(vec![], 0, 5, true), (vec![], 5, 1, false), (vec![1, 5], 0, 3, false)]
        {
            let mut outputs = Outputs::new(never.clone(), tokens);
            outputs.clear();
            for row_to in outputs.rows(3, 8).chunks_exact_mut(8) {
                row_to.copy_from_slice(&row);
            }
            outputs.give_nothing();
            outputs.give_row(Logits::Best, 6, Some(5), None);
            outputs.give_row(Logits::Best, 6, None, None);
            outputs.give_few(&[4.0, 2.0]);
            outputs.give_row(Logits::Last, 6, Some(5), Some(2.0));
            assert_eq!(outputs.len(), 5);
            assert!(matches!(outputs.get(0), Output::Nothing));
            for feed in [1, 2] {
                assert!(matches!(outputs.get(feed), Output::Best(found) if found == best));
            }
            assert_eq!(outputs.get(3).to_vec(), [4.0, 2.0]);
            let Output::Row { logits, log_sum_exp } = outputs.get(4) else { panic!("a row") };
            assert_eq!(log_sum_exp.is_some(), sum);
            for (place, &logit) in logits.iter().enumerate() {
                let chosen = !never.contains(&(place as u32)) && (tokens == 0 || place < tokens);
                assert_eq!(logit, if chosen { row[place] } else { f32::NEG_INFINITY });
            }
        }
    }
}
