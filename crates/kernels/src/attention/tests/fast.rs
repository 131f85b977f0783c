//! bf16 attention against an oracle that rounds as it does, and queries among any others.

use super::*;

/// To the nearest bfloat16, ties to even.
fn rounded(x: f64) -> f64 {
    let bits = (x as f32).to_bits();
    let bits = bits + 0x7fff + (bits >> 16 & 1);
    f64::from(f32::from_bits(bits & 0xffff_0000))
}

/// The CPU and its proof, where there is one.
fn fast_cpu() -> Option<(Cpu, Bf16Tiles)> {
    let cpu = Cpu::detect();
    cpu.fast_prefill().ok().map(|tiles| (cpu, tiles))
}

/// Attention of one query in f64, its inputs and the weights of each chunk rounded. Also the sum of
/// the weighted values' magnitudes.
fn rounded_oracle(case: &Case, q: &[f32], kv_head: usize, seen: usize) -> Vec<(f64, f64)> {
    let shape = case.pool.shape();
    let (dim, row) = (shape.head_dim, shape.row());
    let at = |p: usize| p * row + kv_head * dim..p * row + (kv_head + 1) * dim;
    let q: Vec<f64> = q.iter().map(|&x| rounded(f64::from(x * std::f32::consts::LOG2_E))).collect();
    let score = |p: usize| -> f64 {
        q.iter().zip(&case.keys[at(p)]).map(|(&a, &b)| a * rounded(f64::from(b))).sum()
    };
    let scores: Vec<f64> = (0..seen).map(score).collect();
    let most = scores.iter().fold(f64::MIN, |a, &b| a.max(b));
    let mut weights = Vec::new();
    for scores in scores.chunks(chunks::POSITIONS) {
        let here = scores.iter().fold(f64::MIN, |a, &b| a.max(b));
        let part = scores.iter().map(|s| rounded((s - here).exp2()) * (here - most).exp2());
        weights.extend(part);
    }
    let total: f64 = weights.iter().sum();
    let mean = |d: usize| {
        let terms = weights.iter().enumerate();
        let terms = terms.map(|(p, w)| w * rounded(f64::from(case.values[at(p)][d])));
        (terms.clone().sum::<f64>() / total, terms.map(f64::abs).sum::<f64>() / total)
    };
    (0..dim).map(mean).collect()
}

/// Segments of one case each, the last `fast` of them with fast products: `(start, queries)`.
fn run_batch(
    (cpu, tiles): (Cpu, Bf16Tiles),
    threads: &ThreadPool,
    case: &Case,
    heads: usize,
    segments: &[(usize, &[f32])],
    fast: usize,
) -> Vec<Vec<f32>> {
    let width = heads * case.pool.shape().head_dim;
    let parts: Vec<Segment<'_>> = segments
        .iter()
        .map(|&(start, q)| Segment { table: &case.table, start, rows: q.len() / width })
        .collect();
    let fast_rows = parts[parts.len() - fast..].iter().map(|part| part.rows).sum();
    let batch = Batch::new(&case.pool, &parts).expect("a fitting batch");
    let batch = batch.with_fast(tiles, fast_rows).expect("whole segments");
    let queries: Vec<f32> = segments.iter().flat_map(|(_, q)| q.iter().copied()).collect();
    let mut access = case.pool.access().expect("idle");
    let mut out = vec![f32::NAN; queries.len()];
    let mut scratch = Scratch::default();
    attend(cpu, threads, &mut access, &batch, 1, heads, &queries, &mut out, &mut scratch)
        .expect("fitting sizes");
    let mut rest = &out[..];
    let mut take = |(_, q): &(usize, &[f32])| {
        let (part, left) = rest.split_at(q.len());
        rest = left;
        part.to_vec()
    };
    segments.iter().map(&mut take).collect()
}

/// Overwrites the slots from `from` to `to` of layer 1.
fn spoil(case: &Case, from: usize, to: usize, with: f32) {
    let row = vec![with; case.pool.shape().row()];
    let mut access = case.pool.access().expect("idle");
    for position in from..to {
        access.write(&case.table, position, 1, &row, &row).expect("room");
    }
}

