//! What was seen: evidence, and why an evaluation ended early.

use crate::digest::{Content, Digest, Id};
use crate::task::Candidate;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What one evaluation saw.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    pub candidate: Id<Candidate>,
    /// The champion it was paired against, if any (the first champion stands alone).
    pub against: Option<Id<Candidate>>,
    pub phase: Phase,
    pub protocol: Protocol,
    /// Digest of the machine's full description.
    pub machine: Digest,
    pub outcome: Outcome,
}

/// Screen evidence may only lead to more evaluation; only Confirm evidence promotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    Screen,
    Confirm,
}

/// How it was measured: enough to run it again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Protocol {
    /// Digest of the judge's protocol text and version.
    pub version: String,
    /// `HMAC(run secret, artifact)`, hex: inputs cannot be foreseen, and can be replayed.
    pub seed: String,
    /// Digest that was posted before the run (the secret's).
    pub secret_digest: Digest,
    /// Version of the validation corpus.
    pub corpus: String,
    /// Sandbox layers that stood, for example `landlock`, `seccomp`, `rlimits`.
    pub layers: Vec<String>,
    /// Compiler and flags.
    pub toolchain: String,
}

/// A failure is an enum, never a number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Measured(Measured),
    Stopped(Stop),
}

/// Numbers, with the passed check that they rest on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Digest of the binary (kernels) or of the composed plan (engines).
    pub artifact: Digest,
    pub check: CheckSummary,
    pub samples: Samples,
}

/// What was checked before anything was timed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckSummary {
    pub cases: u32,
    /// Dispatch keys (row counts) that were proved.
    pub keys: Vec<u32>,
    /// Largest |error| / bound over all cases, at most 1.
    pub worst_ratio: f64,
    /// Outputs of timed calls that were checked again.
    pub timed_checked: u32,
    /// Engine trials: quality figures (`kl`, `top1`, `perplexity`, ...).
    pub quality: BTreeMap<String, f64>,
}

/// Raw samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Samples {
    /// Interleaved pairs, nanoseconds per call; `calls` calls were batched in each timed block.
    Paired { champion_ns: Vec<f64>, challenger_ns: Vec<f64>, calls: u32 },
    /// The first champion alone, nanoseconds per call.
    Single { ns: Vec<f64>, calls: u32 },
    /// Engine trials: named series, for example `tokens_per_s_c16`.
    Series { series: BTreeMap<String, Vec<f64>>, champion: BTreeMap<String, Vec<f64>> },
}

/// Why an evaluation ended early. Neither variant carries a number that could be taken for a result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    /// The candidate's fault: final, and a lesson.
    Rejected(Rejection),
    /// Our fault or the machine's: says nothing about the candidate; evaluate again.
    Inconclusive { fault: Fault, detail: String },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rejection {
    pub reason: Reason,
    pub detail: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The generator or compiler refused it.
    Build,
    /// The binary inspection refused it.
    Inspection,
    /// Wrong output against the oracle.
    Wrong,
    /// Output differs from its numeric class.
    Class,
    /// It wrote outside its outputs, changed an input or left an output unwritten.
    Memory,
    Crash,
    Timeout,
    /// Faster than the measured roofline allows.
    Roofline,
    /// Same input, another output.
    Nondeterministic,
    /// An engine below the quality bound.
    Quality,
    /// A timed output was wrong.
    TimedOutput,
    /// A limit of memory or output.
    Resources,
    /// The machine lacks a feature it needs.
    Unsupported,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// The champion drifted within the block: contention or throttling.
    Disturbed,
    Worker,
    Host,
    Budget,
}

impl Content for Evidence {
    const KIND: &'static str = "evidence/1";
}
