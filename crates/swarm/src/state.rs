//! State of one task of the swarm: lanes (a generator with its search), counts, champion.

use crate::error::SwarmError;
use crate::library::{Library, Meaning, Memory, State};
use crate::task::TaskSpec;
use evidence::{Candidate, Change, Content, Digest, Id, Point, Proposer, Task};
use kernels::Generator;
use search::{Operator, Outcome, Search, Suggestion};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

/// A generator on a task.
pub(crate) struct Lane<'g> {
    pub generator: &'g dyn Generator,
    pub start: Point,
    pub search: Search,
    pub feasible: RefCell<BTreeMap<Point, Option<Digest>>>,
}

pub(crate) struct TaskState<'g> {
    pub spec: TaskSpec<'g>,
    pub id: Id<Task>,
    pub lanes: Vec<Lane<'g>>,
    /// Digests of the sources that recipes of this task made: equal sources are one candidate.
    pub sources: BTreeSet<Digest>,
    pub baseline_ns: Option<f64>,
    pub decided: u64,
    pub since_promotion: u64,
    /// Discounted tries and improvements (natural logarithm).
    pub tries: f64,
    pub improvement: f64,
    /// Gain of the champion.
    pub best_gain: f64,
}

impl<'g> TaskState<'g> {
    pub fn new(spec: TaskSpec<'g>, seed: u64) -> Result<Self, SwarmError> {
        let wrong = |what: &str| SwarmError::Task { task: spec.label(), what: what.to_owned() };
        let class = spec.class().ok_or_else(|| wrong("an engine task is searched by plans::run_plans"))?;
        if !(spec.calls.is_finite() && spec.calls >= 0.0) {
            return Err(wrong("its calls are not a number"));
        }
        let id = spec.task.id();
        let mut lanes = Vec::new();
        for generator in spec.generators.iter().copied() {
            if generator.numeric_class(&spec.operation) != class {
                continue;
            }
            let (operation, rows, target) = (&spec.operation, spec.rows, &spec.target);
            let Some(space) = generator.space(operation, rows, target) else { continue };
            let start = generator.start(operation, rows, target).filter(|s| space.contains(s));
            let Some(start) = start else {
                return Err(wrong(&format!(
                    "generator {} has no start point in its space",
                    generator.name()
                )));
            };
            let seed = seed ^ fold_seed(&[id.digest(), Digest::of(generator.name().as_bytes())]);
            let search = Search::new(space, seed);
            lanes.push(Lane { generator, start, search, feasible: RefCell::default() });
        }
        Ok(Self {
            spec,
            id,
            lanes,
            sources: BTreeSet::new(),
            baseline_ns: None,
            decided: 0,
            since_promotion: 0,
            tries: 0.0,
            improvement: 0.0,
            best_gain: 0.0,
        })
    }

    pub fn apply(&mut self, memory: &Memory, id: Id<Candidate>, meaning: Meaning) {
        let Some(tried) = memory.tried.get(&id) else { return };
        let ours = self.lane_of(&tried.candidate.change);
        match meaning {
            Meaning::Proposed => {
                if let Some((i, point)) = ours {
                    self.lanes[i].search.mark(&point, Operator::named(&tried.candidate.proposer.name));
                    if let Some(source) = self.source(&self.lanes[i], &point) {
                        self.sources.insert(source);
                    }
                }
            }
            Meaning::Finished(outcome) => {
                self.count(outcome, 0.0);
                if let Some((i, point)) = ours {
                    self.lanes[i].search.record(&point, outcome);
                }
            }
            Meaning::Promoted(outcome) => {
                let first = self.baseline_ns.is_none();
                let before = if first { 0.0 } else { self.best_gain };
                if first {
                    self.baseline_ns = tried.ns;
                }
                let gain = tried.gain.unwrap_or(0.0);
                self.count(outcome, (gain - before).max(0.0));
                self.since_promotion = 0;
                if let Some((i, point)) = ours {
                    self.lanes[i].search.record(&point, outcome);
                    self.lanes[i].search.set_incumbent(&point);
                }
                self.best_gain = gain;
            }
            Meaning::Restored { fallen } => {
                let change = fallen.and_then(|f| Some(&memory.tried.get(&f)?.candidate.change));
                if let Some((i, point)) = change.and_then(|c| self.lane_of(c)) {
                    self.lanes[i].search.revoke(&point);
                }
                if let Some((i, point)) = ours {
                    self.lanes[i].search.set_incumbent(&point);
                }
                self.best_gain = tried.gain.unwrap_or(0.0);
            }
            Meaning::GivenUp => {
                if let Some((i, point)) = ours {
                    self.lanes[i].search.abandon(&point);
                }
            }
            Meaning::Nothing => {}
        }
    }

