mod fast;

use super::*;
use crate::test_random::Random;

struct Case {
    pool: KvPool,
    table: Vec<PageId>,
    /// `[positions][kv_heads * dim]`, rounded to halves.
    keys: Vec<f32>,
    values: Vec<f32>,
}

fn round(x: f32) -> f32 {
    crate::f16::f16_to_f32(crate::f16::f32_to_f16(x))
}

/// A sequence of `positions`, stored by the reference's own writes.
fn case(positions: usize, kv_heads: usize, dim: usize, rng: &mut Random) -> Case {
    let shape = KvShape { layers: 2, kv_heads, head_dim: dim, element: KvElement::F16 };
    let pages = positions.div_ceil(PAGE_POSITIONS);
    let pool = KvPool::new(shape, pages + 1).expect("a pool");
    let spare = pool.allocate().expect("a page");
    let mut table = pool.allocate_many(pages).expect("pages");
    table.reverse();
    let row = kv_heads * dim;
    let keys: Vec<f32> = rng.normals(positions * row).into_iter().map(round).collect();
    let values: Vec<f32> = rng.normals(positions * row).into_iter().map(round).collect();
    {
        let mut access = pool.access().expect("idle");
        for p in 0..positions {
            let range = p * row..(p + 1) * row;
            access.write(&table, p, 1, &keys[range.clone()], &values[range]).expect("room");
        }
    }
    pool.release(spare).expect("in use");
    Case { pool, table, keys, values }
}

/// Attention of one query in f64.
fn oracle(case: &Case, q: &[f32], kv_head: usize, seen: usize) -> Vec<f64> {
    let shape = case.pool.shape();
    let (dim, row) = (shape.head_dim, shape.row());
    let at = |p: usize| p * row + kv_head * dim..p * row + (kv_head + 1) * dim;
    let scores: Vec<f64> = (0..seen)
        .map(|p| q.iter().zip(&case.keys[at(p)]).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum())
        .collect();
    let most = scores.iter().fold(f64::MIN, |a, &b| a.max(b));
    let weights: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
    let total: f64 = weights.iter().sum();
    (0..dim)
        .map(|d| {
            let sum: f64 =
                weights.iter().enumerate().map(|(p, w)| w * f64::from(case.values[at(p)][d])).sum();
            sum / total
        })
        .collect()
}

