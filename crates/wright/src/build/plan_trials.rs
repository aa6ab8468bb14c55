//! The plan search's view of this machine: costs, replays, and trials of whole engines.

use super::engines::{self, Bench};
use super::evaluator::JudgeEvaluator;
use super::{Site, formats, tasks};
use crate::goal::Goal;
use crate::trial::driver::{EngineFault, Mode, Trial, WorkloadSamples};
use crate::trial::quality::{Quality, Scales};
use anyhow::{Result, anyhow};
use emit::PlanChoices;
use evidence::{
    Candidate, Change, Content, Decision, Digest, Evidence, Fault, Id, Measured, Outcome, Phase, Point,
    Protocol, Reason, Rejection, Samples, Stop, Verdict,
};
use judge::{Lane, MeasuredCeilings};
use ledger::{Fold, Ledger, Options};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;
use swarm::{Evaluation, EvaluatorError, Meter, PlanTrials, Proposal, Settings, Standing, Swarm};

/// Version of the engine trials' protocol and rule.
pub const PROTOCOL: &str = "engine-trial/1";

/// Rounds of a paired trial; each has one run of every concurrency on both sides.
const ROUNDS: usize = 3;

/// Share of the processors' time that others may have during a trial: pairs are interleaved, so it costs power.
const FOREIGN: f64 = 0.6;

/// Samples by name.
type Series = BTreeMap<String, Vec<f64>>;

/// What engine evidence names beside its samples.
pub struct Provenance {
    pub machine: Digest,
    /// Digest of the run's secret.
    pub secret: Digest,
    pub toolchain: String,
    /// Of the build: prompts follow from it.
    pub seed: u64,
}

impl Provenance {
    /// Of a run.
    pub fn new(site: &Site, secret: Digest) -> Self {
        Self {
            machine: site.machine.id().digest(),
            secret,
            toolchain: site.builder.toolchain().version().to_owned(),
            seed: site.seed,
        }
    }

    /// Of evidence that was measured by a version of a protocol.
    pub fn protocol(&self, version: &str, layers: Vec<String>) -> Protocol {
        Protocol {
            version: version.to_owned(),
            seed: Digest::of(format!("{version} prompts {}", self.seed).as_bytes()).to_string(),
            secret_digest: self.secret,
            corpus: "none".to_owned(),
            layers,
            toolchain: self.toolchain.clone(),
        }
    }
}

/// Trials of engines.
pub struct Trials<'a, 'b> {
    pub bench: &'a mut Bench<'b>,
    pub reference: PlanChoices,
    pub goal: &'a Goal,
    pub scales: &'a mut Scales,
    pub evaluator: &'a mut JudgeEvaluator,
    pub ceilings: &'a MeasuredCeilings,
    pub ledger_url: String,
    /// What the ledger says, as of the last look.
    pub fold: Fold,
    pub provenance: &'a Provenance,
    pub prompts: Vec<Vec<u32>>,
    pub known: BTreeMap<Id<Candidate>, Vec<Evidence>>,
    /// Latest moment for kernels of other plans.
    pub until: Instant,
}

impl Trials<'_, '_> {
    /// Reads what came to the ledger since the last look.
    fn catch_up(&mut self) -> Result<()> {
        let ledger = self.open()?;
        self.fold.catch_up(&*ledger)?;
        Ok(())
    }

    fn open(&self) -> Result<Box<dyn Ledger>> {
        Ok(ledger::open(Some(&self.ledger_url), Options::read_write())?)
    }

    fn choices(&self, point: &Point) -> Result<PlanChoices> {
        Ok(self.reference.at(point)?)
    }

