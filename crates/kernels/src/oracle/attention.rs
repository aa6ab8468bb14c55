//! Causal attention over the paged cache: two-pass softmax in f64 on the stored keys and values.

use super::{CaseOutputs, Selection};
use crate::error::KernelError;
use crate::inputs::CaseInputs;
use crate::parallel::for_each_chunk;
use crate::tolerance::{Bounded, EXP_ERROR, U, UNDERFLOW};
use half::{bf16, f16};
use plan::operation::{int, slot};
use plan::{KvDtype, KvLayout, Operation};

pub(super) fn attention(
    operation: &Operation,
    inputs: &CaseInputs,
    at: Selection<'_>,
) -> Result<CaseOutputs, KernelError> {
    let Operation::Attention { heads, kv_heads, head_dim, kv, window } = operation else {
        return Ok(at.outputs(vec![], vec![]));
    };
    let width = (heads * head_dim) as usize;
    let queries = inputs.f32(slot::X, inputs.rows as usize * width)?;
    let (keys, values) = inputs.caches(kv, *kv_heads, *head_dim)?;
    let cache = Cache { layout: *kv, kv_heads: *kv_heads as usize, dim: *head_dim as usize, keys, values };
    let tables = Tables::read(inputs, kv)?;

    let mut needed: Vec<u32> = at.columns.iter().map(|c| c / head_dim).collect();
    needed.sort_unstable();
    needed.dedup();
    let dim = cache.dim;
    let mut results = vec![Bounded::default(); at.rows.len() * needed.len() * dim];
    let work = results.len() * tables.longest();
    for_each_chunk(&mut results, dim, work, |i, out| {
        let (row, head) = (at.rows[i / needed.len()] as usize, needed[i % needed.len()] as usize);
        let query = &queries[row * width + head * dim..][..dim];
        let kv_head = head / (heads / kv_heads) as usize;
        let last = tables.positions[row] as usize;
        let first = window.map_or(0, |w| (last + 1).saturating_sub(w as usize));
        let places: Vec<Place> = (first..=last).map(|t| tables.place(row, t)).collect();
        cache.attend(query, kv_head, &places, out);
    });
    let mut out = Vec::with_capacity(at.rows.len() * at.columns.len());
    for row in results.chunks(needed.len() * dim).take(at.rows.len()) {
        for column in at.columns {
            let head = needed.binary_search(&(column / head_dim)).unwrap_or_default();
            out.push(row[head * dim + *column as usize % dim]);
        }
    }
    Ok(at.outputs(out, vec![]))
}

/// Where a token lies.
struct Place {
    page: usize,
    token: usize,
}

struct Tables<'a> {
    positions: &'a [u32],
    sequences: &'a [u32],
    tables: &'a [u32],
    blocks: usize,
    block_tokens: usize,
}

impl<'a> Tables<'a> {
    fn read(inputs: &'a CaseInputs, kv: &KvLayout) -> Result<Self, KernelError> {
        let rows = inputs.rows as usize;
        let positions = inputs.u32(slot::POSITIONS, rows)?;
        let sequences = inputs.u32(slot::ROW_SEQUENCE, rows)?;
        let blocks = inputs.ints[int::MAX_BLOCKS].max(0) as usize;
        let count = sequences.iter().max().map_or(0, |s| *s as usize + 1);
        let all = inputs.tensors.get(&slot::BLOCK_TABLES).map_or(0, |t| t.bytes().len() / 4);
        let tables = inputs.u32(slot::BLOCK_TABLES, all)?;
        let block_tokens = kv.block_tokens as usize;
        let read = Self { positions, sequences, tables, blocks, block_tokens };
        if all < count * blocks {
            let what = format!("{all} entries for {count} sequences of {blocks}");
            return Err(KernelError::Case { slot: "BLOCK_TABLES", what });
        }
        for row in 0..rows {
            let position = positions[row] as usize;
            if position >= blocks * block_tokens {
                let what = format!("position {position} is beyond {blocks} pages of {block_tokens}");
                return Err(KernelError::Case { slot: "POSITIONS", what });
            }
            for t in (0..=position).step_by(block_tokens) {
                let page = read.place(row, t).page;
                if page >= inputs.pages() {
                    let what = format!("page {page} of {}", inputs.pages());
                    return Err(KernelError::Case { slot: "BLOCK_TABLES", what });
                }
            }
        }
        Ok(read)
    }

    fn longest(&self) -> usize {
        self.positions.iter().max().map_or(1, |p| *p as usize + 1)
    }

