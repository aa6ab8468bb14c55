//! Quality of an engine: divergence from the f32 reference model of the same weights on held-out text, scored at the
//! positions that `llama-perplexity` scores: the second half of each window, where a next token follows.

use super::driver::{Mode, Trial};
use crate::text::HeldOut;
use anyhow::{Context, Result, anyhow};
use evidence::CheckSummary;
use model::Model;
use model::reference::{Divergence, Reference};
use plan::Phase;
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
    /// The worse of each figure.
    fn worse(&self, other: &Self) -> Self {
        Self {
            kl: self.kl.max(other.kl),
            top1: self.top1.min(other.top1),
            perplexity: self.perplexity.max(other.perplexity),
            ..*self
        }
    }

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

    /// As the check of an engine whose divergence may be `max_kl`.
    pub fn summary(&self, max_kl: f64) -> CheckSummary {
        CheckSummary {
            cases: self.tokens as u32,
            keys: Vec::new(),
            worst_ratio: self.kl / max_kl,
            timed_checked: 0,
            quality: self.figures(),
        }
    }
}

/// Figures of both texts. Engines of equal arithmetic give equal bits, whatever kernels they are made of: where an
/// engine's figures on the screening text are those of an engine that was confirmed, bit for bit, so is the rest.
pub struct Scales {
    pub screen: Yardstick,
    pub confirm: Yardstick,
    confirmed: Vec<(Quality, Quality)>,
}

impl Scales {
    /// Both texts, nothing measured yet.
    pub fn new(model: &Model, cache: &Path) -> Result<Self> {
        let open = |text| Yardstick::new(model, text, cache);
        Ok(Self { screen: open(HeldOut::Screen)?, confirm: open(HeldOut::Confirm)?, confirmed: Vec::new() })
    }

    /// Figures on the confirming text of an engine whose figures on the screening text are `screened`.
    pub fn confirm(&mut self, screened: &Quality, bundle: &Path, plan: &str) -> Result<Quality> {
        if let Some((_, known)) = self.confirmed.iter().find(|(s, _)| s == screened) {
            return Ok(*known);
        }
        let quality = self.confirm.measure(bundle, plan)?;
        self.know(screened, &quality);
        Ok(quality)
    }

    /// Figures that were measured before.
    pub fn know(&mut self, screened: &Quality, confirmed: &Quality) {
        self.confirmed.push((*screened, *confirmed));
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

    /// Runs the text through an engine in a sandboxed worker and compares the scored positions. Where prompts have an
    /// arithmetic of their own, the text runs once as a prompt and once as generated tokens, and the worse figures count.
    pub fn measure(&self, bundle: &Path, plan: &str) -> Result<Quality> {
        let mut trial = Trial::start(bundle, plan, Mode::Executor).context("starting a quality trial")?;
        let mut worst: Option<Quality> = None;
        for phase in trial.phases.clone() {
            let quality = self.measure_phase(&mut trial, phase)?;
            worst = Some(worst.map_or(quality, |known| known.worse(&quality)));
        }
        worst.context("the engine has no phase")
    }

    fn measure_phase(&self, trial: &mut Trial, phase: Phase) -> Result<Quality> {
        let mut divergence = Divergence::new();
        let mut at = 0;
        for window in &self.windows {
            let from = window.len() / 2;
            let evaluated = &window[..window.len() - 1];
            let candidate = trial.logits(phase, evaluated, from)?;
            let next: Vec<Option<u32>> = window[from + 1..].iter().copied().map(Some).collect();
            let vocab = candidate.len() / next.len();
            let hidden = &self.hidden[(at + from) * self.width..(at + evaluated.len()) * self.width];
            let reference = self.reference.logits(hidden);
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
