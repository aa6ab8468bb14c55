//! Seeded inputs of every operation.

use super::pattern::{Draw, Extent, Pattern, rows};
use super::sequences::{Batch, Sequences, sequences};
use super::weights::weights;
use super::{CaseInputs, Tensor};
use crate::error::KernelError;
use half::{bf16, f16};
use plan::operation::{QkvRope, int, slot};
use plan::{Activation, Epilogue, KvDtype, KvLayout, Operation, Prologue};
use std::sync::Arc;

/// What a case is drawn from. The same specification gives the same inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CaseSpec {
    /// Rows (tokens) of the call, at least 1.
    pub rows: u32,
    /// Read by operations that know positions.
    pub batch: Batch,
    pub pattern: Pattern,
    pub seed: u64,
}

/// Draws the inputs of a case, weights included.
///
/// Errors: an operation whose words contradict each other; no rows.
pub fn generate(operation: &Operation, spec: &CaseSpec) -> Result<CaseInputs, KernelError> {
    let weights = weights(operation, spec.pattern, spec.seed)?;
    generate_with_weights(operation, spec, weights.as_ref())
}

/// Draws the inputs of a case around given weights (as [`weights`] makes them, or those of a model).
pub fn generate_with_weights(
    operation: &Operation,
    spec: &CaseSpec,
    weights: Option<&Tensor>,
) -> Result<CaseInputs, KernelError> {
    crate::oracle::supported(operation)?;
    if spec.rows == 0 {
        return Err(KernelError::Case { slot: "X", what: "a call has at least one row".into() });
    }
    let mut case = CaseInputs::new(spec.rows);
    if let Some(weights) = weights {
        case = case.with(slot::W, weights.clone());
    }
    let mut draw = Draw::new(spec.seed, 2);
    case = inputs(operation, spec, case, &mut draw);
    Ok(case)
}

fn inputs(operation: &Operation, spec: &CaseSpec, mut case: CaseInputs, draw: &mut Draw) -> CaseInputs {
    let n_rows = spec.rows as usize;
    let width = operation.in_width() as usize;
    if width > 0 {
        let x = rows(draw, spec.pattern, n_rows, width, extent(operation));
        case = case.with(slot::X, Tensor::F32(x));
    }
    match operation {
        Operation::Linear { n, k, prologue, epilogue, .. } => {
            if matches!(prologue, Prologue::RmsNorm { .. }) {
                case = case.with(slot::NORM, Tensor::F32(norm_weight(draw, *k as usize)));
            }
            match epilogue {
                Epilogue::Add => {
                    let residual = draw.normals(n_rows * *n as usize, 3.0);
                    case.with(slot::OUT, Tensor::F32(residual))
                }
                Epilogue::QkvRope(qkv) => qkv_inputs(qkv, spec, case, draw),
                _ => case,
            }
        }
        Operation::RopeKv(qkv) => qkv_inputs(qkv, spec, case, draw),
        Operation::Attention { kv_heads, head_dim, kv, .. } => {
            let at = sequences(draw, spec.batch, spec.rows, kv.block_tokens);
            let (keys, values) =
                live_caches(draw, spec.pattern, kv, *kv_heads as usize, *head_dim as usize, &at);
            with_positions(case, &at)
                .with(slot::ROW_SEQUENCE, Tensor::U32(at.row_sequence))
                .with(slot::BLOCK_TABLES, Tensor::U32(at.tables))
                .with(slot::K_CACHE, Tensor::Bytes(Arc::new(keys)))
                .with(slot::V_CACHE, Tensor::Bytes(Arc::new(values)))
        }
        Operation::Embed { vocab, .. } => {
            let edge = [0, vocab - 1];
            let token = |i: usize, draw: &mut Draw| match edge.get(i) {
                Some(t) if spec.pattern != Pattern::ZeroRows => *t,
                _ => draw.below(*vocab as usize) as u32,
            };
            let mut tokens: Vec<u32> = (0..n_rows).map(|i| token(i, draw)).collect();
            draw.shuffle(&mut tokens);
            case.with(slot::TOKENS, Tensor::U32(tokens))
        }
        Operation::RmsNorm { width, .. } => {
            case.with(slot::NORM, Tensor::F32(norm_weight(draw, *width as usize)))
        }
        Operation::SiluGate { .. } => case,
    }
}

