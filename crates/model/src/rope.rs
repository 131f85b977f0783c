//! Rotary position embedding. Angles are computed in f64 from the position, so they do not depend
//! on how a prompt is cut, and rounded once.

use crate::{ModelSpec, RopeStyle};

/// How heads are rotated.
#[derive(Debug)]
pub(crate) struct Rope {
    style: RopeStyle,
    head_dim: usize,
    /// Radians per position of each pair, `[head_dim / 2]`.
    frequencies: Vec<f64>,
}

/// Cosines and sines of some positions, `[positions][head_dim / 2]` each.
#[derive(Debug)]
pub(crate) struct Angles {
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl Rope {
    /// `factors` divide the frequencies, `[head_dim / 2]`.
    pub(crate) fn new(spec: &ModelSpec, factors: Option<&[f32]>) -> Self {
        let frequencies = (0..spec.head_dim / 2)
            .map(|pair| {
                let frequency = spec.rope_base.powf(-2.0 * pair as f64 / spec.head_dim as f64);
                frequency / factors.map_or(1.0, |factors| f64::from(factors[pair]))
            })
            .collect();
        Self { style: spec.rope_style, head_dim: spec.head_dim, frequencies }
    }

    /// Radians per position of each pair.
    pub(crate) fn frequencies(&self) -> &[f64] {
        &self.frequencies
    }

    pub(crate) fn angles(&self, positions: impl Iterator<Item = usize>) -> Angles {
        let (mut cos, mut sin) = (Vec::new(), Vec::new());
        for position in positions {
            for frequency in &self.frequencies {
                let angle = position as f64 * frequency;
                cos.push(angle.cos() as f32);
                sin.push(angle.sin() as f32);
            }
        }
        Angles { cos, sin }
    }

    /// Rotates all heads of all rows: `x` is `[positions][heads][head_dim]`.
    pub(crate) fn rotate(&self, x: &mut [f32], angles: &Angles) {
        let pairs = self.head_dim / 2;
        if pairs == 0 || angles.cos.is_empty() {
            return;
        }
        let row_len = x.len() / (angles.cos.len() / pairs);
        let angles = angles.cos.chunks_exact(pairs).zip(angles.sin.chunks_exact(pairs));
        for (row, (cos, sin)) in x.chunks_exact_mut(row_len).zip(angles) {
            for head in row.chunks_exact_mut(self.head_dim) {
                for (pair, (cos, sin)) in cos.iter().zip(sin).enumerate() {
                    let (a, b) = match self.style {
                        RopeStyle::Interleaved => (2 * pair, 2 * pair + 1),
                        RopeStyle::Halves => (pair, pair + pairs),
                    };
                    (head[a], head[b]) =
                        (head[a] * cos - head[b] * sin, head[a] * sin + head[b] * cos);
                }
            }
        }
    }
}
