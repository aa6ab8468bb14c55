//! The format stage: which arithmetic keeps the quality bound. Quality depends on formats and numeric classes, not on
//! how kernels are tiled, so it is settled with the generators' start points before kernels are searched.

use super::engines::{Bench, start_recipes};
use crate::goal::Constraints;
use crate::trial::quality::{Quality, Scales};
use anyhow::{Result, bail};
use emit::{PlanChoices, TensorClass};
use plan::Activation;

/// Classes in the order of how much their 8-bit activations cost (docs/numerics.md): the first is raised first.
const SENSITIVITY: [TensorClass; 5] =
    [TensorClass::Qkv, TensorClass::GateUp, TensorClass::Head, TensorClass::Down, TensorClass::Output];

/// The first choices, from `start` on, that keep the bound on the screening text and then on the confirming one.
pub fn settle(
    bench: &mut Bench<'_>,
    start: &PlanChoices,
    scales: &mut Scales,
    bound: &Constraints,
    mut tell: impl FnMut(&str, &Quality),
) -> Result<(PlanChoices, Quality)> {
    let mut choices = start.clone();
    let mut raised = 0;
    loop {
        let tasks = bench.tasks(&choices)?;
        let bundle = bench.bundle(&choices, &start_recipes(&tasks)?)?;
        let screened = scales.screen.measure(&bundle, "champion")?;
        let words: Vec<String> = TensorClass::ALL
            .iter()
            .zip(&choices.classes)
            .map(|(c, k)| format!("{} {} {:?}", c.name(), k.weight, k.activation))
            .collect();
        tell(&words.join(", "), &screened);
        let mut quality = screened;
        if holds(&screened, bound) {
            quality = scales.confirm(&screened, &bundle, "champion")?;
            tell("confirmed on the other text", &quality);
        }
        let _ = std::fs::remove_dir_all(&bundle);
        if holds(&quality, bound) {
            return Ok((choices, quality));
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

/// Whether the bound holds.
pub fn holds(quality: &Quality, bound: &Constraints) -> bool {
    quality.kl <= bound.max_kl && quality.top1 >= bound.min_top1
}
