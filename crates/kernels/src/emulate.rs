//! Honest scalar emulation of whole operations in their numeric class, bit for bit what generated kernels must write.
//!
//! Slow and plain. Generators are tested against it; judges do not use it (they check against [`crate::oracle`]).

use crate::error::KernelError;
use crate::inputs::CaseInputs;
use crate::numerics::{self, Arith, Page};
use crate::oracle::supported;
use crate::pack::{AffineRows, unpack, unpack_affine};
use half::{bf16, f16};
use plan::operation::{QkvRope, int, slot};
use plan::{Activation, Epilogue, KvDtype, Operation, Prologue, WeightFormat, Zero};

/// What a call leaves behind.
#[derive(Clone, Debug, PartialEq)]
pub struct Emulated {
    /// `OUT`, `[rows][width]`.
    pub out: Vec<f32>,
    /// Keys and values after the call, for operations that write them.
    pub caches: Option<(Vec<u8>, Vec<u8>)>,
}

/// Runs one call.
///
/// Errors: as [`crate::oracle::oracle`].
pub fn emulate(operation: &Operation, arith: Arith, inputs: &CaseInputs) -> Result<Emulated, KernelError> {
    supported(operation)?;
    let rows = inputs.rows as usize;
    let plain = |out| Ok(Emulated { out, caches: None });
    match operation {
        Operation::Linear { .. } => linear(operation, arith, inputs),
        Operation::RopeKv(qkv) => {
            let width = operation.in_width() as usize;
            qkv_epilogue(qkv, arith, inputs, inputs.f32(slot::X, rows * width)?.to_vec())
        }
        Operation::Attention { .. } => plain(attention(operation, arith, inputs)?),
        Operation::Embed { vocab, hidden, weight } => {
            let (vocab, hidden) = (*vocab as usize, *hidden as usize);
            let table = unpack(weight, vocab, hidden, inputs.weights(operation)?)?;
            let tokens = inputs.u32(slot::TOKENS, rows)?;
            let row = |t: &u32| &table[*t as usize * hidden..][..hidden];
            plain(tokens.iter().flat_map(row).copied().collect())
        }
        Operation::RmsNorm { width, eps_bits } => {
            let width = *width as usize;
            let (x, weight) = (inputs.f32(slot::X, rows * width)?, inputs.f32(slot::NORM, width)?);
            let mut out = vec![0.0f32; x.len()];
            for (out, x) in out.chunks_mut(width).zip(x.chunks(width)) {
                numerics::rms_norm(arith, x, weight, f32::from_bits(*eps_bits), out);
            }
            plain(out)
        }
        Operation::SiluGate { ffn } => {
            let ffn = *ffn as usize;
            let x = inputs.f32(slot::X, rows * 2 * ffn)?;
            let gated = |row: &[f32]| -> Vec<f32> {
                row[..ffn].iter().zip(&row[ffn..]).map(|(g, u)| numerics::silu(arith, *g) * u).collect()
            };
            plain(x.chunks(2 * ffn).flat_map(gated).collect())
        }
    }
}

fn linear(operation: &Operation, arith: Arith, inputs: &CaseInputs) -> Result<Emulated, KernelError> {
    let Operation::Linear { n, k, prologue, epilogue, weight, .. } = operation else {
        return Ok(Emulated { out: vec![], caches: None });
    };
    let (n, k, rows) = (*n as usize, *k as usize, inputs.rows as usize);
    let x = inputs.f32(slot::X, rows * k)?;
    let matrix = Matrix::read(operation, inputs)?;
    let mut y = Vec::with_capacity(rows * n);
    let mut normed = vec![0.0f32; k];
    for x in x.chunks(k) {
        match prologue {
            Prologue::None => normed.copy_from_slice(x),
            Prologue::RmsNorm { eps_bits } => {
                let norm = inputs.f32(slot::NORM, k)?;
                numerics::rms_norm(arith, x, norm, f32::from_bits(*eps_bits), &mut normed);
            }
        }
        y.extend(matrix.row(arith, &normed));
    }
    let out = match epilogue {
        Epilogue::Store => y,
        Epilogue::Add => inputs.f32(slot::OUT, rows * n)?.iter().zip(&y).map(|(o, y)| o + y).collect(),
        Epilogue::SiluGate => {
            let block = weight.n_block as usize;
            y.chunks(2 * block)
                .flat_map(|pair| (0..block).map(|c| numerics::silu(arith, pair[c]) * pair[block + c]))
                .collect()
        }
        Epilogue::QkvRope(qkv) => return qkv_epilogue(qkv, arith, inputs, y),
    };
    Ok(Emulated { out, caches: None })
}

/// Unpacked weights of a linear operation.
enum Matrix {
    Plain { k: usize, weights: Vec<f32>, bf16: bool },
    Integer { rows: AffineRows, zero: Zero, limit: f32 },
    Wide { rows: AffineRows },
}

