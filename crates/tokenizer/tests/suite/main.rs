//! The crate from outside: vocabularies, encoding, templates, and the real model files.

mod encoding;
mod golden;
mod templates;
mod toy;
mod vocabulary;