#[test]
fn fast_attention_meets_the_oracle_with_the_same_bits_among_any_rows() {
    let Some(fast) = fast_cpu() else { return };
    let mut rng = Random::new(31);
    let (alone, pair) = (ThreadPool::new(1), ThreadPool::new(2));
    for (positions, kv_heads, heads, dim) in [
        (1, 1, 5, 32),
        (64, 1, 4, 128),
        (70, 1, 1, 16),
        (100, 1, 2, 96),
        (777, 2, 14, 64),
        (300, 3, 9, 64),
        (290, 2, 8, 80),
        (270, 1, 6, 32),
        (520, 1, 1, 64),
        (265, 1, 8, 48),
        (60, 2, 10, 272),
        (40, 1, 67, 16),
    ] {
        let case = case(positions, kv_heads, dim, &mut rng);
        let slots = positions.next_multiple_of(PAGE_POSITIONS);
        spoil(&case, positions, slots, f32::NAN);
        let width = heads * dim;
        let scale = 3.0 / (dim as f32).sqrt();
        let queries = rng.normals(positions * width).into_iter().map(|x| x * scale);
        let queries: Vec<f32> = queries.collect();
        let all = run_batch(fast, &alone, &case, heads, &[(0, &queries)], 1).remove(0);
        let (mut errors, mut sizes) = (0.0, 0.0);
        for p in 0..positions {
            for head in 0..heads {
                let at = p * width + head * dim;
                let kv_head = head / (heads / kv_heads);
                let expected = rounded_oracle(&case, &queries[at..][..dim], kv_head, p + 1);
                for (got, (expected, size)) in all[at..][..dim].iter().zip(expected) {
                    let error = (f64::from(*got) - expected).abs();
                    // A weight that lies between two bf16 may be rounded to the other one.
                    let limit = 4e-3 * size + 1e-6;
                    assert!(error < limit, "{heads}x{dim} at {p}: {got}, not {expected}");
                    (errors, sizes) = (errors + error, sizes + size);
                }
            }
        }
        // Which happens to few of them.
        assert!(errors < 2e-5 * sizes, "{heads}x{dim}: {errors} of {sizes}");
        spoil(&case, positions, slots, f32::NEG_INFINITY);
        for threads in [&alone, &pair] {
            for (start, rows) in [
                (0, positions),
                (0, 1),
                (positions - 1, 1),
                (positions / 2, 4),
                (positions.saturating_sub(17), 17),
                (positions / 3, 7),
                (31, 2),
                (255, 3),
                (positions / 4, positions / 2),
            ] {
                if start + rows > positions {
                    continue;
                }
                let part = start * width..(start + rows) * width;
                let segment = (start, &queries[part.clone()]);
                let got = run_batch(fast, threads, &case, heads, &[segment], 1).remove(0);
                let what = format!("{rows} of {heads}x{dim} from {start}");
                assert_eq!(bits(&got), bits(&all[part]), "{what}");
            }
        }
    }
}

#[test]
fn later_positions_do_not_matter_whatever_they_hold() {
    let Some(fast) = fast_cpu() else { return };
    let mut rng = Random::new(32);
    let (heads, dim, positions) = (3, 64, 330);
    let case = case(positions, 1, dim, &mut rng);
    let threads = ThreadPool::new(1);
    let queries = rng.normals(positions * heads * dim);
    let all = run_batch(fast, &threads, &case, heads, &[(0, &queries)], 1).remove(0);
    for seen in [1, 17, 255, 256, 300] {
        for with in [f32::NAN, f32::INFINITY, 65504.0] {
            spoil(&case, seen, positions, with);
            let got = run_batch(fast, &threads, &case, heads, &[(0, &queries)], 1).remove(0);
            let seen = seen * heads * dim;
            assert_eq!(bits(&got[..seen]), bits(&all[..seen]), "{with} from {seen}");
        }
        let mut access = case.pool.access().expect("idle");
        for p in seen..positions {
            let range = p * dim..(p + 1) * dim;
            let (keys, values) = (&case.keys[range.clone()], &case.values[range]);
            access.write(&case.table, p, 1, keys, values).expect("room");
        }
    }
}

#[test]
fn exact_and_fast_rows_of_a_step_are_those_of_steps_of_their_own() {
    let Some(fast) = fast_cpu() else { return };
    let mut rng = Random::new(33);
    let (kv_heads, heads, dim, positions) = (2, 6, 64, 600);
    let case = case(positions, kv_heads, dim, &mut rng);
    let width = heads * dim;
    let queries = rng.normals(positions * width);
    let part = |start: usize, rows: usize| (start, &queries[start * width..][..rows * width]);
    // Pages of their own: a batch does not write one twice.
    let segments = [part(599, 1), part(40, 1), part(64, 120), part(200, 20), part(260, 300)];
    for threads in [ThreadPool::new(1), ThreadPool::new(2), ThreadPool::new(5)] {
        for count in 0..=segments.len() {
            let got = run_batch(fast, &threads, &case, heads, &segments, count);
            for (index, (&segment, got)) in segments.iter().zip(got).enumerate() {
                let is_fast = usize::from(index >= segments.len() - count);
                let alone = run_batch(fast, &threads, &case, heads, &[segment], is_fast).remove(0);
                assert!(bits(&got) == bits(&alone), "segment {index}, {count} fast");
                let other =
                    run_batch(fast, &threads, &case, heads, &[segment], 1 - is_fast).remove(0);
                assert!(bits(&got) != bits(&other), "segment {index} is of the other kind");
            }
        }
    }
}

#[test]
fn a_part_of_a_segment_cannot_be_fast() {
    let Some((_, tiles)) = fast_cpu() else { return };
    let pool = case(64, 1, 16, &mut Random::new(34));
    let segment = |start, rows| Segment { table: &pool.table, start, rows };
    let batch = || Batch::new(&pool.pool, &[segment(0, 3), segment(40, 7)]).expect("fits");
    for (rows, fits) in [(0, true), (7, true), (10, true), (3, false), (8, false), (11, false)] {
        assert_eq!(batch().with_fast(tiles, rows).is_ok(), fits, "{rows}");
    }
}
