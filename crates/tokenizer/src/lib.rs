//! Tokenizers from GGUF metadata, incremental decoding, chat templates.