impl Matrix {
    fn read(operation: &Operation, inputs: &CaseInputs) -> Result<Self, KernelError> {
        let bytes = inputs.weights(operation)?;
        let Operation::Linear { n, k, weight, activation, .. } = operation else {
            return Err(KernelError::Case { slot: "W", what: "not a linear operation".into() });
        };
        let (n, k) = (*n as usize, *k as usize);
        let limit = match activation {
            Activation::I8 => 127.0,
            Activation::I16 => 16256.0,
            Activation::Row16 => return Ok(Matrix::Wide { rows: unpack_affine(weight, n, k, bytes)? }),
            Activation::F32 | Activation::Bf16 => {
                let bf16 = *activation == Activation::Bf16;
                return Ok(Matrix::Plain { k, weights: unpack(weight, n, k, bytes)?, bf16 });
            }
        };
        let zero = match weight.format {
            WeightFormat::Affine { zero, .. } => zero,
            _ => Zero::Stored,
        };
        Ok(Matrix::Integer { rows: unpack_affine(weight, n, k, bytes)?, zero, limit })
    }

    fn row(&self, arith: Arith, x: &[f32]) -> Vec<f32> {
        match self {
            Matrix::Plain { k, weights, bf16: false } => {
                let dot = |w: &[f32]| x.iter().zip(w).fold(0.0f32, |acc, (x, w)| arith.fma(*x, *w, acc));
                weights.chunks(*k).map(dot).collect()
            }
            Matrix::Plain { k, weights, bf16: true } => {
                let x: Vec<f32> = x.iter().map(|x| numerics::to_bf16(*x)).collect();
                let dot = |w: &[f32]| match arith {
                    Arith::Tiles => x
                        .chunks(32)
                        .zip(w.chunks(32))
                        .fold(0.0f32, |acc, (x, w)| numerics::add_tile(acc, x, w)),
                    _ => x
                        .chunks(2)
                        .zip(w.chunks(2))
                        .fold(0.0f32, |acc, (x, w)| x[0].mul_add(w[0], x[1].mul_add(w[1], acc))),
                };
                let weights: Vec<f32> = weights.iter().map(|w| numerics::to_bf16(*w)).collect();
                weights.chunks(*k).map(dot).collect()
            }
            Matrix::Wide { rows } => {
                let mut xq = vec![0i32; x.len()];
                let d = numerics::quantise_group(x, 16256.0, &mut xq);
                let groups = rows.k / rows.group;
                (0..rows.n())
                    .map(|n| {
                        let at = n * groups..(n + 1) * groups;
                        let column = numerics::wide_column(rows.bits, &rows.scale[at.clone()], &rows.min[at]);
                        let weights = rows.q[n * rows.k..][..rows.k].iter().enumerate().map(|(k, q)| {
                            let (s, t) = column.groups[k / rows.group];
                            s * i32::from(*q) + t
                        });
                        numerics::wide_sum(arith, weights, &xq, column.unit, d)
                    })
                    .collect()
            }
            Matrix::Integer { rows, zero, limit } => {
                let mut xq = vec![0i32; x.len()];
                let d: Vec<f32> = x
                    .chunks(rows.group)
                    .zip(xq.chunks_mut(rows.group))
                    .map(|(x, q)| numerics::quantise_group(x, *limit, q))
                    .collect();
                let groups = rows.k / rows.group;
                (0..rows.n())
                    .map(|n| {
                        let mut acc = 0.0f32;
                        for g in 0..groups {
                            let xq = &xq[g * rows.group..][..rows.group];
                            let q = &rows.q[n * rows.k + g * rows.group..][..rows.group];
                            let s: i32 = q.iter().zip(xq).map(|(q, x)| *q as i32 * x).sum();
                            let t: i32 = xq.iter().sum();
                            let (scale, min) = (rows.scale[n * groups + g], rows.min[n * groups + g]);
                            acc = numerics::add_group(arith, acc, rows.bits, *zero, s, t, d[g], scale, min);
                        }
                        acc
                    })
                    .collect()
            }
        }
    }
}

