//! The CPU kernels: packed weights, the KV page pool, attention, norms, and the threads they run
//! on. The crate knows no file format and no model: tensors come in as plain slices and are packed
//! at load; what runs is chosen from the CPU at run time.
//!
//! All `unsafe` of the project (but for one file mapping) is here. Public functions are safe: each
//! checks the sizes of what it is given and returns an error for what does not fit.

#![warn(missing_docs)]
// A kernel's pieces must end up inside the one function that has the tier's features enabled.
#![allow(clippy::inline_always)]
// Bytes of an arena are read as halves, floats and vectors; unaligned where alignment is not given.
#![allow(clippy::cast_ptr_alignment)]
// Unrolled loops over lanes, rows and tiles index several arrays at once.
#![allow(clippy::needless_range_loop)]
// The names of `std::arch` are the instructions'.
#![allow(clippy::wildcard_imports)]
// A kernel's operands are many, and a struct for each would hide them.
#![allow(clippy::too_many_arguments)]

mod activations;
mod arena;
mod attention;
mod bf16;
#[cfg(target_arch = "x86_64")]
mod bf16_tiles;
mod blocks;
mod decoder;
mod dispatch;
mod elementwise;
mod error;
mod f16;
mod head;
mod lines;
mod matmul;
mod pages;
mod pool;
mod shared;
mod simd;
#[cfg(test)]
mod test_random;
mod tiles;

pub use activations::Activations;
pub use attention::{Batch, Segment};
pub use bf16::Bf16Tiles;
pub use blocks::{WeightType, dequantize};
pub use decoder::{Decoder, DecoderLayer, DecoderShape, Workspace};
pub use dispatch::{Cpu, CpuReport, Tier, choose};
pub use elementwise::RopePairs;
pub use error::KernelError;
pub use f16::{bf16_to_f32, f16_to_f32, f32_to_f16};
pub use head::LogitSummary;
pub use matmul::{Input, matmul};
pub use pages::{KvAccess, KvElement, KvPool, KvShape, PAGE_POSITIONS, PageId};
pub use pool::ThreadPool;
pub use tiles::{Matrix, MatrixId, WeightPlan, Weights};
