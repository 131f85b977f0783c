//! The Node binding: conversions and classes, no logic.
