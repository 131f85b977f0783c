//! The bytes of a model file, mapped rather than read: opening costs no copy, and pages that are
//! never touched are never loaded.

use std::fs::File;
use std::io;
use std::path::Path;

use memmap2::{Mmap, MmapMut};

/// Read-only bytes at a page-aligned address, so that a tensor at an aligned offset in the file is
/// aligned in memory as well.
#[derive(Debug)]
pub(crate) struct Mapping {
    map: Mmap,
    /// Whether it is a file's: pages that are let go come back with what they had.
    #[cfg(unix)]
    of_file: bool,
}

impl Mapping {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        if metadata.len() == 0 {
            // An empty mapping is an error on some systems and an address of its own on others.
            return Self::copy_of(&[]);
        }
        // SAFETY: the mapping is private to this value, read-only, and handed out as `&[u8]` only.
        // What no program can rule out is another process changing the file meanwhile: writing
        // into it would change bytes behind a shared reference, and truncating it makes an access
        // past the new end raise SIGBUS. It is assumed that nobody edits a model file in place
        // while it is open, or while a model runs that looks embeddings up in it. Our own downloads
        // keep to it: they write beside the file and rename over it, which leaves the mapped inode
        // whole. Code here does not trust that a value read twice is the same twice: what is not
        // copied out is checked again at each use.
        let map = unsafe { Mmap::map(&file)? };
        Ok(Self {
            map,
            #[cfg(unix)]
            of_file: true,
        })
    }

    /// An anonymous mapping filled with a copy of `bytes`.
    pub(crate) fn copy_of(bytes: &[u8]) -> io::Result<Self> {
        // A mapping of no bytes is refused by the operating system. One zero byte in its place is
        // no GGUF file either, and is reported the same way: too short for the magic.
        let mut map = MmapMut::map_anon(bytes.len().max(1))?;
        map[..bytes.len()].copy_from_slice(bytes);
        Ok(Self {
            map: map.make_read_only()?,
            #[cfg(unix)]
            of_file: false,
        })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Gives back the memory of pages that were read; reading them again gets them from the
    /// system's cache, or the file.
    pub(crate) fn let_go(&self) {
        #[cfg(unix)]
        if self.of_file {
            // SAFETY: the mapping is a file's and read-only, so that a page that is dropped and
            // read again has the file's bytes, as before. Failure of advice is harmless.
            let _ = unsafe { self.map.unchecked_advise(memmap2::UncheckedAdvice::DontNeed) };
        }
    }
}