    /// Kernels of a plan, judged: what the ledger lacks gets its first candidates.
    fn judged(&mut self, choices: &PlanChoices) -> Result<Option<engines::Chosen>> {
        let planned = self.bench.tasks(choices)?;
        self.catch_up()?;
        if let Some(found) = engines::champions(&self.fold, &planned)? {
            return Ok(Some(found));
        }
        let now = Instant::now();
        if now >= self.until {
            return Ok(None);
        }
        let mut ledger = self.open()?;
        let fresh: Vec<_> = planned
            .iter()
            .filter(|p| self.fold.champions.get(judge::task_id(&p.task)).is_none())
            .cloned()
            .collect();
        self.evaluator.extend(tasks::by_id(&fresh));
        let specs = fresh.iter().map(|p| tasks::spec(p, self.ceilings, Vec::new())).collect();
        let mut swarm = Swarm::open(specs, Settings::new(self.provenance.seed), &mut *ledger)?;
        // The baseline and two more for each task: the transferred champion of the neighbour, and a start point.
        let budget =
            swarm::Budget { wall: Some(self.until - now), evaluations: Some(3 * fresh.len() as u64) };
        let mut meter = Meter::new(budget, Default::default());
        let start = Instant::now();
        let mut clock = || start.elapsed();
        swarm::run(&mut swarm, self.evaluator, &mut *ledger, &mut meter, &mut clock, 3, None, &mut |_| {})?;
        self.catch_up()?;
        engines::champions(&self.fold, &planned)
    }

    /// Exactly the engine that a candidate names.
    fn bundle(&mut self, point: &Point, kernels: &BTreeMap<String, Id<Candidate>>) -> Result<PathBuf> {
        let choices = self.choices(point)?;
        let planned = self.bench.tasks(&choices)?;
        self.catch_up()?;
        let chosen = engines::named(&self.fold, &planned, kernels)?;
        self.bench.bundle(&choices, &chosen)
    }

    fn judge_engine(&mut self, proposal: &Proposal, standing: &Standing) -> Result<Evaluation> {
        let Change::Plan { choices, kernels } = &proposal.candidate.change else {
            return Err(anyhow!("the candidate is no plan"));
        };
        let champion = standing.champion.as_ref().map(|c| (c.id(), &c.change));
        let outcome = self.outcome((choices, kernels), champion.map(|c| c.1));
        let (outcome, layers) = match outcome {
            Ok(done) => done,
            Err(error) => {
                let detail = format!("{error:#}");
                let stop = match error.is::<EngineFault>() {
                    // A composed engine that does not run is the plan's fault; all else is ours or the machine's.
                    true => Stop::Rejected(Rejection { reason: Reason::Crash, detail }),
                    false => Stop::Inconclusive { fault: Fault::Host, detail },
                };
                (Outcome::Stopped(stop), Vec::new())
            }
        };
        let seen = Evidence {
            candidate: proposal.id,
            against: champion.map(|c| c.0),
            phase: Phase::Confirm,
            protocol: self.provenance.protocol(PROTOCOL, layers),
            machine: self.provenance.machine,
            outcome,
        };
        let decision = rule(proposal, champion.map(|c| c.0), &seen);
        self.known.entry(proposal.id).or_default().push(seen.clone());
        Ok(Evaluation { evidence: vec![seen], decision })
    }

