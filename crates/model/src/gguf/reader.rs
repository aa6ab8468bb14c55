//! The GGUF reader.

use super::cursor::Cursor;
use super::value::Value;
use super::{DEFAULT_ALIGNMENT, MAGIC, VERSION};
use crate::error::{Error, Result};
use crate::mapped::Mapped;
use crate::quant::{DataType, ggml_type_name};
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::Path;

/// A parsed GGUF file: metadata and tensor table in memory, data mapped.
#[derive(Debug)]
pub struct Gguf {
    file: Mapped,
    metadata: Vec<(String, Value)>,
    by_key: HashMap<String, usize>,
    tensors: Vec<TensorEntry>,
    by_name: HashMap<String, usize>,
    alignment: u64,
}

/// One tensor of a GGUF file.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorEntry {
    /// Its name: `blk.0.attn_q.weight`.
    pub name: String,
    /// Element format.
    pub format: DataType,
    /// Dimensions as the file gives them: innermost (columns) first; 1 to 4 of them.
    pub dims: Vec<u64>,
    /// Where its bytes lie in the file.
    pub range: Range<usize>,
}

impl TensorEntry {
    /// `[rows, columns]`: outer dimensions folded into rows; a vector of n is `[n, 1]`.
    pub fn shape(&self) -> [usize; 2] {
        match self.dims.as_slice() {
            [n] => [*n as usize, 1],
            [cols, outer @ ..] => [outer.iter().product::<u64>() as usize, *cols as usize],
            [] => [1, 1],
        }
    }
}

impl Gguf {
    /// Maps and parses `path`.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::NotAModel`], [`Error::Damaged`] or [`Error::Unsupported`], naming the key or tensor.
    pub fn open(path: &Path) -> Result<Gguf> {
        Gguf::parse(Mapped::open(path)?)
    }

    /// Parses bytes in memory; `path` names them in errors.
    ///
    /// # Errors
    /// As [`Gguf::open`].
    pub fn from_bytes(path: &Path, bytes: Vec<u8>) -> Result<Gguf> {
        Gguf::parse(Mapped::from_bytes(path, bytes))
    }

    fn parse(file: Mapped) -> Result<Gguf> {
        let path = file.path().to_owned();
        let mut cursor = Cursor::new(&path, &file);
        if !file.starts_with(&MAGIC) {
            let reason =
                format!("the file starts with {:02x?}, not with \"GGUF\"", &file[..file.len().min(4)]);
            return Err(Error::NotAModel { path, reason });
        }
        cursor.take(4, "magic")?;
        let version = cursor.u32("version")?;
        if version != VERSION {
            return Err(Error::unsupported(
                &path,
                "version",
                format!("GGUF version {version}"),
                "version 3, little endian",
            ));
        }
        // The least tensor entry: name length, dimension count, one dimension, type, offset.
        let tensor_count = cursor.count(32, "tensor count")?;
        let key_count = cursor.count(13, "metadata count")?;
        let (metadata, by_key) = read_metadata(&mut cursor, &path, key_count)?;
        let alignment = alignment(&path, by_key.get("general.alignment").map(|&i| &metadata[i].1))?;
        let raw = read_tensor_table(&mut cursor, &path, tensor_count)?;
        let data_start = (cursor.position() as u64).next_multiple_of(alignment);
        let tensors = place_tensors(&path, raw, data_start, alignment, file.len() as u64)?;
        let by_name = tensors.iter().enumerate().map(|(i, t)| (t.name.clone(), i)).collect();
        Ok(Gguf { file, metadata, by_key, tensors, by_name, alignment })
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// The mapped file.
    pub fn file(&self) -> &Mapped {
        &self.file
    }

    /// All metadata in file order.
    pub fn metadata(&self) -> &[(String, Value)] {
        &self.metadata
    }

    /// All tensors in file order.
    pub fn tensors(&self) -> &[TensorEntry] {
        &self.tensors
    }

    /// Alignment of tensor data in bytes.
    pub fn alignment(&self) -> u64 {
        self.alignment
    }

    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.by_key.get(key).map(|&i| &self.metadata[i].1)
    }

    /// The tensor called `name`.
    pub fn tensor(&self, name: &str) -> Option<&TensorEntry> {
        self.by_name.get(name).map(|&i| &self.tensors[i])
    }

    /// The raw bytes of a tensor of this file.
    pub fn bytes(&self, tensor: &TensorEntry) -> &[u8] {
        &self.file[tensor.range.clone()]
    }

    /// Text under `key`.
    ///
    /// # Errors
    /// [`Error::BadValue`] if the value is not text.
    pub fn str(&self, key: &str) -> Result<Option<&str>> {
        self.typed(key, "text", Value::as_str)
    }

    /// A non-negative integer under `key`.
    ///
    /// # Errors
    /// [`Error::BadValue`] if the value is something else or does not fit.
    pub fn usize(&self, key: &str) -> Result<Option<usize>> {
        self.typed(key, "a non-negative integer", |v| v.as_u64().and_then(|v| usize::try_from(v).ok()))
    }

    /// A float under `key`.
    ///
    /// # Errors
    /// [`Error::BadValue`] if the value is not a finite float.
    pub fn f64(&self, key: &str) -> Result<Option<f64>> {
        self.typed(key, "a finite float", |v| v.as_f64().filter(|v| v.is_finite()))
    }

