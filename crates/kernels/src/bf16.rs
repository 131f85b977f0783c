//! Activations as bfloat16, for the products of `matmul/amx_bf16.rs`, and the proof that these run.
//!
//! A matrix `[rows][columns]` is kept as `[16 rows' group][block of 32 columns][16 rows][32]`: what a
//! tile register loads is one contiguous kilobyte, and a group's blocks lie one after the other. The
//! last group may have rows that mean nothing; a product's rows do not depend on each other.

use crate::activations::{self, Activations, GROUP};
use crate::dispatch::{Cpu, missing_for_fast_prefill};
use crate::error::KernelError;
use crate::shared::Shared;
use crate::tiles::BLOCK_COLUMNS;

/// The proof that a CPU multiplies bf16 tiles: it can only be had from detection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bf16Tiles(());

impl Cpu {
    /// The proof that fast prefill runs on this tier of this machine.
    ///
    /// # Errors
    /// [`KernelError::FastPrefill`], which says what is missing.
    pub fn fast_prefill(self) -> Result<Bf16Tiles, KernelError> {
        match missing_for_fast_prefill(self) {
            None => Ok(Bf16Tiles(())),
            Some(reason) => Err(KernelError::FastPrefill { reason }),
        }
    }
}

/// 32 columns of a row: a cache line.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
struct Line([u16; BLOCK_COLUMNS]);

/// A matrix of bf16; its buffer is kept when it is filled again.
#[derive(Debug, Default)]
pub(crate) struct Bf16Rows {
    rows: usize,
    columns: usize,
    lines: Vec<Line>,
}

impl Bf16Rows {
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    /// Blocks of a row.
    pub(crate) fn blocks(&self) -> usize {
        self.columns / BLOCK_COLUMNS
    }

    /// Makes room for `[rows][columns]`, columns a multiple of 32; contents are unspecified.
    pub(crate) fn resize(&mut self, rows: usize, columns: usize) {
        (self.rows, self.columns) = (rows, columns);
        let lines = rows.next_multiple_of(GROUP) * self.blocks();
        self.lines.resize(lines, Line([0; BLOCK_COLUMNS]));
    }

    /// Where the group that starts at row `first`, a multiple of 16, begins.
    pub(crate) fn group(&self, first: usize) -> *const u8 {
        self.lines[first * self.blocks()..].as_ptr().cast()
    }
}

/// The rows of a product's input: those of exact products quantised, and after them those of fast
/// ones as bf16.
#[derive(Debug, Default)]
pub(crate) struct Operand {
    pub(crate) exact: Activations,
    pub(crate) fast: Bf16Rows,
}

impl Operand {
    /// Makes room for `exact + fast` rows; contents are unspecified.
    pub(crate) fn resize(
        &mut self,
        exact: usize,
        fast: usize,
        columns: usize,
    ) -> Result<(), KernelError> {
        self.exact.resize(exact, columns)?;
        self.fast.resize(fast, columns);
        Ok(())
    }

    /// For writing from several threads. `tiles` is there if there are fast rows.
    pub(crate) fn writer(&mut self, tiles: Option<Bf16Tiles>) -> Writer<'_> {
        let (exact, blocks) = (self.exact.rows(), self.fast.blocks());
        let fast = tiles.map(|tiles| (tiles, Shared::new(&mut self.fast.lines)));
        Writer { rows: exact, blocks, exact: self.exact.writer(), fast }
    }
}

/// Writes rows of an [`Operand`] from several threads.
pub(crate) struct Writer<'a> {
    /// Exact rows.
    rows: usize,
    blocks: usize,
    exact: activations::Writer<'a>,
    fast: Option<(Bf16Tiles, Shared<'a, Line>)>,
}

impl Writer<'_> {
    /// Writes the blocks of a row from block `first` on: `x`, whole blocks.
    ///
    /// # Safety
    /// Nobody else writes these blocks of this row at the same time, and nobody has written them
    /// since the operand was resized.
    pub(crate) unsafe fn write(&self, cpu: Cpu, row: usize, first: usize, x: &[f32]) {
        match &self.fast {
            Some((tiles, lines)) if row >= self.rows => {
                let row = row - self.rows;
                let at = (row / GROUP * self.blocks + first) * GROUP + row % GROUP;
                let blocks = x.len() / BLOCK_COLUMNS;
                assert!(first + blocks <= self.blocks, "blocks beyond a row");
                for (block, x) in x.chunks_exact(BLOCK_COLUMNS).enumerate() {
                    // SAFETY: a line of this block and row; exclusive by the caller's promise.
                    let line = unsafe { lines.part(at + block * GROUP, 1) };
                    round(*tiles, x, &mut line[0]);
                }
            }
            // SAFETY: the caller's promise.
            _ => unsafe { self.exact.write(cpu, row, first, x) },
        }
    }

    /// Quantises `count` blocks of each exact row from block `first` on; in `x`, rows start `width`
    /// elements apart.
    ///
    /// # Safety
    /// As for [`write`](Self::write), for every exact row; `x` is valid for these blocks of each.
    pub(crate) unsafe fn write_exact(
        &self,
        cpu: Cpu,
        first: usize,
        count: usize,
        x: *const f32,
        width: usize,
    ) {
        // SAFETY: the caller's promise.
        unsafe { self.exact.write_rows(cpu, 0..self.rows, first, count, x, width) }
    }
}

/// Rounds to nearest, ties to even; denormal numbers become zero, as in the products.
fn round(_: Bf16Tiles, x: &[f32], to: &mut Line) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::*;
        #[target_feature(enable = "avx512f,avx512bf16")]
        unsafe fn convert(x: *const f32, to: *mut u16) {
            // SAFETY: the caller's promise: 32 elements each.
            unsafe {
                let [low, high] = [_mm512_loadu_ps(x), _mm512_loadu_ps(x.add(16))];
                let both: __m512i = std::mem::transmute(_mm512_cvtne2ps_pbh(high, low));
                _mm512_storeu_si512(to.cast(), both);
            }
        }
        assert_eq!(x.len(), BLOCK_COLUMNS, "a block");
        // SAFETY: sizes as asserted; the token proves the features.
        unsafe { convert(x.as_ptr(), to.0.as_mut_ptr()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = (x, to);
        unreachable!("there is no proof of bf16 tiles elsewhere");
    }
}