/// Bias, head norms, rope; queries out, keys and values into copies of the caches. `y` is `[rows][all heads]`.
fn qkv_epilogue(
    qkv: &QkvRope,
    arith: Arith,
    inputs: &CaseInputs,
    mut y: Vec<f32>,
) -> Result<Emulated, KernelError> {
    let (rows, dim) = (inputs.rows as usize, qkv.head_dim as usize);
    let (heads, kv_heads) = (qkv.heads as usize, qkv.kv_heads as usize);
    let width = (heads + 2 * kv_heads) * dim;
    let context = inputs.tensors.get(&slot::ROPE).map_or(0, |t| t.bytes().len() / 4 / dim);
    let rope = inputs.f32(slot::ROPE, context * dim)?;
    let (positions, slots) = (inputs.u32(slot::POSITIONS, rows)?, inputs.u32(slot::SLOTS, rows)?);
    let (keys, values) = inputs.caches(&qkv.kv, qkv.kv_heads, qkv.head_dim)?;
    let (mut keys, mut values) = (keys.to_vec(), values.to_vec());
    let mut out = Vec::with_capacity(rows * heads * dim);
    for (r, y) in y.chunks_mut(width).enumerate() {
        if qkv.bias {
            y.iter_mut().zip(inputs.f32(slot::BIAS, width)?).for_each(|(y, b)| *y += b);
        }
        for (h, head) in y.chunks_mut(dim).take(heads + kv_heads).enumerate() {
            if let Some(eps) = qkv.qk_norm_eps_bits {
                let weight = inputs.f32(if h < heads { slot::Q_NORM } else { slot::K_NORM }, dim)?;
                let x = head.to_vec();
                numerics::rms_norm(arith, &x, weight, f32::from_bits(eps), head);
            }
            let angles = &rope[positions[r] as usize * dim..][..dim];
            for i in 0..dim / 2 {
                let (a, b) = (head[i], head[i + dim / 2]);
                (head[i], head[i + dim / 2]) =
                    numerics::rope_pair(arith, a, b, angles[i], angles[i + dim / 2]);
            }
        }
        out.extend_from_slice(&y[..heads * dim]);
        let tokens = qkv.kv.block_tokens as usize;
        let (page, token) = (slots[r] as usize / tokens, slots[r] as usize % tokens);
        for h in 0..kv_heads {
            for d in 0..dim {
                let line = (page * kv_heads + h) * dim * tokens;
                store(qkv.kv.dtype, &mut keys, line + d * tokens + token, y[(heads + h) * dim + d]);
                store(qkv.kv.dtype, &mut values, line + token * dim + d, y[(heads + kv_heads + h) * dim + d]);
            }
        }
    }
    Ok(Emulated { out, caches: Some((keys, values)) })
}

fn store(dtype: KvDtype, cache: &mut [u8], index: usize, x: f32) {
    match dtype {
        KvDtype::F32 => cache[index * 4..][..4].copy_from_slice(&x.to_le_bytes()),
        KvDtype::F16 => cache[index * 2..][..2].copy_from_slice(&f16::from_f32(x).to_le_bytes()),
        KvDtype::Bf16 => cache[index * 2..][..2].copy_from_slice(&bf16::from_f32(x).to_le_bytes()),
    }
}

/// All elements of a cache as f32.
fn widen(dtype: KvDtype, cache: &[u8]) -> Vec<f32> {
    match dtype {
        KvDtype::F32 => cache.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
        KvDtype::F16 => cache.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
        KvDtype::Bf16 => cache.chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
    }
}

fn attention(operation: &Operation, arith: Arith, inputs: &CaseInputs) -> Result<Vec<f32>, KernelError> {
    let Operation::Attention { heads, kv_heads, head_dim, kv, window } = operation else { return Ok(vec![]) };
    let (heads, dim, rows) = (*heads as usize, *head_dim as usize, inputs.rows as usize);
    let (shared, tokens) = (heads / *kv_heads as usize, kv.block_tokens as usize);
    let queries = inputs.f32(slot::X, rows * heads * dim)?;
    let (keys, values) = inputs.caches(kv, *kv_heads, *head_dim)?;
    let (keys, values) = (widen(kv.dtype, keys), widen(kv.dtype, values));
    let (positions, sequences) = (inputs.u32(slot::POSITIONS, rows)?, inputs.u32(slot::ROW_SEQUENCE, rows)?);
    let blocks = inputs.ints[int::MAX_BLOCKS].max(0) as usize;
    let tables = inputs.tensors.get(&slot::BLOCK_TABLES).map_or(0, |t| t.bytes().len() / 4);
    let tables = inputs.u32(slot::BLOCK_TABLES, tables)?;
    let mut out = vec![0.0f32; queries.len()];
    for (i, out) in out.chunks_mut(dim).enumerate() {
        let (row, head) = (i / heads, i % heads);
        let end = positions[row] as usize + 1;
        let start = window.map_or(0, |w| end.saturating_sub(w as usize));
        let table = &tables[sequences[row] as usize * blocks..];
        if arith == Arith::Tiles {
            let gather = |cache: &[f32], at: &dyn Fn(usize, usize) -> usize| -> Vec<f32> {
                let place =
                    |t: usize| (table[t / tokens] as usize * *kv_heads as usize + head / shared, t % tokens);
                let token = |t: usize| (0..dim).map(move |d| (place(t), d));
                (0..end)
                    .flat_map(token)
                    .map(|((plane, t), d)| cache[plane * dim * tokens + at(t, d)])
                    .collect()
            };
            let keys = gather(&keys, &|t, d| d * tokens + t);
            let values = gather(&values, &|t, d| t * dim + d);
            numerics::attend_tiles(&queries[i * dim..][..dim], &keys, &values, start..end, out);
            continue;
        }
        let pages = (0..end.div_ceil(tokens)).map(|b| {
            let plane = (table[b] as usize * *kv_heads as usize + head / shared) * dim * tokens;
            let visible = start.clamp(b * tokens, (b + 1) * tokens)..end.min((b + 1) * tokens);
            Page {
                keys: &keys[plane..plane + dim * tokens],
                values: &values[plane..plane + dim * tokens],
                tokens,
                visible: visible.start - b * tokens..visible.end - b * tokens,
            }
        });
        numerics::attend(arith, &queries[i * dim..][..dim], pages, out);
    }
    Ok(out)
}
