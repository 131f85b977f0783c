//! A reading position in untrusted bytes. Every read is bounds-checked and every failure carries
//! the offset at which the value began.

/// A fault in the header: where and what. Becomes [`crate::ModelError::Gguf`] once the file's name
/// is known.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) offset: u64,
    pub(crate) reason: String,
}

impl Fault {
    pub(crate) fn new(offset: usize, reason: impl Into<String>) -> Self {
        Self { offset: offset as u64, reason: reason.into() }
    }
}

/// A range of the file's bytes, checked to lie inside it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    pub(crate) start: usize,
    pub(crate) len: usize,
}

impl Span {
    pub(crate) fn of(self, bytes: &[u8]) -> &[u8] {
        &bytes[self.start..self.start + self.len]
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at }
    }

    pub(crate) fn offset(&self) -> usize {
        self.at
    }

    /// All the bytes, from before the position too.
    pub(crate) fn whole(&self) -> &'a [u8] {
        self.bytes
    }

    pub(crate) fn remaining(&self) -> usize {
        self.bytes.len().saturating_sub(self.at)
    }

    /// Takes `len` bytes; `what` names them in the error.
    pub(crate) fn take(&mut self, len: usize, what: &str) -> Result<&'a [u8], Fault> {
        let available = self.remaining();
        if len > available {
            return Err(Fault::new(
                self.at,
                format!("{what} needs {len} bytes and the file ends after {available}"),
            ));
        }
        let taken = &self.bytes[self.at..self.at + len];
        self.at += len;
        Ok(taken)
    }

    pub(crate) fn u32(&mut self, what: &str) -> Result<u32, Fault> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self, what: &str) -> Result<u64, Fault> {
        self.array(what).map(u64::from_le_bytes)
    }

    pub(crate) fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], Fault> {
        let mut value = [0; N];
        value.copy_from_slice(self.take(N, what)?);
        Ok(value)
    }

    /// A string as GGUF writes it: a 64-bit length and that many bytes.
    pub(crate) fn string(&mut self, limit: usize, what: &str) -> Result<Span, Fault> {
        let start = self.at;
        let len = self.u64(what)?;
        let available = self.remaining();
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        if len > limit {
            return Err(Fault::new(
                start,
                format!("{what} claims {len} bytes; at most {limit} are accepted"),
            ));
        }
        if len > available {
            return Err(Fault::new(
                start,
                format!("{what} claims {len} bytes and the file ends after {available}"),
            ));
        }
        let span = Span { start: self.at, len };
        self.at += len;
        Ok(span)
    }
}

/// The text of `span`, or a fault naming the first byte that is not UTF-8.
pub(crate) fn text<'a>(bytes: &'a [u8], span: Span, what: &str) -> Result<&'a str, Fault> {
    std::str::from_utf8(span.of(bytes)).map_err(|error| {
        Fault::new(span.start + error.valid_up_to(), format!("{what} is not valid UTF-8"))
    })
}
