//! Unpublished: tiny random model, slow oracles, proptest strategies.

mod derivative;
mod gguf_writer;
pub mod golden;
pub mod test_models;
mod tiny_model;

pub use derivative::Expr;
pub use gguf_writer::GgufWriter;
pub use tiny_model::TinyModel;
