//! The CPU kernels: packed weights, the KV page pool, attention, norms, and the threads they run
//! on. The crate knows no file format and no model: tensors come in as plain slices and are packed
//! at load; what runs is chosen from the CPU at run time.
//!
//! All `unsafe` of the project (but for one file mapping) is here. Public functions are safe: each
//! checks the sizes of what it is given and returns an error for what does not fit.

pub mod activations;
mod arena;
pub mod attention;
mod blocks;
pub mod dispatch;
mod elementwise;
mod error;
mod f16;
pub mod matmul;
pub mod pages;
pub mod pool;
mod shared;
mod simd;
#[cfg(test)]
mod test_random;
pub mod tiles;

pub use activations::Activations;
pub use attention::{Batch, Segment};
pub use blocks::{WeightType, dequantize};
pub use dispatch::{Cpu, CpuReport, Tier, choose};
pub use elementwise::RopePairs;
pub use error::KernelError;
pub use f16::{bf16_to_f32, f16_to_f32, f32_to_f16};
pub use matmul::{Input, matmul};
pub use pages::{KvAccess, KvElement, KvPool, KvShape, PAGE_POSITIONS, PageId};
pub use pool::ThreadPool;
pub use tiles::{Matrix, MatrixId, WeightPlan, Weights};
