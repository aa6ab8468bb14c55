//! What the ledger tells about each task: who reigned, and what each change bought.

use super::source::Source;
use crate::summary::Operation;
use evidence::{Candidate, Change, Contract, Effect, Evidence, Id, Measured, Outcome, Phase, Samples, Task};
use ledger::{Fold, Seen};
use std::collections::BTreeMap;

/// A task and its champions.
#[derive(Clone, Debug)]
pub struct TaskStory {
    /// Name of the operation, or `engine`.
    pub name: String,
    /// Bucket of rows, empty for engines.
    pub rows: String,
    /// Time of a call of the first champion.
    pub baseline_ns: Option<f64>,
    pub baseline_evidence: Option<Id<Evidence>>,
    /// Part of a pass: time of the first champion times calls.
    pub weight: f64,
    /// Champions in order, the first one included.
    pub steps: Vec<Rise>,
}

/// One change of champion.
#[derive(Clone, Debug)]
pub struct Rise {
    pub at_ms: u64,
    /// Evaluations until then.
    pub evaluation: u64,
    pub champion: Id<Candidate>,
    pub effect: Option<Effect>,
    /// Speed-up against the first champion: the product of all effects.
    pub speedup: f64,
    pub revoked: bool,
    pub proposer: String,
    pub hypothesis: String,
    /// What differs from the champion before.
    pub change: String,
    pub evidence: Option<Id<Evidence>>,
}

impl TaskStory {
    /// Speed-up of the standing champion.
    pub fn speedup(&self) -> f64 {
        self.steps.last().map_or(1.0, |s| s.speedup)
    }

    /// Lowest row of the bucket, to sort by.
    pub fn first_row(&self) -> u32 {
        first_row(&self.rows)
    }
}

/// First number of a bucket such as `9-16`.
pub fn first_row(rows: &str) -> u32 {
    rows.split(|c: char| !c.is_ascii_digit()).next().and_then(|n| n.parse().ok()).unwrap_or(u32::MAX)
}

/// All tasks that have a champion. With a build's summary: those of its plan (and engines).
pub fn tasks(source: &Source) -> Vec<TaskStory> {
    let fold = &source.fold;
    let planned = planned(source);
    let mut observed: Vec<u64> = fold.evidence.values().flatten().map(|s| s.position.0).collect();
    observed.sort_unstable();
    let mut all: Vec<TaskStory> = fold
        .tasks
        .iter()
        .filter(|(id, task)| {
            let engine = matches!(task.contract, Contract::Engine { .. });
            !fold.champions.history(**id).is_empty()
                && (engine || planned.is_empty() || planned.contains_key(id))
        })
        .map(|(id, task)| story(fold, *id, task, planned.get(id).copied(), &observed))
        .collect();
    all.sort_by(|a, b| {
        (place(&a.name), &a.name, a.first_row()).cmp(&(place(&b.name), &b.name, b.first_row()))
    });
    all
}

/// Where an operation stands in a pass; unknown ones last.
pub fn place(name: &str) -> usize {
    const PASS: [&str; 9] = ["embed", "norm", "qkv", "rope_kv", "attention", "o", "gate_up", "down", "head"];
    PASS.iter().position(|n| *n == name).unwrap_or(PASS.len())
}

/// Operations of the summary by the task of their kernel.
fn planned(source: &Source) -> BTreeMap<Id<Task>, &Operation> {
    let operations = source.summary.iter().flat_map(|s| &s.operations);
    operations.filter_map(|o| Some((task_of(&source.fold, o)?, o))).collect()
}

fn task_of(fold: &Fold, operation: &Operation) -> Option<Id<Task>> {
    let id = Id::from_digest(operation.candidate.as_deref()?.parse().ok()?);
    fold.candidates.get(&id).map(|c| c.task)
}

