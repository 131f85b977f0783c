//! Tensor types and tensor entries of a GGUF file.

use std::fmt;

/// How a tensor's numbers are stored. All types with a number in the format are known by name and
/// size, so that a file holding one we do not compute with is refused by name and not as damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TensorType {
    code: u32,
    name: &'static str,
    block_elements: usize,
    block_bytes: usize,
}

macro_rules! tensor_types {
    ($($konst:ident $code:literal $name:literal $elements:literal $bytes:literal;)*) => {
        #[allow(missing_docs)] // the names are the format's own
        impl TensorType {
            $(pub const $konst: Self = Self {
                code: $code, name: $name, block_elements: $elements, block_bytes: $bytes,
            };)*

            /// The type with the format's number `code`.
            pub fn from_code(code: u32) -> Option<Self> {
                match code { $($code => Some(Self::$konst),)* _ => None }
            }
        }
    };
}

// Number, name, elements per block, bytes per block.
tensor_types! {
    F32 0 "F32" 1 4;
    F16 1 "F16" 1 2;
    Q4_0 2 "Q4_0" 32 18;
    Q4_1 3 "Q4_1" 32 20;
    Q5_0 6 "Q5_0" 32 22;
    Q5_1 7 "Q5_1" 32 24;
    Q8_0 8 "Q8_0" 32 34;
    Q8_1 9 "Q8_1" 32 36;
    Q2_K 10 "Q2_K" 256 84;
    Q3_K 11 "Q3_K" 256 110;
    Q4_K 12 "Q4_K" 256 144;
    Q5_K 13 "Q5_K" 256 176;
    Q6_K 14 "Q6_K" 256 210;
    Q8_K 15 "Q8_K" 256 292;
    IQ2_XXS 16 "IQ2_XXS" 256 66;
    IQ2_XS 17 "IQ2_XS" 256 74;
    IQ3_XXS 18 "IQ3_XXS" 256 98;
    IQ1_S 19 "IQ1_S" 256 50;
    IQ4_NL 20 "IQ4_NL" 32 18;
    IQ3_S 21 "IQ3_S" 256 110;
    IQ2_S 22 "IQ2_S" 256 82;
    IQ4_XS 23 "IQ4_XS" 256 136;
    I8 24 "I8" 1 1;
    I16 25 "I16" 1 2;
    I32 26 "I32" 1 4;
    I64 27 "I64" 1 8;
    F64 28 "F64" 1 8;
    IQ1_M 29 "IQ1_M" 256 56;
    BF16 30 "BF16" 1 2;
    TQ1_0 34 "TQ1_0" 256 54;
    TQ2_0 35 "TQ2_0" 256 66;
    MXFP4 39 "MXFP4" 32 17;
}

impl TensorType {
    /// The format's number for this type.
    pub fn code(self) -> u32 {
        self.code
    }

    /// Its name in the format's own spelling, such as `Q4_K`.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// Elements in a block; a row is a whole number of blocks.
    pub fn block_elements(self) -> usize {
        self.block_elements
    }

    /// Bytes of a block.
    pub fn block_bytes(self) -> usize {
        self.block_bytes
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// One tensor of a file. Its data is checked to lie inside the file, aligned, and apart from every
/// other tensor's.
#[derive(Debug, Clone)]
pub struct TensorInfo {
    pub(crate) name: String,
    /// Fastest-moving dimension first, as the format writes it.
    pub(crate) dims: Vec<usize>,
    pub(crate) kind: TensorType,
    pub(crate) elements: usize,
    /// From the start of the file.
    pub(crate) data_offset: usize,
    pub(crate) data_bytes: usize,
    /// Where the entry itself stands, for messages.
    pub(crate) entry_offset: usize,
}

impl TensorInfo {
    /// Its name, such as `blk.0.attn_q.weight`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its dimensions as the file has them: the length of a row first.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// How its numbers are stored.
    pub fn tensor_type(&self) -> TensorType {
        self.kind
    }

    /// The number of its elements.
    pub fn elements(&self) -> usize {
        self.elements
    }

    /// Where its data starts, in bytes from the start of the file.
    pub fn data_offset(&self) -> usize {
        self.data_offset
    }

    /// How many bytes its data has.
    pub fn data_bytes(&self) -> usize {
        self.data_bytes
    }

    /// The length of a row.
    pub fn row_elements(&self) -> usize {
        self.dims.first().copied().unwrap_or(1)
    }
}
