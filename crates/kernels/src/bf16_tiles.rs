//! Products of bf16 tiles that stay in tile registers: up to 32 rows by 32 columns, sums of f32.
//!
//! A tile of the left side is `[16 rows][32]`, one of the right side (a [`Panel`])
//! `[16 pairs][16 columns][2]`; a product takes its terms in ascending order, a tile's sixteen pairs
//! at a time, whatever rows and columns are computed beside it.

use std::arch::asm;
use std::arch::x86_64::*;

use crate::bf16::Bf16Tiles;

/// Bytes of a tile register: 16 rows (or pairs) of 64.
pub(crate) const TILE_BYTES: usize = 1024;

/// The operand of `ldtilecfg`: palette 1, eight registers of 16 rows of 64 bytes.
#[repr(C, align(64))]
struct Configuration([u8; 64]);

static FULL: Configuration = {
    let mut bytes = [0; 64];
    bytes[0] = 1;
    let mut tile = 0;
    while tile < 8 {
        // Bytes of a row, in 16 bits each from byte 16 on; rows from byte 48 on.
        bytes[16 + 2 * tile] = 64;
        bytes[48 + tile] = 16;
        tile += 1;
    }
    Configuration(bytes)
};

/// A tile register's worth of a right side: `[16 pairs][16 columns][2]`.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Panel(pub(crate) [u16; TILE_BYTES / 2]);

impl Panel {
    pub(crate) const ZERO: Panel = Panel([0; TILE_BYTES / 2]);
}

/// Runs `job` with the tile registers configured as [`Block`]s need them.
#[inline(always)]
pub(crate) fn configured(_: Bf16Tiles, job: impl FnOnce()) {
    // SAFETY: the token proves that there are tile registers; the configuration is valid, and
    // `tilerelease` undoes it. No compiled code uses them.
    unsafe { asm!("ldtilecfg [{0}]", in(reg) &raw const FULL, options(nostack)) };
    job();
    // SAFETY: as above.
    unsafe { asm!("tilerelease", options(nostack, nomem)) };
}

/// The pairs that 16 elements of one vector make with those of another.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,avx2,fma,f16c")]
pub(crate) fn pair(first: __m512, second: __m512) -> __m512i {
    // `first` in the lower half of the register.
    // SAFETY: both are 64 bytes without padding.
    let both: __m512i = unsafe { std::mem::transmute(_mm512_cvtne2ps_pbh(second, first)) };
    #[rustfmt::skip]
    let order = _mm512_set_epi16(
        31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8,
        23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0,
    );
    _mm512_permutexvar_epi16(order, both)
}

/// The operands of a product that stays in tile registers.
pub(crate) struct Block {
    /// The tiles of sixteen rows, one after the other, and where those of sixteen more start.
    pub(crate) a: [*const u8; 2],
    /// The panels of sixteen columns, one after the other, and where those of sixteen more start.
    pub(crate) b: [*const u8; 2],
    /// Tiles to multiply: not none.
    pub(crate) blocks: usize,
    pub(crate) to: *mut f32,
    /// Elements from one output row to the next.
    pub(crate) stride: usize,
}

impl Block {
    /// The product of 16 rows or 32 with 16 columns or 32.
    ///
    /// # Safety
    /// Tile registers are configured; the operands are valid for as many rows and columns.
    #[inline(always)]
    pub(crate) unsafe fn multiply(&self, more_rows: bool, more_columns: bool) {
        // SAFETY: the contract above.
        unsafe {
            match (more_rows, more_columns) {
                (true, true) => two_by_two(self),
                (true, false) => two_by_one(self),
                (false, true) => one_by_two(self),
                (false, false) => one_by_one(self),
            }
        }
    }
}

