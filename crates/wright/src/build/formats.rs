//! The format stage: which arithmetic keeps the quality bound. Quality depends on formats and numeric classes, not on
//! how kernels are tiled, so it is settled with the generators' start points before kernels are searched.

use super::engines::{Bench, start_recipes};
use crate::goal::Constraints;
use crate::trial::quality::{Quality, Scales};
use anyhow::{Context, Result, bail};
use emit::{PlanChoices, TensorClass};
use ledger::{Build, BuildEvent, Ledger};
use plan::Activation;
use std::path::{Path, PathBuf};

/// Classes in the order of how much their 8-bit activations cost (docs/numerics.md): the first is raised first.
const SENSITIVITY: [TensorClass; 5] =
    [TensorClass::Qkv, TensorClass::GateUp, TensorClass::Head, TensorClass::Down, TensorClass::Output];

/// What the build's journal knows of figures: a killed build does not measure them again.
pub struct Figures<'a> {
    pub build: &'a Build,
    pub ledger: &'a mut dyn Ledger,
}

impl Figures<'_> {
    /// The figures called `name`: known from before, or measured now and kept.
    fn get(&mut self, name: String, measure: impl FnOnce() -> Result<Quality>) -> Result<Quality> {
        if let Some(known) = self.build.stage(&name).and_then(|detail| serde_json::from_str(detail).ok()) {
            return Ok(known);
        }
        let quality = measure()?;
        let detail = serde_json::to_string(&quality)?;
        self.ledger.record_build(&self.build.id, &BuildEvent::Stage { name, detail })?;
        Ok(quality)
    }
}

/// The first choices, from `start` on, that keep the bound on the screening text and then on the confirming one.
pub fn settle(
    bench: &mut Bench<'_>,
    start: &PlanChoices,
    scales: &mut Scales,
    bound: &Constraints,
    figures: &mut Figures<'_>,
    mut tell: impl FnMut(&str, &Quality),
) -> Result<PlanChoices> {
    let mut choices = start.clone();
    let mut raised = 0;
    loop {
        let words = words(&choices);
        let mut bundle = None;
        let mut quality = figures.get(format!("screened {words}"), || {
            scales.screen.measure(started(&mut bundle, bench, &choices)?, "champion")
        })?;
        tell(&words, &quality);
        if holds(&quality, bound) {
            let screened = quality;
            quality = figures.get(format!("confirmed {words}"), || {
                scales.confirm.measure(started(&mut bundle, bench, &choices)?, "champion")
            })?;
            scales.know(&screened, &quality);
            tell("confirmed on the other text", &quality);
        }
        if let Some(folder) = bundle {
            let _ = std::fs::remove_dir_all(&folder);
        }
        if holds(&quality, bound) {
            return Ok(choices);
        }
        let Some(class) = SENSITIVITY.get(raised) else {
            bail!(
                "no arithmetic of this version keeps the quality bound (KL {:.5}, bound {}); raise max_kl in the goal",
                quality.kl,
                bound.max_kl
            );
        };
        raised += 1;
        let at = TensorClass::ALL.iter().position(|c| c == class).unwrap_or(0);
        choices.classes[at].activation = Activation::I16;
    }
}

/// The bundle of the generators' start points, made at its first use.
fn started<'b>(
    bundle: &'b mut Option<PathBuf>,
    bench: &mut Bench<'_>,
    choices: &PlanChoices,
) -> Result<&'b Path> {
    if bundle.is_none() {
        let tasks = bench.tasks(choices)?;
        *bundle = Some(bench.bundle(choices, &start_recipes(&tasks)?)?);
    }
    bundle.as_deref().context("the bundle was just made")
}

/// Formats and arithmetic in words.
fn words(choices: &PlanChoices) -> String {
    let classes = TensorClass::ALL.iter().zip(&choices.classes);
    let words: Vec<String> =
        classes.map(|(c, k)| format!("{} {} {:?}", c.name(), k.weight, k.activation)).collect();
    words.join(", ")
}

/// Whether the bound holds.
pub fn holds(quality: &Quality, bound: &Constraints) -> bool {
    quality.kl <= bound.max_kl && quality.top1 >= bound.min_top1
}
