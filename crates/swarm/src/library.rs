//! What is remembered of every task in the ledger, ours and others': points, gains, champions, effects. The source of
//! transfer between buckets, shapes, targets and models.

use evidence::{
    Candidate, Change, Contract, Decision, Effect, Entry, Evidence, Fault, Id, Outcome as Seen, Phase, Point,
    Rejection, Samples, Space, Stop, Task, Verdict,
};
use ledger::Record;
use plan::{Operation, WeightLayout};
use search::{Additive, AxisEffects, History, Knowledge, Outcome};
use std::collections::{BTreeMap, BTreeSet};

/// Evaluations of one candidate that end without a final decision before it is given up.
pub(crate) const MOST_OPEN_DECISIONS: u64 = 12;
/// Neighbours' champions that are handed to operators.
const NEIGHBOURS: usize = 4;
/// Beyond this distance a task is no neighbour.
const FAR: f64 = 8.0;

/// What a kernel task is about, for distances.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskKey {
    pub operation: Operation,
    pub rows_low: u32,
    pub class: String,
    pub target: String,
}

impl TaskKey {
    /// The key of a stored task; `None` for engine tasks and definitions of another version.
    pub fn of(task: &Task) -> Option<Self> {
        let Contract::Kernel { definition, class, rows_low, .. } = &task.contract else { return None };
        let operation = serde_json::from_str(definition).ok()?;
        Some(Self { operation, rows_low: *rows_low, class: class.clone(), target: task.target.clone() })
    }

    /// 0 for equal tasks; a doubling of a dimension or of the rows counts 0.5, another kind, class, layout or target
    /// more.
    pub fn distance(&self, other: &TaskKey) -> f64 {
        let doublings = |a: u32, b: u32| (f64::from(a.max(1)) / f64::from(b.max(1))).log2().abs();
        let (a, b) = (&self.operation, &other.operation);
        let mut d = 0.5 * doublings(self.rows_low, other.rows_low);
        d += 0.5 * doublings(a.out_width(), b.out_width()) + 0.5 * doublings(a.in_width(), b.in_width());
        d += if a.kind() == b.kind() { 0.0 } else { 2.0 };
        d += if self.class == other.class { 0.0 } else { 1.5 };
        d += if self.target == other.target { 0.0 } else { 1.0 };
        let layout = |o: &Operation| o.weight().map(|(l, ..): (WeightLayout, u32, u32)| l);
        d + if layout(a) == layout(b) { 0.0 } else { 0.5 }
    }
}

/// What is remembered of one candidate.
#[derive(Clone, Debug)]
pub(crate) struct Tried {
    pub candidate: Candidate,
    /// Order of proposal within the ledger.
    pub serial: u64,
    /// Natural logarithm of the speed-up on the task's first champion.
    pub gain: Option<f64>,
    pub ns: Option<f64>,
    pub faults: u64,
    open_decisions: u64,
    pub rejection: Option<Rejection>,
    pub last_fault: Option<Fault>,
    pub state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Pending,
    Final,
    /// Too many faults of ours: says nothing about the candidate, and is not tried again.
    GivenUp,
}

/// What is remembered of one task.
#[derive(Clone, Debug)]
pub struct Memory {
    key: Option<TaskKey>,
    pub(crate) tried: BTreeMap<Id<Candidate>, Tried>,
    pub(crate) champion: Option<Id<Candidate>>,
    /// Candidates that were confirmed or tried to be: they share the error budget.
    confirmed: BTreeSet<Id<Candidate>>,
    /// Finished recipes and fitted effects by generator.
    recipes: BTreeMap<String, Recipes>,
}

#[derive(Clone, Debug, Default)]
struct Recipes {
    history: History,
    effects: AxisEffects,
}

impl Recipes {
    fn fit(&mut self) {
        let space = space_of(&self.history);
        self.effects = Additive::fit(&space, &self.history, &AxisEffects::default()).effects();
    }
}

/// What an entry meant for a candidate of a task.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Meaning {
    Proposed,
    /// Final, with its outcome.
    Finished(Outcome),
    Promoted(Outcome),
    /// It stands again, since this other one was found wrong.
    Restored {
        fallen: Option<Id<Candidate>>,
    },
    GivenUp,
    Nothing,
}

