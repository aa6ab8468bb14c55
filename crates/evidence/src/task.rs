//! The question and the proposed answers.

use crate::digest::{Content, Digest, Id};
use crate::space::Point;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The question. Fixed before the search: change a field and it is another task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    pub contract: Contract,
    /// Target key, for example `x86_64+avx2+avx512+avx512vnni/t2`.
    pub target: String,
    pub metric: Metric,
    /// What proposers may see.
    pub screen: Workloads,
    /// Digest of the held-out workloads; proposers never see their content.
    pub confirm: Digest,
}

/// What correct means.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Contract {
    /// An operation against its f64 oracle. `operation` is the operation's key, `definition` its canonical JSON,
    /// `class` the numeric class that the output must agree with bit for bit.
    Kernel { operation: String, definition: String, class: String, rows_low: u32, rows_high: u32 },
    /// A whole engine against the f32 reference model: bounds that the goal sets.
    Engine { model: String, goal: String, quality: BTreeMap<String, String> },
}

/// What is measured and which way is better.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metric {
    pub name: String,
    pub unit: String,
    pub direction: Direction,
    /// The least relative effect that counts, in parts per thousand.
    pub least_effect_permille: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    Minimise,
    Maximise,
}

/// Shapes or request traces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workloads {
    /// Rows of a call (kernels) or `concurrency/prompt/output` triples (engines), as text.
    pub cases: Vec<String>,
}

/// One proposed answer, immutable and content-addressed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candidate {
    pub task: Id<Task>,
    pub parents: Vec<Id<Candidate>>,
    pub change: Change,
    /// Why it should win, written before anybody measured it.
    pub hypothesis: String,
    pub proposer: Proposer,
}

/// What a candidate is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Change {
    /// A point in a generator's space.
    Recipe { generator: String, point: Point, max_rows: u32 },
    /// Kernel source as free text, with its launch description as JSON.
    Source { text: String, launch: String },
    /// An engine plan: the choices of the plan space, and the kernel candidate of each (operation, bucket).
    Plan { choices: Point, kernels: BTreeMap<String, Id<Candidate>> },
}

/// Who proposed: an operator of the swarm, an LLM agent, an external agent, a person, or the baseline itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proposer {
    /// For example `baseline`, `mutate`, `crossover`, `local-search`, `transfer`, `restart`, `seed`.
    pub name: String,
}

impl Content for Task {
    const KIND: &'static str = "task/1";
}
impl Content for Candidate {
    const KIND: &'static str = "candidate/1";
}
impl Content for Workloads {
    const KIND: &'static str = "workloads/1";
}