    fn place(&self, row: usize, t: usize) -> Place {
        let table = &self.tables[self.sequences[row] as usize * self.blocks..];
        Place { page: table[t / self.block_tokens] as usize, token: t % self.block_tokens }
    }
}

struct Cache<'a> {
    layout: KvLayout,
    kv_heads: usize,
    dim: usize,
    keys: &'a [u8],
    values: &'a [u8],
}

impl Cache<'_> {
    fn key(&self, head: usize, at: &Place, d: usize) -> f64 {
        let tokens = self.layout.block_tokens as usize;
        let index = ((at.page * self.kv_heads + head) * self.dim + d) * tokens + at.token;
        element(self.layout.dtype, self.keys, index)
    }

    fn value(&self, head: usize, at: &Place, d: usize) -> f64 {
        let tokens = self.layout.block_tokens as usize;
        let index = ((at.page * self.kv_heads + head) * tokens + at.token) * self.dim + d;
        element(self.layout.dtype, self.values, index)
    }

    fn attend(&self, query: &[f32], head: usize, places: &[Place], out: &mut [Bounded]) {
        let scale = 1.0 / (self.dim as f64).sqrt();
        let block = self.layout.block_tokens as usize;
        // Scores, each with its absolute error.
        let scores: Vec<Bounded> = places
            .iter()
            .map(|at| {
                let mut s = Bounded::default();
                for (d, q) in query.iter().enumerate() {
                    let product = *q as f64 * self.key(head, at, d);
                    s.value += product;
                    s.error += U * (product.abs() + s.value.abs());
                }
                Bounded { value: s.value * scale, error: s.error * scale }.rounded(3.0)
            })
            .collect();
        let max = scores.iter().fold(f64::NEG_INFINITY, |m, s| m.max(s.value));
        let weights: Vec<f64> = scores.iter().map(|s| (s.value - max).exp()).collect();
        let total: f64 = weights.iter().sum();
        // Relative error of a weight: its score, the rounded difference to the maximum, the exponential, and for every page
        // that may follow a correction (its exponential, its rounded argument, its product).
        let pages = places.len().div_ceil(block) as f64 + 1.0;
        let doubts: Vec<f64> = scores
            .iter()
            .map(|s| {
                let shift = (max - s.value).min(100.0);
                (s.error + 2.0 * U * shift + EXP_ERROR + pages * (EXP_ERROR + 2.0 * U)).exp_m1()
            })
            .collect();
        let doubt_total: f64 = weights.iter().zip(&doubts).map(|(w, d)| w * d).sum();
        let sum_error = ((block / 16 + 4) as f64 + 2.0 * pages) * U;
        for (d, out) in out.iter_mut().enumerate() {
            let values: Vec<f64> = places.iter().map(|at| self.value(head, at, d)).collect();
            let (mut sum, mut rounding) = (0.0f64, 0.0f64);
            for ((i, w), v) in weights.iter().enumerate().zip(&values) {
                sum += w * v;
                rounding += U * (sum.abs() + (w * v).abs());
                if i % block == 0 {
                    rounding += 2.0 * U * sum.abs();
                }
            }
            let value = sum / total;
            let moved: f64 = weights.iter().zip(&doubts).zip(&values).map(|((w, e), v)| w * e * (v - value).abs()).sum();
            let largest = values.iter().fold(0.0f64, |m, v| m.max(v.abs()));
            // Whatever the weights are, the result is a mean of the values.
            let spread = values.iter().fold(0.0f64, |m, v| m.max((v - value).abs()));
            let moved = if doubt_total < total { (moved / (total - doubt_total)).min(spread) } else { spread };
            // Weights below the range of the exponential come out as 2^-126 at least.
            let clamped = places.len() as f64 * 2.0 * UNDERFLOW * (largest + 1.0);
            let error = moved + rounding / total * 1.01 + (sum_error + 4.0 * U) * value.abs() + clamped;
            *out = Bounded { value, error };
        }
    }
}

/// Element of a cache, exact.
pub(super) fn element(dtype: KvDtype, bytes: &[u8], index: usize) -> f64 {
    match dtype {
        KvDtype::F32 => {
            let b = &bytes[index * 4..][..4];
            f32::from_le_bytes([b[0], b[1], b[2], b[3]]) as f64
        }
        KvDtype::F16 => f16::from_le_bytes([bytes[index * 2], bytes[index * 2 + 1]]).to_f64(),
        KvDtype::Bf16 => bf16::from_le_bytes([bytes[index * 2], bytes[index * 2 + 1]]).to_f64(),
    }
}