    pub fn count(&mut self, outcome: Outcome, improvement: f64) {
        // A refusal costs little time and says little about what is winnable.
        let weight = if outcome == Outcome::Rejected { 0.5 } else { 1.0 };
        self.decided += 1;
        self.since_promotion += 1;
        self.tries = 0.9 * self.tries + weight;
        self.improvement = 0.9 * self.improvement + improvement;
    }

    /// The lane and point of a recipe that this search could have made.
    pub fn lane_of(&self, change: &Change) -> Option<(usize, Point)> {
        let Change::Recipe { generator, point, max_rows } = change else { return None };
        let i = self.lanes.iter().position(|l| l.generator.name() == generator)?;
        let member = self.lanes[i].search.space().contains(point) && *max_rows == self.spec.max_rows;
        member.then(|| (i, point.clone()))
    }

    /// Digest of the source of a point; `None` if the generator refuses it.
    pub fn source(&self, lane: &Lane<'_>, point: &Point) -> Option<Digest> {
        *lane.feasible.borrow_mut().entry(point.clone()).or_insert_with(|| {
            let s = &self.spec;
            let made = lane.generator.generate(&s.operation, s.rows, &s.target, point, s.max_rows).ok()?;
            let launch = serde_json::to_string(&made.launch).ok()?;
            Some(Digest::of(format!("{launch}\n{}", made.source).as_bytes()))
        })
    }

    pub fn is_new_source(&self, lane: &Lane<'_>, point: &Point) -> bool {
        self.source(lane, point).is_some_and(|digest| !self.sources.contains(&digest))
    }

    pub fn candidate(
        &self,
        change: Change,
        parents: Vec<Id<Candidate>>,
        name: &str,
        why: String,
    ) -> Candidate {
        let proposer = Proposer { name: name.to_owned() };
        Candidate { task: self.id, parents, change, hypothesis: why, proposer }
    }

    pub fn recipe(&self, generator: &str, point: &Point) -> Change {
        Change::Recipe { generator: generator.to_owned(), point: point.clone(), max_rows: self.spec.max_rows }
    }

    pub fn baseline(&self) -> Candidate {
        let b = &self.spec.baseline;
        let why = "the portable kernel: everything else is compared with it".to_owned();
        self.candidate(self.recipe(&b.generator, &b.point), vec![], "baseline", why)
    }

    pub fn seeds(&self) -> Vec<Candidate> {
        let why = || "handed in with the build".to_owned();
        self.spec.seeds.iter().map(|s| self.candidate(s.clone(), vec![], "seed", why())).collect()
    }

    /// The start point of a lane, unless it or its source was proposed.
    pub fn start(&self, lane: &Lane<'_>) -> Option<Candidate> {
        if lane.search.history().is_seen(&lane.start) || !self.is_new_source(lane, &lane.start) {
            return None;
        }
        let name = lane.generator.name();
        let why = format!("{name}'s own first choice for this shape: {}", lane.start);
        Some(self.candidate(self.recipe(name, &lane.start), vec![], "start", why))
    }

    /// The start point of the fastest kind of code that was not proposed yet: generators are listed from plain to fast.
    pub fn any_start(&self) -> Option<Candidate> {
        self.lanes.iter().rev().find_map(|lane| self.start(lane))
    }

