//! Comparison of what a kernel wrote with the reference.

use super::attention::element;
use super::{CacheEntry, CaseOutputs};
use crate::error::KernelError;
use crate::inputs::CaseInputs;
use crate::tolerance::Bounded;
use plan::operation::{QkvRope, slot};
use plan::{Epilogue, Operation};
use std::fmt;

/// Where an output departs from the reference.
#[derive(Clone, Debug, PartialEq)]
pub struct Mismatch {
    /// `OUT`, `K_CACHE` or `V_CACHE`.
    pub tensor: &'static str,
    pub row: u32,
    /// Column of `OUT`, or `kv_head * head_dim + d` of a cache entry, or the byte that must not have changed.
    pub column: u64,
    pub got: f64,
    pub want: Bounded,
    /// Outputs outside their bounds, of those compared.
    pub wrong: usize,
    pub compared: usize,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} row {} column {}: {:e} where {:e} +- {:e} is right ({} of {} wrong)",
            self.tensor,
            self.row,
            self.column,
            self.got,
            self.want.value,
            self.want.error,
            self.wrong,
            self.compared
        )
    }
}

/// Compares `OUT` (`[rows][width]`, all rows of the call) and, for operations that write the caches, their contents
/// after the call (keys, values) with the reference. Returns the largest error in units of its bound.
///
/// `Ok(Err(..))` is a wrong output, `Err(..)` inputs or buffers that do not fit. Every byte of the caches outside the
/// slots of the call must be what it was before.
pub fn check(
    operation: &Operation,
    inputs: &CaseInputs,
    want: &CaseOutputs,
    out: &[f32],
    caches: Option<(&[u8], &[u8])>,
) -> Result<Result<f64, Mismatch>, KernelError> {
    let width = operation.out_width() as usize;
    if out.len() != inputs.rows as usize * width {
        let what = format!("{} elements where [{}][{width}] are due", out.len(), inputs.rows);
        return Err(KernelError::Case { slot: "OUT", what });
    }
    let mut tally = Tally::default();
    for (row, want_row) in want.rows.iter().zip(want.out.chunks(want.columns.len().max(1))) {
        for (column, want) in want.columns.iter().zip(want_row) {
            let got = out[*row as usize * width + *column as usize];
            tally.compare("OUT", *row, *column as u64, got as f64, *want);
        }
    }
    if let (Some(qkv), Some((keys, values))) = (written_cache(operation), caches) {
        let (keys_before, values_before) = inputs.caches(&qkv.kv, qkv.kv_heads, qkv.head_dim)?;
        if keys.len() != keys_before.len() || values.len() != values_before.len() {
            return Err(KernelError::Case { slot: "K_CACHE", what: "the caches changed their size".into() });
        }
        for entry in &want.cache {
            tally.compare_entry(qkv, entry, keys, values);
        }
        let slots = inputs.u32(slot::SLOTS, inputs.rows as usize)?;
        let key_of = |i: usize| slot_of_key(qkv, i);
        let value_of = |i: usize| slot_of_value(qkv, i);
        tally.compare_rest("K_CACHE", qkv, keys_before, keys, slots, key_of);
        tally.compare_rest("V_CACHE", qkv, values_before, values, slots, value_of);
    }
    Ok(tally.verdict())
}

/// The QKV description of operations that write the caches.
fn written_cache(operation: &Operation) -> Option<&QkvRope> {
    match operation {
        Operation::RopeKv(qkv) | Operation::Linear { epilogue: Epilogue::QkvRope(qkv), .. } => Some(qkv),
        _ => None,
    }
}

/// Element index of `[pages][kv_heads][head_dim][block_tokens]`.
pub(crate) fn key_index(qkv: &QkvRope, slot: u32, head: u32, d: u32) -> usize {
    let tokens = qkv.kv.block_tokens;
    let line = ((slot / tokens) as usize * qkv.kv_heads as usize + head as usize) * qkv.head_dim as usize
        + d as usize;
    line * tokens as usize + (slot % tokens) as usize
}

/// Element index of `[pages][kv_heads][block_tokens][head_dim]`.
pub(crate) fn value_index(qkv: &QkvRope, slot: u32, head: u32, d: u32) -> usize {
    let tokens = qkv.kv.block_tokens;
    let page = (slot / tokens) as usize * qkv.kv_heads as usize + head as usize;
    (page * tokens as usize + (slot % tokens) as usize) * qkv.head_dim as usize + d as usize
}

fn slot_of_key(qkv: &QkvRope, index: usize) -> u32 {
    let tokens = qkv.kv.block_tokens as usize;
    let page = index / tokens / (qkv.head_dim * qkv.kv_heads) as usize;
    (page * tokens + index % tokens) as u32
}

fn slot_of_value(qkv: &QkvRope, index: usize) -> u32 {
    let tokens = qkv.kv.block_tokens as usize;
    let line = index / qkv.head_dim as usize;
    (line / tokens / qkv.kv_heads as usize * tokens + line % tokens) as u32
}

/// Running result of a comparison.
#[derive(Default)]
struct Tally {
    first: Option<Mismatch>,
    worst: f64,
    wrong: usize,
    compared: usize,
}

impl Tally {
    fn compare(&mut self, tensor: &'static str, row: u32, column: u64, got: f64, want: Bounded) {
        self.compared += 1;
        let ratio = want.ratio(got as f32);
        self.worst = self.worst.max(ratio);
        if ratio > 1.0 {
            self.wrong += 1;
            self.first.get_or_insert(Mismatch { tensor, row, column, got, want, wrong: 0, compared: 0 });
        }
    }

    fn compare_entry(&mut self, qkv: &QkvRope, entry: &CacheEntry, keys: &[u8], values: &[u8]) {
        let dtype = qkv.kv.dtype;
        for d in 0..qkv.head_dim {
            let column = (entry.kv_head * qkv.head_dim + d) as u64;
            let key = element(dtype, keys, key_index(qkv, entry.slot, entry.kv_head, d));
            self.compare("K_CACHE", entry.row, column, key, entry.key[d as usize]);
            let value = element(dtype, values, value_index(qkv, entry.slot, entry.kv_head, d));
            self.compare("V_CACHE", entry.row, column, value, entry.value[d as usize]);
        }
    }

    /// Bytes of other slots must not have changed.
    fn compare_rest(
        &mut self,
        tensor: &'static str,
        qkv: &QkvRope,
        before: &[u8],
        after: &[u8],
        slots: &[u32],
        slot_of: impl Fn(usize) -> u32,
    ) {
        let width = qkv.kv.dtype.bytes();
        for (i, (b, a)) in before.chunks(width).zip(after.chunks(width)).enumerate() {
            if a != b && !slots.contains(&slot_of(i)) {
                self.wrong += 1;
                let (got, want) = (element(qkv.kv.dtype, after, i), element(qkv.kv.dtype, before, i));
                let column = (i * width) as u64;
                let want = Bounded::exact(want);
                self.first.get_or_insert(Mismatch {
                    tensor,
                    row: u32::MAX,
                    column,
                    got,
                    want,
                    wrong: 0,
                    compared: 0,
                });
            }
        }
    }

    fn verdict(self) -> Result<f64, Mismatch> {
        match self.first {
            None => Ok(self.worst),
            Some(first) => Err(Mismatch { wrong: self.wrong, compared: self.compared, ..first }),
        }
    }
}