/// Memories of all tasks of a ledger.
#[derive(Clone, Debug, Default)]
pub struct Library {
    tasks: BTreeMap<Id<Task>, Memory>,
    owner: BTreeMap<Id<Candidate>, Id<Task>>,
    attempts: u64,
    serial: u64,
}

impl Library {
    /// A library in which a candidate is given up after `attempts` faults of ours.
    pub fn new(attempts: u64) -> Self {
        Self { attempts, ..Self::default() }
    }

    pub fn memory(&self, task: Id<Task>) -> Option<&Memory> {
        self.tasks.get(&task)
    }

    /// Reads one entry; says what it meant.
    pub(crate) fn apply(&mut self, record: &Record) -> Option<(Id<Task>, Id<Candidate>, Meaning)> {
        match &record.entry {
            Entry::Posed(task) => {
                let id = Id::from_digest(record.content);
                self.tasks.entry(id).or_insert_with(|| Memory::new(TaskKey::of(task)));
                None
            }
            Entry::Proposed(candidate) => {
                let id = Id::from_digest(record.content);
                self.serial += 1;
                self.owner.insert(id, candidate.task);
                let serial = self.serial;
                self.tasks.get_mut(&candidate.task)?.propose(id, candidate, serial);
                Some((candidate.task, id, Meaning::Proposed))
            }
            Entry::Observed(evidence) => {
                let task = *self.owner.get(&evidence.candidate)?;
                self.tasks.get_mut(&task)?.observe(evidence);
                None
            }
            Entry::Decided(decision) => {
                let attempts = self.attempts;
                let change = self.tasks.get_mut(&decision.task)?.decide(decision, attempts);
                Some((decision.task, decision.challenger, change))
            }
        }
    }

    /// What other tasks tell about `generator` on a task.
    pub(crate) fn knowledge(&self, task: Id<Task>, generator: &str, start: Option<Point>) -> Knowledge {
        let mut knowledge = Knowledge { start, ..Knowledge::default() };
        let Some(key) = self.tasks.get(&task).and_then(|m| m.key.as_ref()) else { return knowledge };
        let mut near: Vec<(f64, Id<Task>, &Memory)> = self
            .tasks
            .iter()
            .filter_map(|(id, m)| Some((key.distance(m.key.as_ref()?), *id, m)))
            .filter(|(d, id, _)| *d <= FAR && *id != task)
            .collect();
        near.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        for (distance, _, memory) in near {
            if let Some(point) = memory.best_point(generator)
                && knowledge.neighbours.len() < NEIGHBOURS
                && !knowledge.neighbours.contains(point)
            {
                knowledge.neighbours.push(point.clone());
            }
            if let Some(recipes) = memory.recipes.get(generator) {
                knowledge.effects.merge(&recipes.effects, 0.5 / (1.0 + distance).powi(2));
            }
        }
        knowledge
    }
}

impl Memory {
    fn new(key: Option<TaskKey>) -> Self {
        Self {
            key,
            tried: BTreeMap::new(),
            champion: None,
            confirmed: BTreeSet::new(),
            recipes: BTreeMap::new(),
        }
    }

    /// The champion now.
    pub fn champion(&self) -> Option<Id<Candidate>> {
        self.champion
    }

    /// Candidates that reached confirmation so far.
    pub fn confirmed(&self) -> u64 {
        self.confirmed.len() as u64
    }

    fn propose(&mut self, id: Id<Candidate>, candidate: &Candidate, serial: u64) {
        self.tried.entry(id).or_insert_with(|| Tried {
            candidate: candidate.clone(),
            serial,
            gain: None,
            ns: None,
            faults: 0,
            open_decisions: 0,
            rejection: None,
            last_fault: None,
            state: State::Pending,
        });
    }

