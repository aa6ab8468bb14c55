//! The decoder's forward pass over a growing context.

use super::attention::{LayerCache, attend};
use super::gemm::matmul;
use super::{Layer, Linear, Reference};
use crate::error::{Error, Result};
use crate::rope::Rope;

/// A context of the reference model: its tokens' keys and values.
pub struct Session<'a> {
    reference: &'a Reference,
    layers: Vec<LayerCache>,
    len: usize,
    threads: usize,
}

impl<'a> Session<'a> {
    pub(super) fn new(reference: &'a Reference, threads: usize) -> Session<'a> {
        let layers = vec![LayerCache::new(&reference.config); reference.config.layers];
        Session { reference, layers, len: 0, threads }
    }

    /// Tokens so far.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no tokens yet.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends tokens and gives their hidden states after the last norm: rows of `hidden` floats.
    ///
    /// # Errors
    /// [`Error::Argument`] for a token outside the vocabulary; nothing is appended then.
    pub fn append(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        let (model, config) = (self.reference, &self.reference.config);
        if tokens.is_empty() {
            return Ok(Vec::new());
        }
        let mut x = Vec::with_capacity(tokens.len() * config.hidden);
        for &token in tokens {
            let start = token as usize * config.hidden;
            let row = model.embedding.get(start..start + config.hidden).ok_or_else(|| {
                Error::Argument(format!("token {token} is outside the vocabulary of {}", config.vocab))
            })?;
            x.extend_from_slice(row);
        }
        let rotation = Rotation::new(&config.rope, self.len, tokens.len());
        for index in 0..model.layers.len() {
            self.layer(index, &rotation, &mut x);
        }
        self.len += tokens.len();
        Ok(rms_norm(&x, &model.final_norm, config.rms_eps))
    }

    fn layer(&mut self, index: usize, rotation: &Rotation, x: &mut [f32]) {
        let (config, layer) = (&self.reference.config, &self.reference.layers[index]);
        let threads = self.threads;
        let normed = rms_norm(x, &layer.attn_norm, config.rms_eps);
        let mut q = layer.q.apply(&normed, config.hidden, threads);
        let mut k = layer.k.apply(&normed, config.hidden, threads);
        let v = layer.v.apply(&normed, config.hidden, threads);
        if let Some(weight) = &layer.q_norm {
            q = rms_norm(&q, weight, config.rms_eps);
        }
        if let Some(weight) = &layer.k_norm {
            k = rms_norm(&k, weight, config.rms_eps);
        }
        rotation.apply(&mut q, config.head_dim, config.heads);
        rotation.apply(&mut k, config.head_dim, config.kv_heads);
        self.layers[index].append(&k, &v, config.head_dim);
        let attended = attend(config, index, &q, &self.layers[index], threads);
        add(x, &layer.o.apply(&attended, config.q_dim(), threads));
        let normed = rms_norm(x, &layer.ffn_norm, config.rms_eps);
        add(x, &feed_forward(layer, &normed, config.hidden, config.ffn, threads));
    }
}

fn feed_forward(layer: &Layer, x: &[f32], hidden: usize, ffn: usize, threads: usize) -> Vec<f32> {
    let mut gate = layer.gate.apply(x, hidden, threads);
    let up = layer.up.apply(x, hidden, threads);
    for (gate, up) in gate.iter_mut().zip(&up) {
        *gate = *gate / (1.0 + (-*gate).exp()) * up;
    }
    layer.down.apply(&gate, ffn, threads)
}

impl Linear {
    fn apply(&self, x: &[f32], depth: usize, threads: usize) -> Vec<f32> {
        let outputs = self.weight.len() / depth;
        let mut out = vec![0.0; x.len() / depth * outputs];
        matmul(x, &self.weight, depth, &mut out, threads);
        if let Some(bias) = &self.bias {
            out.chunks_exact_mut(outputs).for_each(|row| add(row, bias));
        }
        out
    }
}

fn add(x: &mut [f32], y: &[f32]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}

/// RMSNorm of consecutive rows of `weight.len()` values.
fn rms_norm(x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    let mut out = Vec::with_capacity(x.len());
    for row in x.chunks_exact(weight.len()) {
        let mean = row.iter().map(|v| f64::from(*v) * f64::from(*v)).sum::<f64>() / row.len() as f64;
        let factor = (1.0 / (mean + f64::from(eps)).sqrt()) as f32;
        out.extend(row.iter().zip(weight).map(|(v, w)| v * factor * w));
    }
    out
}

/// Cosines and sines of the positions of one call.
struct Rotation {
    cos: Vec<f32>,
    sin: Vec<f32>,
    half: usize,
}

impl Rotation {
    fn new(rope: &Rope, first: usize, count: usize) -> Rotation {
        let (cos, sin) = rope.table(first, count);
        Rotation { cos, sin, half: rope.dim / 2 }
    }

    /// Rotates rows of `heads` heads in place: dimension `j` pairs with `j + half`.
    fn apply(&self, rows: &mut [f32], head_dim: usize, heads: usize) {
        for (t, row) in rows.chunks_exact_mut(head_dim * heads).enumerate() {
            let (cos, sin) =
                (&self.cos[t * self.half..][..self.half], &self.sin[t * self.half..][..self.half]);
            for head in row.chunks_exact_mut(head_dim) {
                for j in 0..self.half {
                    let (a, b) = (head[j], head[j + self.half]);
                    head[j] = a * cos[j] - b * sin[j];
                    head[j + self.half] = b * cos[j] + a * sin[j];
                }
            }
        }
    }
}