    /// Whether the champion is code of the task's own numeric class, which the portable baseline need not be.
    pub fn has_own_class(&self, library: &Library) -> bool {
        let champion = library.memory(self.id).and_then(|m| m.tried.get(&m.champion?));
        champion.is_some_and(|t| {
            !matches!(t.candidate.change, Change::Recipe { .. })
                || self.lane_of(&t.candidate.change).is_some()
        })
    }

    /// Whether something other than the baseline is proposed and not decided.
    pub fn is_waiting(&self, library: &Library) -> bool {
        let ours = |c: &Candidate| self.lane_of(&c.change).is_some();
        let memory = library.memory(self.id);
        memory.is_some_and(|m| m.tried.values().any(|t| t.state == State::Pending && ours(&t.candidate)))
    }

    pub fn searched(&self, lane: &Lane<'_>, s: &Suggestion, why: String, memory: &Memory) -> Candidate {
        let name = lane.generator.name();
        let id_of = |point: &Point| {
            let change = self.recipe(name, point);
            let mut made: Vec<_> =
                memory.tried.iter().filter(|(_, t)| t.candidate.change == change).collect();
            made.sort_by_key(|(_, t)| t.serial);
            made.first().map(|(id, _)| **id)
        };
        let parents = s.parents.iter().filter_map(id_of).collect();
        self.candidate(self.recipe(name, &s.point), parents, s.operator.name(), why)
    }

    /// Lanes by their best gain and a bonus for those that were tried little.
    pub fn ranked_lanes(&self) -> Vec<&Lane<'g>> {
        let total: f64 = self.lanes.iter().map(|l| l.search.history().seen().len() as f64).sum();
        let value = |l: &Lane<'_>| {
            let n = l.search.history().seen().len() as f64;
            let best = l.search.history().best_gain().unwrap_or(-0.5);
            best + 0.25 * ((1.0 + total).ln() / (1.0 + n)).sqrt()
        };
        let mut ranked: Vec<(f64, &Lane<'g>)> = self.lanes.iter().map(|l| (value(l), l)).collect();
        ranked.sort_by(|a, b| b.0.total_cmp(&a.0));
        ranked.into_iter().map(|(_, l)| l).collect()
    }

    /// After `patience` decisions without a promotion the next three come from far away, and so again after every
    /// further half of the patience.
    pub fn redirected(&self, patience: u64) -> bool {
        let Some(over) = self.since_promotion.checked_sub(patience.max(1)) else { return false };
        over % (patience / 2 + 3) < 3
    }

    pub fn gain(&self, library: &Library) -> f64 {
        let champion = library.memory(self.id).and_then(|m| m.tried.get(&m.champion?));
        champion.and_then(|t| t.gain).unwrap_or(0.0)
    }

    /// The champion's time of a call by its gain on the first champion: absolute times of different days do not
    /// compare.
    pub fn champion_ns(&self, library: &Library) -> Option<f64> {
        Some(self.baseline_ns? * (-self.gain(library)).exp())
    }

    pub fn time(&self, library: &Library) -> Option<f64> {
        Some(self.spec.calls * self.champion_ns(library)?)
    }

    /// Weight before anything was measured.
    pub fn guess(&self) -> f64 {
        self.spec.calls * self.spec.floor_ns.unwrap_or(1.0)
    }

    pub fn exhausted(&self, library: &Library) -> bool {
        let pending =
            library.memory(self.id).is_some_and(|m| m.tried.values().any(|t| t.state == State::Pending));
        !pending
            && self.lanes.iter().all(|lane| {
                let feasible = |p: &Point| self.is_new_source(lane, p);
                lane.search.suggest(&search::Knowledge::default(), &[], &feasible).is_none()
            })
    }
}

/// Mixes digests into a seed.
fn fold_seed(parts: &[Digest]) -> u64 {
    let bytes: Vec<u8> = parts.iter().flat_map(|d| d.0).collect();
    let d = Digest::of(&bytes).0;
    u64::from_le_bytes([d[0], d[1], d[2], d[3], d[4], d[5], d[6], d[7]])
}
