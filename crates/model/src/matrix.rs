//! Products of activations with weights, in f32 and in one fixed order.
//!
//! The promise: an element of a product is `((x0·w0 + x1·w1) + x2·w2) + …`, each product and sum
//! rounded once, whatever the number of rows, the number of threads and the CPU. It is kept by
//! letting SIMD lanes run over the columns of the result and never over the summed index, and by
//! not fusing multiplication and addition (Rust never does so by itself). Compilers for AVX2, NEON
//! and plain SSE2 (pulp picks at run time) therefore produce the same bits at different speeds.
//!
//! Cost: 4 bytes per weight, read once for every four rows. Measured on a two-core AVX-512 machine
//! against candle's f32 product, which has no such promise: 24–46 GB/s at 1–2 rows (equal; the
//! memory's limit), 55–63 GMAC/s at 512 rows (candle 40–77). Padding to 16 rows, the way to make
//! candle's keep the promise, costs 2–3 times as much at one row.

use pulp::{Arch, NullaryFnOnce};
use rayon::prelude::*;

use crate::dequantise;
use crate::{Gguf, ModelError, TensorInfo};

/// Columns of the result that are computed together: two AVX2 registers for each of
/// [`ROWS`] rows, which fill its registers without spilling.
const LANES: usize = 16;
/// Rows that share one pass over a tile.
const ROWS: usize = 4;
/// Multiplications that a thread should get at least: some ten microseconds' worth.
const MIN_SHARE: usize = 1 << 17;

/// The weights of one linear layer, `[outputs][inputs]`, stored as tiles of 16 outputs:
/// `[outputs / 16][inputs][16]`, the last one filled up with zeros.
#[derive(Debug)]
pub(crate) struct Matrix {
    tiles: Vec<f32>,
    outputs: usize,
    inputs: usize,
}

impl Matrix {
    /// Dequantises a tensor into tiles, in parallel on the current pool.
    pub(crate) fn load(gguf: &Gguf, tensor: &TensorInfo) -> Result<Self, ModelError> {
        let inputs = tensor.row_elements();
        let outputs = tensor.elements() / inputs;
        let mut tiles = vec![0.0; outputs.next_multiple_of(LANES) * inputs];
        tiles.par_chunks_mut(LANES * inputs).enumerate().try_for_each(|(index, tile)| {
            let first = index * LANES;
            let rows = dequantise::rows(gguf, tensor, first, LANES.min(outputs - first))?;
            for (lane, row) in rows.chunks_exact(inputs).enumerate() {
                for (weights, &weight) in tile.chunks_exact_mut(LANES).zip(row) {
                    weights[lane] = weight;
                }
            }
            Ok::<_, ModelError>(())
        })?;
        Ok(Self { tiles, outputs, inputs })
    }

    pub(crate) fn outputs(&self) -> usize {
        self.outputs
    }

    /// The weights of one output.
    pub(crate) fn row(&self, output: usize) -> impl Iterator<Item = f32> {
        let tile = &self.tiles[output / LANES * LANES * self.inputs..][..LANES * self.inputs];
        tile.iter().skip(output % LANES).step_by(LANES).copied()
    }

    /// `x` is `[m][inputs]`; gives `[m][outputs]`. Runs on the current pool.
    pub(crate) fn multiply(&self, arch: Arch, x: &[f32]) -> Vec<f32> {
        let m = x.len() / self.inputs;
        if m == 0 {
            return Vec::new();
        }
        let padded = self.outputs.next_multiple_of(LANES);
        // What is not worth another thread's waking stays on this one.
        let worth_sharing = (MIN_SHARE / (LANES * self.inputs * m)).max(1);
        // Tile by tile, `[outputs / 16][m][16]`: threads write apart from each other.
        let mut tiled = vec![0.0; padded * m];
        tiled
            .par_chunks_mut(LANES * m)
            .zip(self.tiles.par_chunks(LANES * self.inputs))
            .with_min_len(worth_sharing)
            .for_each(|(out, tile)| {
                arch.dispatch(TileProduct { x, inputs: self.inputs, tile, out });
            });
        if m == 1 {
            tiled.truncate(self.outputs);
            return tiled;
        }
        let mut rows = vec![0.0; self.outputs * m];
        rows.par_chunks_mut(self.outputs).enumerate().with_min_len(4).for_each(|(row, out)| {
            for (tile, out) in out.chunks_mut(LANES).enumerate() {
                let from = (tile * m + row) * LANES;
                out.copy_from_slice(&tiled[from..from + out.len()]);
            }
        });
        rows
    }

    /// The products of one row with some outputs only; the same bits as [`Self::multiply`] gives.
    pub(crate) fn multiply_only(&self, x: &[f32], outputs: &[u32]) -> Vec<f32> {
        outputs
            .par_iter()
            .with_min_len(16)
            .map(|&output| {
                let weights = self.row(output as usize);
                x.iter().zip(weights).fold(0.0, |sum, (x, weight)| sum + x * weight)
            })
            .collect()
    }
}

/// All rows of `x` times one tile.
struct TileProduct<'a> {
    /// `[m][inputs]`
    x: &'a [f32],
    inputs: usize,
    /// `[inputs][LANES]`
    tile: &'a [f32],
    /// `[m][LANES]`
    out: &'a mut [f32],
}

impl NullaryFnOnce for TileProduct<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { x, inputs, tile, out } = self;
        let x = x.chunks(ROWS * inputs);
        for (x, out) in x.zip(out.chunks_mut(ROWS * LANES)) {
            match out.len() / LANES {
                4 => rows_times_tile::<4>(x, inputs, tile, out),
                3 => rows_times_tile::<3>(x, inputs, tile, out),
                2 => rows_times_tile::<2>(x, inputs, tile, out),
                _ => rows_times_tile::<1>(x, inputs, tile, out),
            }
        }
    }
}

/// The sums of all lanes of `M` rows grow side by side, each in the order of the inputs.
#[inline(always)]
// Indices with constant bounds: with iterators in their place the sums of four rows are no longer
// kept in registers, at a thirteenth of the speed.
#[allow(clippy::needless_range_loop)]
fn rows_times_tile<const M: usize>(x: &[f32], inputs: usize, tile: &[f32], out: &mut [f32]) {
    let rows: [&[f32]; M] = std::array::from_fn(|row| &x[row * inputs..(row + 1) * inputs]);
    let (weights, _) = tile.as_chunks::<LANES>();
    let mut sums = [[0.0_f32; LANES]; M];
    for (input, weights) in weights.iter().enumerate().take(inputs) {
        for row in 0..M {
            let x = rows[row][input];
            for lane in 0..LANES {
                sums[row][lane] += x * weights[lane];
            }
        }
    }
    out.copy_from_slice(sums.as_flattened());
}
