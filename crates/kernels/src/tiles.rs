//! Packed weights: tiles of 16 rows, in blocks of 32 columns, in one arena.
//!
//! A matrix `[rows][columns]` is padded with zero rows to a multiple of 16 and cut into tiles of 16
//! rows. A tile is a sequence of blocks, one for each 32 columns, read front to back by every
//! kernel. Inside a block a *group* is four neighbouring columns, eight groups to a block, and the
//! integers lie as `[group][16 rows][4 columns]`: one 64-byte load holds four columns of all 16
//! rows, which is what a four-way dot product (`vpdpbusd`, `vpmaddubsw`) multiplies with four
//! activations broadcast to all lanes; sums stay one row to a lane, and nothing is added across.
//!
//! | tile format | from | bytes of a block |
//! |---|---|---|
//! | `Q4Min` | `Q4_1`, `Q4_K` | 256 nibbles, 32 scales, 32 minima |
//! | `Q4` | `Q4_0` | 256 nibbles, 32 scales |
//! | `Q5Min` | `Q5_1`, `Q5_K` | 256 nibbles, 64 fifth bits, 32 scales, 32 minima |
//! | `Q5` | `Q5_0` | 256 nibbles, 64 fifth bits, 32 scales |
//! | `Q6` | `Q6_K` | 256 nibbles, 128 upper bits, 32 scales of columns 0 to 15, 32 of 16 to 31 |
//! | `Q8` | `Q8_0` | 512 signed bytes, 32 scales |
//! | `F16`, `Bf16`, `F32` | the same | `[32 columns][16 rows]` of elements |
//!
//! Nibbles: byte `[g][row][j]`, g < 4, has group g in its low half and group g + 4 in its high
//! half. Fifth bits: bit g of byte `[row][j]` belongs to group g. Upper bits of `Q6`: two planes of
//! 64 bytes, bits 2g and 2g + 1 of plane h belong to group 4h + g. Scales and minima are halves,
//! one for each row. A value is `scale * (integer - offset) + minimum`.
//!
//! To add a weight type: decode it in `blocks.rs`, name its tile format in [`TileFormat::of`]; a
//! new tile format also needs a [`Format`] and a place in `with_format!`, over which the kernels are
//! generic.

use crate::arena::Arena;
use crate::blocks::{Part, WeightType, part};
use crate::error::{KernelError, expect_size};
use crate::f16::{bf16_to_f32, f16_to_f32};
use crate::pool::ThreadPool;
use crate::shared::Shared;

/// Rows of a tile.
pub(crate) const TILE_ROWS: usize = 16;
/// Columns of a block.
pub(crate) const BLOCK_COLUMNS: usize = 32;

/// How a tile's blocks are laid out. See the module's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum TileFormat {
    Q4Min,
    Q4,
    Q5Min,
    Q5,
    Q6,
    Q8,
    F16,
    Bf16,
    F32,
}

/// A quantised tile format, at compile time.
pub(crate) trait Format {
    /// Bits above the nibble (0, 1 or 2).
    const HIGH_BITS: usize;
    /// Whole signed bytes instead of nibbles.
    const BYTES: bool = false;
    /// What is subtracted from the stored integers is two to the power of this; 0: nothing.
    const OFFSET_BITS: u32;
    /// Whether there are minima.
    const MIN: bool;
    /// Whether columns 0 to 15 and 16 to 31 have scales of their own.
    const HALVES: bool = false;
    /// Bytes before the scales.
    const SCALES: usize = if Self::BYTES { 512 } else { 256 + 64 * Self::HIGH_BITS };
    /// Bytes of a block.
    const BLOCK: usize = Self::SCALES + if Self::MIN || Self::HALVES { 64 } else { 32 };
}