fn story(fold: &Fold, id: Id<Task>, task: &Task, op: Option<&Operation>, observed: &[u64]) -> TaskStory {
    let (name, rows) = match &task.contract {
        Contract::Kernel { operation, rows_low, rows_high, .. } => {
            (operation.clone(), plan::RowBucket { low: *rows_low, high: *rows_high }.to_string())
        }
        Contract::Engine { .. } => ("engine".to_owned(), String::new()),
    };
    let reigns = fold.champions.history(id);
    let first =
        reigns.first().and_then(|r| fold.evidence_of(r.champion).iter().rev().find(|s| alone(s).is_some()));
    let baseline_ns =
        first.and_then(alone).or(op.map(|o| o.baseline_ns)).filter(|n| n.is_finite() && *n > 0.0);
    let mut speedups: BTreeMap<Id<Candidate>, f64> = BTreeMap::new();
    let mut steps: Vec<Rise> = Vec::new();
    for reign in reigns {
        let before = steps.last();
        let revoked = before.is_some() && reign.effect.is_none();
        let speedup = match (before, reign.effect) {
            (Some(b), Some(effect)) => b.speedup * effect.ratio,
            // After a revocation an earlier champion stands again.
            (Some(_), None) => speedups.get(&reign.champion).copied().unwrap_or(1.0),
            (None, _) => 1.0,
        };
        speedups.insert(reign.champion, speedup);
        let candidate = fold.candidates.get(&reign.champion);
        let previous = before.and_then(|b| fold.candidates.get(&b.champion));
        steps.push(Rise {
            at_ms: reign.recorded_ms,
            evaluation: observed.partition_point(|p| *p <= reign.since.0) as u64,
            champion: reign.champion,
            effect: reign.effect,
            speedup,
            revoked,
            proposer: candidate.map_or_else(String::new, |c| c.proposer.name.clone()),
            hypothesis: candidate.map_or_else(String::new, |c| c.hypothesis.clone()),
            change: change(previous, candidate),
            evidence: confirmation(fold, reign.champion),
        });
    }
    let calls = op.map_or(1.0, |o| f64::from(o.calls_per_pass.max(1)));
    TaskStory {
        name: op.map_or(name, |o| o.name.clone()),
        rows,
        baseline_ns,
        baseline_evidence: first.map(|s| s.id),
        weight: baseline_ns.map_or(0.0, |n| n * calls),
        steps,
    }
}

fn alone(seen: &Seen) -> Option<f64> {
    match &measured(&seen.evidence)?.samples {
        Samples::Single { ns, .. } => statistics::median(ns),
        _ => None,
    }
}

/// The numbers of evidence, if it has any.
pub fn measured(evidence: &Evidence) -> Option<&Measured> {
    match &evidence.outcome {
        Outcome::Measured(m) => Some(m),
        Outcome::Stopped(_) => None,
    }
}

/// The evidence that a promotion rests on: the last measured confirmation, else the last measurement.
pub fn confirmation(fold: &Fold, candidate: Id<Candidate>) -> Option<Id<Evidence>> {
    let seen = fold.evidence_of(candidate);
    let good = |s: &&Seen| measured(&s.evidence).is_some();
    let confirmed = seen.iter().rev().filter(good).find(|s| s.evidence.phase == Phase::Confirm);
    confirmed.or_else(|| seen.iter().rev().find(good)).map(|s| s.id)
}

/// What a candidate changed against another one, in words.
pub fn change(before: Option<&Candidate>, after: Option<&Candidate>) -> String {
    let Some(after) = after else { return String::new() };
    match (before.map(|b| &b.change), &after.change) {
        (
            Some(Change::Recipe { generator: old, point: from, .. }),
            Change::Recipe { generator: new, point: to, .. },
        ) => {
            let mut parts = Vec::new();
            if old != new {
                parts.push(format!("{old} → {new}"));
            }
            for (axis, value) in &to.0 {
                match from.get(axis) {
                    Some(was) if was != value => parts.push(format!("{axis} {was} → {value}")),
                    None => parts.push(format!("{axis} {value}")),
                    Some(_) => {}
                }
            }
            parts.join(", ")
        }
        (_, Change::Recipe { generator, point, .. }) => format!("{generator}: {point}"),
        (_, Change::Source { text, .. }) => format!("source, {} lines", text.lines().count()),
        (Some(Change::Plan { choices: from, .. }), Change::Plan { choices: to, .. }) => {
            let moved = to.0.iter().filter(|(axis, value)| from.get(axis) != Some(value.as_str()));
            let words: Vec<String> = moved
                .map(|(axis, value)| format!("{axis} {} → {value}", from.get(axis).unwrap_or("none")))
                .collect();
            words.join(", ")
        }
        (_, Change::Plan { choices, .. }) => choices.to_string(),
    }
}

/// Overall speed-up after each change of champion: (milliseconds, evaluations, speed-up). Operations count by the time
/// that their first champion takes.
pub fn overall(tasks: &[TaskStory]) -> Vec<(u64, u64, f64)> {
    let counted: Vec<&TaskStory> = tasks.iter().filter(|t| t.weight > 0.0 && t.name != "engine").collect();
    let total: f64 = counted.iter().map(|t| t.weight).sum();
    let mut moves: Vec<(u64, u64, usize, f64)> = Vec::new();
    for (n, task) in counted.iter().enumerate() {
        moves.extend(task.steps.iter().skip(1).map(|s| (s.evaluation, s.at_ms, n, s.speedup)));
    }
    moves.sort_by_key(|m| (m.0, m.1, m.2));
    let mut now = vec![1.0; counted.len()];
    let mut points = Vec::new();
    for (evaluation, at_ms, n, speedup) in moves {
        now[n] = speedup;
        let time: f64 = counted.iter().zip(&now).map(|(t, s)| t.weight / s).sum();
        points.push((at_ms, evaluation, total / time));
    }
    points
}
