//! However a step is divided, the same bits.

use super::*;
use crate::attention::Segment;
use crate::blocks::WeightType;
use crate::pages::{KvPool, PageId};
use crate::test_random::Random;
use crate::tiles::WeightPlan;

const VOCABULARY: usize = 48;

/// A decoder of two layers whose matrices are of some type, `down` of another.
fn decoder(pool: &ThreadPool, kind: WeightType, down: WeightType, rng: &mut Random) -> Decoder {
    let shape = DecoderShape {
        hidden: 256,
        heads: 4,
        kv_heads: 2,
        head_dim: 64,
        ffn: 512,
        epsilon: 1e-5,
        pairs: RopePairs::Halves,
        frequencies: (0..32).map(|i| 0.7_f64.powi(i)).collect(),
    };
    let (mut plan, mut sources) = (WeightPlan::new(), Vec::new());
    let mut matrix = |kind: WeightType, rows: usize, columns: usize| {
        let mut bytes: Vec<u8> = (0..kind.row_bytes(columns).expect("whole blocks") * rows)
            .map(|_| rng.next() as u8)
            .collect();
        // Scales and floats of moderate size.
        let (_, block) = kind.block();
        for chunk in bytes.chunks_exact_mut(block) {
            match kind {
                WeightType::F32 => chunk[3] &= 0xbd,
                WeightType::Q6K => chunk[209] &= 0x21,
                _ => {
                    chunk[1] &= 0xa9;
                    chunk[3.min(block - 1)] &= 0xa9;
                }
            }
        }
        sources.push(bytes);
        plan.add(kind, rows, columns).expect("has kernels")
    };
    let mut layers = Vec::new();
    for _ in 0..2 {
        let [q, k, v] = [256, 128, 128].map(|rows| matrix(kind, rows, 256));
        layers.push(DecoderLayer {
            attention_norm: vec![0.5; 256],
            q,
            k,
            v,
            qkv_bias: Some([256, 128, 128].map(|n| (0..n).map(|i| 0.01 * i as f32).collect())),
            output: matrix(kind, 256, 256),
            ffn_norm: vec![0.25; 256],
            gate: matrix(kind, 512, 256),
            up: matrix(kind, 512, 256),
            down: matrix(down, 256, 512),
        });
    }
    let head = matrix(kind, VOCABULARY, 256);
    let sources: Vec<&[u8]> = sources.iter().map(Vec::as_slice).collect();
    let weights = plan.pack(pool, &sources).expect("sizes fit");
    Decoder::new(shape, weights, layers, vec![1.0; 256], head).expect("parts fit")
}

/// What the layers make of a sequence that begins at position 0, so many rows a step.
fn run(decoder: &Decoder, threads: &ThreadPool, cpu: Cpu, x: &[f32], rows: usize) -> Vec<u32> {
    let pool = KvPool::new(decoder.kv_shape(), 8).expect("fits");
    let table: Vec<PageId> = pool.allocate_many(6).expect("as many pages");
    let (mut space, mut out) = (Workspace::default(), x.to_vec());
    for (step, x) in out.chunks_mut(rows * 256).enumerate() {
        let segment = Segment { table: &table, start: step * rows, rows: x.len() / 256 };
        let batch = Batch::new(&pool, &[segment]).expect("pages are there");
        let mut access = pool.access().expect("nobody else");
        decoder.forward(cpu, threads, &mut space, &mut access, &batch, x).expect("sizes fit");
    }
    assert!(out.iter().all(|x| x.is_finite()));
    out.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn rows_divided_and_matrices_divided_give_the_same_bits() {
    let mut rng = Random::new(61);
    let x = rng.normals(150 * 256);
    let pools = [1, 2, 3].map(ThreadPool::new);
    let all = WeightType::ALL;
    for (i, &kind) in all.iter().enumerate() {
        // Floats beside integers, both ways round.
        let decoder = decoder(&pools[1], kind, all[(i + 5) % all.len()], &mut rng);
        let mut expected = None;
        // On one thread a step of 20 rows has its matrices divided, on three one of 64.
        for (cpu, threads, rows) in Cpu::available().into_iter().flat_map(|cpu| {
            [(0, 20), (0, 150), (1, 150), (1, 75), (2, 64), (2, 150)].map(|(t, n)| (cpu, t, n))
        }) {
            let got = run(&decoder, &pools[threads], cpu, &x, rows);
            let same = *expected.get_or_insert_with(|| got.clone()) == got;
            assert!(same, "{kind:?} {:?}, {threads} threads, {rows} rows", cpu.tier());
        }
    }
}
