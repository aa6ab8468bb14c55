//! Causal attention with grouped queries, in f32.

use super::gemm::matmul;
use crate::config::ModelConfig;

/// Queries handled together: bounds the score matrix.
const QUERY_BLOCK: usize = 64;

/// One layer's keys and values, per key/value head `positions x head_dim`.
#[derive(Clone, Default)]
pub(super) struct LayerCache {
    pub(super) keys: Vec<Vec<f32>>,
    pub(super) values: Vec<Vec<f32>>,
}

impl LayerCache {
    pub(super) fn new(config: &ModelConfig) -> LayerCache {
        LayerCache { keys: vec![Vec::new(); config.kv_heads], values: vec![Vec::new(); config.kv_heads] }
    }

    /// Appends rows of `kv_heads * head_dim` keys (already rotated) and values.
    pub(super) fn append(&mut self, k: &[f32], v: &[f32], head_dim: usize) {
        let heads = self.keys.len();
        for (i, (k, v)) in k.chunks_exact(head_dim).zip(v.chunks_exact(head_dim)).enumerate() {
            self.keys[i % heads].extend_from_slice(k);
            self.values[i % heads].extend_from_slice(v);
        }
    }
}

/// Attention of the latest `q.len() / q_dim` positions over everything in the cache; gives rows of `heads * head_dim`.
pub(super) fn attend(
    config: &ModelConfig,
    layer: usize,
    q: &[f32],
    cache: &LayerCache,
    threads: usize,
) -> Vec<f32> {
    let (head_dim, q_dim) = (config.head_dim, config.q_dim());
    let queries = q.len() / q_dim;
    let total = cache.keys[0].len() / head_dim;
    let task = Task { first: total - queries, window: config.window_of(layer), queries, total, head_dim };
    let per_group = config.heads / config.kv_heads;
    let head = |h: usize| {
        let rows: Vec<f32> =
            q.chunks_exact(q_dim).flat_map(|row| &row[h * head_dim..(h + 1) * head_dim]).copied().collect();
        let group = h / per_group;
        task.run(&rows, &cache.keys[group], &cache.values[group])
    };
    let outputs: Vec<Vec<f32>> = if threads < 2 || queries * total < 4_096 {
        (0..config.heads).map(head).collect()
    } else {
        let share = config.heads.div_ceil(threads);
        std::thread::scope(|scope| {
            let head = &head;
            let handles: Vec<_> = (0..config.heads)
                .step_by(share)
                .map(|first| {
                    scope.spawn(move || {
                        (first..(first + share).min(config.heads)).map(head).collect::<Vec<_>>()
                    })
                })
                .collect();
            handles
                .into_iter()
                .flat_map(|h| h.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect()
        })
    };
    let mut out = vec![0.0; q.len()];
    for (t, row) in out.chunks_exact_mut(q_dim).enumerate() {
        for (output, row) in outputs.iter().zip(row.chunks_exact_mut(head_dim)) {
            row.copy_from_slice(&output[t * head_dim..(t + 1) * head_dim]);
        }
    }
    out
}

/// One head's work.
struct Task {
    /// Position of the first query.
    first: usize,
    window: Option<usize>,
    queries: usize,
    total: usize,
    head_dim: usize,
}

impl Task {
    fn run(&self, q: &[f32], keys: &[f32], values: &[f32]) -> Vec<f32> {
        let transposed = transpose(values, self.head_dim);
        let scale = 1.0 / (self.head_dim as f32).sqrt();
        let mut out = vec![0.0; self.queries * self.head_dim];
        let mut scores = vec![0.0; QUERY_BLOCK.min(self.queries) * self.total];
        for (block, (q, out)) in
            q.chunks(QUERY_BLOCK * self.head_dim).zip(out.chunks_mut(QUERY_BLOCK * self.head_dim)).enumerate()
        {
            let rows = q.len() / self.head_dim;
            let scores = &mut scores[..rows * self.total];
            matmul(q, keys, self.head_dim, scores, 1);
            for (r, row) in scores.chunks_exact_mut(self.total).enumerate() {
                let position = self.first + block * QUERY_BLOCK + r;
                let from = self.window.map_or(0, |w| (position + 1).saturating_sub(w));
                softmax(row, from..position + 1, scale);
            }
            matmul(scores, &transposed, self.total, out, 1);
        }
        out
    }
}

/// Softmax of the visible part of a row; zero elsewhere.
fn softmax(row: &mut [f32], visible: std::ops::Range<usize>, scale: f32) {
    row[..visible.start].fill(0.0);
    row[visible.end..].fill(0.0);
    let row = &mut row[visible];
    let most = row.iter().fold(f32::NEG_INFINITY, |m, &s| m.max(s * scale));
    let mut sum = 0.0_f64;
    for score in row.iter_mut() {
        *score = (*score * scale - most).exp();
        sum += f64::from(*score);
    }
    let factor = (1.0 / sum) as f32;
    row.iter_mut().for_each(|p| *p *= factor);
}

/// `positions x head_dim` to `head_dim x positions`.
fn transpose(values: &[f32], head_dim: usize) -> Vec<f32> {
    let positions = values.len() / head_dim;
    let mut out = vec![0.0; values.len()];
    for (p, row) in values.chunks_exact(head_dim).enumerate() {
        for (d, &value) in row.iter().enumerate() {
            out[d * positions + p] = value;
        }
    }
    out
}
