//! The crate's one error.

use crate::pages::PageId;

/// What a kernel, the page pool or the CPU dispatch can refuse.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// A tensor, table or buffer does not have the size that its neighbours require. Every public
    /// entry checks sizes, so that no file and no caller can make a kernel read out of bounds.
    #[error("{what}: expected {expected}, got {found}")]
    Shape {
        /// Which argument.
        what: &'static str,
        /// The size that the other arguments require.
        expected: usize,
        /// The size that came.
        found: usize,
    },
    /// A size that no kernel handles (such as a row length that is not a multiple of 32).
    #[error("{what} is {found}: {requirement}")]
    Unsupported {
        /// Which size.
        what: &'static str,
        /// The value that came.
        found: usize,
        /// What it must be.
        requirement: &'static str,
    },
    /// The arena could not be had from the operating system.
    #[error("could not allocate {bytes} bytes for {what}")]
    OutOfMemory {
        /// What the memory was for.
        what: &'static str,
        /// Its size.
        bytes: usize,
    },
    /// Every page is in use.
    #[error("all {capacity} KV pages are in use")]
    OutOfPages {
        /// Pages in the pool.
        capacity: usize,
    },
    /// A page that is free, or that this pool never had.
    #[error("KV page {} is not in use", page.index())]
    PageNotInUse {
        /// The page.
        page: PageId,
    },
    /// A write to a page that several owners share; make it unique first.
    #[error("KV page {} is shared and cannot be written", page.index())]
    PageShared {
        /// The page.
        page: PageId,
    },
    /// The pool's contents are being accessed already.
    #[error("the KV pages are being accessed already")]
    PagesBusy,
    /// `TINYLLM_CPU` names no tier, or one that this CPU lacks.
    #[error("TINYLLM_CPU={requested:?}: {reason}")]
    Cpu {
        /// The text of the override.
        requested: String,
        /// Why it cannot be followed, and what can.
        reason: String,
    },
    /// Fast prefill was asked for where its products cannot run.
    #[error("prefill \"fast\" needs bf16 AMX tiles: {reason}")]
    FastPrefill {
        /// What is missing.
        reason: String,
    },
    /// A kernel panicked on one of the pool's threads: a bug of ours; the process lives on.
    #[error("a kernel thread panicked: {message}")]
    Panicked {
        /// The panic's message.
        message: String,
    },
}

impl KernelError {
    /// The stable code of this error.
    pub fn code(&self) -> &'static str {
        match self {
            KernelError::Shape { .. } | KernelError::Unsupported { .. } => {
                "ERR_TINYLLM_KERNEL_SHAPE"
            }
            KernelError::OutOfMemory { .. } => "ERR_TINYLLM_OUT_OF_MEMORY",
            KernelError::OutOfPages { .. } => "ERR_TINYLLM_OUT_OF_PAGES",
            KernelError::Cpu { .. } | KernelError::FastPrefill { .. } => "ERR_TINYLLM_CPU",
            KernelError::PageNotInUse { .. }
            | KernelError::PageShared { .. }
            | KernelError::PagesBusy
            | KernelError::Panicked { .. } => "ERR_TINYLLM_INTERNAL",
        }
    }
}

/// `Ok` when `found == expected`.
pub(crate) fn expect_size(
    what: &'static str,
    expected: usize,
    found: usize,
) -> Result<(), KernelError> {
    if expected == found { Ok(()) } else { Err(KernelError::Shape { what, expected, found }) }
}