macro_rules! formats {
    ($($name:ident { $($body:tt)* })*) => {
        $(
            #[derive(Debug, Clone, Copy)]
            pub(crate) struct $name;
            impl Format for $name { $($body)* }
        )*
    };
}
formats! {
    Q4Min { const HIGH_BITS: usize = 0; const OFFSET_BITS: u32 = 0; const MIN: bool = true; }
    Q4 { const HIGH_BITS: usize = 0; const OFFSET_BITS: u32 = 3; const MIN: bool = false; }
    Q5Min { const HIGH_BITS: usize = 1; const OFFSET_BITS: u32 = 0; const MIN: bool = true; }
    Q5 { const HIGH_BITS: usize = 1; const OFFSET_BITS: u32 = 4; const MIN: bool = false; }
    Q6 {
        const HIGH_BITS: usize = 2; const OFFSET_BITS: u32 = 5; const MIN: bool = false;
        const HALVES: bool = true;
    }
    Q8 {
        const HIGH_BITS: usize = 0; const OFFSET_BITS: u32 = 0; const MIN: bool = false;
        const BYTES: bool = true;
    }
}

/// Runs `$body` with `$format` naming the type of a quantised tile format, `$float` otherwise.
macro_rules! with_format {
    ($value:expr, $format:ident => $body:expr, _ => $float:expr) => {
        match $value {
            crate::tiles::TileFormat::Q4Min => {
                type $format = crate::tiles::Q4Min;
                $body
            }
            crate::tiles::TileFormat::Q4 => {
                type $format = crate::tiles::Q4;
                $body
            }
            crate::tiles::TileFormat::Q5Min => {
                type $format = crate::tiles::Q5Min;
                $body
            }
            crate::tiles::TileFormat::Q5 => {
                type $format = crate::tiles::Q5;
                $body
            }
            crate::tiles::TileFormat::Q6 => {
                type $format = crate::tiles::Q6;
                $body
            }
            crate::tiles::TileFormat::Q8 => {
                type $format = crate::tiles::Q8;
                $body
            }
            crate::tiles::TileFormat::F16
            | crate::tiles::TileFormat::Bf16
            | crate::tiles::TileFormat::F32 => $float,
        }
    };
}
pub(crate) use with_format;

impl TileFormat {
    pub(crate) fn of(kind: WeightType) -> TileFormat {
        match kind {
            WeightType::Q4_1 | WeightType::Q4K => TileFormat::Q4Min,
            WeightType::Q4_0 => TileFormat::Q4,
            WeightType::Q5_1 | WeightType::Q5K => TileFormat::Q5Min,
            WeightType::Q5_0 => TileFormat::Q5,
            WeightType::Q6K => TileFormat::Q6,
            WeightType::Q8_0 => TileFormat::Q8,
            WeightType::F16 => TileFormat::F16,
            WeightType::Bf16 => TileFormat::Bf16,
            WeightType::F32 => TileFormat::F32,
        }
    }

    /// Bytes of a block.
    pub(crate) fn block_bytes(self) -> usize {
        with_format!(self, F => F::BLOCK, _ => match self {
            TileFormat::F32 => 2048,
            _ => 1024,
        })
    }
}

/// A matrix of a [`Weights`] arena, by the order in which it was planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MatrixId(usize);

#[derive(Debug, Clone, Copy)]
struct Entry {
    kind: WeightType,
    rows: usize,
    columns: usize,
    /// Bytes from the arena's start.
    offset: usize,
}

impl Entry {
    fn tiles(&self) -> usize {
        self.rows.div_ceil(TILE_ROWS)
    }

    fn tile_bytes(&self) -> usize {
        self.columns / BLOCK_COLUMNS * TileFormat::of(self.kind).block_bytes()
    }
}

/// The shapes of the matrices that one arena will hold.
#[derive(Debug, Default)]
pub struct WeightPlan {
    entries: Vec<Entry>,
    bytes: usize,
}

impl WeightPlan {
    /// An empty plan.
    pub fn new() -> WeightPlan {
        WeightPlan::default()
    }