/// Norm weights as models have them: about one, a few far from it, some negative.
fn norm_weight(draw: &mut Draw, n: usize) -> Vec<f32> {
    (0..n).map(|i| if i % 67 == 5 { draw.normal() * 4.0 } else { 1.0 + 0.2 * draw.normal() }).collect()
}

fn extent(operation: &Operation) -> Extent {
    let stores_f16 = |q: &QkvRope| q.kv.dtype == KvDtype::F16;
    let (group, limit) = match operation {
        Operation::Linear { k, weight, activation, .. } => match activation {
            Activation::I8 => (weight.group(*k as usize), 127.0),
            Activation::I16 => (weight.group(*k as usize), 16256.0),
            Activation::Row16 => (*k as usize, 16256.0),
            _ => (32, 127.0),
        },
        _ => (32, 127.0),
    };
    let huge = match operation {
        // The squares of a norm and the product of a gate must stay finite.
        Operation::Linear { prologue: Prologue::RmsNorm { .. }, .. } | Operation::RmsNorm { .. } => 1e16,
        Operation::Linear { epilogue: Epilogue::QkvRope(q), .. } if stores_f16(q) => 1e-2,
        Operation::Linear { epilogue: Epilogue::SiluGate, .. } => 1e10,
        Operation::Linear { .. } => 1e20,
        Operation::RopeKv(q) if stores_f16(q) => 5e3,
        Operation::RopeKv(_) => 1e16,
        Operation::SiluGate { .. } => 1e17,
        Operation::Attention { .. } => 30.0,
        Operation::Embed { .. } => 1.0,
    };
    Extent { huge, group, limit }
}

fn with_positions(mut case: CaseInputs, at: &Sequences) -> CaseInputs {
    case.ints[int::MAX_BLOCKS] = at.max_blocks as i64;
    case.ints[int::PAGES] = at.pages as i64;
    case.with(slot::POSITIONS, Tensor::U32(at.positions.clone()))
}

fn qkv_inputs(qkv: &QkvRope, spec: &CaseSpec, mut case: CaseInputs, draw: &mut Draw) -> CaseInputs {
    let (dim, kv_heads) = (qkv.head_dim as usize, qkv.kv_heads as usize);
    let at = sequences(draw, spec.batch, spec.rows, qkv.kv.block_tokens);
    if qkv.bias {
        let n = ((qkv.heads + 2 * qkv.kv_heads) * qkv.head_dim) as usize;
        let bias = (0..n).map(|i| draw.normal() * if i % 31 == 7 { 20.0 } else { 0.5 }).collect();
        case = case.with(slot::BIAS, Tensor::F32(bias));
    }
    if qkv.qk_norm_eps_bits.is_some() {
        case = case
            .with(slot::Q_NORM, Tensor::F32(norm_weight(draw, dim)))
            .with(slot::K_NORM, Tensor::F32(norm_weight(draw, dim)));
    }
    let context = at.positions.iter().max().map_or(1, |p| *p as usize + 1) + draw.below(3);
    let elements = at.pages as usize * kv_heads * dim * qkv.kv.block_tokens as usize;
    let (keys, values) = (garbage(draw, qkv.kv.dtype, elements), garbage(draw, qkv.kv.dtype, elements));
    with_positions(case, &at)
        .with(slot::ROPE, Tensor::F32(rope_table(context, dim, 10_000.0)))
        .with(slot::SLOTS, Tensor::U32(at.slots))
        .with(slot::K_CACHE, Tensor::Bytes(Arc::new(keys)))
        .with(slot::V_CACHE, Tensor::Bytes(Arc::new(values)))
}

