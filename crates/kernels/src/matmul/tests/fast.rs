//! bf16 products against an oracle that rounds as they do, and rows among any others.

use super::*;
use crate::bf16::Operand;
use crate::dispatch::choose;

/// To the nearest bfloat16, ties to even.
fn rounded(x: f64) -> f64 {
    let bits = (x as f32).to_bits();
    let bits = bits + 0x7fff + (bits >> 16 & 1);
    f64::from(f32::from_bits(bits & 0xffff_0000))
}

/// A row's values, rounded.
fn weights(kind: WeightType, row: &[u8], columns: usize) -> Vec<f64> {
    let mut values = vec![0.0; columns];
    crate::blocks::dequantize(kind, row, &mut values).expect("fits");
    for (index, values) in values.chunks_exact_mut(32).enumerate() {
        // Where there is a minimum it is added without rounding in between.
        let Some(part) = part(kind, row, index).filter(|part| part.min != 0) else { continue };
        for (value, int) in values.iter_mut().zip(part.ints) {
            *value = f16_to_f32(part.scales[0]).mul_add(f32::from(int), f16_to_f32(part.min));
        }
    }
    values.into_iter().map(|value| rounded(f64::from(value))).collect()
}

/// `exact` rows and then fast ones.
fn run_both(
    (cpu, tiles): (Cpu, Bf16Tiles),
    pool: &ThreadPool,
    matrix: Matrix<'_>,
    x: &[f32],
    exact: usize,
) -> Vec<f32> {
    let columns = matrix.columns();
    let rows = x.len() / columns;
    let mut operand = Operand::default();
    operand.resize(exact, rows - exact, columns).expect("whole blocks");
    let to = operand.writer(Some(tiles));
    for (row, x) in x.chunks_exact(columns).enumerate() {
        // SAFETY: one thread.
        unsafe { to.write(cpu, row, 0, x) };
    }
    let mut out = vec![f32::NAN; rows * matrix.padded_rows()];
    let input = Input::of(x, &operand, Some(tiles)).expect("one shape");
    let stack = Stack { matrices: [matrix] };
    multiply(cpu, pool, input, &stack, [&mut out], &|_| Upcoming::NONE).expect("fitting sizes");
    out.chunks_exact(matrix.padded_rows()).flat_map(|row| row[..matrix.rows()].to_vec()).collect()
}

/// The CPU and its proof, where there is one.
fn fast_cpu() -> Option<(Cpu, Bf16Tiles)> {
    let cpu = Cpu::detect();
    cpu.fast_prefill().ok().map(|tiles| (cpu, tiles))
}

#[test]
fn bf16_products_of_every_type_and_shape_meet_the_oracle_among_any_rows() {
    let Some(fast) = fast_cpu() else { return };
    let mut rng = Random::new(17);
    let (alone, pair) = (ThreadPool::new(1), ThreadPool::new(2));
    for kind in WeightType::ALL {
        let long = kind.block().0 == 256;
        let columns = if long { vec![256, 1536] } else { vec![32, 96, 1536] };
        for columns in columns {
            for (rows, extreme) in [(1, false), (16, true), (57, false), (330, false)] {
                let source = random_matrix(kind, rows, columns, extreme, &mut rng);
                let mut plan = WeightPlan::new();
                let id = plan.add(kind, rows, columns).expect("has kernels");
                let packed = plan.pack(&alone, &[&source]).expect("fits");
                let matrix = packed.matrix(id).expect("planned");
                let values: Vec<Vec<f64>> = source
                    .chunks_exact(source.len() / rows)
                    .map(|row| weights(kind, row, columns))
                    .collect();
                let x = rng.normals(75 * columns);
                let all = run_both(fast, &alone, matrix, &x, 0);
                for (x, out) in x.chunks_exact(columns).zip(all.chunks_exact(rows)) {
                    let x: Vec<f64> = x.iter().map(|&x| rounded(f64::from(x))).collect();
                    for (values, &got) in values.iter().zip(out) {
                        let terms = values.iter().zip(&x).map(|(w, x)| w * x);
                        let size: f64 = terms.clone().map(f64::abs).sum();
                        let error = (f64::from(got) - terms.sum::<f64>()).abs();
                        assert!(error <= 1e-5 * size, "{kind:?} {rows}x{columns}: {error}");
                    }
                }
                assert_eq!(bits(&run_both(fast, &pair, matrix, &x, 0)), bits(&all));
                for (first, count, exact) in
                    [(0, 1, 0), (74, 1, 0), (3, 17, 0), (20, 33, 2), (1, 40, 17), (5, 65, 64)]
                {
                    let x = &x[first * columns..][..count * columns];
                    let both = run_both(fast, &pair, matrix, x, exact);
                    let what = || format!("{kind:?} {rows}x{columns} {count} {exact}");
                    let expected = &all[(first + exact) * rows..][..(count - exact) * rows];
                    assert_eq!(bits(&both[exact * rows..]), bits(expected), "{}", what());
                    if exact == 0 {
                        continue;
                    }
                    let expected = run(fast.0, &alone, matrix, &x[..exact * columns], exact);
                    assert_eq!(bits(&both[..exact * rows]), bits(&expected), "{}", what());
                }
            }
        }
    }
}

#[test]
fn what_fast_prefill_lacks_is_said() {
    for cpu in Cpu::available() {
        let name = cpu.tier().name();
        let report = choose(Some(name)).expect("available");
        let error = cpu.fast_prefill().err();
        assert_eq!(error.is_some(), report.fast_prefill.is_some());
        let Some(error) = error else { continue };
        assert_eq!(error.code(), "ERR_TINYLLM_CPU");
        assert!(error.to_string().contains(&report.fast_prefill.expect("lacking")), "{error}");
        if fast_cpu().is_some() {
            let why = format!("it runs on the tier amx, and {name} was asked for");
            assert!(error.to_string().ends_with(&why), "{error}");
        }
    }
}