    /// Plans a matrix of `rows` rows (outputs) of `columns` elements (inputs).
    ///
    /// # Errors
    /// A length of rows that no kernel handles.
    pub fn add(
        &mut self,
        kind: WeightType,
        rows: usize,
        columns: usize,
    ) -> Result<MatrixId, KernelError> {
        kind.row_bytes(columns)?;
        if rows == 0 {
            let requirement = "it must be positive";
            return Err(KernelError::Unsupported {
                what: "a matrix's rows",
                found: rows,
                requirement,
            });
        }
        let entry = Entry { kind, rows, columns, offset: self.bytes };
        let end = entry
            .tiles()
            .checked_mul(entry.tile_bytes())
            .and_then(|bytes| bytes.checked_next_multiple_of(64)?.checked_add(self.bytes))
            .ok_or(KernelError::OutOfMemory { what: "the packed weights", bytes: usize::MAX })?;
        self.bytes = end;
        self.entries.push(entry);
        Ok(MatrixId(self.entries.len() - 1))
    }

    /// Packs the matrices: `sources[i]` holds the rows of the i-th planned one, as files store them.
    pub fn pack(self, pool: &ThreadPool, sources: &[&[u8]]) -> Result<Weights, KernelError> {
        expect_size("matrices to pack", self.entries.len(), sources.len())?;
        for (entry, source) in self.entries.iter().zip(sources) {
            let expected = entry.kind.row_bytes(entry.columns)?.checked_mul(entry.rows);
            expect_size("bytes of a matrix", expected.unwrap_or(usize::MAX), source.len())?;
        }
        let mut arena = Arena::zeroed("the packed weights", self.bytes)?;
        // A chunk is a run of tiles of one matrix.
        const TILES: usize = 16;
        let chunks: Vec<(usize, usize)> = self
            .entries
            .iter()
            .enumerate()
            .flat_map(|(index, entry)| (0..entry.tiles()).step_by(TILES).map(move |t| (index, t)))
            .collect();
        let out = Shared::new(arena.bytes_mut());
        pool.run(chunks.len(), &|chunk| {
            let (index, first) = chunks[chunk];
            let (entry, source) = (self.entries[index], sources[index]);
            let bytes = entry.tile_bytes();
            for tile in first..entry.tiles().min(first + TILES) {
                // SAFETY: entries do not overlap, nor do an entry's tiles; each is in one chunk.
                let out = unsafe { out.part(entry.offset + tile * bytes, bytes) };
                pack_tile(&entry, source, tile, out);
            }
        })?;
        Ok(Weights { arena, entries: self.entries })
    }
}

/// Packed matrices in one arena.
#[derive(Debug)]
pub struct Weights {
    arena: Arena,
    entries: Vec<Entry>,
}

impl Weights {
    /// A planned matrix; `None` for an id of another plan with more matrices.
    pub fn matrix(&self, id: MatrixId) -> Option<Matrix<'_>> {
        let entry = self.entries.get(id.0)?;
        let bytes = &self.arena.bytes()[entry.offset..][..entry.tiles() * entry.tile_bytes()];
        let Entry { kind, rows, columns, .. } = *entry;
        Some(Matrix { format: TileFormat::of(kind), rows, columns, bytes })
    }

    /// Writes one row of a matrix, dequantised, to `out`: an embedding's look-up.
    ///
    /// # Errors
    /// A row or a length that the matrix does not have.
    pub fn row(&self, id: MatrixId, row: usize, out: &mut [f32]) -> Result<(), KernelError> {
        let missing = KernelError::Shape { what: "planned matrices", expected: 1, found: 0 };
        let matrix = self.matrix(id).ok_or(missing)?;
        expect_size("a matrix's columns", matrix.columns, out.len())?;
        if row >= matrix.rows {
            let what = "a matrix's rows";
            return Err(KernelError::Shape { what, expected: matrix.rows, found: row + 1 });
        }
        let tile = &matrix.bytes[row / TILE_ROWS * matrix.tile_bytes()..][..matrix.tile_bytes()];
        let blocks = tile.chunks_exact(matrix.format.block_bytes());
        for (block, out) in blocks.zip(out.chunks_exact_mut(BLOCK_COLUMNS)) {
            with_format!(
                matrix.format,
                F => unpack_row::<F>(block, row % TILE_ROWS, out),
                _ => unpack_floats(matrix.format, block, row % TILE_ROWS, out)
            );
        }
        Ok(())
    }

    /// Bytes of all matrices.
    pub fn bytes(&self) -> usize {
        self.arena.bytes().len()
    }
}

