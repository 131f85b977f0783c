//! Quantised weights as files store them: the block formats of ggml, row by row.
//!
//! A row is a sequence of blocks of 32 elements (256 for the K formats, whose eight parts of 32
//! have scales of their own). Everything here works on one such part of 32 elements: its integers
//! and its scales. The formats are those of ggml's `ggml-common.h`; a value is
//! `scale * (integer - offset) + min`.

use crate::error::KernelError;
use crate::f16::{bf16_to_f32, f16_to_f32, f32_to_f16};

/// How a tensor's elements are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum WeightType {
    F32,
    F16,
    Bf16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q4K,
    Q5K,
    Q6K,
}

impl WeightType {
    /// Every type that has kernels.
    pub const ALL: [WeightType; 11] = [
        WeightType::F32,
        WeightType::F16,
        WeightType::Bf16,
        WeightType::Q4_0,
        WeightType::Q4_1,
        WeightType::Q5_0,
        WeightType::Q5_1,
        WeightType::Q8_0,
        WeightType::Q4K,
        WeightType::Q5K,
        WeightType::Q6K,
    ];

    /// Elements and bytes of a block.
    pub fn block(self) -> (usize, usize) {
        match self {
            WeightType::F32 => (1, 4),
            WeightType::F16 | WeightType::Bf16 => (1, 2),
            WeightType::Q4_0 => (32, 18),
            WeightType::Q4_1 => (32, 20),
            WeightType::Q5_0 => (32, 22),
            WeightType::Q5_1 => (32, 24),
            WeightType::Q8_0 => (32, 34),
            WeightType::Q4K => (256, 144),
            WeightType::Q5K => (256, 176),
            WeightType::Q6K => (256, 210),
        }
    }

    /// Bytes of a row of `columns` elements.
    ///
    /// # Errors
    /// A length that is no multiple of the block's, or of 32.
    pub fn row_bytes(self, columns: usize) -> Result<usize, KernelError> {
        let (elements, bytes) = self.block();
        if columns == 0 || !columns.is_multiple_of(elements.max(32)) {
            let requirement = "it must be a positive multiple of 32, of 256 for the K formats";
            return Err(KernelError::Unsupported {
                what: "a row's length",
                found: columns,
                requirement,
            });
        }
        let bytes = (columns / elements).checked_mul(bytes);
        bytes.ok_or(KernelError::OutOfMemory { what: "a weight row", bytes: usize::MAX })
    }
}

/// 32 quantised elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    /// The integers: as stored (unsigned) or, for `Q8_0`, signed ones between -127 and 127.
    pub(crate) ints: [u8; 32],
    /// Half-precision bits of the scales of elements 0 to 15 and 16 to 31.
    pub(crate) scales: [u16; 2],
    /// Half-precision bits of the minimum.
    pub(crate) min: u16,
}

fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// The low nibbles of 16 bytes, then the high ones.
fn nibbles(bytes: &[u8]) -> [u8; 32] {
    let mut ints = [0; 32];
    for (j, byte) in bytes[..16].iter().enumerate() {
        ints[j] = byte & 15;
        ints[j + 16] = byte >> 4;
    }
    ints
}

/// Adds bit j of the four bytes as bit 4 of integer j.
fn fifth_bits(ints: &mut [u8; 32], bytes: &[u8]) {
    let bits = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    for (j, int) in ints.iter_mut().enumerate() {
        *int |= ((bits >> j & 1) as u8) << 4;
    }
}

/// The 6-bit scale and minimum of part `s` of a `Q4_K` or `Q5_K` block.
fn six_bits(packed: &[u8], s: usize) -> (u8, u8) {
    if s < 4 {
        (packed[s] & 63, packed[s + 4] & 63)
    } else {
        let (low, high) = (packed[s + 4], packed[s]);
        (low & 15 | packed[s - 4] >> 6 << 4, low >> 4 | high >> 6 << 4)
    }
}

/// Scale and minimum of part `s` of a `Q4_K` or `Q5_K` block. The products are rounded to half
/// precision (2^-11 at most, far below what quantising the activations costs), so that these
/// formats share the tiles of `Q4_1` and `Q5_1`.
fn super_scales(block: &[u8], s: usize) -> ([u16; 2], u16) {
    let (scale, min) = six_bits(&block[4..16], s);
    let d = f32_to_f16(f16_to_f32(half(block, 0)) * f32::from(scale));
    ([d, d], f32_to_f16(-f16_to_f32(half(block, 2)) * f32::from(min)))
}