/// Defines a product of 16 or 32 rows (tmm4, tmm5) and 16 or 32 columns (tmm6, tmm7): sums of the
/// first sixteen rows in tmm0 and tmm1, of the others in tmm2 and tmm3.
macro_rules! products {
    ($($(#[$doc:meta])* $name:ident: $zero:tt $load_and_multiply:tt $store:tt;)*) => {
        $(products!(@one $(#[$doc])* $name $zero $load_and_multiply $store);)*
    };
    (@one $(#[$doc:meta])* $name:ident [$($zero:literal)*] [$($step:literal)*] [$($store:literal)*]) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// Tile registers are configured; the operands are valid for as many sixteens of rows and
        /// columns as the name says.
        #[inline(always)]
        unsafe fn $name(block: &Block) {
            // SAFETY: reads `blocks` kilobytes of each operand and writes the sums, by the contract.
            // No compiled code uses tile registers.
            unsafe {
                asm!(
                    $(concat!("tilezero ", $zero),)*
                    "2:",
                    $($step,)*
                    "add {a}, 1024",
                    "add {c}, 1024",
                    "add {b}, 1024",
                    "add {d}, 1024",
                    "dec {blocks}",
                    "jnz 2b",
                    $($store,)*
                    a = inout(reg) block.a[0] => _,
                    c = inout(reg) block.a[1] => _,
                    b = inout(reg) block.b[0] => _,
                    d = inout(reg) block.b[1] => _,
                    blocks = inout(reg) block.blocks => _,
                    to = in(reg) block.to,
                    below = in(reg) block.to.wrapping_add(16 * block.stride),
                    line = in(reg) 64_usize,
                    stride = in(reg) block.stride * 4,
                    options(nostack),
                );
            }
        }
    };
}

products! {
    /// 32 rows by 32 columns.
    two_by_two: ["tmm0" "tmm1" "tmm2" "tmm3"] [
        "tileloadd tmm6, [{b} + {line}*1]"
        "tileloadd tmm4, [{a} + {line}*1]"
        "tdpbf16ps tmm0, tmm4, tmm6"
        "tileloadd tmm5, [{c} + {line}*1]"
        "tdpbf16ps tmm2, tmm5, tmm6"
        "tileloadd tmm7, [{d} + {line}*1]"
        "tdpbf16ps tmm1, tmm4, tmm7"
        "tdpbf16ps tmm3, tmm5, tmm7"
    ] [
        "tilestored [{to} + {stride}*1], tmm0"
        "tilestored [{to} + {stride}*1 + 64], tmm1"
        "tilestored [{below} + {stride}*1], tmm2"
        "tilestored [{below} + {stride}*1 + 64], tmm3"
    ];
    /// 32 rows by 16 columns.
    two_by_one: ["tmm0" "tmm2"] [
        "tileloadd tmm6, [{b} + {line}*1]"
        "tileloadd tmm4, [{a} + {line}*1]"
        "tdpbf16ps tmm0, tmm4, tmm6"
        "tileloadd tmm5, [{c} + {line}*1]"
        "tdpbf16ps tmm2, tmm5, tmm6"
    ] [
        "tilestored [{to} + {stride}*1], tmm0"
        "tilestored [{below} + {stride}*1], tmm2"
    ];
    /// 16 rows by 32 columns.
    one_by_two: ["tmm0" "tmm1"] [
        "tileloadd tmm4, [{a} + {line}*1]"
        "tileloadd tmm6, [{b} + {line}*1]"
        "tdpbf16ps tmm0, tmm4, tmm6"
        "tileloadd tmm7, [{d} + {line}*1]"
        "tdpbf16ps tmm1, tmm4, tmm7"
        "/* {c} {below} */"
    ] [
        "tilestored [{to} + {stride}*1], tmm0"
        "tilestored [{to} + {stride}*1 + 64], tmm1"
    ];
    /// 16 rows by 16 columns.
    one_by_one: ["tmm0"] [
        "tileloadd tmm4, [{a} + {line}*1]"
        "tileloadd tmm6, [{b} + {line}*1]"
        "tdpbf16ps tmm0, tmm4, tmm6"
        "/* {below} */"
    ] [
        "tilestored [{to} + {stride}*1], tmm0"
    ];
}
