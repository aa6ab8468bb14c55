//! f64 references of the operations, with the error bound of every value.
//!
//! They read the same packed bytes and caches as kernels do, element by element from the words of the layout, and share
//! no algorithm with kernels: direct sums, two-pass softmax. See [`crate::tolerance`] for what the bounds mean.

mod activation;
mod attention;
mod check;
mod freivalds;
mod linear;
mod rope;
#[cfg(test)]
pub(crate) mod tests;
mod weights;

pub use check::{Mismatch, check};
pub(crate) use check::{key_index, value_index};
pub use freivalds::{Freivalds, Projection};
pub use weights::weight_at;

use crate::error::KernelError;
use crate::inputs::CaseInputs;
use crate::tolerance::{self, Bounded, U, UNDERFLOW};
use plan::operation::slot;
use plan::{Activation, Epilogue, KvLayout, Operation, Prologue, WeightFormat, WeightLayout};

/// What a call must produce, for some rows and columns of `OUT` and the cache entries that belong to them.
#[derive(Clone, Debug, PartialEq)]
pub struct CaseOutputs {
    /// Rows of `OUT` that were computed.
    pub rows: Vec<u32>,
    /// Columns of `OUT` that were computed.
    pub columns: Vec<u32>,
    /// `[rows][columns]`.
    pub out: Vec<Bounded>,
    /// New cache entries (QkvRope and RopeKv). Every other byte of the caches must stay as it was.
    pub cache: Vec<CacheEntry>,
}

/// Key and value that a row stores for one KV head.
#[derive(Clone, Debug, PartialEq)]
pub struct CacheEntry {
    pub row: u32,
    /// From `SLOTS`: `page * block_tokens + token in page`.
    pub slot: u32,
    pub kv_head: u32,
    /// `[head_dim]`.
    pub key: Vec<Bounded>,
    /// `[head_dim]`.
    pub value: Vec<Bounded>,
}

/// Whether activations are rounded as the numeric class says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// As the class says; bounds cover f32 arithmetic only. This is what kernels are checked against.
    Class,
    /// Activations stay as they are; bounds take in the activation rounding of the class too (worst case). This is what
    /// the class itself is checked against.
    None,
}

/// The reference of all rows and columns.
///
/// Errors: inputs that do not fit the operation, a numeric class that the weight format does not have.
pub fn oracle(operation: &Operation, inputs: &CaseInputs) -> Result<CaseOutputs, KernelError> {
    oracle_at(operation, inputs, &all(inputs.rows), &all(operation.out_width()))
}

/// The reference of selected rows and columns of `OUT`; cache entries of the selected rows, for the KV heads
/// `head % kv_heads` of the selected query heads.
pub fn oracle_at(
    operation: &Operation,
    inputs: &CaseInputs,
    rows: &[u32],
    columns: &[u32],
) -> Result<CaseOutputs, KernelError> {
    oracle_with(operation, inputs, rows, columns, Rounding::Class)
}

/// [`oracle_at`] with a choice of activation rounding.
pub fn oracle_with(
    operation: &Operation,
    inputs: &CaseInputs,
    rows: &[u32],
    columns: &[u32],
    rounding: Rounding,
) -> Result<CaseOutputs, KernelError> {
    supported(operation)?;
    let width = operation.out_width();
    if rows.iter().any(|r| *r >= inputs.rows) || columns.iter().any(|c| *c >= width) {
        let what = format!("a selected row or column is outside [{}][{width}]", inputs.rows);
        return Err(KernelError::Case { slot: "OUT", what });
    }
    let selection = Selection { rows, columns };
    match operation {
        Operation::Linear { .. } => linear::linear(operation, inputs, selection, rounding),
        Operation::RopeKv(qkv) => rope::rope_kv(qkv, inputs, selection),
        Operation::Attention { .. } => attention::attention(operation, inputs, selection),
        Operation::Embed { .. } => embed(operation, inputs, selection),
        Operation::RmsNorm { eps_bits, .. } => {
            rms_norm(operation, f32::from_bits(*eps_bits), inputs, selection)
        }
        Operation::SiluGate { ffn } => silu_gate(*ffn, inputs, selection),
    }
}

/// `0..n` as a list, to select everything.
pub fn all(n: u32) -> Vec<u32> {
    (0..n).collect()
}

/// Why no kernel can compute this operation, if so: its words contradict each other.
pub fn supported(operation: &Operation) -> Result<(), KernelError> {
    let fail = |what: String| Err(KernelError::Unsupported { operation: operation.to_string(), what });
    if let Some((layout, n, k)) = operation.weight() {
        if n == 0 || k == 0 {
            return fail("an empty matrix".into());
        }
        if let Some(what) = layout.refuse(k as usize) {
            return fail(what);
        }
    }
    match operation {
        Operation::Linear { n, k, weight, activation, epilogue, .. } => {
            let affine = matches!(weight.format, WeightFormat::Affine { .. });
            match activation {
                Activation::I8 | Activation::I16 | Activation::Row16 if !affine => {
                    return fail("integer activations need affine weights".into());
                }
                Activation::I8 | Activation::I16 if !sums_fit(weight, *activation) => {
                    return fail("sums of a group do not fit int32".into());
                }
                Activation::Row16 if *k > ROW16_INPUTS => {
                    return fail(format!("sums over more than {ROW16_INPUTS} inputs do not fit int32"));
                }
                Activation::Bf16 if weight.format == WeightFormat::F32 => {
                    return fail("bf16 activations need bf16 or affine weights".into());
                }
                _ => {}
            }
            match epilogue {
                Epilogue::SiluGate if n % (2 * weight.n_block) != 0 => {
                    fail(format!("n = {n} is not whole pairs of blocks of {}", weight.n_block))
                }
                Epilogue::QkvRope(q) if *n != (q.heads + 2 * q.kv_heads) * q.head_dim => {
                    fail(format!("n = {n} does not hold the heads"))
                }
                Epilogue::QkvRope(q) => heads_fit(q.heads, q.kv_heads, q.head_dim, &q.kv).or_else(fail),
                _ => Ok(()),
            }
        }
        Operation::RopeKv(q) => heads_fit(q.heads, q.kv_heads, q.head_dim, &q.kv).or_else(fail),
        Operation::Attention { heads, kv_heads, head_dim, kv, window } => {
            if *window == Some(0) {
                return fail("a window of 0 tokens".into());
            }
            heads_fit(*heads, *kv_heads, *head_dim, kv).or_else(fail)
        }
        _ => Ok(()),
    }
}

