//! The QKV epilogue: bias, norm of query and key heads, rope, and what goes into the caches.

use super::{CacheEntry, CaseOutputs, Selection, floored};
use crate::error::KernelError;
use crate::inputs::CaseInputs;
use crate::tolerance::{self, Bounded};
use plan::operation::{QkvRope, slot};
use std::collections::BTreeSet;

/// Heads that a selection of output columns needs.
pub(super) struct Heads {
    query: Vec<u32>,
    kv: Vec<u32>,
}

impl Heads {
    pub fn of(qkv: &QkvRope, columns: &[u32]) -> Self {
        let query: BTreeSet<u32> = columns.iter().map(|c| c / qkv.head_dim).collect();
        let kv: BTreeSet<u32> = query.iter().map(|h| h % qkv.kv_heads).collect();
        Self { query: query.into_iter().collect(), kv: kv.into_iter().collect() }
    }

    /// First column of each head in the QKV projection: queries, then for each KV head its key and its value.
    fn starts(&self, qkv: &QkvRope) -> Vec<u32> {
        let key = |h: &u32| [qkv.heads + h, qkv.heads + qkv.kv_heads + h];
        let heads = self.query.iter().copied().chain(self.kv.iter().flat_map(key));
        heads.map(|h| h * qkv.head_dim).collect()
    }

    /// All columns of these heads.
    pub fn columns(&self, qkv: &QkvRope) -> Vec<u32> {
        self.starts(qkv).into_iter().flat_map(|s| s..s + qkv.head_dim).collect()
    }
}

/// RopeKv: `X` is the unrotated QKV.
pub(super) fn rope_kv(
    qkv: &QkvRope,
    inputs: &CaseInputs,
    at: Selection<'_>,
) -> Result<CaseOutputs, KernelError> {
    let width = ((qkv.heads + 2 * qkv.kv_heads) * qkv.head_dim) as usize;
    let x = inputs.f32(slot::X, inputs.rows as usize * width)?;
    let heads = Heads::of(qkv, at.columns);
    let columns = heads.columns(qkv);
    let value = |row: &u32, c: &u32| Bounded::exact(x[*row as usize * width + *c as usize] as f64);
    let y = at.rows.iter().flat_map(|r| columns.iter().map(move |c| value(r, c))).collect();
    qkv_epilogue(qkv, inputs, at, &heads, y)
}

/// `y` is `[rows][columns of heads]`.
pub(super) fn qkv_epilogue(
    qkv: &QkvRope,
    inputs: &CaseInputs,
    at: Selection<'_>,
    heads: &Heads,
    y: Vec<Bounded>,
) -> Result<CaseOutputs, KernelError> {
    let side = Side::read(qkv, inputs)?;
    let dim = qkv.head_dim as usize;
    let starts = heads.starts(qkv);
    let (mut out, mut cache) = (Vec::new(), Vec::new());
    for (row, y) in at.rows.iter().zip(y.chunks(starts.len() * dim)) {
        let finished: Vec<Vec<Bounded>> = y
            .chunks(dim)
            .zip(&starts)
            .map(|(y, start)| side.head(*row as usize, *start as usize, y))
            .collect();
        let (queries, kv) = finished.split_at(heads.query.len());
        for column in at.columns {
            let head = heads.query.binary_search(&(column / qkv.head_dim)).unwrap_or_default();
            out.push(floored(queries[head][*column as usize % dim]));
        }
        for (head, pair) in heads.kv.iter().zip(kv.chunks(2)) {
            let store =
                |x: &Vec<Bounded>| x.iter().map(|x| tolerance::stored(floored(*x), qkv.kv.dtype)).collect();
            cache.push(CacheEntry {
                row: *row,
                slot: side.slots[*row as usize],
                kv_head: *head,
                key: store(&pair[0]),
                value: store(&pair[1]),
            });
        }
    }
    Ok(at.outputs(out, cache))
}

/// Side inputs of the epilogue.
struct Side<'a> {
    qkv: &'a QkvRope,
    bias: Option<&'a [f32]>,
    norms: Option<(f32, &'a [f32], &'a [f32])>,
    rope: &'a [f32],
    positions: &'a [u32],
    slots: &'a [u32],
}

impl<'a> Side<'a> {
    fn read(qkv: &'a QkvRope, inputs: &'a CaseInputs) -> Result<Self, KernelError> {
        let (rows, dim) = (inputs.rows as usize, qkv.head_dim as usize);
        let n = ((qkv.heads + 2 * qkv.kv_heads) * qkv.head_dim) as usize;
        let bias = if qkv.bias { Some(inputs.f32(slot::BIAS, n)?) } else { None };
        let norms = match qkv.qk_norm_eps_bits {
            Some(eps) => {
                Some((f32::from_bits(eps), inputs.f32(slot::Q_NORM, dim)?, inputs.f32(slot::K_NORM, dim)?))
            }
            None => None,
        };
        let positions = inputs.u32(slot::POSITIONS, rows)?;
        let slots = inputs.u32(slot::SLOTS, rows)?;
        let context = inputs.tensors.get(&slot::ROPE).map_or(0, |t| t.bytes().len() / 4 / dim);
        let rope = inputs.f32(slot::ROPE, context * dim)?;
        if let Some(p) = positions.iter().find(|p| **p as usize >= context) {
            return Err(KernelError::Case {
                slot: "POSITIONS",
                what: format!("{p} is beyond the rope table of {context}"),
            });
        }
        let tokens = inputs.pages() * qkv.kv.block_tokens as usize;
        if let Some(s) = slots.iter().find(|s| **s as usize >= tokens) {
            return Err(KernelError::Case {
                slot: "SLOTS",
                what: format!("{s} is beyond the cache of {tokens} tokens"),
            });
        }
        inputs.caches(&qkv.kv, qkv.kv_heads, qkv.head_dim)?;
        Ok(Self { qkv, bias, norms, rope, positions, slots })
    }

    /// One head of one row, finished. `start` is its first column: queries, keys and values follow each other.
    fn head(&self, row: usize, start: usize, y: &[Bounded]) -> Vec<Bounded> {
        let dim = self.qkv.head_dim as usize;
        let head = start / dim;
        let mut y: Vec<Bounded> = match self.bias {
            Some(bias) => {
                y.iter().zip(&bias[start..]).map(|(y, b)| y.plus(Bounded::exact(*b as f64))).collect()
            }
            None => y.to_vec(),
        };
        if head >= (self.qkv.heads + self.qkv.kv_heads) as usize {
            return y;
        }
        if let Some((eps, q_norm, k_norm)) = self.norms {
            let weight = if head < self.qkv.heads as usize { q_norm } else { k_norm };
            y = tolerance::rms_norm(&y, weight, eps);
        }
        let angles = &self.rope[self.positions[row] as usize * dim..][..dim];
        for i in 0..dim / 2 {
            (y[i], y[i + dim / 2]) =
                tolerance::rope_pair(y[i], y[i + dim / 2], angles[i], angles[i + dim / 2]);
        }
        y
    }
}
