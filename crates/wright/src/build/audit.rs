//! The audit: leave one accepted kernel out, replay, and drop what does not pay.

use super::engines::{Bench, Chosen, champions};
use super::tasks::PlannedTask;
use crate::assemble::Recipe;
use crate::summary::Audit;
use crate::trial::driver::{Mode, Trial};
use anyhow::Result;
use emit::PlanChoices;
use evidence::Change;
use ledger::Fold;
use std::time::Instant;
use swarm::{EvaluatorError, Pays, leave_one_out};

/// An accepted kernel, and the champion that it replaced.
#[derive(Clone, Debug)]
struct Part {
    key: (String, u32),
    rows: u32,
    before: Recipe,
}

impl PartialEq for Part {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

/// Interleaved rounds of a comparison.
const ROUNDS: usize = 6;

/// Audits the kernels that replaced one of the same class, those of small effect first, until `until`.
pub fn run(
    bench: &mut Bench<'_>,
    choices: &PlanChoices,
    fold: &Fold,
    until: Instant,
) -> Result<(Chosen, Vec<Audit>)> {
    let planned = bench.tasks(choices)?;
    let Some(all) = champions(fold, &planned)? else { anyhow::bail!("a task has no champion to audit") };
    let parts = parts(fold, &planned, &all);
    let mut rows = Vec::new();
    let mut kept = all.clone();
    let mut without = |standing: &[Part], part: &Part| -> std::result::Result<Option<Pays>, EvaluatorError> {
        if Instant::now() >= until {
            return Ok(None);
        }
        let mut with = all.clone();
        for p in &parts {
            if !standing.contains(p) {
                with.insert(p.key.clone(), p.before.clone());
            }
        }
        let mut less = with.clone();
        less.insert(part.key.clone(), part.before.clone());
        let pays = compare(bench, choices, &with, &less, part.rows)?;
        let (verdict, ratio) = match &pays {
            Pays::Yes(e) => ("pays", e.ratio),
            Pays::No(e) => ("does not pay: dropped", e.ratio),
            Pays::Unclear(e) => ("unclear: stays", e.ratio),
            Pays::Needed(_) => ("needed", 1.0),
        };
        rows.push(Audit {
            part: format!("{} rows {}+", part.key.0, part.key.1),
            verdict: verdict.to_owned(),
            ratio: Some(ratio),
        });
        Ok(Some(pays))
    };
    let audit = leave_one_out(&parts, &mut without).map_err(|e| anyhow::anyhow!("audit: {e}"))?;
    for line in audit.lines.iter().filter(|l| l.is_dropped()) {
        kept.insert(line.part.key.clone(), line.part.before.clone());
    }
    Ok((kept, rows))
}

fn parts(fold: &Fold, planned: &[PlannedTask], chosen: &Chosen) -> Vec<Part> {
    let mut parts: Vec<(f64, Part)> = Vec::new();
    for p in planned {
        let id = judge::task_id(&p.task);
        let history = fold.champions.history(id);
        let (Some(now), Some(before)) = (history.last(), history.iter().rev().nth(1)) else { continue };
        let Some(Change::Recipe { generator, point, .. }) =
            fold.candidates.get(&before.champion).map(|c| &c.change)
        else {
            continue;
        };
        let same_class = crate::assemble::generator(generator)
            .is_ok_and(|g| g.numeric_class(&p.task.operation) == p.task.class);
        let key = (p.name.clone(), p.task.rows.low);
        let Some(current) = chosen.get(&key).filter(|_| same_class) else { continue };
        let recipe = Recipe {
            generator: generator.clone(),
            point: point.clone(),
            candidate: Some(before.champion.to_string()),
            decision: Some(before.decision.to_string()),
            ..current.clone()
        };
        let effect = now.effect.map_or(1.0, |e| e.ratio);
        parts.push((effect, Part { key, rows: p.task.high(), before: recipe }));
    }
    parts.sort_by(|a, b| a.0.total_cmp(&b.0));
    parts.into_iter().map(|(_, p)| p).collect()
}

/// Decode passes at the part's rows (prefill for the open bucket), both engines in turn.
fn compare(
    bench: &mut Bench<'_>,
    choices: &PlanChoices,
    with: &Chosen,
    less: &Chosen,
    rows: u32,
) -> Result<Pays> {
    let (a, b) = (bench.bundle(choices, with)?, bench.bundle(choices, less)?);
    let mut with = Trial::start(&a, "champion", Mode::Executor)?;
    let mut less = Trial::start(&b, "champion", Mode::Executor)?;
    let rows = rows.min(choices.batching.max_sequences);
    let passes = (16 / rows).max(3);
    let (mut x, mut y) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        if round % 2 == 0 {
            x.push(bench.decode_ms(&mut with, rows, passes)?);
            y.push(bench.decode_ms(&mut less, rows, passes)?);
        } else {
            y.push(bench.decode_ms(&mut less, rows, passes)?);
            x.push(bench.decode_ms(&mut with, rows, passes)?);
        }
    }
    drop((with, less));
    for folder in [a, b] {
        let _ = std::fs::remove_dir_all(folder);
    }
    // How much better the engine is with the part.
    let effect = statistics::Pairs::of_costs(&y, &x)?.effect(0.9, 1);
    Ok(if effect.low > 1.0 {
        Pays::Yes(effect)
    } else if effect.high < 1.0 {
        Pays::No(effect)
    } else {
        Pays::Unclear(effect)
    })
}
