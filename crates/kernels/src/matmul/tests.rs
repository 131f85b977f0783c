//! Products against a slow oracle, and against themselves: other tiers, rows, threads.

use super::*;
use crate::blocks::{WeightType, part};
use crate::f16::{bf16_to_f32, f16_to_f32, f32_to_f16};
use crate::test_random::Random;
use crate::tiles::WeightPlan;

mod fast;

/// A random matrix as a file would hold it. `extreme`: every integer of a row at its largest, or of
/// every second row at its smallest.
fn random_matrix(
    kind: WeightType,
    rows: usize,
    columns: usize,
    extreme: bool,
    rng: &mut Random,
) -> Vec<u8> {
    let bytes = kind.row_bytes(columns).expect("a length that has kernels") * rows;
    let row_bytes = bytes / rows;
    let mut data: Vec<u8> = (0..bytes)
        .map(|i| if extreme { [255, 0][i / row_bytes % 2] } else { rng.next() as u8 })
        .collect();
    let (_, block) = kind.block();
    let half = |rng: &mut Random, scale: f32| f32_to_f16(rng.signed() * scale).to_le_bytes();
    for chunk in data.chunks_exact_mut(block) {
        match kind {
            WeightType::F32 => chunk.copy_from_slice(&rng.signed().to_le_bytes()),
            WeightType::F16 => chunk.copy_from_slice(&half(rng, 1.0)),
            WeightType::Bf16 => chunk.copy_from_slice(&rng.signed().to_le_bytes()[2..]),
            WeightType::Q6K => chunk[208..].copy_from_slice(&half(rng, 1e-3)),
            _ => {
                chunk[..2].copy_from_slice(&half(rng, 0.01));
                if !matches!(kind, WeightType::Q4_0 | WeightType::Q5_0 | WeightType::Q8_0) {
                    chunk[2..4].copy_from_slice(&half(rng, 0.05));
                }
                if extreme && kind == WeightType::Q8_0 {
                    for byte in &mut chunk[2..] {
                        *byte = if rng.below(2) == 0 { 127 } else { 128 };
                    }
                }
            }
        }
    }
    data
}

/// One row's terms of a product with the values that the input's integers stand for (for float
/// types, with the input itself): their sum and the sum of their magnitudes.
fn oracle(kind: WeightType, row: &[u8], x: &[f32], dequantized: &[f64]) -> (f64, f64) {
    let (mut sum, mut size) = (0.0, 0.0);
    let mut add = |w: f64, x: f64| {
        sum += w * x;
        size += (w * x).abs();
    };
    for index in 0..x.len() / 32 {
        let Some(part) = part(kind, row, index) else {
            for at in index * 32..index * 32 + 32 {
                let w = match kind {
                    WeightType::F32 => {
                        f32::from_le_bytes(row[at * 4..][..4].try_into().expect("four bytes"))
                    }
                    WeightType::F16 => {
                        f16_to_f32(u16::from_le_bytes([row[at * 2], row[at * 2 + 1]]))
                    }
                    _ => bf16_to_f32(u16::from_le_bytes([row[at * 2], row[at * 2 + 1]])),
                };
                add(f64::from(w), f64::from(x[at]));
            }
            continue;
        };
        for (j, &a) in dequantized[index * 32..][..32].iter().enumerate() {
            let int = match kind {
                WeightType::Q8_0 => i32::from(part.ints[j] as i8),
                WeightType::Q4_0 => i32::from(part.ints[j]) - 8,
                WeightType::Q5_0 => i32::from(part.ints[j]) - 16,
                WeightType::Q6K => i32::from(part.ints[j]) - 32,
                _ => i32::from(part.ints[j]),
            };
            add(f64::from(int) * f64::from(f16_to_f32(part.scales[j / 16])), a);
            add(f64::from(f16_to_f32(part.min)), a);
        }
    }
    (sum, size)
}