    fn observe(&mut self, evidence: &Evidence) {
        let Some(tried) = self.tried.get_mut(&evidence.candidate) else { return };
        if evidence.phase == Phase::Confirm {
            self.confirmed.insert(evidence.candidate);
        }
        match &evidence.outcome {
            Seen::Measured(m) => {
                let ns = match &m.samples {
                    Samples::Paired { challenger_ns, .. } => statistics::median(challenger_ns),
                    Samples::Single { ns, .. } => statistics::median(ns),
                    Samples::Series { .. } => None,
                };
                tried.ns = ns.or(tried.ns);
            }
            Seen::Stopped(Stop::Rejected(r)) => tried.rejection = Some(r.clone()),
            Seen::Stopped(Stop::Inconclusive { fault, .. }) => {
                tried.faults += 1;
                tried.last_fault = Some(*fault);
            }
        }
    }

    fn gain_of(&self, candidate: Option<Id<Candidate>>) -> f64 {
        candidate.and_then(|c| self.tried.get(&c)?.gain).unwrap_or(0.0)
    }

    fn decide(&mut self, decision: &Decision, attempts: u64) -> Meaning {
        let base = self.gain_of(decision.champion);
        let chained = |effect: &Effect| base + effect.ratio.max(1e-9).ln();
        let id = decision.challenger;
        let Some(tried) = self.tried.get_mut(&id) else { return Meaning::Nothing };
        let (outcome, promoted) = match &decision.verdict {
            Verdict::Promote(effect) => (Outcome::Measured(effect.as_ref().map_or(base, chained)), true),
            Verdict::Keep(effect) => (Outcome::Measured(chained(effect)), false),
            Verdict::Refuse => (Outcome::Rejected, false),
            Verdict::Evaluate(_) => {
                tried.open_decisions += 1;
                let hopeless = tried.faults >= attempts || tried.open_decisions >= MOST_OPEN_DECISIONS;
                if hopeless && tried.state == State::Pending {
                    tried.state = State::GivenUp;
                    return Meaning::GivenUp;
                }
                return Meaning::Nothing;
            }
            Verdict::Revoke => return self.revoke(decision.champion, id),
        };
        tried.state = State::Final;
        if let Outcome::Measured(gain) = outcome {
            tried.gain = Some(gain);
        }
        if promoted {
            self.champion = Some(id);
        }
        self.remember(id, outcome);
        if promoted { Meaning::Promoted(outcome) } else { Meaning::Finished(outcome) }
    }

    fn revoke(&mut self, fallen: Option<Id<Candidate>>, restored: Id<Candidate>) -> Meaning {
        self.champion = Some(restored);
        if let Some(tried) = fallen.and_then(|c| self.tried.get_mut(&c)) {
            tried.gain = None;
            if let Change::Recipe { generator, point, .. } = &tried.candidate.change
                && let Some(recipes) = self.recipes.get_mut(generator)
            {
                recipes.history.revoke(point);
                recipes.fit();
            }
        }
        Meaning::Restored { fallen }
    }

    /// Fits the effects of the generator again.
    fn remember(&mut self, id: Id<Candidate>, outcome: Outcome) {
        let Some(Change::Recipe { generator, point, .. }) = self.tried.get(&id).map(|t| &t.candidate.change)
        else {
            return;
        };
        let recipes = self.recipes.entry(generator.clone()).or_default();
        recipes.history.record(point, outcome);
        recipes.fit();
    }

    /// The champion's point if the generator made it, else the generator's best.
    fn best_point(&self, generator: &str) -> Option<&Point> {
        if let Some(Change::Recipe { generator: g, point, .. }) =
            self.champion.and_then(|c| self.tried.get(&c)).map(|t| &t.candidate.change)
            && g == generator
        {
            return Some(point);
        }
        self.recipes.get(generator)?.history.elite(1).first().copied()
    }
}

/// The values seen of each axis, as plain choices: other tasks' spaces are not stored.
fn space_of(history: &History) -> Space {
    let mut axes: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for trial in history.trials() {
        for (axis, value) in &trial.point.0 {
            axes.entry(axis).or_default().insert(value);
        }
    }
    axes.into_iter().fold(Space::default(), |space, (axis, values)| {
        let values: Vec<&str> = values.into_iter().collect();
        space.choices(axis, &values)
    })
}