/// One packed matrix.
#[derive(Clone, Copy)]
pub struct Matrix<'a> {
    format: TileFormat,
    rows: usize,
    columns: usize,
    /// Exactly the tiles of `rows` rows of `columns` columns.
    bytes: &'a [u8],
}

impl std::fmt::Debug for Matrix<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Matrix({:?} {} x {})", self.format, self.rows, self.columns)
    }
}

impl<'a> Matrix<'a> {
    /// Rows: elements of a product.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Rows with padding, as products are laid out: the next multiple of 16.
    pub fn padded_rows(&self) -> usize {
        self.tiles() * TILE_ROWS
    }

    /// Columns: elements of an input.
    pub fn columns(&self) -> usize {
        self.columns
    }

    pub(crate) fn format(&self) -> TileFormat {
        self.format
    }

    /// Whether products read an input's floats rather than its integers.
    pub(crate) fn is_float(&self) -> bool {
        with_format!(self.format, _F => false, _ => true)
    }

    pub(crate) fn tiles(&self) -> usize {
        self.rows.div_ceil(TILE_ROWS)
    }

    pub(crate) fn blocks(&self) -> usize {
        self.columns / BLOCK_COLUMNS
    }

    pub(crate) fn tile_bytes(&self) -> usize {
        self.blocks() * self.format.block_bytes()
    }

