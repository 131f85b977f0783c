//! Integer products with AMX tiles, for whole groups of 16 input rows; fewer rows, and formats with
//! two scales to a block, take the AVX-512 kernels, whose bits are the same.
//!
//! One `tdpbsud` multiplies 16 input rows with a block of 16 matrix rows; what it costs is small
//! beside applying a scale to the 256 sums, so the sums of the next block are computed while those
//! of this one are scaled. The tile registers are configured and released inside of one call:
//! nothing else uses them, and a thread that holds none is cheaper to switch.

use std::arch::asm;
use std::arch::x86_64::*;

use super::{Job, avx512, groups};
use crate::activations::{Activations, GROUP, Group};
use crate::tiles::{BLOCK_COLUMNS, Format, TILE_ROWS};

/// The operand of `ldtilecfg`: palette 1; tmm0 takes sums (16 rows of 64 bytes), tmm1 activations
/// (16 rows of 32), tmm2 weights (8 rows of 64).
#[repr(C, align(64))]
struct Configuration([u8; 64]);

static CONFIGURATION: Configuration = {
    let mut bytes = [0; 64];
    bytes[0] = 1;
    // Bytes of a row, in 16 bits each from byte 16 on; rows from byte 48 on.
    bytes[16] = 64;
    bytes[48] = 16;
    bytes[18] = 32;
    bytes[49] = 16;
    bytes[20] = 64;
    bytes[50] = 8;
    Configuration(bytes)
};

/// The sums of a block: `[16 input rows][16 matrix rows]`.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Sums([i32; GROUP * TILE_ROWS]);

/// # Safety
/// The contract of [`super::product`]; the CPU has the features, AMX included.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn product<F: Format>(job: &Job, input: &Activations) {
    // SAFETY: the same contract. The configuration is valid, and `tilerelease` undoes it.
    unsafe {
        if job.rows.len() < GROUP || F::HALVES {
            return avx512::product::<F>(job, input);
        }
        asm!("ldtilecfg [{0}]", in(reg) &raw const CONFIGURATION, options(nostack));
        let mut unpacked = vec![[_mm512_setzero_si512(); 8]; job.blocks];
        for tile in job.tiles.clone() {
            for (b, unpacked) in unpacked.iter_mut().enumerate() {
                *unpacked = avx512::unpack::<F>(job.tile(tile).add(b * F::BLOCK));
            }
            for (row, group) in groups(job, input) {
                if group.stride == GROUP {
                    whole_group::<F>(job, tile, &unpacked, group, row);
                } else {
                    avx512::one_group::<F>(job, tile, group, row);
                }
            }
        }
        asm!("tilerelease", options(nostack, nomem));
    }
}

/// One tile, whose integers are `unpacked`, times a group of 16 rows that starts at input row `row`.
///
/// # Safety
/// The contract of [`super::product`]; tile registers are configured, the group is whole.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn whole_group<F: Format>(
    job: &Job,
    tile: usize,
    unpacked: &[[__m512i; 8]],
    group: Group,
    row: usize,
) {
    let mut acc = [_mm512_setzero_ps(); GROUP];
    let mut sums = [Sums([0; GROUP * TILE_ROWS]); 2];
    // SAFETY: blocks of the group and of the tile; outputs by the contract.
    unsafe {
        multiply(&unpacked[0], group.ints, &mut sums[0]);
        for b in 0..job.blocks {
            if b + 1 < job.blocks {
                let ints = group.ints.add((b + 1) * GROUP * BLOCK_COLUMNS);
                multiply(&unpacked[b + 1], ints, &mut sums[(b + 1) % 2]);
            }
            let sums = sums[b % 2].0.as_ptr();
            let [scale, second] = avx512::scales::<F>(job.tile(tile).add(b * F::BLOCK));
            for m in 0..GROUP {
                let at = b * GROUP + m;
                let sum = _mm512_load_si512(sums.add(m * TILE_ROWS).cast());
                let sum = avx512::without_offset::<F>(sum, *group.totals.add(at));
                let by = *group.scales.add(at);
                acc[m] = avx512::add_scaled::<F>(acc[m], [sum; 2], scale, second, by);
                if F::MIN {
                    let sums = _mm512_set1_ps(*group.sums.add(at));
                    acc[m] = _mm512_fmadd_ps(second, sums, acc[m]);
                }
            }
        }
        for (m, &acc) in acc.iter().enumerate() {
            _mm512_storeu_ps(job.to(tile, row + m), acc);
        }
        for (b, w) in unpacked.iter().enumerate() {
            avx512::add_fine_block::<F>(job, tile, group, row, b, w);
        }
    }
}

/// A block's unsigned integers times 16 rows of 32 signed ones.
///
/// # Safety
/// Tile registers are configured; `ints` is valid for 512 bytes.
#[inline]
unsafe fn multiply(weights: &[__m512i; 8], ints: *const i8, sums: &mut Sums) {
    // SAFETY: reads 512 bytes of weights and of `ints`, and writes the 1,024 of `sums`. No
    // compiled code uses tile registers.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tileloadd tmm2, [{weights} + {line}*1]",
            "tileloadd tmm1, [{ints} + {row}*1]",
            "tdpbsud tmm0, tmm1, tmm2",
            "tilestored [{sums} + {line}*1], tmm0",
            weights = in(reg) weights.as_ptr(),
            ints = in(reg) ints,
            sums = in(reg) sums.0.as_mut_ptr(),
            line = in(reg) 64_usize,
            row = in(reg) 32_usize,
            options(nostack, preserves_flags),
        );
    }
}
