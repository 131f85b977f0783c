//! Unpublished: tiny random model, slow oracles, proptest strategies.

mod gguf_writer;

pub use gguf_writer::GgufWriter;
