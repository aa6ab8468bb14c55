//! The plan level: choices that span operations (formats, KV layout, fusion, chunks, batching) as one space. Ranked by
//! summed step costs, the best few replayed, finalists judged on the whole engine.

use crate::budget::{Clock, Meter};
use crate::error::{EvaluatorError, SwarmError};
use crate::run::{Ended, Evaluation, Standing};
use crate::scheduler::Proposal;
use evidence::{
    Candidate, Change, Content, Entry, Id, Outcome, Point, Proposer, Reason, Space, Stop, Task, Verdict,
};
use ledger::{BuildEvent, BuildId, Fold, Ledger, LedgerError};
use std::collections::{BTreeMap, BTreeSet};

/// Spaces up to this size are ranked whole.
const WHOLE: u64 = 20_000;
/// Width of the beam in larger ones.
const BEAM: usize = 48;
/// Rounds of the beam, a bound on chains of single changes.
const ROUNDS: usize = 64;

/// Choices with their predicted cost (any unit, lower is better).
#[derive(Clone, Debug, PartialEq)]
pub struct Ranked {
    pub choices: Point,
    pub cost: f64,
}

/// The `most` cheapest feasible points by `cost` (`None`: infeasible), cheapest first. Small spaces are ranked whole,
/// larger ones by a beam of single changes from `starts`. Deterministic.
pub fn rank(
    space: &Space,
    starts: &[Point],
    cost: &mut dyn FnMut(&Point) -> Option<f64>,
    most: usize,
) -> Vec<Ranked> {
    let mut known: BTreeMap<Point, Option<f64>> = BTreeMap::new();
    let mut price = |p: &Point, known: &mut BTreeMap<Point, Option<f64>>| {
        *known.entry(p.clone()).or_insert_with(|| cost(p).filter(|c| c.is_finite()))
    };
    if space.size() <= WHOLE {
        for i in 0..space.size() {
            price(&space.nth(i), &mut known);
        }
    } else {
        let mut beam: Vec<Point> = starts.iter().filter(|p| space.contains(p)).cloned().collect();
        for start in &beam {
            price(start, &mut known);
        }
        for _ in 0..ROUNDS {
            let before = known.len();
            for point in &beam {
                for axis in &space.axes {
                    for value in &axis.values {
                        price(&point.with(&axis.name, value.clone()), &mut known);
                    }
                }
            }
            beam = cheapest(&known, BEAM).into_iter().map(|r| r.choices).collect();
            if known.len() == before {
                break;
            }
        }
    }
    cheapest(&known, most)
}

fn cheapest(known: &BTreeMap<Point, Option<f64>>, most: usize) -> Vec<Ranked> {
    let mut ranked: Vec<Ranked> =
        known.iter().filter_map(|(p, c)| Some(Ranked { choices: p.clone(), cost: (*c)? })).collect();
    // Stable: equal costs in the order of the points.
    ranked.sort_by(|a, b| a.cost.total_cmp(&b.cost));
    ranked.truncate(most);
    ranked
}

/// A plan search.
#[derive(Clone, Debug)]
pub struct PlanSearch {
    /// The engine task.
    pub task: Task,
    pub space: Space,
    /// The reference choices: the first champion.
    pub reference: Point,
    /// Points that replays are made of, and finalists among them.
    pub replays: usize,
    pub finalists: usize,
    /// Axes on which quality depends (formats, activations, KV): a plan below the bound excludes all that agree with
    /// it on these.
    pub quality_axes: Vec<String>,
}

/// Composes and measures engines.
pub trait PlanTrials {
    /// Predicted cost: summed step costs and measured barriers. `None`: cannot be composed, or nothing is known of a step.
    fn cost(&mut self, choices: &Point) -> Option<f64>;

    /// The kernel candidates (operation and bucket -> candidate) that an engine with these choices is made of.
    fn kernels(&mut self, choices: &Point) -> BTreeMap<String, Id<Candidate>>;

    /// Measured cost of fixed step replays, in the unit of one replay for all; `None`: it failed or was refused.
    fn replay(&mut self, choices: &Point) -> Result<Option<f64>, EvaluatorError>;

