//! Causal attention over the paged cache: two-pass softmax in f64 on the stored keys and values. Where the cache is bf16,
//! kernels may round queries and weights to bf16 too, for the products.

use super::{CaseOutputs, Selection};
use crate::error::KernelError;
use crate::inputs::CaseInputs;
use crate::parallel::for_each_chunk;
use crate::tolerance::{Bounded, EXP_ERROR, U, UNDERFLOW};
use half::{bf16, f16};
use plan::operation::{int, slot};
use plan::{KvDtype, KvLayout, Operation};
use std::collections::{BTreeMap, BTreeSet};

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

    let shared = heads / kv_heads;
    let needed: BTreeSet<u32> = at.columns.iter().map(|c| c / head_dim).collect();
    // One task for each sequence and KV head: its keys and values are gathered once.
    let mut tasks: Vec<Task> = Vec::new();
    for (i, row) in at.rows.iter().enumerate() {
        for head in &needed {
            let (sequence, kv_head) = (tables.sequences[*row as usize], head / shared);
            let at = tasks.iter().position(|t| t.sequence == sequence && t.kv_head == kv_head);
            let task = at.unwrap_or_else(|| {
                tasks.push(Task { sequence, kv_head, work: vec![], results: vec![] });
                tasks.len() - 1
            });
            tasks[task].work.push((i, *row as usize, *head as usize));
        }
    }
    let dim = cache.dim;
    let work = at.rows.len() * needed.len() * dim * tables.longest();
    for_each_chunk(&mut tasks, 1, work, |_, tasks| {
        for task in tasks {
            let end =
                task.work.iter().map(|(_, row, _)| tables.positions[*row] as usize + 1).max().unwrap_or(0);
            let (_, any_row, _) = task.work[0];
            let tokens = cache.gather(task.kv_head as usize, (0..end).map(|t| tables.place(any_row, t)));
            for (_, row, head) in &task.work {
                let last = tables.positions[*row] as usize;
                let first = window.map_or(0, |w| (last + 1).saturating_sub(w as usize));
                let query = &queries[row * width + head * dim..][..dim];
                task.results.push(tokens.attend(query, first..last + 1));
            }
        }
    });
    let mut by_row = vec![BTreeMap::new(); at.rows.len()];
    for task in tasks {
        for ((i, _, head), result) in task.work.into_iter().zip(task.results) {
            by_row[i].insert(head, result);
        }
    }
    let pick = |row: &BTreeMap<usize, Vec<Bounded>>, column: &u32| {
        row.get(&((column / head_dim) as usize))
            .map_or(Bounded::default(), |head| head[*column as usize % dim])
    };
    let out = by_row.iter().flat_map(|row| at.columns.iter().map(move |c| pick(row, c))).collect();
    Ok(at.outputs(out, vec![]))
}

