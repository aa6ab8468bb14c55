//! The format stage: which arithmetic keeps the quality bound. Quality depends on formats and numeric classes, not on
//! how kernels are tiled, so it is settled with the generators' start points before kernels are searched.

use super::engines::{Bench, start_recipes};
use crate::goal::Constraints;
use crate::trial::quality::{Quality, Scales};
use anyhow::{Result, bail};
use emit::{PlanChoices, TensorClass};
use ledger::{Build, BuildEvent, Ledger};
use plan::Activation;
use std::path::PathBuf;

/// Classes in the order of how much their 8-bit activations cost (docs/numerics.md): the first is raised first.
const SENSITIVITY: [TensorClass; 5] =
    [TensorClass::Qkv, TensorClass::GateUp, TensorClass::Head, TensorClass::Down, TensorClass::Output];

/// What the build's journal knows of figures: a killed build does not measure them again.
pub struct Figures<'a> {
    pub build: &'a Build,
    pub ledger: &'a mut dyn Ledger,
}

impl Figures<'_> {
    fn known(&self, name: &str) -> Option<Quality> {
        self.build.stage(name).and_then(|detail| serde_json::from_str(detail).ok())
    }

    fn keep(&mut self, name: String, quality: &Quality) -> Result<()> {
        let detail = serde_json::to_string(quality)?;
        Ok(self.ledger.record_build(&self.build.id, &BuildEvent::Stage { name, detail })?)
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
        let (screen, confirm) = (format!("screened {words}"), format!("confirmed {words}"));
        let mut bundle = None;
        let screened = match figures.known(&screen) {
            Some(known) => known,
            None => {
                let folder = bundle.insert(started(bench, &choices)?);
                let measured = scales.screen.measure(folder, "champion")?;
                figures.keep(screen, &measured)?;
                measured
            }
        };
        tell(&words, &screened);
        let mut quality = screened;
        if holds(&screened, bound) {
            match figures.known(&confirm) {
                Some(known) => scales.know(&screened, &known),
                None => {
                    let folder = match bundle.take() {
                        Some(folder) => folder,
                        None => started(bench, &choices)?,
                    };
                    let measured = scales.confirm(&screened, &folder, "champion")?;
                    figures.keep(confirm, &measured)?;
                    bundle = Some(folder);
                }
            }
            quality = scales.confirmed(&screened).unwrap_or(screened);
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

/// A bundle of the generators' start points.
fn started(bench: &mut Bench<'_>, choices: &PlanChoices) -> Result<PathBuf> {
    let tasks = bench.tasks(choices)?;
    bench.bundle(choices, &start_recipes(&tasks)?)
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