    /// Judges the whole engine under its workload, against the champion.
    fn trial(&mut self, proposal: &Proposal, standing: &Standing) -> Result<Evaluation, EvaluatorError>;
}

/// What happens in a plan search.
#[derive(Clone, Debug)]
pub enum PlanProgress<'a> {
    Ranked { feasible: usize, best: Option<&'a Ranked> },
    Replayed { choices: &'a Point, cost: Option<f64> },
    Tried { choices: &'a Point, verdict: &'a Verdict },
}

/// Runs a plan search: reference first, then replays of the best by predicted cost, then the best by replay as
/// finalists. A plan that falls below the quality bound excludes all that agree with it on the quality axes, and the
/// ranking starts over without them. Candidates with a final decision in the ledger are not tried again, so a killed
/// search resumes.
pub fn run_plans(
    search: &PlanSearch,
    trials: &mut dyn PlanTrials,
    ledger: &mut dyn Ledger,
    meter: &mut Meter,
    clock: Clock<'_>,
    build: Option<&BuildId>,
    progress: &mut dyn FnMut(PlanProgress<'_>),
) -> Result<Ended, SwarmError> {
    ledger.append(&Entry::Posed(search.task.clone()))?;
    let task = search.task.id();
    let fold = Fold::read(ledger)?;
    let mut session = Session { search, trials, ledger, meter, fold, build, progress };
    session.tick(clock)?;
    if session.fold.champions.get(task).is_none() {
        let why = "the reference plan: everything else is compared with it".to_owned();
        session.try_plan(&search.reference, "baseline", why)?;
    }
    let mut replayed: BTreeMap<Point, Option<f64>> = BTreeMap::new();
    let mut done: BTreeSet<Point> = BTreeSet::new();
    let mut tried = 0;
    while tried < search.finalists {
        if session.replay(&mut replayed, clock)? == Ended::Budget {
            return Ok(Ended::Budget);
        }
        let Some(choices) = session.best(&replayed, &done) else { break };
        done.insert(choices.clone());
        session.tick(clock)?;
        if !session.meter.allows_another() {
            return Ok(Ended::Budget);
        }
        let why = search.hypothesis(&choices);
        let quality = session.try_plan(&choices, "plan-search", why)? == Trial::BelowQuality;
        tried += usize::from(!quality);
        session.tick(clock)?;
    }
    Ok(Ended::Complete)
}

/// Tries one plan, whatever the budget says: these choices and kernels against the champion. Its decision is in the
/// ledger afterwards.
pub fn try_plan(
    search: &PlanSearch,
    trials: &mut dyn PlanTrials,
    ledger: &mut dyn Ledger,
    meter: &mut Meter,
    (choices, kernels): (Point, BTreeMap<String, Id<Candidate>>),
    (proposer, hypothesis): (&str, String),
    progress: &mut dyn FnMut(PlanProgress<'_>),
) -> Result<(), SwarmError> {
    let fold = Fold::read(ledger)?;
    let mut session = Session { search, trials, ledger, meter, fold, build: None, progress };
    let change = Change::Plan { choices: choices.clone(), kernels };
    session.try_change(&choices, change, proposer, hypothesis)?;
    Ok(())
}

/// What became of a finalist.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trial {
    Decided,
    BelowQuality,
}

/// Replays at most this much slower than the champion's are still worth a trial: replays do not see batching.
const REPLAY_MARGIN: f64 = 1.03;

struct Session<'a> {
    search: &'a PlanSearch,
    trials: &'a mut dyn PlanTrials,
    ledger: &'a mut dyn Ledger,
    meter: &'a mut Meter,
    fold: Fold,
    build: Option<&'a BuildId>,
    progress: &'a mut dyn FnMut(PlanProgress<'_>),
}

