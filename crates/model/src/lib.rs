//! GGUF files and the forward pass of the Llama family.
//!
//! [`Gguf`] reads an untrusted file's header over a memory map, [`ModelSpec`] turns it into a
//! checked description, [`VocabMetadata`] hands its vocabulary over as plain values, and
//! [`PackedModel`] computes logits on kernels, [`Model`] as the reference. Nothing here samples or
//! schedules.

#![warn(missing_docs)]
// A function is compiled for the CPU's instruction set only where it is inlined into the function
// that pulp dispatches to.
#![allow(clippy::inline_always)]

mod attention;
mod batch;
mod cache;
mod dequantise;
mod device;
mod error;
mod gguf;
mod matrix;
mod model;
mod norm;
mod outputs;
mod packed;
mod rope;
mod spec;
mod vocab;
mod weights;

pub use batch::{Deferred, Feed, Logits};
pub use cache::KvCache;
pub use device::Device;
pub use error::ModelError;
pub use gguf::{Gguf, MetadataValue, TensorInfo, TensorType, ValueType};
pub use model::Model;
pub use outputs::{Output, Outputs};
pub use packed::PackedModel;
pub use spec::{Architecture, ModelSpec, RopeStyle};
pub use vocab::VocabMetadata;
