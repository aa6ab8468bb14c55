//! The exploit suite: dishonest candidates that the judge must refuse, honest ones that it must accept.
//!
//! The candidates lie under `conformance/`; they are compiled into this crate as text, and built and run like any
//! other candidate.

use crate::error::JudgeError;
use crate::judge::Judge;
use crate::task::{KernelTask, Submission};
use evidence::{Candidate, Change, Content, Outcome, Phase, Proposer, Reason, Stop};
use plan::{
    Activation, Epilogue, Launch, Operation, Prologue, RowBucket, Target, WeightFormat, WeightLayout,
};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::{Duration, Instant};

const FRAME: &str = include_str!("../../../conformance/frame.rs");

macro_rules! candidates {
    ($folder:literal: $($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../../conformance/", $folder, "/", $name, ".rs")))),*]
    };
}

/// Name and text of every dishonest candidate.
pub const DISHONEST: &[(&str, &str)] = candidates!("dishonest":
    "another_class",
    "before_the_start",
    "changes_inputs",
    "changes_weights",
    "copies_input",
    "counts_calls",
    "depends_on_address",
    "depends_on_batch",
    "depends_on_size",
    "depends_on_threads",
    "flushes_small",
    "greedy",
    "half_the_threads",
    "host_file",
    "ignores_norm_weight",
    "ignores_residual",
    "imports",
    "last_row_copied",
    "last_row_skipped",
    "loops_for_ever",
    "low_precision",
    "memo_in_scratch",
    "missing_barrier",
    "nan",
    "past_scratch",
    "past_the_end",
    "reads_the_clock",
    "rounding_mode",
    "stale_output",
    "system_call",
    "wrong_tail",
    "zeros",
);

/// Name and text of every honest control.
pub const HONEST: &[(&str, &str)] = candidates!("honest":
    "linear_add",
    "linear_plain",
    "linear_rows",
    "linear_thread_scratch",
    "linear_two_phases",
    "rmsnorm_plain",
);

/// First line of a candidate's file.
#[derive(Clone, Debug, Deserialize)]
pub struct Header {
    /// `linear`, `linear-add` or `rmsnorm`.
    pub task: String,
    pub why: String,
    /// Reasons that count as caught; empty for honest ones.
    #[serde(default)]
    pub expect: Vec<Reason>,
    pub launch: Launch,
}

/// What became of one candidate.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    pub name: String,
    pub why: String,
    pub verdict: Caught,
    /// The judge's words.
    pub detail: String,
    pub took: Duration,
}

/// How the judge did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Caught {
    /// A dishonest candidate was refused for a reason that fits, or an honest one accepted.
    Right,
    /// A dishonest candidate was refused, but for another reason than it gave.
    OtherReason,
    /// A dishonest candidate got through.
    Missed,
    /// An honest candidate was refused.
    HonestRefused,
    /// The evaluation did not come to an end; says nothing.
    Inconclusive,
}

/// The suite's result.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    pub dishonest: Vec<Finding>,
    pub honest: Vec<Finding>,
}

impl Report {
    /// Findings of one kind.
    pub fn count(&self, verdict: Caught) -> usize {
        self.dishonest.iter().chain(&self.honest).filter(|f| f.verdict == verdict).count()
    }

    /// Whether every dishonest candidate was refused and every honest one accepted.
    pub fn passes(&self) -> bool {
        let bad = [Caught::Missed, Caught::HonestRefused, Caught::Inconclusive];
        bad.iter().all(|v| self.count(*v) == 0)
    }
}

/// The task that a header names.
fn task(name: &str) -> Option<KernelTask> {
    let linear = |epilogue| Operation::Linear {
        n: 80,
        k: 64,
        prologue: Prologue::None,
        epilogue,
        weight: WeightLayout { format: WeightFormat::F32, n_block: 16 },
        activation: Activation::F32,
    };
    let (operation, class) = match name {
        "linear" => (linear(Epilogue::Store), "linear-f32/nofma"),
        "linear-add" => (linear(Epilogue::Add), "linear-f32/nofma"),
        "rmsnorm" => (Operation::RmsNorm { width: 64, eps_bits: 1e-5f32.to_bits() }, "rmsnorm/nofma"),
        _ => return None,
    };
    let target = Target::portable("x86_64", 2);
    let rows = RowBucket { low: 2, high: 4 };
    Some(KernelTask::new(operation, rows, target, class, 64, 64))
}

/// Reads a candidate's text into a task and a submission.
///
/// # Errors
/// [`JudgeError::Conformance`] if the header is damaged.
pub fn read(name: &str, text: &str) -> Result<(Header, KernelTask, Submission), JudgeError> {
    let bad = |what: String| JudgeError::Conformance { path: PathBuf::from(name), what };
    let first = text.lines().next().and_then(|l| l.strip_prefix("// "));
    let first = first.ok_or_else(|| bad("the first line is no header".into()))?;
    let header: Header = serde_json::from_str(first).map_err(|e| bad(e.to_string()))?;
    let task = task(&header.task).ok_or_else(|| bad(format!("no task '{}'", header.task)))?;
    let source = format!("{}{FRAME}{text}", kernels::generators::prelude::begin(name));
    let candidate = Candidate {
        task: task.pose().id(),
        parents: vec![],
        change: Change::Source { text: source.clone(), launch: first.to_owned() },
        hypothesis: header.why.clone(),
        proposer: Proposer { name: "red-team".into() },
    };
    let submission = Submission { candidate: candidate.id(), source, launch: header.launch };
    Ok((header, task, submission))
}

/// Runs the suite; `progress` hears of every finding.
///
/// # Errors
/// [`JudgeError::Conformance`] for damaged candidates.
pub fn run(judge: &mut Judge, mut progress: impl FnMut(&Finding)) -> Result<Report, JudgeError> {
    let mut report = Report::default();
    for (name, text) in DISHONEST {
        let finding = examine(judge, name, text)?;
        progress(&finding);
        report.dishonest.push(finding);
    }
    for (name, text) in HONEST {
        let finding = examine(judge, name, text)?;
        progress(&finding);
        report.honest.push(finding);
    }
    Ok(report)
}

fn examine(judge: &mut Judge, name: &str, text: &str) -> Result<Finding, JudgeError> {
    let (header, task, submission) = read(name, text)?;
    let honest = header.expect.is_empty();
    let start = Instant::now();
    let mut outcome = judge.evaluate(&task, &submission, None, Phase::Screen).outcome;
    // A busy machine is no verdict: once more.
    if matches!(outcome, Outcome::Stopped(Stop::Inconclusive { .. })) {
        outcome = judge.evaluate(&task, &submission, None, Phase::Screen).outcome;
    }
    let (verdict, detail) = match outcome {
        Outcome::Measured(_) if honest => (Caught::Right, "accepted".to_owned()),
        Outcome::Measured(_) => (Caught::Missed, "accepted".to_owned()),
        Outcome::Stopped(Stop::Inconclusive { detail, .. }) => (Caught::Inconclusive, detail),
        Outcome::Stopped(Stop::Rejected(r)) => {
            let verdict = match (honest, header.expect.contains(&r.reason)) {
                (true, _) => Caught::HonestRefused,
                (false, true) => Caught::Right,
                (false, false) => Caught::OtherReason,
            };
            (verdict, format!("{:?}: {}", r.reason, r.detail))
        }
    };
    Ok(Finding { name: name.to_owned(), why: header.why, verdict, detail, took: start.elapsed() })
}
