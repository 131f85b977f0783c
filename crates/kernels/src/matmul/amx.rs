//! Integer products with AMX tiles, for whole groups of 16 input rows.

use super::{Job, avx512};
use crate::activations::Activations;
use crate::tiles::Format;

/// # Safety
/// The contract of [`super::product`]; the CPU has the features.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn product<F: Format>(job: &Job, input: &Activations) {
    // SAFETY: the same contract.
    unsafe { avx512::product::<F>(job, input) }
}