/// Part `index` (of 32 elements) of a row of a quantised type; `None` for the float types.
#[inline]
pub(crate) fn part(kind: WeightType, row: &[u8], index: usize) -> Option<Part> {
    let (elements, bytes) = kind.block();
    let per_block = elements / 32;
    let block = row.get(index / per_block.max(1) * bytes..)?.get(..bytes)?;
    let s = index % per_block.max(1);
    Some(match kind {
        WeightType::F32 | WeightType::F16 | WeightType::Bf16 => return None,
        WeightType::Q4_0 => {
            let d = half(block, 0);
            Part { ints: nibbles(&block[2..]), scales: [d, d], min: 0 }
        }
        WeightType::Q4_1 => {
            let d = half(block, 0);
            Part { ints: nibbles(&block[4..]), scales: [d, d], min: half(block, 2) }
        }
        WeightType::Q5_0 => {
            let mut ints = nibbles(&block[6..]);
            fifth_bits(&mut ints, &block[2..6]);
            let d = half(block, 0);
            Part { ints, scales: [d, d], min: 0 }
        }
        WeightType::Q5_1 => {
            let mut ints = nibbles(&block[8..]);
            fifth_bits(&mut ints, &block[4..8]);
            let d = half(block, 0);
            Part { ints, scales: [d, d], min: half(block, 2) }
        }
        WeightType::Q8_0 => {
            let mut ints = [0; 32];
            for (int, &byte) in ints.iter_mut().zip(&block[2..34]) {
                // ggml's quantiser never writes -128; the sign trick of AVX2 has no room for it.
                *int = (byte as i8).max(-127) as u8;
            }
            let d = half(block, 0);
            Part { ints, scales: [d, d], min: 0 }
        }
        WeightType::Q4K | WeightType::Q5K => {
            let (scales, min) = super_scales(block, s);
            let five = kind == WeightType::Q5K;
            let nibbles = &block[if five { 48 } else { 16 } + s / 2 * 32..];
            let mut ints = [0; 32];
            for (l, int) in ints.iter_mut().enumerate() {
                *int = nibbles[l] >> (s % 2 * 4) & 15;
                if five {
                    *int |= (block[16 + l] >> s & 1) << 4;
                }
            }
            Part { ints, scales, min }
        }
        WeightType::Q6K => {
            let (n, t) = (s / 4, s % 4);
            let low = &block[64 * n + t % 2 * 32..];
            let high = &block[128 + 32 * n..];
            let mut ints = [0; 32];
            for (l, int) in ints.iter_mut().enumerate() {
                *int = low[l] >> (t / 2 * 4) & 15 | (high[l] >> (2 * t) & 3) << 4;
            }
            let d = f16_to_f32(half(block, 208));
            let scale = |i: usize| f32_to_f16(d * f32::from(block[192 + 8 * n + 2 * t + i] as i8));
            Part { ints, scales: [scale(0), scale(1)], min: 0 }
        }
    })
}

/// Writes a row's values to `out` (a multiple of 32 elements): an embedding's look-up.
///
/// # Errors
/// A row whose size does not fit `out`'s.
pub fn dequantize(kind: WeightType, row: &[u8], out: &mut [f32]) -> Result<(), KernelError> {
    crate::error::expect_size("bytes of a weight row", kind.row_bytes(out.len())?, row.len())?;
    let offset = match kind {
        WeightType::F32 => {
            for (x, b) in out.iter_mut().zip(row.chunks_exact(4)) {
                *x = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
            }
            return Ok(());
        }
        WeightType::F16 | WeightType::Bf16 => {
            let value = if kind == WeightType::F16 { f16_to_f32 } else { bf16_to_f32 };
            for (x, b) in out.iter_mut().zip(row.chunks_exact(2)) {
                *x = value(half(b, 0));
            }
            return Ok(());
        }
        WeightType::Q4_0 => 8,
        WeightType::Q5_0 => 16,
        WeightType::Q6K => 32,
        WeightType::Q4_1
        | WeightType::Q5_1
        | WeightType::Q8_0
        | WeightType::Q4K
        | WeightType::Q5K => 0,
    };
    for (index, out) in out.chunks_exact_mut(32).enumerate() {
        let Some(part) = part(kind, row, index) else { continue };
        let min = f16_to_f32(part.min);
        for (j, x) in out.iter_mut().enumerate() {
            let int = match kind {
                WeightType::Q8_0 => i32::from(part.ints[j] as i8),
                _ => i32::from(part.ints[j]) - offset,
            };
            *x = f16_to_f32(part.scales[j / 16]) * int as f32 + min;
        }
    }
    Ok(())
}
