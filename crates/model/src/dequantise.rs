//! Tensor data to f32, by candle, a few rows at a time: what is dequantised at once is a slice of
//! one tensor, so loading needs little memory beyond its result.

use candle_core::quantized::GgmlDType;
use candle_core::quantized::ggml_file::qtensor_from_ggml;

use crate::{Gguf, ModelError, TensorInfo, TensorType};

/// candle's name of a type; `None` for one that it does not dequantise.
fn dtype(kind: TensorType) -> Option<GgmlDType> {
    Some(match kind {
        TensorType::F32 => GgmlDType::F32,
        TensorType::F16 => GgmlDType::F16,
        TensorType::BF16 => GgmlDType::BF16,
        TensorType::Q4_0 => GgmlDType::Q4_0,
        TensorType::Q4_1 => GgmlDType::Q4_1,
        TensorType::Q5_0 => GgmlDType::Q5_0,
        TensorType::Q5_1 => GgmlDType::Q5_1,
        TensorType::Q8_0 => GgmlDType::Q8_0,
        TensorType::Q2_K => GgmlDType::Q2K,
        TensorType::Q3_K => GgmlDType::Q3K,
        TensorType::Q4_K => GgmlDType::Q4K,
        TensorType::Q5_K => GgmlDType::Q5K,
        TensorType::Q6_K => GgmlDType::Q6K,
        _ => return None,
    })
}

/// Whether weights of that type can be computed with.
pub(crate) fn is_computable(kind: TensorType) -> bool {
    dtype(kind).is_some()
}

/// Rows `first..first + count` of a tensor as f32, one after the other.
pub(crate) fn rows(
    gguf: &Gguf,
    tensor: &TensorInfo,
    first: usize,
    count: usize,
) -> Result<Vec<f32>, ModelError> {
    let kind = tensor.tensor_type();
    let row_bytes = tensor.row_elements() / kind.block_elements() * kind.block_bytes();
    // A row is a whole number of blocks, so the slice begins at a block; the mapping is page-aligned
    // and the tensor aligned within it, so the block is aligned as candle reads it.
    let data = gguf.tensor_data(tensor);
    decode(kind, &data[first * row_bytes..(first + count) * row_bytes], tensor.row_elements())
}

/// Whole rows of `row_elements` each. `data` must be aligned as its blocks' scales are: to 4 bytes
/// for f32, to 2 for everything else.
pub(crate) fn decode(
    kind: TensorType,
    data: &[u8],
    row_elements: usize,
) -> Result<Vec<f32>, ModelError> {
    let Some(dtype) = dtype(kind) else {
        return Err(ModelError::Input { reason: format!("{kind} weights cannot be decoded") });
    };
    let row_bytes = row_elements / kind.block_elements() * kind.block_bytes();
    let shape = vec![data.len() / row_bytes, row_elements];
    let cpu = candle_core::Device::Cpu;
    let values = qtensor_from_ggml(dtype, data, shape, &cpu)?.dequantize(&cpu)?;
    Ok(values.flatten_all()?.to_vec1()?)
}

/// A whole tensor as f32.
pub(crate) fn whole(gguf: &Gguf, tensor: &TensorInfo) -> Result<Vec<f32>, ModelError> {
    rows(gguf, tensor, 0, tensor.elements() / tensor.row_elements())
}
