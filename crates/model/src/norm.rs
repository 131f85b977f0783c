//! Root-mean-square norm, the feed-forward activation, and the fixed-order sum they share with
//! attention.

use rayon::prelude::*;

/// Lanes of [`dot`].
const LANES: usize = 16;

/// The inner product of two rows of equal length, in one fixed order: sixteen running sums, then
/// their sum by halves. Part of the numbers' definition, so never to be changed for speed alone.
#[inline(always)]
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0_f32; LANES];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in a.iter().zip(b) {
        for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += a * b;
        }
    }
    for (sum, (a, b)) in sums.iter_mut().zip(a_rest.iter().zip(b_rest)) {
        *sum += a * b;
    }
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            sums[lane] += sums[lane + width];
        }
        width /= 2;
    }
    sums[0]
}

/// `x / sqrt(mean(x²) + eps) * weight` for each row of `x`, `[m][weight.len()]`.
pub(crate) fn rms_norm(x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    let mut out = vec![0.0; x.len()];
    let rows = out.par_chunks_mut(weight.len()).zip(x.par_chunks(weight.len()));
    rows.with_min_len(8).for_each(|(out, x)| {
        let mean = dot(x, x) / x.len() as f32;
        let scale = 1.0 / (mean + eps).sqrt();
        for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
            *out = x * scale * weight;
        }
    });
    out
}

/// `gate = silu(gate) * up`, element by element.
pub(crate) fn silu_times(gate: &mut [f32], up: &[f32]) {
    gate.par_iter_mut().zip(up).with_min_len(2048).for_each(|(gate, up)| {
        *gate = *gate / (1.0 + (-*gate).exp()) * up;
    });
}

/// `x += y`, element by element.
pub(crate) fn add(x: &mut [f32], y: &[f32]) {
    for (x, y) in x.iter_mut().zip(y) {
        *x += y;
    }
}

/// Adds `bias` to each row of `x`.
pub(crate) fn add_to_rows(x: &mut [f32], bias: &[f32]) {
    for row in x.chunks_exact_mut(bias.len()) {
        add(row, bias);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dot_product_of_any_length_is_the_sum_of_all_its_terms() {
        for len in 0..70 {
            let a: Vec<f32> = (0..len).map(|i| i as f32).collect();
            let b: Vec<f32> = (0..len).map(|i| (i % 5) as f32).collect();
            let expected: f32 = a.iter().zip(&b).map(|(a, b)| a * b).sum();
            assert_eq!(dot(&a, &b), expected, "length {len}");
        }
    }
}