impl Session<'_> {
    /// Reads the clock and writes down what is spent.
    fn tick(&mut self, clock: Clock<'_>) -> Result<(), SwarmError> {
        self.meter.tick(clock());
        if let Some(build) = self.build {
            self.ledger.record_build(build, &BuildEvent::Spent(self.meter.spent()))?;
        }
        Ok(())
    }

    /// Replays the champion and the best of the ranking that were not replayed.
    fn replay(
        &mut self,
        replayed: &mut BTreeMap<Point, Option<f64>>,
        clock: Clock<'_>,
    ) -> Result<Ended, SwarmError> {
        let search = self.search;
        let champion = champion_choices(&self.fold, search.task.id());
        let starts: Vec<Point> = champion.into_iter().chain([search.reference.clone()]).collect();
        let below = self.below_quality();
        let trials = &mut *self.trials;
        let mut cost = |p: &Point| if below.contains(&search.quality_of(p)) { None } else { trials.cost(p) };
        let ranked = rank(&search.space, &starts, &mut cost, search.replays);
        (self.progress)(PlanProgress::Ranked { feasible: ranked.len(), best: ranked.first() });
        for choices in starts.first().into_iter().chain(ranked.iter().map(|r| &r.choices)) {
            if replayed.contains_key(choices) {
                continue;
            }
            self.tick(clock)?;
            if !self.meter.allows_another() {
                return Ok(Ended::Budget);
            }
            let cost = self.trials.replay(choices).map_err(|e| failed(search, choices, e))?;
            (self.progress)(PlanProgress::Replayed { choices, cost });
            replayed.insert(choices.clone(), cost);
        }
        Ok(Ended::Complete)
    }

    /// The cheapest replay that is not done, not excluded and not clearly slower than the champion's.
    fn best(&mut self, replayed: &BTreeMap<Point, Option<f64>>, done: &BTreeSet<Point>) -> Option<Point> {
        let champion = champion_choices(&self.fold, self.search.task.id());
        let limit = champion.as_ref().and_then(|c| *replayed.get(c)?).unwrap_or(f64::INFINITY);
        let below = self.below_quality();
        let is_champion = |p: &Point| {
            // The same choices with newer kernels are another plan.
            champion.as_ref() == Some(p)
        };
        let mut open: Vec<(f64, &Point)> = replayed
            .iter()
            .filter_map(|(p, cost)| Some(((*cost)?, p)))
            .filter(|(cost, p)| *cost <= limit * REPLAY_MARGIN && !done.contains(*p))
            .filter(|(_, p)| !below.contains(&self.search.quality_of(p)))
            .collect();
        open.sort_by(|a, b| a.0.total_cmp(&b.0));
        let standing = self.champion_change();
        for (_, point) in open {
            let same = is_champion(point) && standing == Some(self.change(point));
            if !same {
                return Some(point.clone());
            }
        }
        None
    }

    fn change(&mut self, choices: &Point) -> Change {
        Change::Plan { choices: choices.clone(), kernels: self.trials.kernels(choices) }
    }

    fn champion_change(&self) -> Option<Change> {
        let id = self.fold.champions.get(self.search.task.id())?;
        self.fold.candidates.get(&id).map(|c| c.change.clone())
    }

    /// Quality-relevant choices that a trial found below the bound.
    fn below_quality(&self) -> BTreeSet<Point> {
        let proposed = self.fold.proposed.get(&self.search.task.id());
        proposed
            .into_iter()
            .flatten()
            .filter(|id| is_below_quality(&self.fold, **id))
            .filter_map(|id| match &self.fold.candidates.get(id)?.change {
                Change::Plan { choices, .. } => Some(self.search.quality_of(choices)),
                _ => None,
            })
            .collect()
    }

    fn try_plan(&mut self, choices: &Point, proposer: &str, hypothesis: String) -> Result<Trial, SwarmError> {
        let change = self.change(choices);
        self.try_change(choices, change, proposer, hypothesis)
    }

    fn try_change(
        &mut self,
        choices: &Point,
        change: Change,
        proposer: &str,
        hypothesis: String,
    ) -> Result<Trial, SwarmError> {
        let task = self.search.task.id();
        let parents = self.fold.champions.get(task).into_iter().collect();
        let proposer = Proposer { name: proposer.to_owned() };
        let fresh = Candidate { task, parents, change, hypothesis, proposer };
        // An earlier proposal of the same plan counts, whatever its hypothesis was.
        let same =
            |id: &&Id<Candidate>| self.fold.candidates.get(id).is_some_and(|c| c.change == fresh.change);
        let known = self.fold.proposed.get(&task).and_then(|all| all.iter().find(same)).copied();
        let known = known.and_then(|id| Some((id, self.fold.candidates.get(&id)?.clone())));
        let (id, candidate) = known.unwrap_or_else(|| (fresh.id(), fresh));
        self.ledger.append(&Entry::Proposed(candidate.clone()))?;
        self.fold.catch_up(self.ledger)?;
        for faults in 0..ATTEMPTS {
            if is_final(&self.fold, id) {
                break;
            }
            let champion = self.fold.champions.get(task).and_then(|c| self.fold.candidates.get(&c)).cloned();
            let tested = self.fold.proposed.get(&task).map_or(0, |p| (p.len() as u64).saturating_sub(1));
            let standing = Standing { champion, tested, faults };
            let proposal = Proposal { task, id, candidate: candidate.clone(), faults };
            self.evaluate(choices, &proposal, &standing)?;
        }
        Ok(if is_below_quality(&self.fold, id) { Trial::BelowQuality } else { Trial::Decided })
    }

    fn evaluate(
        &mut self,
        choices: &Point,
        proposal: &Proposal,
        standing: &Standing,
    ) -> Result<(), SwarmError> {
        let trial = self.trials.trial(proposal, standing);
        let Evaluation { evidence, decision } = trial.map_err(|e| failed(self.search, choices, e))?;
        self.meter.evaluated();
        let id = proposal.id;
        if decision.challenger != id || evidence.iter().any(|e| e.candidate != id) {
            return Err(SwarmError::Confused { candidate: id.short() });
        }
        for e in evidence {
            self.ledger.append(&Entry::Observed(e))?;
        }
        match self.ledger.append_decision(&decision) {
            // Somebody moved the champion: the next attempt compares with the new one.
            Err(LedgerError::ChampionMoved { .. }) => {}
            Err(e) => return Err(e.into()),
            Ok(_) => (self.progress)(PlanProgress::Tried { choices, verdict: &decision.verdict }),
        }
        self.fold.catch_up(self.ledger)?;
        Ok(())
    }
}