    fn outcome(
        &mut self,
        (choices, kernels): (&Point, &BTreeMap<String, Id<Candidate>>),
        champion: Option<&Change>,
    ) -> Result<(Outcome, Vec<String>)> {
        if kernels.is_empty() {
            let detail = "its kernels could not be judged in the time left".to_owned();
            return Ok((Outcome::Stopped(Stop::Inconclusive { fault: Fault::Budget, detail }), Vec::new()));
        }
        let ours = self.bundle(choices, kernels)?;
        let quality = self.scales.screen.measure(&ours, "champion")?;
        if let Some(stop) = below(&quality, self.goal) {
            return Ok((Outcome::Stopped(stop), Vec::new()));
        }
        let theirs = match champion {
            Some(Change::Plan { choices, kernels }) => Some(self.bundle(choices, kernels)?),
            _ => None,
        };
        let mut mine = Trial::start(&ours, "champion", Mode::Engine)?;
        let mut other = theirs.as_ref().map(|b| Trial::start(b, "champion", Mode::Engine)).transpose()?;
        let layers = mine.layers.clone();
        let pids: Vec<u32> = [Some(&mine), other.as_ref()].into_iter().flatten().map(Trial::pid).collect();
        let alone = Lane::of_machine().enter()?;
        let (measured, foreign) =
            judge::disturbance::while_running(&pids, || self.rounds(&mut mine, other.as_mut()));
        drop(alone);
        let (series, against) = measured?;
        if let Some(share) = foreign.filter(|share| *share > FOREIGN) {
            let detail = format!("others had {:.0} % of the processors' time", 100.0 * share);
            return Ok((Outcome::Stopped(Stop::Inconclusive { fault: Fault::Disturbed, detail }), layers));
        }
        drop((mine, other));
        let confirmed = self.scales.confirm(&quality, &ours, "champion")?;
        if let Some(stop) = below(&confirmed, self.goal) {
            return Ok((Outcome::Stopped(stop), layers));
        }
        let plan = std::fs::read(ours.join("plan.json"))?;
        let check = confirmed.summary(self.goal.constraints.max_kl);
        let samples = Samples::Series { series, champion: against };
        let measured = Measured { artifact: Digest::of(&plan), check, samples };
        Ok((Outcome::Measured(measured), layers))
    }

    /// Both engines in turn under the workload, ours alone where there is no other.
    fn rounds(&self, mine: &mut Trial, mut other: Option<&mut Trial>) -> Result<(Series, Series)> {
        let (mut series, mut against) = (Series::new(), Series::new());
        let rounds = if other.is_some() { ROUNDS } else { 2 };
        for round in 0..rounds {
            for &c in &self.goal.workload.concurrency {
                let key = format!("tokens_per_s_c{c}");
                let first_ours = round % 2 == 0;
                for ours_now in [first_ours, !first_ours] {
                    let (trial, into) = match (ours_now, other.as_mut()) {
                        (true, _) => (&mut *mine, &mut series),
                        (false, Some(trial)) => (&mut **trial, &mut against),
                        (false, None) => continue,
                    };
                    let got = self.requests(trial, c, round)?;
                    into.entry(key.clone()).or_insert_with(Vec::new).push(got.tokens_per_s());
                }
            }
        }
        Ok((series, against))
    }

    fn requests(&self, trial: &mut Trial, concurrency: u32, round: usize) -> Result<WorkloadSamples> {
        let c = concurrency as usize;
        // Other prompts in each round; both sides get the same.
        let prompts: Vec<Vec<u32>> =
            (0..c).map(|i| self.prompts[(round * 37 + i) % self.prompts.len()].clone()).collect();
        trial.workload(&prompts, self.goal.workload.output_tokens, c)
    }
}

fn below(quality: &Quality, goal: &Goal) -> Option<Stop> {
    (!formats::holds(quality, &goal.constraints)).then(|| {
        Stop::Rejected(Rejection {
            reason: Reason::Quality,
            detail: format!(
                "KL {:.5} (bound {}), top-1 {:.4} (bound {})",
                quality.kl, goal.constraints.max_kl, quality.top1, goal.constraints.min_top1
            ),
        })
    })
}

/// Decides on an engine: pure. Every (round, concurrency) is one pair; the geometric mean must be better by 1 %, and
/// the interval must lie above 1.
fn rule(proposal: &Proposal, champion: Option<Id<Candidate>>, seen: &Evidence) -> Decision {
    let verdict = match &seen.outcome {
        Outcome::Stopped(Stop::Rejected(_)) => Verdict::Refuse,
        Outcome::Stopped(Stop::Inconclusive { .. }) => Verdict::Evaluate(Phase::Confirm),
        Outcome::Measured(m) => match (&m.samples, champion) {
            (Samples::Series { series, champion: theirs }, Some(_)) => {
                let mine: Vec<f64> = series.values().flatten().copied().collect();
                let other: Vec<f64> = theirs.values().flatten().copied().collect();
                match statistics::Pairs::of_rates(&other, &mine) {
                    Ok(pairs) => {
                        let effect = pairs.effect(0.95, 1);
                        if effect.low > 1.0 && effect.ratio >= 1.01 {
                            Verdict::Promote(Some(effect))
                        } else {
                            Verdict::Keep(effect)
                        }
                    }
                    Err(_) => Verdict::Refuse,
                }
            }
            _ => Verdict::Promote(None),
        },
    };
    Decision {
        task: proposal.task,
        champion,
        challenger: proposal.id,
        read: vec![seen.id()],
        verdict,
        rule: "engine-pairs/1".to_owned(),
        lesson: None,
    }
}

