//! What happens to a row between two matrix products: norms, rotations, the gate, appending keys
//! and values. One row at a time, so a row's result depends on nothing else.

use crate::pages::PAGE_POSITIONS;
use crate::simd::{LANES, Simd, one_plus_exp_minus, tiered};

/// How a head's elements are paired by the rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RopePairs {
    /// Elements 2i and 2i + 1 (files of the llama architecture, whose Q and K rows are permuted).
    Interleaved,
    /// Elements i and i + d/2 (the "NEOX" form; qwen2 and others).
    Halves,
}

tiered! {
    /// `out = x / sqrt(mean(x^2) + epsilon) * weight`.
    ///
    /// # Safety
    /// The three are valid for `n` elements, a multiple of 16; `out` may be `x`.
    pub(crate) fn rms_norm(x: *const f32, weight: *const f32, n: usize, epsilon: f32, out: *mut f32)
        = rms_norm_with;
}

#[inline(always)]
unsafe fn rms_norm_with<S: Simd>(
    x: *const f32,
    weight: *const f32,
    n: usize,
    epsilon: f32,
    out: *mut f32,
) {
    // SAFETY: the contract above.
    unsafe {
        let mut squares = S::splat(0.0);
        for i in (0..n).step_by(LANES) {
            let v = S::load(x.add(i));
            squares = S::fma(v, v, squares);
        }
        let factor = S::splat(1.0 / (S::sum(squares) / n as f32 + epsilon).sqrt());
        for i in (0..n).step_by(LANES) {
            let v = S::mul(S::load(x.add(i)), factor);
            S::store(out.add(i), S::mul(v, S::load(weight.add(i))));
        }
    }
}

tiered! {
    /// `gate = silu(gate) * up`.
    ///
    /// # Safety
    /// Both are valid for `n` elements, a multiple of 16.
    pub(crate) fn silu_mul(gate: *mut f32, up: *const f32, n: usize) = silu_mul_with;
}

#[inline(always)]
unsafe fn silu_mul_with<S: Simd>(gate: *mut f32, up: *const f32, n: usize) {
    // SAFETY: the contract above.
    unsafe {
        for i in (0..n).step_by(LANES) {
            let g = S::load(gate.add(i));
            let silu = S::div(g, one_plus_exp_minus::<S>(g));
            S::store(gate.add(i), S::mul(silu, S::load(up.add(i))));
        }
    }
}

tiered! {
    /// `x += y`.
    ///
    /// # Safety
    /// Both are valid for `n` elements, a multiple of 16.
    pub(crate) fn add(x: *mut f32, y: *const f32, n: usize) = add_with;
}

#[inline(always)]
unsafe fn add_with<S: Simd>(x: *mut f32, y: *const f32, n: usize) {
    // SAFETY: the contract above.
    unsafe {
        for i in (0..n).step_by(LANES) {
            S::store(x.add(i), S::add(S::load(x.add(i)), S::load(y.add(i))));
        }
    }
}

tiered! {
    /// Rotates each of `heads` heads of `dim` elements and multiplies it with `scale`. `angles`
    /// holds the cosines and then the sines of the position, `dim / 2` each.
    ///
    /// # Safety
    /// `x` is valid for `heads * dim` elements and `angles` for `dim`; `dim` is even.
    pub(crate) fn rotate(
        x: *mut f32,
        heads: usize,
        dim: usize,
        angles: *const f32,
        scale: f32,
        pairs: RopePairs,
    ) = rotate_with;
}

