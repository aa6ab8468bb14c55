//! Quality of an engine: divergence from the f32 reference model of the same weights on held-out text.

use super::driver::{Mode, Trial};
use crate::text::HeldOut;
use anyhow::{Context, Result, anyhow};
use model::Model;
use model::reference::{Divergence, Reference};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// Quality figures.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quality {
    /// Mean KL divergence, nats per token.
    pub kl: f64,
    /// Share of positions whose most probable token agrees.
    pub top1: f64,
    /// Perplexity of the engine, and of the reference, on the same text.
    pub perplexity: f64,
    pub reference_perplexity: f64,
    /// Positions measured.
    pub tokens: usize,
}

impl Quality {
    /// As evidence records it.
    pub fn figures(&self) -> BTreeMap<String, f64> {
        BTreeMap::from([
            ("kl".to_owned(), self.kl),
            ("top1".to_owned(), self.top1),
            ("perplexity".to_owned(), self.perplexity),
            ("reference_perplexity".to_owned(), self.reference_perplexity),
            ("tokens".to_owned(), self.tokens as f64),
        ])
    }
}

/// The reference's side, ready to be compared with many engines.
pub struct Yardstick {
    reference: Reference,
    windows: Vec<Vec<u32>>,
    /// `[tokens][hidden]` of all windows.
    hidden: Vec<f32>,
    width: usize,
}

impl Yardstick {
    /// Final hidden states of the held-out text, from `cache` where they were computed before.
    pub fn new(model: &Model, text: HeldOut, cache: &Path) -> Result<Self> {
        let reference = Reference::new(model)?;
        let windows = text.windows(model.tokenizer())?;
        let slices: Vec<&[u32]> = windows.iter().map(Vec::as_slice).collect();
        let hidden = reference.cached_hidden_states(&slices, cache)?.rows;
        Ok(Self { width: model.config().hidden, reference, windows, hidden })
    }

    /// Runs the text through an engine in a sandboxed worker and compares all positions.
    pub fn measure(&self, bundle: &Path, plan: &str) -> Result<Quality> {
        let mut trial = Trial::start(bundle, plan, Mode::Executor).context("starting a quality trial")?;
        let mut divergence = Divergence::new();
        let mut at = 0;
        for window in &self.windows {
            let candidate = trial.logits(window)?;
            let vocab = candidate.len() / window.len();
            let hidden = &self.hidden[at * self.width..(at + window.len()) * self.width];
            let reference = self.reference.logits(hidden);
            let next: Vec<Option<u32>> = window.iter().skip(1).copied().map(Some).chain([None]).collect();
            divergence.push_rows(&reference, &candidate, vocab, &next)?;
            at += window.len();
        }
        let needed = |v: Option<f64>| v.ok_or_else(|| anyhow!("the held-out text is empty"));
        Ok(Quality {
            kl: needed(divergence.mean_kl())?,
            top1: needed(divergence.top1_agreement())?,
            perplexity: needed(divergence.candidate_perplexity())?,
            reference_perplexity: needed(divergence.reference_perplexity())?,
            tokens: divergence.rows(),
        })
    }
}
