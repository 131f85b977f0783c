//! Sequences, scheduling, constraints at run time, stop conditions.
