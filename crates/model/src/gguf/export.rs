//! The same model in F32, for peers that need one as their reference.

use super::reader::Gguf;
use super::value::Value;
use super::writer::{GgufTensor, write_gguf};
use crate::error::Result;
use crate::quant::{DataType, dequantise_into};
use std::path::Path;

/// `general.file_type` of a file whose tensors are all F32.
const ALL_F32: u32 = 0;

/// Rewrites the GGUF at `source` as `out` with every tensor dequantised to F32 and all metadata kept, except
/// `general.file_type` (now 0, all F32) and `general.quantization_version` (dropped).
///
/// # Errors
/// As [`Gguf::open`] for `source`; [`crate::Error::Io`] for `out`.
pub fn export_f32_gguf(source: &Path, out: &Path) -> Result<()> {
    export_f32_model(&Gguf::open(source)?, out)
}

/// As [`export_f32_gguf`], from a file already open.
///
/// # Errors
/// [`crate::Error::Io`] for `out`.
pub fn export_f32_model(gguf: &Gguf, out: &Path) -> Result<()> {
    let mut metadata: Vec<(String, Value)> =
        gguf.metadata().iter().filter(|(key, _)| key != "general.quantization_version").cloned().collect();
    for (key, value) in &mut metadata {
        if key == "general.file_type" {
            *value = Value::U32(ALL_F32);
        }
    }
    let tensors: Vec<GgufTensor> = gguf
        .tensors()
        .iter()
        .map(|tensor| GgufTensor {
            name: tensor.name.clone(),
            format: DataType::F32,
            dims: tensor.dims.clone(),
            data: Box::new(move || {
                let [rows, cols] = tensor.shape();
                let mut weights = vec![0.0; rows * cols];
                dequantise_into(tensor.format, gguf.bytes(tensor), &mut weights);
                weights.iter().flat_map(|w| w.to_le_bytes()).collect()
            }),
        })
        .collect();
    write_gguf(out, &metadata, &tensors)
}