fn run(
    cpu: Cpu,
    threads: &ThreadPool,
    case: &Case,
    heads: usize,
    start: usize,
    queries: &[f32],
) -> Vec<f32> {
    let rows = queries.len() / (heads * case.pool.shape().head_dim);
    let segment = Segment { table: &case.table, start, rows };
    let batch = Batch::new(&case.pool, &[segment]).expect("a fitting batch");
    let mut access = case.pool.access().expect("idle");
    let mut out = vec![f32::NAN; queries.len()];
    let mut scratch = Scratch::default();
    attend(cpu, threads, &mut access, &batch, 1, heads, queries, &mut out, &mut scratch)
        .expect("fitting sizes");
    out
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn decoding_and_prefill_meet_the_oracle_with_the_same_bits_on_every_tier() {
    let mut rng = Random::new(21);
    let (alone, pair) = (ThreadPool::new(1), ThreadPool::new(2));
    for (positions, kv_heads, heads, dim) in [
        (70, 1, 1, 16),
        (300, 3, 9, 64),
        (777, 2, 14, 64),
        (290, 2, 8, 80),
        (64, 1, 4, 128),
        (1, 1, 5, 32),
        (280, 2, 2, 32),
        (100, 1, 2, 96),
        (60, 2, 10, 272),
        (150, 1, 3, 288),
        (270, 1, 6, 32),
        (265, 1, 8, 48),
        (40, 1, 67, 16),
    ] {
        let case = case(positions, kv_heads, dim, &mut rng);
        let width = heads * dim;
        let scale = 1.0 / (dim as f32).sqrt();
        let queries: Vec<f32> =
            rng.normals(positions * width).into_iter().map(|x| x * 3.0 * scale).collect();
        let cpus = Cpu::available();
        let all = run(cpus[0], &alone, &case, heads, 0, &queries);
        for p in 0..positions {
            for head in 0..heads {
                let at = p * width + head * dim;
                let expected =
                    oracle(&case, &queries[at..][..dim], head / (heads / kv_heads), p + 1);
                for (got, expected) in all[at..][..dim].iter().zip(expected) {
                    let error = (f64::from(*got) - expected).abs();
                    assert!(
                        error < 1e-5,
                        "{positions} {heads}x{dim} at {p}: {got}, not {expected}"
                    );
                }
            }
        }
        for &cpu in &cpus {
            for threads in [&alone, &pair] {
                let what = format!("{:?} {} threads", cpu.tier(), threads.threads());
                let whole = run(cpu, threads, &case, heads, 0, &queries);
                assert_eq!(bits(&whole), bits(&all), "prefill, {what}");
                for (start, rows) in [
                    (0, 1),
                    (positions - 1, 1),
                    (positions / 2, 4),
                    (positions.saturating_sub(17), 17),
                    (positions / 3, 7),
                    (31, 2),
                    (255, 3),
                ] {
                    if start + rows > positions {
                        continue;
                    }
                    let part = start * width..(start + rows) * width;
                    let got = run(cpu, threads, &case, heads, start, &queries[part.clone()]);
                    assert_eq!(bits(&got), bits(&all[part]), "rows from {start}, {what}");
                }
            }
        }
    }
}

#[test]
fn appended_rows_equal_written_ones() {
    let mut rng = Random::new(22);
    let case = case(45, 3, 64, &mut rng);
    let row = 192;
    for cpu in Cpu::available() {
        let copy = KvPool::new(case.pool.shape(), 2).expect("a pool");
        let table = copy.allocate_many(2).expect("pages");
        let threads = ThreadPool::new(2);
        for (start, rows) in [(0, 7), (7, 38)] {
            let batch = Batch::new(&copy, &[Segment { table: &table, start, rows }]).expect("fits");
            let mut access = copy.access().expect("idle");
            let range = start * row..(start + rows) * row;
            let (k, v) = (&case.keys[range.clone()], &case.values[range]);
            append(cpu, &threads, &mut access, &batch, 1, (k, v), row).expect("fits");
        }
        let access = copy.access().expect("idle");
        for head in 0..3 {
            let (mut k, mut v) = (vec![0.0; 45 * 64], vec![0.0; 45 * 64]);
            access.gather(&table, 45, 1, head, &mut k, &mut v).expect("written");
            for p in 0..45 {
                let at = p * row + head * 64;
                assert_eq!(k[p * 64..][..64], case.keys[at..][..64]);
                assert_eq!(v[p * 64..][..64], case.values[at..][..64]);
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_an_error() {
    let mut rng = Random::new(23);
    let case = case(64, 1, 16, &mut rng);
    let other = KvPool::new(case.pool.shape(), 3).expect("a pool");
    let table = &case.table[..];
    let segment = |start, rows| Segment { table, start, rows };
    assert!(Batch::new(&case.pool, &[segment(60, 5)]).is_err(), "beyond the table");
    assert!(Batch::new(&case.pool, &[segment(usize::MAX, 5)]).is_err(), "overflow");
    assert!(
        Batch::new(&case.pool, &[segment(0, 1), segment(3, 1)]).is_err(),
        "one page, two writers"
    );
    assert!(Batch::new(&case.pool, &[segment(0, 1), segment(40, 1)]).is_ok(), "two pages");
    assert!(Batch::new(&other, &[segment(0, 1)]).is_err(), "free pages");
    case.pool.retain(table[0]).expect("in use");
    assert!(Batch::new(&case.pool, &[segment(10, 1)]).is_err(), "a shared page is written");
    let batch = Batch::new(&case.pool, &[segment(32, 1)]).expect("a shared page is read");
    let (cpu, threads) = (Cpu::detect(), ThreadPool::new(1));
    let mut scratch = Scratch::default();
    let mut out = [0.0; 32];
    let mut access = case.pool.access().expect("idle");
    let mut attempt = |layer, heads, q: &[f32]| {
        let out = &mut out[..q.len()];
        attend(cpu, &threads, &mut access, &batch, layer, heads, q, out, &mut scratch)
    };
    assert!(attempt(1, 2, &[0.1; 32]).is_ok());
    assert!(attempt(2, 2, &[0.1; 32]).is_err(), "no such layer");
    assert!(attempt(1, 2, &[0.1; 16]).is_err(), "short queries");
    assert!(attempt(1, 0, &[]).is_err(), "no heads");
    drop(access);
    let mut access = other.access().expect("idle");
    let mut out = [0.0; 16];
    let foreign =
        attend(cpu, &threads, &mut access, &batch, 0, 1, &[0.1; 16], &mut out, &mut scratch);
    assert!(foreign.is_err(), "another pool's pages");
}
