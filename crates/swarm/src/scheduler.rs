//! The swarm itself: which task next, which operator, which point.

use crate::error::SwarmError;
use crate::hypothesis::hypothesis;
use crate::lesson;
use crate::library::{Library, Memory, State};
use crate::run::Standing;
use crate::state::TaskState;
use crate::task::{Closed, TaskSpec, TaskView};
use evidence::{Candidate, Content, Decision, Entry, Id, Lesson, Point, Task};
use ledger::{Ledger, Position, Record};
use search::Operator;
use std::collections::BTreeMap;

/// Entries that are read at once.
const PAGE: u32 = 500;
/// Share of the remaining time that is assumed to be winnable where no floor is known.
const UNKNOWN_HEADROOM: f64 = 0.6;
/// Assumed gain of a first try of a generator.
const FIRST_TRY: f64 = 0.5;

/// Constants of a swarm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    pub seed: u64,
    /// Faults of ours on one candidate before it is given up.
    pub attempts: u64,
    /// Final decisions without a promotion before a task is redirected.
    pub patience: u64,
    /// A task is closed when its champion is within this fraction of the floor.
    pub ceiling: f64,
    /// Tasks below this share of the total time get their first candidates by expected gain only.
    pub main_share: f64,
}

impl Settings {
    pub fn new(seed: u64) -> Self {
        Self { seed, attempts: 3, patience: 14, ceiling: 0.10, main_share: 0.01 }
    }
}

/// A candidate that waits for its evaluation.
#[derive(Clone, Debug, PartialEq)]
pub struct Proposal {
    pub task: Id<Task>,
    pub id: Id<Candidate>,
    pub candidate: Candidate,
    /// Faults of ours that ended earlier evaluations.
    pub faults: u64,
}

/// The proposer side of a search; see the crate's description.
pub struct Swarm<'g> {
    settings: Settings,
    tasks: Vec<TaskState<'g>>,
    index: BTreeMap<Id<Task>, usize>,
    library: Library,
    position: Position,
}

impl<'g> Swarm<'g> {
    /// Poses the tasks (those that the ledger does not know) and reads the ledger: a new search, a resumed one and one
    /// that starts from other searches' knowledge are the same.
    pub fn open(
        specs: Vec<TaskSpec<'g>>,
        settings: Settings,
        ledger: &mut dyn Ledger,
    ) -> Result<Self, SwarmError> {
        let mut swarm = Self {
            settings,
            tasks: Vec::new(),
            index: BTreeMap::new(),
            library: Library::new(settings.attempts),
            position: Position::START,
        };
        for spec in specs {
            ledger.append(&Entry::Posed(spec.task.clone()))?;
            let state = TaskState::new(spec, settings.seed)?;
            swarm.index.insert(state.id, swarm.tasks.len());
            swarm.tasks.push(state);
        }
        swarm.catch_up(ledger)?;
        Ok(swarm)
    }

    /// Reads the entries since the last call, whoever wrote them.
    pub fn catch_up(&mut self, ledger: &dyn Ledger) -> Result<(), SwarmError> {
        loop {
            let page = ledger.entries(self.position, PAGE)?;
            if page.is_empty() {
                return Ok(());
            }
            page.iter().for_each(|r| self.apply(r));
        }
    }

    /// Reads one entry. Entries that were read before change nothing.
    pub fn apply(&mut self, record: &Record) {
        if record.position <= self.position {
            return;
        }
        self.position = record.position;
        let Some((task, candidate, meaning)) = self.library.apply(record) else { return };
        let (Some(i), Some(memory)) = (self.index.get(&task), self.library.memory(task)) else { return };
        self.tasks[*i].apply(memory, candidate, meaning);
    }

    /// The next candidate that nobody proposed yet, and its task; `None` if every task is closed. Pure.
    pub fn propose(&self) -> Option<Candidate> {
        self.first_candidate().or_else(|| self.searched_candidate())
    }