/// Plain multiplications and additions of scalars: nothing here may be fused, and LLVM vectorises
/// it for the tier.
#[inline(always)]
unsafe fn rotate_with<S: Simd>(
    x: *mut f32,
    heads: usize,
    dim: usize,
    angles: *const f32,
    scale: f32,
    pairs: RopePairs,
) {
    // SAFETY: the contract above.
    unsafe {
        let half = dim / 2;
        let angles = std::slice::from_raw_parts(angles, dim);
        let (cos, sin) = angles.split_at(half);
        for head in 0..heads {
            let x = std::slice::from_raw_parts_mut(x.add(head * dim), dim);
            match pairs {
                RopePairs::Interleaved => {
                    for ((pair, &c), &s) in x.chunks_exact_mut(2).zip(cos).zip(sin) {
                        let (a, b) = (pair[0], pair[1]);
                        pair[0] = (a * c - b * s) * scale;
                        pair[1] = (a * s + b * c) * scale;
                    }
                }
                RopePairs::Halves => {
                    let (low, high) = x.split_at_mut(half);
                    for (((a, b), &c), &s) in low.iter_mut().zip(high).zip(cos).zip(sin) {
                        let (x, y) = (*a, *b);
                        *a = (x * c - y * s) * scale;
                        *b = (x * s + y * c) * scale;
                    }
                }
            }
        }
    }
}

/// Positions whose keys are transposed together.
const TOGETHER: usize = 8;

tiered! {
    /// Stores one head's keys and values of `count` neighbouring positions in half precision: a
    /// key's elements 32 halves apart, a value's side by side.
    ///
    /// # Safety
    /// `keys` and `values` are valid for `count` rows of `dim` elements, a multiple of 16, which
    /// are `stride` apart; `to_keys` for `dim` times `count` halves, 32 apart, of which no more
    /// than 32 belong to one page; `to_values` for `count * dim`.
    pub(crate) fn append(
        keys: *const f32,
        values: *const f32,
        stride: usize,
        count: usize,
        dim: usize,
        to_keys: *mut u16,
        to_values: *mut u16,
    ) = append_with;
}

/// A position's key touches a cache line per element, so several positions are stored at once where
/// there are several.
#[inline(always)]
unsafe fn append_with<S: Simd>(
    keys: *const f32,
    values: *const f32,
    stride: usize,
    count: usize,
    dim: usize,
    to_keys: *mut u16,
    to_values: *mut u16,
) {
    let whole = count / TOGETHER * TOGETHER;
    let mut halves = [[0_u16; LANES]; TOGETHER];
    // SAFETY: the contract above.
    unsafe {
        for first in (0..whole).step_by(TOGETHER) {
            for i in (0..dim).step_by(LANES) {
                for (row, halves) in halves.iter_mut().enumerate() {
                    let from = keys.add((first + row) * stride + i);
                    S::store_f16(halves.as_mut_ptr(), S::load(from));
                }
                for part in (0..LANES).step_by(TOGETHER) {
                    let to = to_keys.add((i + part) * PAGE_POSITIONS + first);
                    transpose(&halves, part, to);
                }
            }
        }
        for row in whole..count {
            for i in (0..dim).step_by(LANES) {
                let halves = &mut halves[0];
                S::store_f16(halves.as_mut_ptr(), S::load(keys.add(row * stride + i)));
                for (j, &half) in halves.iter().enumerate() {
                    *to_keys.add((i + j) * PAGE_POSITIONS + row) = half;
                }
            }
        }
        for row in 0..count {
            for i in (0..dim).step_by(LANES) {
                let value = S::load(values.add(row * stride + i));
                S::store_f16(to_values.add(row * dim + i), value);
            }
        }
    }
}

