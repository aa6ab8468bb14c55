//! The f32 reference model: plain transformer arithmetic on the dequantised weights, the yardstick of every engine's quality.
//!
//! It is plain but blocked and threaded, so that quality checks finish in seconds. Every sum runs in an order that depends on
//! the position alone: a token's hidden state is the same bit for bit whether it came in a prompt or one by one.

mod attention;
mod cache;
mod divergence;
mod forward;
mod gemm;
mod simd;

pub use cache::HiddenStates;
pub use divergence::{Divergence, top_tokens};
pub use forward::Session;
pub use gemm::matmul;

use crate::config::ModelConfig;
use crate::error::{Error, Result};
use crate::model::Model;
use crate::tensor::{Part, Role};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Changes when the reference's arithmetic does; part of the key of cached hidden states.
const ARITHMETIC_VERSION: u32 = 1;

/// The reference model: all weights in f32 (four bytes a parameter of memory).
pub struct Reference {
    config: ModelConfig,
    digest: String,
    embedding: Vec<f32>,
    head: Option<Vec<f32>>,
    final_norm: Vec<f32>,
    layers: Vec<Layer>,
    threads: usize,
}

/// One decoder layer's weights; matrices row-major `[outputs, inputs]`, absent parts empty.
struct Layer {
    attn_norm: Vec<f32>,
    q: Linear,
    k: Linear,
    v: Linear,
    o: Linear,
    q_norm: Option<Vec<f32>>,
    k_norm: Option<Vec<f32>>,
    ffn_norm: Vec<f32>,
    gate: Linear,
    up: Linear,
    down: Linear,
}

struct Linear {
    weight: Vec<f32>,
    bias: Option<Vec<f32>>,
}

impl Reference {
    /// Dequantises all weights of `model`. Uses as many threads as the machine has cores.
    ///
    /// # Errors
    /// Those of [`Model::dequantised`].
    pub fn new(model: &Model) -> Result<Reference> {
        let config = model.config().clone();
        let layers = (0..config.layers).map(|i| Layer::new(model, i)).collect::<Result<Vec<_>>>()?;
        Ok(Reference {
            digest: model.digest().to_owned(),
            embedding: model.dequantised(Role::Embedding)?,
            head: if config.tied { None } else { Some(model.dequantised(Role::Head)?) },
            final_norm: model.dequantised(Role::FinalNorm)?,
            layers,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            config,
        })
    }

    /// The same model on `threads` threads (at least one). Results do not depend on it.
    pub fn with_threads(mut self, threads: usize) -> Reference {
        self.threads = threads.max(1);
        self
    }

    /// What the model computes.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Digest of the model's files.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// An empty context to append tokens to.
    pub fn session(&self) -> Session<'_> {
        Session::new(self, self.threads)
    }

    /// Hidden states after the last norm of every token of every window, each window a text of its own: rows of `hidden`
    /// floats, windows one after the other. Windows run in parallel.
    ///
    /// # Errors
    /// [`Error::Argument`] for a token outside the vocabulary.
    pub fn hidden_states(&self, windows: &[&[u32]]) -> Result<Vec<f32>> {
        if windows.len() < self.threads {
            let states =
                windows.iter().map(|window| self.session().append(window)).collect::<Result<Vec<_>>>()?;
            return Ok(states.concat());
        }
        let next = AtomicUsize::new(0);
        let worker = || -> Result<Vec<(usize, Vec<f32>)>> {
            let mut done = Vec::new();
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                let Some(window) = windows.get(i) else { return Ok(done) };
                done.push((i, Session::new(self, 1).append(window)?));
            }
        };
        let mut states = std::thread::scope(|scope| -> Result<Vec<(usize, Vec<f32>)>> {
            let handles: Vec<_> = (0..self.threads).map(|_| scope.spawn(worker)).collect();
            let mut all = Vec::new();
            for handle in handles {
                match handle.join() {
                    Ok(done) => all.extend(done?),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            Ok(all)
        })?;
        states.sort_by_key(|(i, _)| *i);
        Ok(states.into_iter().flat_map(|(_, rows)| rows).collect())
    }

    /// Logits of rows of final hidden states: `rows x vocab`, row-major. Call it on some tens of rows at a time.
    ///
    /// # Panics
    /// If `hidden` is not whole rows.
    pub fn logits(&self, hidden: &[f32]) -> Vec<f32> {
        assert!(hidden.len().is_multiple_of(self.config.hidden), "hidden states are not whole rows");
        let head = self.head.as_ref().unwrap_or(&self.embedding);
        let mut out = vec![0.0; hidden.len() / self.config.hidden * self.config.vocab];
        matmul(hidden, head, self.config.hidden, &mut out, self.threads);
        out
    }

    /// Continues `prompt` greedily (ties: the lowest id) by up to `count` tokens; ends after an end token.
    ///
    /// # Errors
    /// [`Error::Argument`] for an empty prompt or a token outside the vocabulary.
    pub fn generate_greedy(&self, prompt: &[u32], count: usize) -> Result<Vec<u32>> {
        let mut session = self.session();
        let mut hidden = session.append(prompt)?;
        if hidden.is_empty() {
            return Err(Error::Argument("an empty prompt has no continuation".into()));
        }
        let mut out = Vec::new();
        while out.len() < count {
            let last = &hidden[hidden.len() - self.config.hidden..];
            let token = top_tokens(&self.logits(last), 1)[0].0;
            out.push(token);
            if out.len() == count || self.config.eos.contains(&token) {
                break;
            }
            hidden = session.append(&[token])?;
        }
        Ok(out)
    }

    /// Streams logits of rows of hidden states, `block` rows at a time, to `each(first row, rows x vocab)`: nothing of
    /// tokens times vocabulary is ever held.
    pub fn each_logits(&self, hidden: &[f32], block: usize, mut each: impl FnMut(usize, &[f32])) {
        for (i, rows) in hidden.chunks(block.max(1) * self.config.hidden).enumerate() {
            each(i * block.max(1), &self.logits(rows));
        }
    }
}

impl Layer {
    fn new(model: &Model, layer: usize) -> Result<Layer> {
        let all = |part: Part| model.dequantised(Role::Layer(layer, part));
        let maybe = |part: Part| model.tensor(Role::Layer(layer, part)).map(|t| t.dequantised());
        let linear = |weight: Part, bias: Option<Part>| -> Result<Linear> {
            Ok(Linear { weight: all(weight)?, bias: bias.and_then(maybe) })
        };
        Ok(Layer {
            attn_norm: all(Part::AttnNorm)?,
            q: linear(Part::Q, Some(Part::QBias))?,
            k: linear(Part::K, Some(Part::KBias))?,
            v: linear(Part::V, Some(Part::VBias))?,
            o: linear(Part::O, Some(Part::OBias))?,
            q_norm: maybe(Part::QNorm),
            k_norm: maybe(Part::KNorm),
            ffn_norm: all(Part::FfnNorm)?,
            gate: linear(Part::Gate, None)?,
            up: linear(Part::Up, None)?,
            down: linear(Part::Down, None)?,
        })
    }
}

impl std::fmt::Debug for Reference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Reference({} layers, {} threads)", self.layers.len(), self.threads)
    }
}
