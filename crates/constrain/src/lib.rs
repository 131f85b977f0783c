//! Bytes in, masks out: canonical DFAs, schema front ends, token masks.
