//! Percentiles of measured times.

use serde::Serialize;

/// A distribution in microseconds.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    pub count: usize,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub max: f64,
    pub mean: f64,
}

/// Times in nanoseconds.
#[derive(Debug, Default, Clone)]
pub struct Times(pub Vec<u64>);

impl Times {
    pub fn summary(&self) -> Summary {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let at = |q: f64| match sorted.len() {
            0 => f64::NAN,
            n => sorted[((n - 1) as f64 * q).round() as usize] as f64 / 1000.0,
        };
        let mean = sorted.iter().sum::<u64>() as f64 / sorted.len().max(1) as f64 / 1000.0;
        Summary {
            count: sorted.len(),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            max: at(1.0),
            mean,
        }
    }
}