    /// Proposals without a final decision, in the order in which they are to be evaluated: fewest faults first, then
    /// oldest. Proposals that others appended for our tasks are among them.
    pub fn pending(&self) -> Vec<Proposal> {
        let mut pending: Vec<(u64, Proposal)> = self
            .tasks
            .iter()
            .filter_map(|t| Some((t, self.library.memory(t.id)?)))
            .flat_map(|(t, m)| {
                m.tried.iter().filter(|(_, tried)| tried.state == State::Pending).map(move |(id, tried)| {
                    let candidate = tried.candidate.clone();
                    (tried.serial, Proposal { task: t.id, id: *id, candidate, faults: tried.faults })
                })
            })
            .collect();
        pending.sort_by_key(|(serial, p)| (p.faults, *serial));
        pending.into_iter().map(|(_, p)| p).collect()
    }

    /// Appends new proposals until `ahead` are pending (so that builds run beside the measure lane) and returns all
    /// pending ones, in order.
    pub fn top_up(&mut self, ledger: &mut dyn Ledger, ahead: usize) -> Result<Vec<Proposal>, SwarmError> {
        loop {
            let pending = self.pending();
            if pending.len() >= ahead.max(1) {
                return Ok(pending);
            }
            let Some(candidate) = self.propose() else { return Ok(pending) };
            ledger.append(&Entry::Proposed(candidate))?;
            self.catch_up(ledger)?;
        }
    }

    /// What an evaluator needs to know about a proposal's task now.
    pub fn standing(&self, proposal: &Proposal) -> Standing {
        let memory = self.library.memory(proposal.task);
        let champion = memory.and_then(|m| Some(m.tried.get(&m.champion?)?.candidate.clone()));
        Standing { champion, tested: memory.map_or(0, Memory::confirmed), faults: proposal.faults }
    }

    /// The lesson of a decision that was not appended yet.
    pub fn lesson(&self, decision: &Decision) -> Option<Lesson> {
        let state = &self.tasks[*self.index.get(&decision.task)?];
        lesson::distil(&state.spec, self.library.memory(decision.task)?, decision)
    }

    /// Workload time of the first champions over that of the champions now, over all tasks that were measured.
    pub fn speedup(&self) -> f64 {
        let (mut before, mut now) = (0.0, 0.0);
        for t in &self.tasks {
            if let Some(ns) = t.baseline_ns {
                before += t.spec.calls * ns;
                now += t.spec.calls * ns * (-t.gain(&self.library)).exp();
            }
        }
        if now > 0.0 { before / now } else { 1.0 }
    }

