//! The format stage: which arithmetic keeps the quality bound. Quality depends on formats and numeric classes, not on
//! how kernels are tiled, so it is settled with the generators' start points before kernels are searched.

use super::engines::{Bench, start_recipes};
use crate::goal::Constraints;
use crate::trial::driver::{Mode, Trial};
use crate::trial::protocol::ReplayKind;
use crate::trial::quality::{Quality, Scales};
use anyhow::{Context, Result, bail};
use emit::{PlanChoices, TensorClass};
use ledger::{Build, BuildEvent, Ledger};
use plan::{Activation, Feature};
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
        let (held, quality) = judged(bench, &choices, scales, bound, figures, &mut tell)?;
        if held {
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
        choices.classes[at].prefill = Activation::I16;
    }
}

/// Whether choices keep the bound on the screening text and, if so, on the confirming one; the last figures.
fn judged(
    bench: &mut Bench<'_>,
    choices: &PlanChoices,
    scales: &mut Scales,
    bound: &Constraints,
    figures: &mut Figures<'_>,
    tell: &mut dyn FnMut(&str, &Quality),
) -> Result<(bool, Quality)> {
    let words = words(choices);
    let mut bundle = None;
    let mut quality = figures.get(format!("screened {words}"), || {
        scales.screen.measure(started(&mut bundle, bench, choices)?, "champion")
    })?;
    tell(&words, &quality);
    if holds(&quality, bound) {
        let screened = quality;
        quality = figures.get(format!("confirmed {words}"), || {
            scales.confirm.measure(started(&mut bundle, bench, choices)?, "champion")
        })?;
        scales.know(&screened, &quality);
        tell("confirmed on the other text", &quality);
    }
    if let Some(folder) = bundle {
        let _ = std::fs::remove_dir_all(&folder);
    }
    Ok((holds(&quality, bound), quality))
}

/// Gain below which an arithmetic of their own for prompts is not worth passes of their own.
const WORTH: f64 = 1.1;
/// Interleaved rounds of the comparison.
const ROUNDS: usize = 7;

/// `choices`, with an arithmetic of its own for prompts where that is faster here, by the generators' start points, and keeps
/// the bound. (Which one prompts have makes no difference to generated tokens, and the other way round.)
pub fn prefill(
    bench: &mut Bench<'_>,
    choices: &PlanChoices,
    scales: &mut Scales,
    bound: &Constraints,
    figures: &mut Figures<'_>,
    mut tell: impl FnMut(&str, &Quality),
) -> Result<PlanChoices> {
    let mut other = choices.clone();
    for class in &mut other.classes {
        class.prefill = Activation::Bf16;
    }
    let fast = [Feature::AmxBf16, Feature::Avx512Bf16].iter().all(|f| bench.target.features.contains(f));
    if !fast || !other.separates_prefill() {
        return Ok(choices.clone());
    }
    let name = format!("faster for prompts: {}", words(&other));
    let known = figures.build.stage(&name).and_then(|detail| detail.parse::<f64>().ok());
    let ratio = match known {
        Some(ratio) => ratio,
        None => {
            let ratio = faster(bench, choices, &other)?;
            let event = BuildEvent::Stage { name, detail: ratio.to_string() };
            figures.ledger.record_build(&figures.build.id, &event)?;
            ratio
        }
    };
    eprintln!("formats: bf16 for prompts: {ratio:.2} times the speed");
    if ratio < WORTH {
        return Ok(choices.clone());
    }
    let (held, _) = judged(bench, &other, scales, bound, figures, &mut tell)?;
    Ok(if held { other } else { choices.clone() })
}

/// Median ratio of the times of a prompt's pass, `one` over `other`, interleaved.
fn faster(bench: &mut Bench<'_>, one: &PlanChoices, other: &PlanChoices) -> Result<f64> {
    let rows = bench.workload.prompt_tokens.clamp(1, one.batching.max_rows);
    let (mut first, mut second) = (None, None);
    let mut trials = [
        Trial::start(started(&mut first, bench, one)?, "champion", Mode::Executor)?,
        Trial::start(started(&mut second, bench, other)?, "champion", Mode::Executor)?,
    ];
    let alone = judge::Lane::of_machine().enter()?;
    let mut ratios = Vec::new();
    for _ in 0..ROUNDS {
        let [a, b] = &mut trials;
        let times = [a, b].map(|trial| bench.pass_ms(trial, ReplayKind::Prefill, rows, 2));
        let [one, other] = times;
        ratios.push(one? / other?);
    }
    drop(alone);
    drop(trials);
    for folder in [first, second].into_iter().flatten() {
        let _ = std::fs::remove_dir_all(&folder);
    }
    ratios.sort_by(f64::total_cmp);
    Ok(ratios[ratios.len() / 2])
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
    let words: Vec<String> = classes
        .map(|(c, k)| {
            let own = if choices.differs(*c) { format!(" (prompts {:?})", k.prefill) } else { String::new() };
            format!("{} {} {:?}{own}", c.name(), k.weight, k.activation)
        })
        .collect();
    words.join(", ")
}

/// Whether the bound holds.
pub fn holds(quality: &Quality, bound: &Constraints) -> bool {
    quality.kl <= bound.max_kl && quality.top1 >= bound.min_top1
}
