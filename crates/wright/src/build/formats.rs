//! The format stage: which arithmetic keeps the quality bound. Quality depends on formats and numeric classes, not on
//! how kernels are tiled, so it is settled with the generators' start points before kernels are searched.

use super::engines::{Bench, start_recipes};
use crate::goal::Constraints;
use crate::trial::driver::{Mode, Trial};
use crate::trial::protocol::ReplayKind;
use crate::trial::quality::{Quality, Scales};
use anyhow::{Context, Result, bail};
use emit::{PlanChoices, TensorClass};
use evidence::Point;
use ledger::{Build, BuildEvent, Ledger};
use plan::{Activation, Feature, KvDtype, ModelShape, WeightFormat, WeightLayout, Zero};
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

/// Gain of the whole workload below which another format is not worth its bytes or its errors.
const WORTH_ALL: f64 = 1.03;

/// `choices`, with other formats where they serve the workload faster here, by the generators' start points, and keep the
/// bound: 8-bit weights in wide groups with 15-bit rows, which AMX takes without a detour through f32 in every group; the
/// file's own weights as 16-bit integers; bf16 keys and values, whose attention runs on tiles.
pub fn alternatives(
    bench: &mut Bench<'_>,
    choices: &PlanChoices,
    fixed: &Point,
    scales: &mut Scales,
    bound: &Constraints,
    figures: &mut Figures<'_>,
    mut tell: impl FnMut(&str, &Quality),
) -> Result<PlanChoices> {
    let features = &bench.target.features;
    let has = |all: &[Feature]| all.iter().all(|f| features.contains(f));
    let int8 = has(&[Feature::Avx512, Feature::AmxInt8]);
    let bf16 = has(&[Feature::Avx512, Feature::Avx512Bf16, Feature::AmxBf16]);
    let shape = bench.loaded.shape.clone();
    let mut best = choices.clone();
    // Each list is tried in order until one holds: the later ones keep more of the quality.
    let mut lists: Vec<Vec<PlanChoices>> = Vec::new();
    if int8 {
        let body = |class| class != TensorClass::Head;
        let sensitive = |class| matches!(class, TensorClass::Qkv | TensorClass::Down);
        let widest = wide_bytes(&best, &shape, 256, body);
        let finer = wide_bytes(&widest, &shape, 64, sensitive);
        let finest = wide_bytes(&finer, &shape, 64, body);
        let mut precise = finest.clone();
        precise.classes.iter_mut().for_each(|class| {
            (class.activation, class.prefill) = (Activation::I16, Activation::I16);
        });
        lists.push(vec![widest, finer, finest, precise]);
        // The file's own weights as integers: nearly exact, between the two in speed.
        let mut exact = best.clone();
        exact.classes.iter_mut().for_each(|class| {
            (class.activation, class.prefill) = (Activation::Row16, Activation::Row16);
        });
        lists.push(vec![exact]);
    }
    if bf16 {
        let mut other = best.clone();
        other.kv.dtype = KvDtype::Bf16;
        lists.push(vec![other]);
    }
    for list in lists {
        for mut other in list {
            // What an earlier list settled stays.
            if other.kv.dtype == KvDtype::Bf16 {
                other = PlanChoices { kv: other.kv, ..best.clone() };
            }
            let other = other.at(fixed)?;
            if other == best {
                continue;
            }
            let words = format!("{}, keys and values {}", words(&other), other.kv);
            let name = format!("faster as a whole: {words}");
            let known = figures.build.stage(&name).and_then(|detail| detail.parse::<f64>().ok());
            let ratio = match known {
                Some(ratio) => ratio,
                None => {
                    let ratio = faster_as_a_whole(bench, &best, &other)?;
                    let event = BuildEvent::Stage { name, detail: ratio.to_string() };
                    figures.ledger.record_build(&figures.build.id, &event)?;
                    ratio
                }
            };
            eprintln!("formats: {words}: {ratio:.2} times the speed of the workload");
            if ratio < WORTH_ALL {
                break;
            }
            if judged(bench, &other, scales, bound, figures, &mut tell)?.0 {
                best = other;
                break;
            }
        }
    }
    Ok(best)
}

/// The same with 8-bit weights in the widest groups of whole tiles, up to `most`, and 15-bit rows, for classes that are `wanted`.
fn wide_bytes(
    from: &PlanChoices,
    shape: &ModelShape,
    most: u32,
    wanted: impl Fn(TensorClass) -> bool,
) -> PlanChoices {
    let mut other = from.clone();
    for (class, choice) in TensorClass::ALL.into_iter().zip(&mut other.classes) {
        let k = emit::choices::input_width(shape, class);
        let group = [256, 192, 128, 64].into_iter().find(|group| *group <= most && k.is_multiple_of(*group));
        if let Some(group) = group.filter(|_| wanted(class)) {
            let format = WeightFormat::Affine { bits: 8, group, zero: Zero::Stored };
            choice.weight = WeightLayout { format, n_block: choice.weight.n_block };
            choice.activation = Activation::I16;
            choice.prefill = Activation::I16;
        }
    }
    other
}

/// How much faster `other` serves the workload than `one`, by fixed step replays, interleaved: ratio of the best of each.
fn faster_as_a_whole(bench: &mut Bench<'_>, one: &PlanChoices, other: &PlanChoices) -> Result<f64> {
    let (mut first, mut second) = (None, None);
    let folders =
        [started(&mut first, bench, one)?.to_owned(), started(&mut second, bench, other)?.to_owned()];
    let alone = judge::Lane::of_machine().enter()?;
    let mut best = [f64::INFINITY; 2];
    for _ in 0..WHOLE_ROUNDS {
        for (best, folder) in best.iter_mut().zip(&folders) {
            *best = best.min(bench.replay_cost(folder)?);
        }
    }
    drop(alone);
    for folder in folders {
        let _ = std::fs::remove_dir_all(&folder);
    }
    Ok(best[0] / best[1])
}

/// Interleaved rounds of that comparison.
const WHOLE_ROUNDS: usize = 3;

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

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(hidden: u32, ffn: u32) -> ModelShape {
        ModelShape {
            architecture: "llama".to_owned(),
            layers: 2,
            hidden,
            heads: 9,
            kv_heads: 3,
            head_dim: 64,
            ffn,
            vocab: 1000,
            context: 512,
            rms_eps: 1e-5,
            qkv_bias: false,
            qk_norm: false,
            tied_embeddings: true,
            sliding_window: None,
        }
    }

    /// Groups are whole tiles that divide the row, the widest within the bound; classes without one, and unwanted ones, stay.
    #[test]
    fn wide_groups_divide_the_rows() {
        let shape = shape(576, 1568);
        let start = PlanChoices::start(&shape, &[None; 5]);
        let wide = wide_bytes(&start, &shape, 256, |class| class != TensorClass::Head);
        let words = |choices: &PlanChoices, class| choices.class(class).weight.to_string();
        assert_eq!(words(&wide, TensorClass::Qkv), "u8g192mb16");
        assert_eq!(wide.class(TensorClass::Qkv).activation, Activation::I16);
        // 1568 is a multiple of 32 alone.
        assert_eq!(wide.class(TensorClass::Down), start.class(TensorClass::Down));
        assert_eq!(wide.class(TensorClass::Head), start.class(TensorClass::Head));
        let finer = wide_bytes(&wide, &shape, 64, |class| class == TensorClass::Output);
        assert_eq!(words(&finer, TensorClass::Output), "u8g64mb16");
        assert_eq!(finer.class(TensorClass::Qkv), wide.class(TensorClass::Qkv));
    }
}
