//! GGUF files and the forward pass of the Llama family.

#![warn(missing_docs)]

mod error;
mod gguf;
mod vocab;

pub use error::ModelError;
pub use gguf::{Gguf, MetadataValue, TensorInfo, TensorType, ValueType};
pub use vocab::VocabMetadata;
