//! Sampling parameters, PCG32, sampling from logits under a mask.