    pub(crate) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

/// Packs one tile into `out`, which is zeroed.
fn pack_tile(entry: &Entry, source: &[u8], tile: usize, out: &mut [u8]) {
    let row_bytes = source.len() / entry.rows;
    let format = TileFormat::of(entry.kind);
    let block_bytes = format.block_bytes();
    let first = tile * TILE_ROWS;
    for row in 0..TILE_ROWS.min(entry.rows - first) {
        let source = &source[(first + row) * row_bytes..][..row_bytes];
        for (index, block) in out.chunks_exact_mut(block_bytes).enumerate() {
            match part(entry.kind, source, index) {
                Some(part) => with_format!(format, F => pack_part::<F>(&part, row, block), _ => ()),
                None => pack_floats(source, index, row, block),
            }
        }
    }
}

/// Places one row's 32 integers and scales in a block.
fn pack_part<F: Format>(part: &Part, row: usize, block: &mut [u8]) {
    if F::BYTES {
        for (g, ints) in part.ints.chunks_exact(4).enumerate() {
            block[(g * TILE_ROWS + row) * 4..][..4].copy_from_slice(ints);
        }
    } else {
        for g in 0..4 {
            for j in 0..4 {
                let (low, high) = (part.ints[g * 4 + j], part.ints[16 + g * 4 + j]);
                block[(g * TILE_ROWS + row) * 4 + j] = (low & 15) | (high << 4);
                let at = 256 + row * 4 + j;
                if F::HIGH_BITS == 1 {
                    block[at] |= (low >> 4) << g | (high >> 4) << (g + 4);
                } else if F::HIGH_BITS == 2 {
                    block[at] |= (low >> 4) << (2 * g);
                    block[at + 64] |= (high >> 4) << (2 * g);
                }
            }
        }
    }
    let mut put = |at: usize, bits: u16| block[at..at + 2].copy_from_slice(&bits.to_ne_bytes());
    put(F::SCALES + row * 2, part.scales[0]);
    if F::MIN {
        put(F::SCALES + 32 + row * 2, part.min);
    } else if F::HALVES {
        put(F::SCALES + 32 + row * 2, part.scales[1]);
    }
}

/// Places 32 float elements of one row in a block, in the machine's byte order.
fn pack_floats(source: &[u8], index: usize, row: usize, block: &mut [u8]) {
    let size = block.len() / (BLOCK_COLUMNS * TILE_ROWS);
    let source = &source[index * BLOCK_COLUMNS * size..][..BLOCK_COLUMNS * size];
    for (column, bytes) in source.chunks_exact(size).enumerate() {
        let to = &mut block[(column * TILE_ROWS + row) * size..][..size];
        to.copy_from_slice(bytes);
        if cfg!(target_endian = "big") {
            to.reverse();
        }
    }
}

/// The values of one row of a block.
fn unpack_row<F: Format>(block: &[u8], row: usize, out: &mut [f32]) {
    let half = |at: usize| f16_to_f32(u16::from_ne_bytes([block[at], block[at + 1]]));
    let scale = half(F::SCALES + row * 2);
    let second = if F::MIN || F::HALVES { half(F::SCALES + 32 + row * 2) } else { 0.0 };
    let offset = if F::OFFSET_BITS == 0 { 0 } else { 1 << F::OFFSET_BITS };
    for (k, out) in out.iter_mut().enumerate() {
        let (g, upper, j) = (k % 16 / 4, k / 16, k % 4);
        let int = if F::BYTES {
            i32::from(block[(k / 4 * TILE_ROWS + row) * 4 + j] as i8)
        } else {
            let nibble = block[(g * TILE_ROWS + row) * 4 + j] >> (4 * upper) & 15;
            let high = match F::HIGH_BITS {
                0 => 0,
                1 => block[256 + row * 4 + j] >> (4 * upper + g) & 1,
                _ => block[256 + 64 * upper + row * 4 + j] >> (2 * g) & 3,
            };
            i32::from(nibble | high << 4)
        };
        let scale = if F::HALVES && upper == 1 { second } else { scale };
        *out = scale * (int - offset) as f32 + if F::MIN { second } else { 0.0 };
    }
}

/// The values of one row of a block of floats.
fn unpack_floats(format: TileFormat, block: &[u8], row: usize, out: &mut [f32]) {
    for (k, out) in out.iter_mut().enumerate() {
        let at = k * TILE_ROWS + row;
        let half = || u16::from_ne_bytes([block[at * 2], block[at * 2 + 1]]);
        *out = match format {
            TileFormat::F16 => f16_to_f32(half()),
            TileFormat::Bf16 => bf16_to_f32(half()),
            _ => {
                let bytes = [0, 1, 2, 3].map(|i| block[at * 4 + i]);
                f32::from_ne_bytes(bytes)
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::dequantize;
    use crate::test_random::Random;

    #[test]
    fn a_packed_row_has_the_values_of_the_stored_one() {
        let mut rng = Random::new(41);
        let pool = ThreadPool::new(2);
        for kind in WeightType::ALL {
            let (rows, columns) = (37, 512);
            let row_bytes = kind.row_bytes(columns).expect("has kernels");
            let mut source: Vec<u8> = (0..rows * row_bytes).map(|_| rng.next() as u8).collect();
            // Scales and floats of moderate size: no infinities.
            let (_, block) = kind.block();
            for chunk in source.chunks_exact_mut(block) {
                match kind {
                    WeightType::F32 => chunk[3] &= 0x3f,
                    WeightType::Q6K => chunk[209] &= 0x2f,
                    _ => {
                        chunk[1] &= 0x2f;
                        chunk[3.min(block - 1)] &= 0x2f;
                    }
                }
            }
            let mut plan = WeightPlan::new();
            let id = plan.add(kind, rows, columns).expect("has kernels");
            let weights = plan.pack(&pool, &[&source]).expect("fits");
            for (row, source) in source.chunks_exact(row_bytes).enumerate() {
                let (mut stored, mut packed) = (vec![0.0; columns], vec![0.0; columns]);
                dequantize(kind, source, &mut stored).expect("fits");
                weights.row(id, row, &mut packed).expect("fits");
                assert_eq!(stored, packed, "{kind:?} row {row}");
            }
            assert!(weights.row(id, rows, &mut vec![0.0; columns]).is_err());
            assert!(weights.row(id, 0, &mut vec![0.0; columns - 32]).is_err());
        }
    }
}
