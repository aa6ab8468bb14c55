//! A small GGUF v3 writer, for tools, exports and tests.

use super::value::{Array, Value, ValueType};
use super::{DEFAULT_ALIGNMENT, MAGIC, VERSION};
use crate::error::{Error, Result};
use crate::quant::DataType;
use std::io::{BufWriter, Write};
use std::path::Path;

/// A tensor to write. The bytes come from a closure, so that a large model is never held twice in memory.
pub struct GgufTensor<'a> {
    /// Its name in the file.
    pub name: String,
    /// Element format.
    pub format: DataType,
    /// Dimensions, innermost (columns) first.
    pub dims: Vec<u64>,
    /// Gives its bytes: whole blocks, rows from first to last.
    pub data: Box<dyn Fn() -> Vec<u8> + 'a>,
}

impl<'a> GgufTensor<'a> {
    /// An F32 tensor of `[rows, cols]` weights, row-major.
    pub fn f32_matrix(
        name: impl Into<String>,
        rows: usize,
        cols: usize,
        weights: &'a [f32],
    ) -> GgufTensor<'a> {
        GgufTensor {
            name: name.into(),
            format: DataType::F32,
            dims: vec![cols as u64, rows as u64],
            data: f32_data(weights),
        }
    }

    /// An F32 vector.
    pub fn f32_vector(name: impl Into<String>, weights: &'a [f32]) -> GgufTensor<'a> {
        GgufTensor {
            name: name.into(),
            format: DataType::F32,
            dims: vec![weights.len() as u64],
            data: f32_data(weights),
        }
    }

    fn byte_len(&self) -> Option<u64> {
        let cols = usize::try_from(*self.dims.first()?).ok()?;
        let row = self.format.row_bytes(cols)? as u64;
        self.dims[1..].iter().try_fold(row, |bytes, &dim| bytes.checked_mul(dim))
    }
}

fn f32_data<'a>(weights: &'a [f32]) -> Box<dyn Fn() -> Vec<u8> + 'a> {
    Box::new(move || weights.iter().flat_map(|w| w.to_le_bytes()).collect())
}

