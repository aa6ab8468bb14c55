//! Folds: what the entries add up to.

use crate::Ledger;
use crate::error::LedgerError;
use crate::export::PAGE;
use crate::record::{Position, Record};
use evidence::{
    Candidate, Decision, Effect, Entry, Evidence, Fault, Id, Lesson, Outcome, Reason, Stop, Task, Verdict,
};
use std::collections::BTreeMap;

/// Who stands for a task now, and who stood before.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Champions {
    reigns: BTreeMap<Id<Task>, Vec<Reign>>,
}

/// One change of champion.
#[derive(Clone, Debug, PartialEq)]
pub struct Reign {
    pub champion: Id<Candidate>,
    /// Position of the decision.
    pub since: Position,
    pub recorded_ms: u64,
    /// Effect on the champion before; `None` for the first one and after a revocation.
    pub effect: Option<Effect>,
    pub decision: Id<Decision>,
}

impl Champions {
    /// The champion of a task.
    pub fn get(&self, task: Id<Task>) -> Option<Id<Candidate>> {
        self.history(task).last().map(|r| r.champion)
    }

    /// All reigns of a task, oldest first.
    pub fn history(&self, task: Id<Task>) -> &[Reign] {
        self.reigns.get(&task).map_or(&[], Vec::as_slice)
    }

    /// All tasks that have a champion.
    pub fn iter(&self) -> impl Iterator<Item = (Id<Task>, Id<Candidate>)> + '_ {
        self.reigns.iter().filter_map(|(t, r)| r.last().map(|r| (*t, r.champion)))
    }
}

/// Evidence with where it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    pub position: Position,
    pub id: Id<Evidence>,
    pub evidence: Evidence,
}

/// Counts of one task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskStatistics {
    pub proposed: u64,
    /// Evidence entries, of any outcome.
    pub observed: u64,
    pub measured: u64,
    /// Decisions that promoted.
    pub promoted: u64,
    /// Decisions that left the champion standing.
    pub kept: u64,
    pub revoked: u64,
    /// Rejections by reason.
    pub refused: BTreeMap<Reason, u64>,
    /// Faults of ours, by kind.
    pub inconclusive: BTreeMap<Fault, u64>,
}

/// The state after all entries up to a position.
#[derive(Clone, Debug, Default)]
pub struct Fold {
    pub position: Position,
    pub tasks: BTreeMap<Id<Task>, Task>,
    pub candidates: BTreeMap<Id<Candidate>, Candidate>,
    /// Candidates of each task, in the order of proposal.
    pub proposed: BTreeMap<Id<Task>, Vec<Id<Candidate>>>,
    pub evidence: BTreeMap<Id<Candidate>, Vec<Seen>>,
    /// Decisions in order, by challenger.
    pub decisions: BTreeMap<Id<Candidate>, Vec<(Position, Decision)>>,
    pub champions: Champions,
    /// In order.
    pub lessons: Vec<(Position, Id<Task>, Lesson)>,
    pub statistics: BTreeMap<Id<Task>, TaskStatistics>,
}

impl Fold {
    /// Reads a whole ledger.
    pub fn read(ledger: &dyn Ledger) -> Result<Self, LedgerError> {
        let mut fold = Self::default();
        fold.catch_up(ledger)?;
        Ok(fold)
    }

    /// Reads the entries since [`Fold::position`]; returns them.
    pub fn catch_up(&mut self, ledger: &dyn Ledger) -> Result<Vec<Record>, LedgerError> {
        let mut all = Vec::new();
        loop {
            let page = ledger.entries(self.position, PAGE)?;
            if page.is_empty() {
                return Ok(all);
            }
            page.iter().for_each(|r| self.apply(r));
            all.extend(page);
        }
    }

    /// Adds one entry. Entries at or before [`Fold::position`] were counted already and change nothing.
    pub fn apply(&mut self, record: &Record) {
        if record.position <= self.position {
            return;
        }
        self.position = record.position;
        match &record.entry {
            Entry::Posed(task) => {
                self.tasks.insert(Id::from_digest(record.content), task.clone());
            }
            Entry::Proposed(candidate) => {
                let id = Id::from_digest(record.content);
                self.statistics.entry(candidate.task).or_default().proposed += 1;
                self.proposed.entry(candidate.task).or_default().push(id);
                self.candidates.insert(id, candidate.clone());
            }
            Entry::Observed(evidence) => self.observe(record, evidence),
            Entry::Decided(decision) => self.decide(record, decision),
        }
    }

    fn observe(&mut self, record: &Record, evidence: &Evidence) {
        if let Some(candidate) = self.candidates.get(&evidence.candidate) {
            let counts = self.statistics.entry(candidate.task).or_default();
            counts.observed += 1;
            match &evidence.outcome {
                Outcome::Measured(_) => counts.measured += 1,
                Outcome::Stopped(Stop::Rejected(r)) => *counts.refused.entry(r.reason).or_default() += 1,
                Outcome::Stopped(Stop::Inconclusive { fault, .. }) => {
                    *counts.inconclusive.entry(*fault).or_default() += 1;
                }
            }
        }
        self.evidence.entry(evidence.candidate).or_default().push(Seen {
            position: record.position,
            id: Id::from_digest(record.content),
            evidence: evidence.clone(),
        });
    }

    fn decide(&mut self, record: &Record, decision: &Decision) {
        let counts = self.statistics.entry(decision.task).or_default();
        let effect = match &decision.verdict {
            Verdict::Promote(effect) => {
                counts.promoted += 1;
                Some(*effect)
            }
            Verdict::Revoke => {
                counts.revoked += 1;
                Some(None)
            }
            Verdict::Keep(_) => {
                counts.kept += 1;
                None
            }
            Verdict::Refuse | Verdict::Evaluate(_) => None,
        };
        if let Some(effect) = effect {
            self.champions.reigns.entry(decision.task).or_default().push(Reign {
                champion: decision.challenger,
                since: record.position,
                recorded_ms: record.recorded_ms,
                effect,
                decision: Id::from_digest(record.content),
            });
        }
        if let Some(lesson) = &decision.lesson {
            self.lessons.push((record.position, decision.task, lesson.clone()));
        }
        self.decisions.entry(decision.challenger).or_default().push((record.position, decision.clone()));
    }

    /// Evidence of a candidate, in order.
    pub fn evidence_of(&self, candidate: Id<Candidate>) -> &[Seen] {
        self.evidence.get(&candidate).map_or(&[], Vec::as_slice)
    }

    /// The last decision on a candidate.
    pub fn last_decision(&self, challenger: Id<Candidate>) -> Option<&Decision> {
        self.decisions.get(&challenger)?.last().map(|(_, d)| d)
    }
}
