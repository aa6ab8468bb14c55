//! The audit: leave one accepted part out of the engine, run fixed passes of both, and find what does not pay. What it
//! finds is a proposal: the engine without those parts is tried like any other.

use super::engines::{self, Bench, Chosen};
use crate::summary::Audit;
use crate::trial::driver::{Mode, Trial};
use crate::trial::protocol::ReplayKind;
use anyhow::Result;
use emit::PlanChoices;
use evidence::{Candidate, Id, Point};
use judge::Lane;
use ledger::Fold;
use plan::{Batching, RowBucket};
use std::collections::BTreeMap;
use std::time::Instant;
use swarm::{EvaluatorError, Pays, leave_one_out};

/// An engine by its choices and kernels, as a plan candidate names it.
#[derive(Clone, Debug, PartialEq)]
pub struct Engine {
    pub choices: Point,
    pub kernels: BTreeMap<String, Id<Candidate>>,
}

/// Something that was accepted, and what it replaced.
#[derive(Clone, Debug, PartialEq)]
enum Part {
    /// The kernel of an operation for a bucket of rows.
    Kernel { name: String, rows: RowBucket, before: Id<Candidate> },
    /// A choice of the plan.
    Choice { axis: String, before: String },
}

impl std::fmt::Display for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Kernel { name, rows, .. } => write!(f, "{name} rows {rows}"),
            Self::Choice { axis, before } => write!(f, "{axis} (instead of {before})"),
        }
    }
}

/// Verdict on a part that the engine is better without.
pub const USELESS: &str = "does not pay";

/// Interleaved rounds of a comparison.
const ROUNDS: usize = 6;

/// What an audit needs of the build.
pub struct Auditor<'a, 'b> {
    pub bench: &'a mut Bench<'b>,
    pub fold: &'a Fold,
    /// Choices that a point of the plan space changes.
    pub base: &'a PlanChoices,
    /// Where the plan search began.
    pub reference: &'a Point,
    pub engine: &'a Engine,
}

impl Auditor<'_, '_> {
    /// Audits choices that differ from the search's start, and kernels that replaced one of the same class, those of small
    /// effect first, until `until`. Returns the engine without what does not pay, if that is another one.
    pub fn run(&mut self, until: Instant) -> Result<(Option<Engine>, Vec<Audit>)> {
        let parts = self.parts()?;
        let mut rows = Vec::new();
        let mut without =
            |standing: &[Part], part: &Part| -> std::result::Result<Option<Pays>, EvaluatorError> {
                if Instant::now() >= until {
                    return Ok(None);
                }
                let left: Vec<Part> = standing.iter().filter(|p| *p != part).cloned().collect();
                let with = self.variant(&parts, standing)?;
                let less = self.variant(&parts, &left)?;
                let (verdict, ratio, pays) = match self.compare(part, with, less)? {
                    Some(effect) if effect.low > 1.0 => ("pays", Some(effect.ratio), Pays::Yes(effect)),
                    Some(effect) if effect.high < 1.0 => (USELESS, Some(effect.ratio), Pays::No(effect)),
                    Some(effect) => ("unclear: stays", Some(effect.ratio), Pays::Unclear(effect)),
                    None => ("not audited", None, Pays::Needed("no pass runs it by itself".into())),
                };
                rows.push(line(part, verdict, ratio));
                Ok(Some(pays))
            };
        let audit = leave_one_out(&parts, &mut without).map_err(|e| anyhow::anyhow!("audit: {e}"))?;
        for part in &audit.unaudited {
            rows.push(line(part, "not audited: no time left", None));
        }
        if audit.lines.iter().all(|l| !l.is_dropped()) {
            return Ok((None, rows));
        }
        let (choices, kernels) = match self.variant(&parts, &audit.kept)? {
            Some((choices, chosen)) => (choices, engines::candidate_ids(&chosen)),
            None => return Ok((None, rows)),
        };
        Ok((Some(Engine { choices, kernels }), rows))
    }

    fn parts(&self) -> Result<Vec<Part>> {
        let choices = self.base.at(&self.engine.choices)?;
        let mut parts: Vec<(f64, Part)> = Vec::new();
        for (axis, value) in &self.engine.choices.0 {
            if let Some(before) = self.reference.get(axis).filter(|b| b != value) {
                parts.push((0.0, Part::Choice { axis: axis.clone(), before: before.to_owned() }));
            }
        }
        for p in self.bench.tasks(&choices)? {
            let key = engines::kernel_name(&p.name, p.task.rows.low);
            let Some(now) = self.engine.kernels.get(&key) else { continue };
            let history = self.fold.champions.history(judge::task_id(&p.task));
            let Some(at) = history.iter().rposition(|r| r.champion == *now) else { continue };
            let Some(before) = at.checked_sub(1).and_then(|i| history.get(i)) else { continue };
            let recipe = engines::judged_recipe(self.fold, &p, before.champion)?;
            let same_class = crate::assemble::generator(&recipe.generator)
                .is_ok_and(|g| g.numeric_class(&p.task.operation) == p.task.class);
            if same_class {
                let effect = history[at].effect.map_or(1.0, |e| e.ratio);
                let part = Part::Kernel { name: p.name, rows: p.task.rows, before: before.champion };
                parts.push((effect, part));
            }
        }
        parts.sort_by(|a, b| a.0.total_cmp(&b.0));
        Ok(parts.into_iter().map(|(_, p)| p).collect())
    }

