//! One kernel task of a search.

use evidence::{Change, Contract, Point, Task};
use kernels::Generator;
use plan::{Operation, RowBucket, Target};

/// A point of a generator's space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipe {
    pub generator: String,
    pub point: Point,
}

/// What limits an operation at its best, for hypotheses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    Memory,
    Compute,
    Unknown,
}

/// What the swarm needs to know about a task.
#[derive(Clone)]
pub struct TaskSpec<'g> {
    /// Name for people, for example the operation's place in the plan.
    pub name: String,
    pub task: Task,
    pub operation: Operation,
    pub rows: RowBucket,
    pub target: Target,
    /// Most rows of one call, part of every recipe.
    pub max_rows: u32,
    /// Generators that may apply; those of another numeric class than the contract's are left out.
    pub generators: Vec<&'g dyn Generator>,
    /// The portable kernel: the first champion.
    pub baseline: Recipe,
    /// Calls of this operation and bucket for one unit of the goal's workload: weighs the task.
    pub calls: f64,
    /// Least time of a call that the measured ceilings allow, nanoseconds.
    pub floor_ns: Option<f64>,
    pub bound: Bound,
    /// Further first candidates, for example promoted sources.
    pub seeds: Vec<Change>,
}

impl TaskSpec<'_> {
    /// For people: name and rows.
    pub fn label(&self) -> String {
        format!("{} rows {}", self.name, self.rows)
    }

    /// The contract's numeric class, if it is a kernel contract.
    pub(crate) fn class(&self) -> Option<&str> {
        match &self.task.contract {
            Contract::Kernel { class, .. } => Some(class),
            Contract::Engine { .. } => None,
        }
    }
}

/// Why nothing more is proposed for a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// The champion is within the margin of the measured roofline.
    Ceiling,
    /// Every feasible point was tried.
    Exhausted,
    /// The baseline itself was refused or given up: there is nothing to compare with.
    NoBaseline,
}

/// State of a task, for progress and reports.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskView {
    pub label: String,
    /// Proposals, by anybody.
    pub proposed: u64,
    /// Proposals with a final decision.
    pub decided: u64,
    /// Speed-up of the champion on the first champion.
    pub speedup: f64,
    pub champion_ns: Option<f64>,
    pub floor_ns: Option<f64>,
    /// Final decisions since the last promotion.
    pub since_promotion: u64,
    pub closed: Option<Closed>,
}
