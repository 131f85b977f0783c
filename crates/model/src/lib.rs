//! GGUF files and the forward pass of the Llama family.
