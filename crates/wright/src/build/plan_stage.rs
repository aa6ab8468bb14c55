//! The plan stage: search over the plan's own choices, audit of the winner, and a trial of what the audit proposes. What
//! comes out is an engine that was judged as a whole, kernel for kernel.

use super::audit::{Auditor, Engine, USELESS};
use super::engines::{self, Bench, Chosen};
use super::evaluator::JudgeEvaluator;
use super::{AUDIT, PLANS, Site, finish, plan_trials, progress};
use crate::summary::Audit;
use crate::trial::quality::Scales;
use anyhow::{Result, bail};
use emit::PlanChoices;
use evidence::{Candidate, Change, Content, Id, Point};
use ledger::{BuildId, Fold, Ledger, Spent};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use swarm::{Budget, Meter, PlanSearch};

/// Where the stage begins.
pub struct Stage<'a> {
    pub site: &'a Site,
    /// Formats and arithmetic, settled by quality.
    pub reference: &'a PlanChoices,
    pub provenance: &'a plan_trials::Provenance,
    /// Wall time of the whole build, and what is spent of it.
    pub budget: Duration,
    pub spent: Spent,
    pub build: &'a BuildId,
}

/// The engine to emit.
pub struct Found {
    pub candidate: Id<Candidate>,
    pub choices: PlanChoices,
    pub chosen: Chosen,
    pub audit: Vec<Audit>,
    /// Of the whole build so far.
    pub evaluations: u64,
}

impl Stage<'_> {
    /// Runs it.
    pub fn run(
        &self,
        bench: &mut Bench<'_>,
        judged: &mut JudgeEvaluator,
        ledger: &mut dyn Ledger,
        scales: &mut Scales,
    ) -> Result<Found> {
        let (site, loaded) = (self.site, bench.loaded);
        let start = Instant::now();
        let spent = Duration::from_millis(self.spent.wall_ms);
        let until = |part: f64| start + self.budget.mul_f64(part).saturating_sub(spent);
        let search = self.search(loaded);
        let mut trials = plan_trials::Trials {
            bench,
            reference: self.reference.clone(),
            goal: &site.goal,
            scales,
            evaluator: judged,
            ceilings: &site.ceilings,
            ledger_url: site.ledger_url.clone(),
            fold: Fold::read(ledger)?,
            provenance: self.provenance,
            prompts: finish::prompts(loaded, &site.goal.workload, 64, site.seed)?,
            known: BTreeMap::new(),
            until: until(PLANS),
        };
        let budget =
            Budget { wall: Some(self.budget.mul_f64(PLANS)), evaluations: site.goal.budget.evaluations };
        let mut meter = Meter::new(budget, self.spent);
        let mut clock = || start.elapsed();
        let mut teller = progress::Teller::new();
        swarm::run_plans(&search, &mut trials, ledger, &mut meter, &mut clock, Some(self.build), &mut |p| {
            teller.plan(p)
        })?;
        let fold = Fold::read(ledger)?;
        let (_, engine) = champion(&fold, &search)?;
        // A last trial may overrun; the audit gets its time nevertheless.
        let deadline = until(1.0).max(Instant::now() + self.budget.mul_f64(AUDIT));
        let mut auditor = Auditor {
            bench: trials.bench,
            fold: &fold,
            base: self.reference,
            reference: &search.reference,
            engine: &engine,
        };
        let (proposal, mut audit) = auditor.run(deadline)?;
        if let Some(Engine { choices, kernels }) = proposal.clone() {
            let useless: Vec<&str> =
                audit.iter().filter(|a| a.verdict == USELESS).map(|a| a.part.as_str()).collect();
            let why = format!("the audit found that these do not pay: {}", useless.join(", "));
            let tell = &mut |p: swarm::plans::PlanProgress<'_>| teller.plan(p);
            let by = ("audit", why);
            swarm::try_plan(&search, &mut trials, ledger, &mut meter, (choices, kernels), by, tell)?;
        }
        let fold = Fold::read(ledger)?;
        let (candidate, engine) = champion(&fold, &search)?;
        // Only a proposal has such verdicts.
        let dropped = proposal.as_ref() == Some(&engine);
        for row in audit.iter_mut().filter(|a| a.verdict == USELESS) {
            row.verdict +=
                if dropped { ": dropped" } else { "; the engine without it was not better: stays" };
        }
        let choices = self.reference.at(&engine.choices)?;
        let chosen = engines::named(&fold, &trials.bench.tasks(&choices)?, &engine.kernels)?;
        Ok(Found { candidate, choices, chosen, audit, evaluations: meter.spent().evaluations })
    }

    fn search(&self, loaded: &crate::portable::Loaded) -> PlanSearch {
        let site = self.site;
        let mut space = PlanChoices::space(&loaded.shape, &loaded.sources);
        // Formats and arithmetic are settled by quality; the goal's fixed axes stay.
        space.axes.retain(|a| !a.name.contains('.') && !site.goal.space.contains_key(&a.name));
        let keep: Vec<String> = space.axes.iter().map(|a| a.name.clone()).collect();
        let only = |p: Point| Point(p.0.into_iter().filter(|(k, _)| keep.contains(k)).collect());
        let start = only(self.reference.point());
        let start = space.project(&start, &start);
        PlanSearch {
            task: finish::engine_task(site, loaded, self.build),
            space,
            reference: start,
            replays: 6,
            finalists: 2,
            quality_axes: vec!["kv".to_owned()],
        }
    }
}

/// The champion engine.
fn champion(fold: &Fold, search: &PlanSearch) -> Result<(Id<Candidate>, Engine)> {
    let id = fold.champions.get(search.task.id());
    match id.and_then(|id| Some((id, &fold.candidates.get(&id)?.change))) {
        Some((id, Change::Plan { choices, kernels })) => {
            Ok((id, Engine { choices: choices.clone(), kernels: kernels.clone() }))
        }
        _ => bail!(
            "no engine was promoted: `wright ledger list` shows what became of them (quality below the bound, a crash, or a \
             machine too busy to judge)"
        ),
    }
}