/// Cosines and sines of each position, `[context][head_dim]`, in the layout of [`slot::ROPE`].
pub fn rope_table(context: usize, head_dim: usize, theta: f64) -> Vec<f32> {
    let half = head_dim / 2;
    let angle = |p: usize, i: usize| p as f64 * theta.powf(-2.0 * i as f64 / head_dim as f64);
    let row =
        |p: usize| (0..half).map(move |i| angle(p, i).cos()).chain((0..half).map(move |i| angle(p, i).sin()));
    (0..context).flat_map(row).map(|v| v as f32).collect()
}

/// Bytes of finite, mostly large values: what unused cache slots may hold.
fn garbage(draw: &mut Draw, dtype: KvDtype, elements: usize) -> Vec<u8> {
    let mut bytes = vec![0u8; elements * dtype.bytes()];
    draw.bytes(&mut bytes);
    // Clearing one bit of the exponent excludes infinity and NaN.
    let (width, high, mask) = match dtype {
        KvDtype::F32 => (4, 3, 0xbf),
        KvDtype::F16 => (2, 1, 0xbf),
        KvDtype::Bf16 => (2, 1, 0xbf),
    };
    bytes.chunks_exact_mut(width).for_each(|b| b[high] &= mask);
    if dtype == KvDtype::F16 {
        // Half of them near the top of f16.
        bytes.chunks_exact_mut(4).for_each(|b| b[1] = (b[1] & 0x83) | 0x78);
    }
    bytes
}

/// Caches with values by pattern where tokens are live and garbage elsewhere.
fn live_caches(
    draw: &mut Draw,
    pattern: Pattern,
    kv: &KvLayout,
    kv_heads: usize,
    dim: usize,
    at: &Sequences,
) -> (Vec<u8>, Vec<u8>) {
    let tokens = kv.block_tokens as usize;
    let elements = at.pages as usize * kv_heads * dim * tokens;
    let mut keys = garbage(draw, kv.dtype, elements);
    let mut values = garbage(draw, kv.dtype, elements);
    let shared = draw.normals(kv_heads * dim, 1.0);
    for slot in &at.live {
        let (page, token) = (*slot as usize / tokens, *slot as usize % tokens);
        for head in 0..kv_heads {
            let plane = (page * kv_heads + head) * dim * tokens;
            for d in 0..dim {
                let common = shared[head * dim + d];
                let key = match pattern {
                    Pattern::EqualKeys => common,
                    Pattern::NearEqualLogits => common + 1e-3 * draw.normal(),
                    Pattern::Outliers if d % 29 == 3 => 15.0 * draw.normal(),
                    Pattern::Tiny => 1e-7 * draw.normal(),
                    Pattern::Huge => 30.0 * draw.normal(),
                    Pattern::ZeroRows if slot % 3 == 0 => 0.0,
                    _ => draw.normal(),
                };
                let value = match pattern {
                    Pattern::Huge => 1e4 * draw.normal(),
                    Pattern::Tiny => 1e-6 * draw.normal(),
                    Pattern::OneHot => f32::from(u8::from(*slot as usize % dim == d)),
                    Pattern::Alternating => (1.0 - 2.0 * (slot % 2) as f32) * (1.0 + 0.01 * draw.normal()),
                    _ => draw.normal(),
                };
                store(kv.dtype, &mut keys, plane + d * tokens + token, key);
                store(kv.dtype, &mut values, plane + token * dim + d, value);
            }
        }
    }
    (keys, values)
}

fn store(dtype: KvDtype, cache: &mut [u8], index: usize, x: f32) {
    match dtype {
        KvDtype::F32 => cache[index * 4..][..4].copy_from_slice(&x.to_le_bytes()),
        KvDtype::F16 => cache[index * 2..][..2].copy_from_slice(&f16::from_f32(x).to_le_bytes()),
        KvDtype::Bf16 => cache[index * 2..][..2].copy_from_slice(&bf16::from_f32(x).to_le_bytes()),
    }
}