/// Writes a GGUF v3 file at `path`, atomically: a temporary file beside it is renamed when complete.
///
/// # Errors
/// [`Error::Io`] (a full disk among them), [`Error::Argument`] if a tensor's dimensions do not fit its format or its bytes.
pub fn write_gguf(path: &Path, metadata: &[(String, Value)], tensors: &[GgufTensor<'_>]) -> Result<()> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let file = tempfile::NamedTempFile::new_in(folder).map_err(Error::io("create a file in", folder))?;
    let mut out = BufWriter::new(file);
    out.write_all(&header(metadata, tensors)?).map_err(Error::io("write", path))?;
    for tensor in tensors {
        let bytes = (tensor.data)();
        if Some(bytes.len() as u64) != tensor.byte_len() {
            return Err(Error::Argument(format!(
                "tensor {}: {} bytes do not fit {:?}",
                tensor.name,
                bytes.len(),
                tensor.dims
            )));
        }
        out.write_all(&bytes).map_err(Error::io("write", path))?;
        let padding = padding(bytes.len() as u64);
        out.write_all(&vec![0; padding]).map_err(Error::io("write", path))?;
    }
    let file = out.into_inner().map_err(|e| Error::io("write", path)(e.into_error()))?;
    file.as_file().sync_all().map_err(Error::io("write", path))?;
    file.persist(path).map_err(|e| Error::io("rename to", path)(e.error))?;
    Ok(())
}

fn padding(len: u64) -> usize {
    (len.next_multiple_of(DEFAULT_ALIGNMENT) - len) as usize
}

fn header(metadata: &[(String, Value)], tensors: &[GgufTensor<'_>]) -> Result<Vec<u8>> {
    let metadata: Vec<_> = metadata.iter().filter(|(key, _)| key != "general.alignment").collect();
    let mut out = Vec::new();
    out.extend(MAGIC);
    out.extend(VERSION.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata {
        put_string(&mut out, key);
        put_value(&mut out, value);
    }
    let mut offset = 0_u64;
    for tensor in tensors {
        let len = tensor.byte_len().ok_or_else(|| {
            Error::Argument(format!(
                "tensor {}: dimensions {:?} do not fit {}",
                tensor.name, tensor.dims, tensor.format
            ))
        })?;
        put_string(&mut out, &tensor.name);
        out.extend((tensor.dims.len() as u32).to_le_bytes());
        tensor.dims.iter().for_each(|d| out.extend(d.to_le_bytes()));
        out.extend(tensor.format.ggml_id().to_le_bytes());
        out.extend(offset.to_le_bytes());
        offset += len.next_multiple_of(DEFAULT_ALIGNMENT);
    }
    let fill = padding(out.len() as u64);
    out.extend(std::iter::repeat_n(0, fill));
    Ok(out)
}

fn put_string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    let mut put = |kind: ValueType, bytes: &[u8]| {
        out.extend((kind as u32).to_le_bytes());
        out.extend(bytes);
    };
    match value {
        Value::U8(v) => put(ValueType::U8, &v.to_le_bytes()),
        Value::I8(v) => put(ValueType::I8, &v.to_le_bytes()),
        Value::U16(v) => put(ValueType::U16, &v.to_le_bytes()),
        Value::I16(v) => put(ValueType::I16, &v.to_le_bytes()),
        Value::U32(v) => put(ValueType::U32, &v.to_le_bytes()),
        Value::I32(v) => put(ValueType::I32, &v.to_le_bytes()),
        Value::F32(v) => put(ValueType::F32, &v.to_le_bytes()),
        Value::Bool(v) => put(ValueType::Bool, &[u8::from(*v)]),
        Value::U64(v) => put(ValueType::U64, &v.to_le_bytes()),
        Value::I64(v) => put(ValueType::I64, &v.to_le_bytes()),
        Value::F64(v) => put(ValueType::F64, &v.to_le_bytes()),
        Value::String(v) => {
            put(ValueType::String, &[]);
            put_string(out, v);
        }
        Value::Array(v) => {
            put(ValueType::Array, &[]);
            put_array(out, v);
        }
    }
}

fn put_array(out: &mut Vec<u8>, array: &Array) {
    fn numbers<T, const N: usize>(
        out: &mut Vec<u8>,
        kind: ValueType,
        items: &[T],
        bytes: impl Fn(&T) -> [u8; N],
    ) {
        out.extend((kind as u32).to_le_bytes());
        out.extend((items.len() as u64).to_le_bytes());
        items.iter().for_each(|item| out.extend(bytes(item)));
    }
    match array {
        Array::U8(v) => numbers(out, ValueType::U8, v, |x| x.to_le_bytes()),
        Array::I8(v) => numbers(out, ValueType::I8, v, |x| x.to_le_bytes()),
        Array::U16(v) => numbers(out, ValueType::U16, v, |x| x.to_le_bytes()),
        Array::I16(v) => numbers(out, ValueType::I16, v, |x| x.to_le_bytes()),
        Array::U32(v) => numbers(out, ValueType::U32, v, |x| x.to_le_bytes()),
        Array::I32(v) => numbers(out, ValueType::I32, v, |x| x.to_le_bytes()),
        Array::F32(v) => numbers(out, ValueType::F32, v, |x| x.to_le_bytes()),
        Array::Bool(v) => numbers(out, ValueType::Bool, v, |x| [u8::from(*x)]),
        Array::U64(v) => numbers(out, ValueType::U64, v, |x| x.to_le_bytes()),
        Array::I64(v) => numbers(out, ValueType::I64, v, |x| x.to_le_bytes()),
        Array::F64(v) => numbers(out, ValueType::F64, v, |x| x.to_le_bytes()),
        Array::String(v) => {
            numbers(out, ValueType::String, v.as_slice(), |_| []);
            v.iter().for_each(|text| put_string(out, text));
        }
        Array::Array(v) => {
            numbers(out, ValueType::Array, v.as_slice(), |_| []);
            v.iter().for_each(|inner| put_array(out, inner));
        }
    }
}