impl PlanSearch {
    /// The choices on the quality axes; on all axes if none is named, so that a plan excludes only itself.
    fn quality_of(&self, choices: &Point) -> Point {
        let relevant = |axis: &String| self.quality_axes.is_empty() || self.quality_axes.contains(axis);
        Point(choices.0.iter().filter(|(a, _)| relevant(a)).map(|(a, v)| (a.clone(), v.clone())).collect())
    }

    fn hypothesis(&self, choices: &Point) -> String {
        let changed = search::changes(&self.space, &self.reference, choices);
        let words: Vec<String> =
            changed.iter().map(|c| format!("{} {} instead of {}", c.axis, c.to, c.from)).collect();
        format!("among the cheapest by replayed steps: {}", words.join(", "))
    }
}

fn is_final(fold: &Fold, id: Id<Candidate>) -> bool {
    fold.last_decision(id).is_some_and(|d| !matches!(d.verdict, Verdict::Evaluate(_)))
}

fn is_below_quality(fold: &Fold, id: Id<Candidate>) -> bool {
    fold.evidence_of(id).iter().any(|s| match &s.evidence.outcome {
        Outcome::Stopped(Stop::Rejected(r)) => r.reason == Reason::Quality,
        _ => false,
    })
}

fn champion_choices(fold: &Fold, task: Id<Task>) -> Option<Point> {
    match &fold.candidates.get(&fold.champions.get(task)?)?.change {
        Change::Plan { choices, .. } => Some(choices.clone()),
        _ => None,
    }
}

fn failed(search: &PlanSearch, choices: &Point, source: EvaluatorError) -> SwarmError {
    SwarmError::Evaluator {
        task: format!("plan {}", search.task.id().short()),
        candidate: choices.to_string(),
        source,
    }
}

/// Attempts on one plan when faults of ours end them.
const ATTEMPTS: u64 = 3;