    /// A truth value under `key`.
    ///
    /// # Errors
    /// [`Error::BadValue`] if the value is something else.
    pub fn bool(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "a truth value", Value::as_bool)
    }

    /// Reads `key` through `read`.
    pub(crate) fn typed<'a, T>(
        &'a self,
        key: &str,
        wanted: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        match self.get(key) {
            None => Ok(None),
            Some(value) => read(value).map(Some).ok_or_else(|| {
                Error::bad_value(self.path(), key, format!("{wanted} is needed, found {}", describe(value)))
            }),
        }
    }
}

fn describe(value: &Value) -> String {
    let text = format!("{value:?}");
    match text.char_indices().nth(80) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

type Metadata = (Vec<(String, Value)>, HashMap<String, usize>);

fn read_metadata(cursor: &mut Cursor, path: &Path, count: usize) -> Result<Metadata> {
    let mut metadata: Vec<(String, Value)> = Vec::new();
    let mut by_key = HashMap::new();
    for i in 0..count {
        let key = cursor.string(&format!("metadata key {i}"))?;
        if key.len() > 65_535 {
            return Err(Error::damaged(path, format!("metadata key {i}"), "a key longer than 65535 bytes"));
        }
        let value = cursor.value(&format!("key {key}"))?;
        if by_key.insert(key.clone(), i).is_some() {
            return Err(Error::damaged(path, format!("key {key}"), "the key occurs twice"));
        }
        metadata.push((key, value));
    }
    Ok((metadata, by_key))
}

fn alignment(path: &Path, value: Option<&Value>) -> Result<u64> {
    let Some(value) = value else { return Ok(DEFAULT_ALIGNMENT) };
    value
        .as_u64()
        .filter(|a| a.is_power_of_two() && *a <= 1 << 20)
        .ok_or_else(|| Error::bad_value(path, "general.alignment", "a power of two up to 1 MiB is needed"))
}

struct RawTensor {
    name: String,
    dims: Vec<u64>,
    format: u32,
    offset: u64,
}

fn read_tensor_table(cursor: &mut Cursor, path: &Path, count: usize) -> Result<Vec<RawTensor>> {
    let mut tensors = Vec::new();
    let mut names = HashSet::new();
    for i in 0..count {
        let name = cursor.string(&format!("name of tensor {i}"))?;
        let place = format!("tensor {name}");
        if !names.insert(name.clone()) {
            return Err(Error::damaged(path, place, "the name occurs twice"));
        }
        let dimensions = cursor.u32(&place)?;
        if !(1..=4).contains(&dimensions) {
            return Err(Error::damaged(path, place, format!("{dimensions} dimensions; GGUF allows 1 to 4")));
        }
        let dims = (0..dimensions).map(|_| cursor.u64(&place)).collect::<Result<Vec<u64>>>()?;
        tensors.push(RawTensor { name, dims, format: cursor.u32(&place)?, offset: cursor.u64(&place)? });
    }
    Ok(tensors)
}

fn place_tensors(
    path: &Path,
    raw: Vec<RawTensor>,
    start: u64,
    alignment: u64,
    len: u64,
) -> Result<Vec<TensorEntry>> {
    let mut tensors = Vec::with_capacity(raw.len());
    for RawTensor { name, dims, format, offset } in raw {
        let place = || format!("tensor {name}");
        let format = DataType::from_ggml_id(format)
            .ok_or_else(|| Error::unsupported(path, place(), ggml_type_name(format), DataType::SUPPORTED))?;
        if offset % alignment != 0 {
            return Err(Error::damaged(
                path,
                place(),
                format!("offset {offset} is not a multiple of {alignment}"),
            ));
        }
        if dims.contains(&0) {
            return Err(Error::damaged(path, place(), format!("a dimension of 0 in {dims:?}")));
        }
        let size = tensor_bytes(format, &dims).ok_or_else(|| {
            Error::damaged(path, place(), format!("dimensions {dims:?} do not fit format {format}"))
        })?;
        let begin = start.checked_add(offset);
        let end = begin.and_then(|b| b.checked_add(size)).filter(|&end| end <= len);
        let (Some(begin), Some(end)) = (begin, end) else {
            let reason =
                format!("{size} bytes at data offset {offset} reach beyond the file's end ({len} bytes)");
            return Err(Error::damaged(path, place(), reason));
        };
        tensors.push(TensorEntry { name, format, dims, range: begin as usize..end as usize });
    }
    refuse_overlap(path, &tensors)?;
    Ok(tensors)
}

fn tensor_bytes(format: DataType, dims: &[u64]) -> Option<u64> {
    let row = format.row_bytes(usize::try_from(dims[0]).ok()?)? as u64;
    dims[1..].iter().try_fold(row, |bytes, &dim| bytes.checked_mul(dim))
}

fn refuse_overlap(path: &Path, tensors: &[TensorEntry]) -> Result<()> {
    let mut order: Vec<&TensorEntry> = tensors.iter().collect();
    order.sort_by_key(|t| t.range.start);
    for pair in order.windows(2) {
        if pair[0].range.end > pair[1].range.start {
            let reason = format!("its data overlaps that of tensor {}", pair[0].name);
            return Err(Error::damaged(path, format!("tensor {}", pair[1].name), reason));
        }
    }
    Ok(())
}