    /// The engine in which of `parts` only those of `standing` stand; `None` if the ledger lacks kernels for it.
    fn variant(&self, parts: &[Part], standing: &[Part]) -> Result<Option<(Point, Chosen)>> {
        let mut choices = self.engine.choices.clone();
        let mut kernels = self.engine.kernels.clone();
        for part in parts.iter().filter(|p| !standing.contains(p)) {
            match part {
                Part::Choice { axis, before } => choices = choices.with(axis, before.clone()),
                Part::Kernel { name, rows, before } => {
                    kernels.insert(engines::kernel_name(name, rows.low), *before);
                }
            }
        }
        let own = self.bench.tasks(&self.base.at(&self.engine.choices)?)?;
        let planned = self.bench.tasks(&self.base.at(&choices)?)?;
        if planned.len() == own.len() && planned.iter().zip(&own).all(|(a, b)| a.task == b.task) {
            return Ok(Some((choices, engines::named(self.fold, &planned, &kernels)?)));
        }
        // Other operations (another KV layout, other fusion): their champions, and our kernels for what stayed the same.
        let Some(mut chosen) = engines::champions(self.fold, &planned)? else { return Ok(None) };
        let ours = engines::named(self.fold, &own, &kernels)?;
        for p in planned.iter().filter(|p| own.iter().any(|o| o.name == p.name && o.task == p.task)) {
            let key = (p.name.clone(), p.task.rows.low);
            if let Some(recipe) = ours.get(&key) {
                chosen.insert(key, recipe.clone());
            }
        }
        Ok(Some((choices, chosen)))
    }

    /// How much better the engine is with the part, by passes that run it; `None` if there is no such pass.
    fn compare(
        &mut self,
        part: &Part,
        with: Option<(Point, Chosen)>,
        less: Option<(Point, Chosen)>,
    ) -> Result<Option<evidence::Effect>> {
        let (Some(with), Some(less)) = (with, less) else { return Ok(None) };
        let batching = self.base.at(&with.0)?.batching;
        let pass = match part {
            Part::Kernel { name, rows, .. } => match pass_of(name, *rows, &batching) {
                Some(pass) => Some(pass),
                None => return Ok(None),
            },
            Part::Choice { .. } => None,
        };
        let mut sides = Vec::new();
        for (point, chosen) in [with, less] {
            let bundle = self.bench.bundle(&self.base.at(&point)?, &chosen)?;
            let trial = Trial::start(&bundle, "champion", Mode::Executor)?;
            sides.push((bundle, trial, Vec::new()));
        }
        let alone = Lane::of_machine().enter()?;
        for round in 0..ROUNDS {
            for side in [round % 2, 1 - round % 2] {
                let (bundle, trial, times) = &mut sides[side];
                times.push(match pass {
                    Some((kind, rows)) => self.bench.pass_ms(trial, kind, rows, (16 / rows).max(3))?,
                    None => self.bench.replay_cost(bundle)?,
                });
            }
        }
        drop(alone);
        let effect = statistics::Pairs::of_costs(&sides[1].2, &sides[0].2)?.effect(0.9, 1);
        for (bundle, trial, _) in sides {
            drop(trial);
            let _ = std::fs::remove_dir_all(bundle);
        }
        Ok(Some(effect))
    }
}

fn line(part: &Part, verdict: &str, ratio: Option<f64>) -> Audit {
    Audit { part: part.to_string(), verdict: verdict.to_owned(), ratio, ..Audit::default() }
}

/// A pass whose rows lie in the bucket: decode where that many sequences fit, else a prompt's first rows, which the head
/// does not see; of prompts alone for what only prompts run.
fn pass_of(name: &str, rows: RowBucket, batching: &Batching) -> Option<(ReplayKind, u32)> {
    let decode = rows.high.min(batching.max_sequences);
    if rows.contains(decode) && !name.starts_with(emit::compose::name::PREFILL) {
        return Some((ReplayKind::Decode, decode));
    }
    let chunk = rows.high.min(batching.prefill_chunk);
    (rows.contains(chunk) && name != emit::compose::name::HEAD).then_some((ReplayKind::Prefill, chunk))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_compared_in_a_pass_that_runs_it() {
        let batching =
            |prefill_chunk| Batching { max_sequences: 32, max_rows: 256, prefill_chunk, kv_tokens: 4096 };
        for rows in RowBucket::ALL {
            let (kind, n) = pass_of("qkv", rows, &batching(128)).expect("all buckets are reached");
            assert!(rows.contains(n), "{rows}: {n}");
            assert_eq!(kind == ReplayKind::Prefill, rows.low > 32, "{rows}");
        }
        let few = RowBucket { low: 1, high: 32 };
        assert_eq!(pass_of("prefill_qkv", few, &batching(128)), Some((ReplayKind::Prefill, 32)));
        let open = RowBucket::ALL[RowBucket::ALL.len() - 1];
        assert_eq!(pass_of(emit::compose::name::HEAD, open, &batching(128)), None);
        assert_eq!(pass_of("qkv", open, &batching(16)), None);
    }
}