    /// The champions of our tasks.
    pub fn champions(&self) -> BTreeMap<Id<Task>, Candidate> {
        let champion = |t: &TaskState<'_>| {
            let memory = self.library.memory(t.id)?;
            Some((t.id, memory.tried.get(&memory.champion?)?.candidate.clone()))
        };
        self.tasks.iter().filter_map(champion).collect()
    }

    /// The state of each task, in the order of the specifications.
    pub fn tasks(&self) -> Vec<TaskView> {
        self.tasks.iter().map(|t| self.view(t)).collect()
    }

    /// The state of one task.
    pub fn task(&self, id: Id<Task>) -> Option<TaskView> {
        self.index.get(&id).map(|i| self.view(&self.tasks[*i]))
    }

    fn view(&self, t: &TaskState<'_>) -> TaskView {
        let memory = self.library.memory(t.id);
        TaskView {
            label: t.spec.label(),
            proposed: memory.map_or(0, |m| m.tried.len() as u64),
            decided: t.decided,
            speedup: t.gain(&self.library).exp(),
            champion_ns: t.champion_ns(&self.library),
            floor_ns: t.spec.floor_ns,
            since_promotion: t.since_promotion,
            closed: self.closed(t),
        }
    }

    /// Whether a task is in a phase in which only far moves are made.
    pub(crate) fn is_redirected(&self, task: Id<Task>) -> bool {
        self.index.get(&task).is_some_and(|i| self.tasks[*i].redirected(self.settings.patience))
    }

    fn closed(&self, t: &TaskState<'_>) -> Option<Closed> {
        let memory = self.library.memory(t.id)?;
        if memory.champion.is_none() {
            let baseline = memory.tried.get(&t.baseline().id())?;
            return (baseline.state != State::Pending).then_some(Closed::NoBaseline);
        }
        let reached = |ns: f64, floor: f64| ns <= floor * (1.0 + self.settings.ceiling);
        if let (Some(ns), Some(floor)) = (t.champion_ns(&self.library), t.spec.floor_ns)
            && reached(ns, floor)
        {
            return Some(Closed::Ceiling);
        }
        t.exhausted(&self.library).then_some(Closed::Exhausted)
    }

    /// Baselines of all tasks; then of each task a seed or start point until it has a champion of its own numeric class;
    /// then all seeds and start points of the tasks that matter. Heaviest tasks first, fastest kind of code first.
    fn first_candidate(&self) -> Option<Candidate> {
        let mut order: Vec<&TaskState<'_>> = self.tasks.iter().collect();
        let weight = |t: &TaskState<'_>| t.time(&self.library).unwrap_or(t.guess());
        order.sort_by(|a, b| weight(b).total_cmp(&weight(a)));
        let fresh = |t: &TaskState<'_>, c: &Candidate| {
            self.library.memory(t.id).is_none_or(|m| !m.tried.contains_key(&c.id()))
        };
        let without_champion =
            |t: &&&TaskState<'_>| self.library.memory(t.id).is_none_or(|m| m.champion.is_none());
        let baseline =
            order.iter().filter(without_champion).map(|t| (t, t.baseline())).find(|(t, c)| fresh(t, c));
        if let Some((_, candidate)) = baseline {
            return Some(candidate);
        }
        let first = |t: &TaskState<'_>| t.seeds().into_iter().find(|c| fresh(t, c)).or_else(|| t.any_start());
        let open = |t: &TaskState<'_>| !matches!(self.closed(t), Some(Closed::Ceiling | Closed::NoBaseline));
        let lacking = order.iter().filter(|t| open(t) && !t.has_own_class(&self.library));
        if let Some(candidate) = lacking.filter(|t| !t.is_waiting(&self.library)).find_map(|t| first(t)) {
            return Some(candidate);
        }
        let total: f64 = self.tasks.iter().filter_map(|t| t.time(&self.library)).sum();
        let heavy = |t: &TaskState<'_>| {
            t.time(&self.library).is_some_and(|ns| ns >= self.settings.main_share * total)
        };
        order.iter().filter(|t| heavy(t) && open(t)).find_map(|t| first(t))
    }

    /// By expected gain: the task's time now, what is winnable of it, and what tries brought lately.
    fn searched_candidate(&self) -> Option<Candidate> {
        let mut order: Vec<(f64, &TaskState<'_>)> =
            self.tasks.iter().filter_map(|t| Some((self.expected(t)?, t))).collect();
        // Stable: ties keep the order of the specifications.
        order.sort_by(|a, b| b.0.total_cmp(&a.0));
        order.into_iter().find_map(|(_, t)| self.search_task(t))
    }

    fn expected(&self, t: &TaskState<'_>) -> Option<f64> {
        let memory = self.library.memory(t.id)?;
        memory.champion?;
        let ns = t.champion_ns(&self.library)?;
        let headroom = t.spec.floor_ns.map_or(UNKNOWN_HEADROOM, |f| (1.0 - f / ns).max(0.0));
        if t.spec.floor_ns.is_some_and(|f| ns <= f * (1.0 + self.settings.ceiling)) {
            return None;
        }
        let pending = memory.tried.values().filter(|x| x.state == State::Pending).count() as f64;
        let rate = if t.any_start().is_some() {
            FIRST_TRY
        } else {
            (t.improvement + 0.15) / (t.tries + pending + 1.0)
        };
        let cycles = t.since_promotion / self.settings.patience.max(1);
        Some(t.spec.calls * ns * headroom.min(rate) / (1.0 + cycles as f64))
    }

    fn search_task(&self, t: &TaskState<'g>) -> Option<Candidate> {
        if let Some(start) = t.any_start() {
            return Some(start);
        }
        const FAR: [Operator; 4] =
            [Operator::Restart, Operator::Crossover, Operator::Transfer, Operator::Random];
        let allowed: &[Operator] = if t.redirected(self.settings.patience) { &FAR } else { &Operator::ALL };
        let gain = t.gain(&self.library);
        for lane in t.ranked_lanes() {
            let knowledge = self.library.knowledge(t.id, lane.generator.name(), Some(lane.start.clone()));
            let feasible = |p: &Point| t.is_new_source(lane, p);
            if let Some(s) = lane.search.suggest(&knowledge, allowed, &feasible) {
                let why = hypothesis(&s, t.spec.bound, gain.exp());
                return Some(t.searched(lane, &s, why, self.library.memory(t.id)?));
            }
        }
        None
    }
}