impl PlanTrials for Trials<'_, '_> {
    fn cost(&mut self, point: &Point) -> Option<f64> {
        let choices = self.choices(point).ok()?;
        let planned = self.bench.tasks(&choices).ok()?;
        let base = self.bench.tasks(&self.reference).ok()?;
        let fold = &self.fold;
        let barrier = self.ceilings.barrier_ns(self.bench.target.threads).unwrap_or(0.0);
        let mut sum = 0.0;
        for p in &planned {
            // Kernels that nobody searched yet are guessed to be like their neighbour, a little slower; those without a
            // neighbour to reach half of what the machine allows.
            let like = || {
                let twin = base.iter().find(|b| b.name == p.name && b.task.rows == p.task.rows)?;
                champion_ns(fold, twin).map(|ns| ns * 1.02)
            };
            let guess = || {
                let t = &p.task;
                let floor = self.ceilings.floor_ns(&t.operation, t.high(), t.context, t.target.threads);
                (floor > 0.0).then_some(2.0 * floor)
            };
            let ns = champion_ns(fold, p).or_else(like).or_else(guess)?;
            sum += p.calls * (ns + barrier) / 1e6;
        }
        Some(sum)
    }

    fn kernels(&mut self, point: &Point) -> BTreeMap<String, Id<Candidate>> {
        let found = self.catch_up().and_then(|()| self.choices(point)).and_then(|c| {
            let planned = self.bench.tasks(&c)?;
            engines::champions(&self.fold, &planned)
        });
        found.ok().flatten().map(|chosen| engines::candidate_ids(&chosen)).unwrap_or_default()
    }

    fn replay(&mut self, point: &Point) -> Result<Option<f64>, EvaluatorError> {
        let choices = self.choices(point)?;
        let Some(chosen) = self.judged(&choices)? else { return Ok(None) };
        let bundle = self.bench.bundle(&choices, &chosen)?;
        let cost = {
            let _alone = Lane::of_machine().enter().map_err(anyhow::Error::from)?;
            self.bench.replay_cost(&bundle)
        };
        let _ = std::fs::remove_dir_all(&bundle);
        match cost {
            Ok(cost) => Ok(Some(cost)),
            // An engine that does not run is not worth a trial; a host that fails is told.
            Err(error) if error.is::<EngineFault>() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn trial(&mut self, proposal: &Proposal, standing: &Standing) -> Result<Evaluation, EvaluatorError> {
        self.judge_engine(proposal, standing).map_err(Into::into)
    }
}

/// Median time of a call of a task's champion at the bucket's upper end, nanoseconds.
pub fn champion_ns(fold: &Fold, planned: &tasks::PlannedTask) -> Option<f64> {
    let champion = fold.champions.get(judge::task_id(&planned.task))?;
    last_ns(fold, champion)
}

/// Median time of a call by a candidate's latest measured evidence.
pub fn last_ns(fold: &Fold, candidate: Id<Candidate>) -> Option<f64> {
    fold.evidence_of(candidate).iter().rev().find_map(|s| match &s.evidence.outcome {
        Outcome::Measured(m) => match &m.samples {
            Samples::Paired { challenger_ns, .. } => statistics::median(challenger_ns),
            Samples::Single { ns, .. } => statistics::median(ns),
            Samples::Series { .. } => None,
        },
        Outcome::Stopped(_) => None,
    })
}
