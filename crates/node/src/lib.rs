//! The Node binding: conversions and classes, no logic.
//!
//! Every fallible export gives an *outcome*, `{ ok }` or `{ failure }`, because an error's code does
//! not survive a promise; `src/native.ts` turns failures into the package's errors. Nothing here
//! keeps the JS thread busy: loading, compiling and rendering run on other threads, generating on
//! the engine's own.

// napi's macro turns arguments into owned values of its own choosing.
#![allow(clippy::needless_pass_by_value, clippy::trivially_copy_pass_by_ref)]
// Items are reached through the module's registration, not through paths.
#![allow(unreachable_pub, missing_debug_implementations)]

mod engine;
mod grammar;
mod inspect;
mod json;
mod offload;
mod outcome;
mod promised;
mod request;

use napi_derive::napi;

/// The version of the native part.
#[napi(catch_unwind)]
pub fn version() -> String {
    env!("CARGO_PKG_VERSION").to_owned()
}

/// Every error code a failure can carry.
#[napi(catch_unwind)]
pub fn error_codes() -> Vec<String> {
    tinyllm_engine::ERROR_CODES.iter().map(|code| (*code).to_owned()).collect()
}
