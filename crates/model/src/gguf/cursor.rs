//! A cursor over untrusted bytes: every read is bounded by what is left.

use super::value::{Array, Value, ValueType};
use crate::error::{Error, Result};
use std::path::Path;

/// Arrays nested deeper than this are refused; real files nest once.
const MAX_DEPTH: usize = 4;

pub(super) struct Cursor<'a> {
    path: &'a Path,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(path: &'a Path, bytes: &'a [u8]) -> Cursor<'a> {
        Cursor { path, bytes, at: 0 }
    }

    pub(super) fn position(&self) -> usize {
        self.at
    }

    fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub(super) fn take(&mut self, len: u64, place: &str) -> Result<&'a [u8]> {
        let left = self.left();
        let len = usize::try_from(len).ok().filter(|&len| len <= left).ok_or_else(|| {
            Error::damaged(self.path, place, format!("{len} bytes needed at offset {}, {left} left", self.at))
        })?;
        let bytes = &self.bytes[self.at..self.at + len];
        self.at += len;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self, place: &str) -> Result<[u8; N]> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N as u64, place)?);
        Ok(out)
    }

    pub(super) fn u32(&mut self, place: &str) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array(place)?))
    }

    pub(super) fn u64(&mut self, place: &str) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array(place)?))
    }

    /// A count of items of at least `least` bytes each: refused where the file could not hold them.
    pub(super) fn count(&mut self, least: usize, place: &str) -> Result<usize> {
        let count = self.u64(place)?;
        let most = self.left() / least;
        usize::try_from(count).ok().filter(|&n| n <= most).ok_or_else(|| {
            Error::damaged(
                self.path,
                place,
                format!("a count of {count}, but the rest of the file holds at most {most}"),
            )
        })
    }

    pub(super) fn string(&mut self, place: &str) -> Result<String> {
        let len = self.u64(place)?;
        let bytes = self.take(len, place)?;
        // Token texts of some vocabularies are not UTF-8; keep going as llama.cpp does, but with replacement characters.
        Ok(String::from_utf8_lossy(bytes).into_owned())
    }

    fn boolean(&mut self, place: &str) -> Result<bool> {
        match self.array::<1>(place)?[0] {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(Error::damaged(self.path, place, format!("a truth value of {other}"))),
        }
    }

    fn value_type(&mut self, place: &str) -> Result<ValueType> {
        let id = self.u32(place)?;
        ValueType::from_id(id)
            .ok_or_else(|| Error::damaged(self.path, place, format!("value type {id}; GGUF defines 0 to 12")))
    }

    pub(super) fn value(&mut self, place: &str) -> Result<Value> {
        Ok(match self.value_type(place)? {
            ValueType::U8 => Value::U8(u8::from_le_bytes(self.array(place)?)),
            ValueType::I8 => Value::I8(i8::from_le_bytes(self.array(place)?)),
            ValueType::U16 => Value::U16(u16::from_le_bytes(self.array(place)?)),
            ValueType::I16 => Value::I16(i16::from_le_bytes(self.array(place)?)),
            ValueType::U32 => Value::U32(u32::from_le_bytes(self.array(place)?)),
            ValueType::I32 => Value::I32(i32::from_le_bytes(self.array(place)?)),
            ValueType::F32 => Value::F32(f32::from_le_bytes(self.array(place)?)),
            ValueType::Bool => Value::Bool(self.boolean(place)?),
            ValueType::String => Value::String(self.string(place)?),
            ValueType::Array => Value::Array(self.value_array(place, 0)?),
            ValueType::U64 => Value::U64(u64::from_le_bytes(self.array(place)?)),
            ValueType::I64 => Value::I64(i64::from_le_bytes(self.array(place)?)),
            ValueType::F64 => Value::F64(f64::from_le_bytes(self.array(place)?)),
        })
    }

    fn value_array(&mut self, place: &str, depth: usize) -> Result<Array> {
        if depth >= MAX_DEPTH {
            return Err(Error::damaged(
                self.path,
                place,
                format!("arrays nested more than {MAX_DEPTH} deep"),
            ));
        }
        Ok(match self.value_type(place)? {
            ValueType::U8 => Array::U8(self.numbers(place, u8::from_le_bytes)?),
            ValueType::I8 => Array::I8(self.numbers(place, i8::from_le_bytes)?),
            ValueType::U16 => Array::U16(self.numbers(place, u16::from_le_bytes)?),
            ValueType::I16 => Array::I16(self.numbers(place, i16::from_le_bytes)?),
            ValueType::U32 => Array::U32(self.numbers(place, u32::from_le_bytes)?),
            ValueType::I32 => Array::I32(self.numbers(place, i32::from_le_bytes)?),
            ValueType::F32 => Array::F32(self.numbers(place, f32::from_le_bytes)?),
            ValueType::U64 => Array::U64(self.numbers(place, u64::from_le_bytes)?),
            ValueType::I64 => Array::I64(self.numbers(place, i64::from_le_bytes)?),
            ValueType::F64 => Array::F64(self.numbers(place, f64::from_le_bytes)?),
            ValueType::Bool => Array::Bool(self.items(place, 1, |c| c.boolean(place))?),
            ValueType::String => Array::String(self.items(place, 8, |c| c.string(place))?),
            ValueType::Array => Array::Array(self.items(place, 12, |c| c.value_array(place, depth + 1))?),
        })
    }

    fn numbers<const N: usize, T>(&mut self, place: &str, read: impl Fn([u8; N]) -> T) -> Result<Vec<T>> {
        self.items(place, N, |c| Ok(read(c.array(place)?)))
    }

    fn items<T>(
        &mut self,
        place: &str,
        least: usize,
        mut read: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<Vec<T>> {
        let count = self.count(least, place)?;
        let mut out = Vec::with_capacity(count);
        for _ in 0..count {
            out.push(read(self)?);
        }
        Ok(out)
    }
}
