//! Inputs of one call of an operation: typed tensors by slot, which judges copy into buffers and oracles read.

mod generate;
mod pattern;
mod sequences;
mod weights;

pub use generate::{CaseSpec, generate, generate_with_weights, rope_table};
pub use pattern::Pattern;
pub use sequences::Batch;
pub use weights::weights;

use crate::error::KernelError;
use plan::operation::{int, slot};
use plan::{KvLayout, Operation};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The contents of one slot.
#[derive(Clone, Debug, PartialEq)]
pub enum Tensor {
    F32(Vec<f32>),
    U32(Vec<u32>),
    /// Packed weights or a KV cache; shared, since weights are large and many cases use the same.
    Bytes(Arc<Vec<u8>>),
}

impl Tensor {
    /// The bytes as they lie in memory (little endian).
    pub fn bytes(&self) -> &[u8] {
        match self {
            Tensor::F32(v) => bytemuck::cast_slice(v),
            Tensor::U32(v) => bytemuck::cast_slice(v),
            Tensor::Bytes(v) => v,
        }
    }
}

/// Inputs of one call. Slots that are inputs and outputs at once (`OUT` of `Add`, the caches) hold their state before it.
#[derive(Clone, Debug, PartialEq)]
pub struct CaseInputs {
    /// Rows (tokens) of the call, at least 1.
    pub rows: u32,
    /// By [`plan::operation::slot`].
    pub tensors: BTreeMap<usize, Tensor>,
    /// By [`plan::operation::int`].
    pub ints: [i64; 8],
}

impl CaseInputs {
    /// Inputs without tensors yet.
    pub fn new(rows: u32) -> Self {
        Self { rows, tensors: BTreeMap::new(), ints: [0; 8] }
    }

    /// The same with one slot set.
    pub fn with(mut self, slot: usize, tensor: Tensor) -> Self {
        self.tensors.insert(slot, tensor);
        self
    }

    /// The f32 tensor of a slot, of exactly `len` elements.
    pub fn f32(&self, slot: usize, len: usize) -> Result<&[f32], KernelError> {
        match self.tensors.get(&slot) {
            Some(Tensor::F32(v)) if v.len() == len => Ok(v),
            other => Err(wrong(slot, &format!("{len} f32"), other)),
        }
    }

    /// The u32 tensor of a slot, of exactly `len` elements.
    pub fn u32(&self, slot: usize, len: usize) -> Result<&[u32], KernelError> {
        match self.tensors.get(&slot) {
            Some(Tensor::U32(v)) if v.len() == len => Ok(v),
            other => Err(wrong(slot, &format!("{len} u32"), other)),
        }
    }

    /// The bytes of a slot, exactly `len` of them.
    pub fn bytes(&self, slot: usize, len: usize) -> Result<&[u8], KernelError> {
        match self.tensors.get(&slot) {
            Some(Tensor::Bytes(v)) if v.len() == len => Ok(v),
            other => Err(wrong(slot, &format!("{len} bytes"), other)),
        }
    }

    /// The packed weights of `operation`.
    pub fn weights(&self, operation: &Operation) -> Result<&[u8], KernelError> {
        let (layout, n, k) = operation.weight().ok_or_else(|| KernelError::Case {
            slot: name_of(slot::W),
            what: "the operation has no weights".into(),
        })?;
        self.bytes(slot::W, layout.bytes(n as usize, k as usize))
    }

    /// Pages of the KV cache.
    pub fn pages(&self) -> usize {
        self.ints[int::PAGES].max(0) as usize
    }

    /// The two caches (keys, values) of a layer.
    pub fn caches(&self, kv: &KvLayout, kv_heads: u32, head_dim: u32) -> Result<(&[u8], &[u8]), KernelError> {
        let bytes = self.pages() * kv.page_bytes(kv_heads as usize, head_dim as usize);
        Ok((self.bytes(slot::K_CACHE, bytes)?, self.bytes(slot::V_CACHE, bytes)?))
    }
}

fn wrong(slot: usize, due: &str, found: Option<&Tensor>) -> KernelError {
    let found = match found {
        None => "nothing".to_owned(),
        Some(Tensor::F32(v)) => format!("{} f32", v.len()),
        Some(Tensor::U32(v)) => format!("{} u32", v.len()),
        Some(Tensor::Bytes(v)) => format!("{} bytes", v.len()),
    };
    KernelError::Case { slot: name_of(slot), what: format!("{due} are due, found {found}") }
}

/// Name of a slot, for messages and docs.
pub fn name_of(slot: usize) -> &'static str {
    const NAMES: [&str; 15] = [
        "X",
        "W",
        "OUT",
        "NORM",
        "BIAS",
        "Q_NORM",
        "K_NORM",
        "ROPE",
        "K_CACHE",
        "V_CACHE",
        "POSITIONS",
        "SLOTS",
        "ROW_SEQUENCE",
        "BLOCK_TABLES",
        "TOKENS",
    ];
    NAMES.get(slot).copied().unwrap_or("unused slot")
}