fn run(cpu: Cpu, pool: &ThreadPool, matrix: Matrix<'_>, x: &[f32], rows: usize) -> Vec<f32> {
    let mut quantized = Activations::new();
    quantized.quantize(cpu, pool, x, rows).expect("whole blocks");
    let mut out = vec![f32::NAN; rows * matrix.padded_rows()];
    let input = Input::new(x, &quantized).expect("one shape");
    matmul(cpu, pool, input, matrix, &mut out).expect("fitting sizes");
    out.chunks_exact(matrix.padded_rows()).flat_map(|row| row[..matrix.rows()].to_vec()).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn every_type_tier_and_shape_meets_the_oracle_and_the_portable_bits() {
    let mut rng = Random::new(11);
    let (alone, pair) = (ThreadPool::new(1), ThreadPool::new(2));
    let cpus = Cpu::available();
    for kind in WeightType::ALL {
        let long = kind.block().0 == 256;
        let columns = if long { vec![256, 768] } else { vec![32, 96, 576] };
        for columns in columns {
            for (rows, extreme) in [(1, false), (16, true), (57, false), (130, true)] {
                let source = random_matrix(kind, rows, columns, extreme, &mut rng);
                let mut plan = WeightPlan::new();
                let id = plan.add(kind, rows, columns).expect("has kernels");
                let weights = plan.pack(&alone, &[&source]).expect("fits");
                let matrix = weights.matrix(id).expect("planned");
                let row_bytes = source.len() / rows;
                for m in [1, 2, 3, 4, 5, 7, 8, 9, 13, 15, 16, 17, 31, 32, 33, 64] {
                    let x: Vec<f32> = (0..m * columns)
                        .map(|_| {
                            if extreme {
                                [1.0, -1.0][usize::from(rng.below(8) == 0)]
                            } else {
                                rng.normal()
                            }
                        })
                        .collect();
                    let portable = run(cpus[0], &alone, matrix, &x, m);
                    let mut acts = Activations::new();
                    acts.quantize(cpus[0], &alone, &x, m).expect("whole blocks");
                    let outs = x.chunks_exact(columns).zip(portable.chunks_exact(rows));
                    for (i, (x, out)) in outs.enumerate() {
                        let values = acts.dequantized(i);
                        for (row, &got) in source.chunks_exact(row_bytes).zip(out) {
                            let (sum, size) = oracle(kind, row, x, &values);
                            let error = (f64::from(got) - sum).abs();
                            assert!(error <= 1e-6 * size, "{kind:?} {columns}: {got}, not {sum}");
                        }
                    }
                    for &cpu in &cpus {
                        let what = || format!("{kind:?} {rows}x{columns} M={m} {:?}", cpu.tier());
                        let single = run(cpu, &alone, matrix, &x, m);
                        assert_eq!(bits(&single), bits(&portable), "{}", what());
                        let double = run(cpu, &pair, matrix, &x, m);
                        assert_eq!(bits(&double), bits(&portable), "threads: {}", what());
                    }
                }
            }
        }
    }
}

#[test]
fn a_row_has_the_same_bits_among_any_others() {
    let mut rng = Random::new(5);
    let pool = ThreadPool::new(2);
    let (rows, columns) = (200, 1536);
    for kind in WeightType::ALL {
        let source = random_matrix(kind, rows, columns, false, &mut rng);
        let mut plan = WeightPlan::new();
        let id = plan.add(kind, rows, columns).expect("has kernels");
        let weights = plan.pack(&pool, &[&source]).expect("fits");
        let matrix = weights.matrix(id).expect("planned");
        let mut x = rng.normals(512 * columns);
        x.iter_mut().step_by(61).for_each(|x| *x *= 40.0);
        for cpu in Cpu::available().into_iter().skip(1) {
            let all = run(cpu, &pool, matrix, &x, 512);
            for (first, count) in
                [(0, 1), (511, 1), (100, 2), (7, 5), (250, 16), (3, 17), (400, 33)]
            {
                let part = run(cpu, &pool, matrix, &x[first * columns..][..count * columns], count);
                let expected = &all[first * rows..][..count * rows];
                assert_eq!(bits(&part), bits(expected), "{kind:?} {:?}", cpu.tier());
            }
        }
    }
}

#[test]
fn wrong_sizes_are_errors() {
    let pool = ThreadPool::new(1);
    let cpu = Cpu::detect();
    let mut plan = WeightPlan::new();
    assert!(plan.add(WeightType::Q4_1, 4, 33).is_err(), "no multiple of 32");
    assert!(plan.add(WeightType::Q4K, 4, 288).is_err(), "no multiple of 256");
    assert!(plan.add(WeightType::Q8_0, 0, 32).is_err(), "no rows");
    assert!(plan.add(WeightType::Q8_0, usize::MAX / 64, 64).is_err(), "too large");
    let id = plan.add(WeightType::Q8_0, 3, 64).expect("has kernels");
    let short = vec![0; 3 * 68 - 1];
    let mut other = WeightPlan::new();
    other.add(WeightType::Q8_0, 3, 64).expect("has kernels");
    assert!(other.pack(&pool, &[&short]).is_err(), "a short file");
    let weights = plan.pack(&pool, &[&[0; 3 * 68]]).expect("fits");
    let matrix = weights.matrix(id).expect("planned");
    let mut quantized = Activations::new();
    quantized.quantize(cpu, &pool, &[0.5; 96], 1).expect("whole blocks");
    assert!(quantized.quantize(cpu, &pool, &[0.5; 40], 1).is_err(), "no whole blocks");
    quantized.quantize(cpu, &pool, &[0.5; 96], 1).expect("whole blocks");
    let input = Input::new(&[0.5; 96], &quantized).expect("one shape");
    assert!(Input::new(&[0.5; 64], &quantized).is_err());
    let mut out = [0.0; 16];
    assert!(matmul(cpu, &pool, input, matrix, &mut out).is_err(), "columns differ");
    quantized.quantize(cpu, &pool, &[0.5; 64], 1).expect("whole blocks");
    let input = Input::new(&[0.5; 64], &quantized).expect("one shape");
    assert!(matmul(cpu, &pool, input, matrix, &mut out[..3]).is_err(), "short output");
    assert!(matmul(cpu, &pool, input, matrix, &mut out).is_ok());
}