/// Eight elements, from `part` on, of eight rows: those of one element side by side, elements 32
/// halves apart.
///
/// # Safety
/// `part` is at most 8; `to` is valid for all of that.
#[inline(always)]
unsafe fn transpose(rows: &[[u16; LANES]; TOGETHER], part: usize, to: *mut u16) {
    // Instructions that every x86-64 has.
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the contract above; each row has eight elements from `part` on.
    unsafe {
        use std::arch::x86_64::*;
        let row = |r: usize| _mm_loadu_si128(rows[r].as_ptr().add(part).cast());
        // Pairs of rows, then fours, then all eight, each of some elements.
        let two =
            |r| (_mm_unpacklo_epi16(row(r), row(r + 1)), _mm_unpackhi_epi16(row(r), row(r + 1)));
        let four = |r| {
            let ((a, b), (c, d)) = (two(r), two(r + 2));
            [
                _mm_unpacklo_epi32(a, c),
                _mm_unpackhi_epi32(a, c),
                _mm_unpacklo_epi32(b, d),
                _mm_unpackhi_epi32(b, d),
            ]
        };
        for (pair, (low, high)) in four(0).into_iter().zip(four(4)).enumerate() {
            let to = to.add(2 * pair * PAGE_POSITIONS);
            _mm_storeu_si128(to.cast(), _mm_unpacklo_epi64(low, high));
            _mm_storeu_si128(to.add(PAGE_POSITIONS).cast(), _mm_unpackhi_epi64(low, high));
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    for element in 0..TOGETHER {
        for (r, row) in rows.iter().enumerate() {
            // SAFETY: the contract above.
            unsafe { *to.add(element * PAGE_POSITIONS + r) = row[part + element] };
        }
    }
}

/// The cosines and then the sines of `position` times each frequency.
pub(crate) fn angles(position: usize, frequencies: &[f64], out: &mut [f32]) {
    let (cos, sin) = out.split_at_mut(frequencies.len());
    for ((cos, sin), frequency) in cos.iter_mut().zip(sin).zip(frequencies) {
        let (s, c) = (position as f64 * frequency).sin_cos();
        (*cos, *sin) = (c as f32, s as f32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::Cpu;
    use crate::test_random::Random;

    fn close(got: &[f32], expected: &[f64]) {
        for (got, expected) in got.iter().zip(expected) {
            let error = (f64::from(*got) - expected).abs();
            assert!(error <= 2e-6 * expected.abs().max(1.0), "{got}, not {expected}");
        }
    }

    #[test]
    fn norm_and_gate_are_right_and_equal_on_every_tier() {
        let mut rng = Random::new(3);
        for n in [16, 32, 64, 576, 896] {
            let (x, w) = (rng.normals(n), rng.normals(n));
            let square = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / n as f64;
            let factor = 1.0 / (square + 1e-5).sqrt();
            let norm: Vec<f64> =
                x.iter().zip(&w).map(|(&x, &w)| f64::from(x) * factor * f64::from(w)).collect();
            let big: Vec<f32> = x.iter().map(|x| x * 30.0).collect();
            let gate: Vec<f64> = big
                .iter()
                .zip(&w)
                .map(|(&g, &u)| f64::from(g) / (1.0 + (-f64::from(g)).exp()) * f64::from(u))
                .collect();
            let mut first = None;
            for cpu in Cpu::available() {
                let mut out = vec![0.0; n];
                let mut gated = big.clone();
                // SAFETY: all have n elements, a multiple of 16.
                unsafe {
                    rms_norm(cpu, x.as_ptr(), w.as_ptr(), n, 1e-5, out.as_mut_ptr());
                    silu_mul(cpu, gated.as_mut_ptr(), w.as_ptr(), n);
                }
                close(&out, &norm);
                close(&gated, &gate);
                // SAFETY: as above.
                unsafe { add(cpu, out.as_mut_ptr(), gated.as_ptr(), n) };
                let bits: Vec<u32> = out.iter().map(|x| x.to_bits()).collect();
                assert_eq!(&bits, first.get_or_insert(bits.clone()), "{:?}", cpu.tier());
            }
        }
    }

    #[test]
    fn the_gate_is_right_wherever_exp_is() {
        let gated = |cpu, x: f32| {
            let mut gate = [x; LANES];
            // SAFETY: 16 elements each.
            unsafe { silu_mul(cpu, gate.as_mut_ptr(), [1.0; LANES].as_ptr(), LANES) };
            gate[0]
        };
        for cpu in Cpu::available() {
            for i in -8_700..=8_700 {
                let x = i as f32 / 100.0;
                let truth = f64::from(x) / (1.0 + (-f64::from(x)).exp());
                let got = f64::from(gated(cpu, x));
                assert!((got - truth).abs() <= 2.5e-7 * truth.abs(), "{x}: {got}, not {truth}");
            }
            for x in [100.0, 1e30, f32::INFINITY, f32::NEG_INFINITY] {
                assert_eq!(gated(cpu, x), x, "{:?}", cpu.tier());
            }
            assert!((-1e-30..0.0).contains(&gated(cpu, -1000.0)), "{:?}", cpu.tier());
            assert!(gated(cpu, f32::NAN).is_nan());
        }
    }

    #[test]
    fn appended_rows_lie_where_a_page_has_them_and_are_equal_on_every_tier() {
        let mut rng = Random::new(5);
        for (dim, stride) in [(16, 16), (64, 192), (80, 100)] {
            for (slot, count) in [(0, 32), (0, 1), (31, 1), (3, 8), (5, 27), (9, 16), (1, 7)] {
                let (keys, values) = (rng.normals(32 * stride), rng.normals(32 * stride));
                for cpu in Cpu::available() {
                    let mut page = vec![7_u16; 2 * dim * PAGE_POSITIONS];
                    let (to_keys, to_values) = page.split_at_mut(dim * PAGE_POSITIONS);
                    // SAFETY: `count` rows from `slot` on end within the page.
                    unsafe {
                        let to_keys = to_keys[slot..].as_mut_ptr();
                        let to_values = to_values[slot * dim..].as_mut_ptr();
                        let (keys, values) = (keys.as_ptr(), values.as_ptr());
                        append(cpu, keys, values, stride, count, dim, to_keys, to_values);
                    }
                    for position in 0..PAGE_POSITIONS {
                        for d in 0..dim {
                            let got = [
                                page[d * PAGE_POSITIONS + position],
                                page[(PAGE_POSITIONS + position) * dim + d],
                            ];
                            let from = position.wrapping_sub(slot);
                            let expected = if from < count {
                                [keys[from * stride + d], values[from * stride + d]]
                                    .map(crate::f16::f32_to_f16)
                            } else {
                                [7, 7]
                            };
                            assert_eq!(got, expected, "{:?}", cpu.tier());
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn rotations_turn_pairs_and_are_equal_on_every_tier() {
        let mut rng = Random::new(4);
        for (heads, dim) in [(1, 16), (3, 64), (2, 80)] {
            let frequencies: Vec<f64> =
                (0..dim / 2).map(|i| 1e4_f64.powf(-2.0 * f64::from(i) / f64::from(dim))).collect();
            let dim = dim as usize;
            let mut table = vec![0.0; dim];
            angles(1234, &frequencies, &mut table);
            let x = rng.normals(heads * dim);
            for pairs in [RopePairs::Interleaved, RopePairs::Halves] {
                let mut first = None;
                for cpu in Cpu::available() {
                    let mut got = x.clone();
                    // SAFETY: sizes as allocated.
                    unsafe {
                        rotate(cpu, got.as_mut_ptr(), heads, dim, table.as_ptr(), 0.5, pairs);
                    };
                    for head in 0..heads {
                        for (i, frequency) in frequencies.iter().enumerate() {
                            let (a, b) = match pairs {
                                RopePairs::Interleaved => (2 * i, 2 * i + 1),
                                RopePairs::Halves => (i, i + dim / 2),
                            };
                            let (a, b) = (head * dim + a, head * dim + b);
                            let (s, c) = (1234.0 * frequency).sin_cos();
                            let (p, q) = (f64::from(x[a]), f64::from(x[b]));
                            close(
                                &[got[a], got[b]],
                                &[(p * c - q * s) / 2.0, f64::midpoint(p * s, q * c)],
                            );
                        }
                    }
                    let bits: Vec<u32> = got.iter().map(|x| x.to_bits()).collect();
                    assert_eq!(&bits, first.get_or_insert(bits.clone()), "{:?}", cpu.tier());
                }
            }
        }
    }
}