/// Rows and heads that read the same keys and values.
struct Task {
    sequence: u32,
    kv_head: u32,
    /// Index in the selection, row, query head.
    work: Vec<(usize, usize, usize)>,
    /// `[head_dim]` for each of them.
    results: Vec<Vec<Bounded>>,
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
        for (row, position) in positions.iter().enumerate() {
            let position = *position as usize;
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

    /// Keys and values of the tokens at `places`, for one KV head.
    fn gather(&self, head: usize, places: impl Iterator<Item = Place>) -> Tokens {
        let mut tokens = Tokens {
            dim: self.dim,
            block: self.layout.block_tokens as usize,
            factor: if self.layout.dtype == KvDtype::Bf16 { BF16 } else { 0.0 },
            keys: vec![],
            values: vec![],
        };
        for at in places {
            tokens.keys.extend((0..self.dim).map(|d| self.key(head, &at, d)));
            tokens.values.extend((0..self.dim).map(|d| self.value(head, &at, d)));
        }
        tokens
    }
}

/// Keys and values of one sequence and KV head, `[tokens][head_dim]`, exact.
struct Tokens {
    dim: usize,
    /// Tokens of a page.
    block: usize,
    /// Relative rounding of queries and weights before they are multiplied.
    factor: f64,
    keys: Vec<f64>,
    values: Vec<f64>,
}

impl Tokens {
    fn attend(&self, query: &[f32], seen: std::ops::Range<usize>) -> Vec<Bounded> {
        let keys = &self.keys[seen.start * self.dim..seen.end * self.dim];
        let values = &self.values[seen.start * self.dim..seen.end * self.dim];
        let scores: Vec<Bounded> =
            keys.chunks_exact(self.dim).map(|key| score(query, key, self.factor)).collect();
        let max = scores.iter().fold(f64::NEG_INFINITY, |m, s| m.max(s.value));
        let weights: Vec<f64> = scores.iter().map(|s| (s.value - max).exp()).collect();
        let total: f64 = weights.iter().sum();
        // Relative error of a weight: its score, the rounded difference to the maximum, the exponential, and for every page
        // that may follow a correction (its exponential, its rounded argument, its product).
        let pages = scores.len().div_ceil(self.block) as f64 + 1.0;
        let doubt = |(s, w): (&Bounded, &f64)| {
            let shift = (max - s.value).min(100.0);
            w * (s.error + 2.0 * U * shift + EXP_ERROR + pages * (EXP_ERROR + 2.0 * U)).exp_m1()
        };
        let doubts: Vec<f64> = scores.iter().zip(&weights).map(doubt).collect();
        let doubt_total: f64 = doubts.iter().sum();

        let mut sums = vec![Bounded::default(); self.dim];
        for ((t, w), value) in weights.iter().enumerate().zip(values.chunks_exact(self.dim)) {
            let again = if t % self.block == 0 { 3.0 } else { 1.0 };
            for (sum, v) in sums.iter_mut().zip(value) {
                sum.value += w * v;
                sum.error += U * (again * sum.value.abs() + (w * v).abs()) + self.factor * (w * v).abs();
                if self.factor > 0.0 {
                    sum.error += UNDERFLOW * (w + 1.0);
                }
            }
        }
        let means: Vec<f64> = sums.iter().map(|s| s.value / total).collect();
        let mut moved = vec![0.0f64; self.dim];
        let mut spread = vec![0.0f64; self.dim];
        for (doubt, value) in doubts.iter().zip(values.chunks_exact(self.dim)) {
            for (((moved, spread), v), mean) in moved.iter_mut().zip(&mut spread).zip(value).zip(&means) {
                let away = (v - mean).abs();
                *moved += doubt * away;
                *spread = if away > *spread { away } else { *spread };
            }
        }
        let sum_error = ((self.block / 16 + 4) as f64 + 2.0 * pages) * U;
        let finish = |d: usize| {
            // Whatever the weights are, the result is a mean of the values.
            let moved = if doubt_total < total {
                (moved[d] / (total - doubt_total)).min(spread[d])
            } else {
                spread[d]
            };
            // Weights below the range of the exponential come out as 2^-126 at least.
            let clamped = scores.len() as f64 * 2.0 * UNDERFLOW * (spread[d] + means[d].abs() + 1.0);
            let error =
                moved + sums[d].error / total * 1.01 + (sum_error + 4.0 * U) * means[d].abs() + clamped;
            Bounded { value: means[d], error }
        };
        (0..self.dim).map(finish).collect()
    }
}

/// Half a unit of bf16's last place, relative, and what sums in the order of tiles may lose beside sums in order.
const BF16: f64 = 1.0 / 256.0 + 64.0 * U;

/// Scaled product of a query and a key, summed in order with its running error; factors are rounded by `factor` before.
fn score(query: &[f32], key: &[f64], factor: f64) -> Bounded {
    let mut s = Bounded::default();
    for (q, k) in query.iter().zip(key) {
        let product = *q as f64 * k;
        s.value += product;
        s.error += U * (product.abs() + s.value.abs()) + factor * product.abs();
        if factor > 0.0 {
            s.error += UNDERFLOW * (q.abs() as f64 + k.abs() + 1.0);
        }
    }
    let scale = 1.0 / (query.len() as f64).sqrt();
    Bounded { value: s.value * scale, error: s.error * scale }.rounded(3.0)
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