/// Inputs whose sums in `Row16` fit int32: each adds at most `255 * 127 + 2 * 128 * 64 + 64`.
const ROW16_INPUTS: u32 = 32_768;

/// Whether the integer sum of a group fits int32 whatever the values are.
fn sums_fit(weight: &WeightLayout, activation: Activation) -> bool {
    let WeightFormat::Affine { bits, group, .. } = weight.format else { return false };
    let limit = if activation == Activation::I8 { 127 } else { 16256 };
    u64::from(group) * ((1u64 << bits) - 1) * limit <= i32::MAX as u64
}

fn heads_fit(heads: u32, kv_heads: u32, head_dim: u32, kv: &KvLayout) -> Result<(), String> {
    if kv.block_tokens == 0 || !kv.block_tokens.is_multiple_of(16) {
        return Err(format!("pages of {} tokens are not a multiple of 16", kv.block_tokens));
    }
    if kv_heads == 0 || heads == 0 || !heads.is_multiple_of(kv_heads) {
        return Err(format!("{heads} query heads do not share {kv_heads} key heads evenly"));
    }
    if head_dim == 0 || !head_dim.is_multiple_of(2) {
        return Err(format!("head_dim {head_dim} is not even"));
    }
    Ok(())
}

/// Selected rows and columns of `OUT`.
#[derive(Clone, Copy)]
struct Selection<'a> {
    rows: &'a [u32],
    columns: &'a [u32],
}

impl Selection<'_> {
    fn outputs(self, out: Vec<Bounded>, cache: Vec<CacheEntry>) -> CaseOutputs {
        CaseOutputs { rows: self.rows.to_vec(), columns: self.columns.to_vec(), out, cache }
    }
}

fn embed(operation: &Operation, inputs: &CaseInputs, at: Selection<'_>) -> Result<CaseOutputs, KernelError> {
    let Some((layout, vocab, hidden)) = operation.weight() else {
        return supported(operation).map(|()| at.outputs(vec![], vec![]));
    };
    let bytes = inputs.weights(operation)?;
    let tokens = inputs.u32(slot::TOKENS, inputs.rows as usize)?;
    if let Some(token) = tokens.iter().find(|t| **t >= vocab) {
        return Err(KernelError::Case {
            slot: "TOKENS",
            what: format!("token {token} of a vocabulary of {vocab}"),
        });
    }
    let mut out = Vec::with_capacity(at.rows.len() * at.columns.len());
    for row in at.rows {
        let token = tokens[*row as usize] as usize;
        for column in at.columns {
            let value = weight_at(&layout, hidden as usize, bytes, token, *column as usize);
            out.push(Bounded { value, error: U * value.abs() });
        }
    }
    Ok(at.outputs(out, vec![]))
}

fn rms_norm(
    operation: &Operation,
    eps: f32,
    inputs: &CaseInputs,
    at: Selection<'_>,
) -> Result<CaseOutputs, KernelError> {
    let width = operation.in_width() as usize;
    let x = inputs.f32(slot::X, inputs.rows as usize * width)?;
    let weight = inputs.f32(slot::NORM, width)?;
    let mut out = Vec::with_capacity(at.rows.len() * at.columns.len());
    for row in at.rows {
        let x = &x[*row as usize * width..][..width];
        let x: Vec<Bounded> = x.iter().map(|v| Bounded::exact(*v as f64)).collect();
        let y = tolerance::rms_norm(&x, weight, eps);
        out.extend(at.columns.iter().map(|c| floored(y[*c as usize])));
    }
    Ok(at.outputs(out, vec![]))
}

fn silu_gate(ffn: u32, inputs: &CaseInputs, at: Selection<'_>) -> Result<CaseOutputs, KernelError> {
    let ffn = ffn as usize;
    let x = inputs.f32(slot::X, inputs.rows as usize * 2 * ffn)?;
    let mut out = Vec::with_capacity(at.rows.len() * at.columns.len());
    for row in at.rows {
        let (gate, up) = x[*row as usize * 2 * ffn..][..2 * ffn].split_at(ffn);
        for c in at.columns {
            let (gate, up) = (gate[*c as usize] as f64, up[*c as usize] as f64);
            out.push(floored(tolerance::silu(Bounded::exact(gate)).times(Bounded::exact(up))));
        }
    }
    Ok(at.outputs(out, vec![]))
}

/// Allows for underflow in the last operations.
fn floored(x: Bounded) -> Bounded {
    Bounded { value: x.value, error: x.error + UNDERFLOW }
}

/// The eps of a prologue, if there is one.
fn prologue_eps(prologue: &Prologue) -> Option<f32> {
    match prologue {
        Prologue::None => None,
        Prologue::RmsNorm { eps_bits } => Some(f32::from_bits(*eps_bits)),
    }
}
