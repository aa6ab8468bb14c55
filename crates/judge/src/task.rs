//! A kernel task in typed form, and its stored form.

use crate::error::JudgeError;
use evidence::{Candidate, Content, Contract, Direction, Id, Metric, Task, Workloads};
use plan::{Launch, Operation, RowBucket, Target};

/// One operation for one row bucket on one target.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelTask {
    pub operation: Operation,
    pub rows: RowBucket,
    pub target: Target,
    /// Numeric class; outputs must agree with it bit for bit, see [`crate::check`].
    pub class: String,
    /// Most rows of one call (the open bucket's upper end).
    pub max_rows: u32,
    /// Tokens of context that the timed calls of position-aware operations see.
    pub context: u32,
    /// The least relative effect that counts, parts per thousand.
    pub least_effect_permille: u32,
    /// Rows of the timed calls: screening uses `screen`, confirmation `confirm` (held out from proposers).
    pub screen: Vec<u32>,
    pub confirm: Vec<u32>,
}

impl KernelTask {
    /// A task with the usual workloads: the bucket's upper end to screen; that and held-out rows to confirm.
    pub fn new(
        operation: Operation,
        rows: RowBucket,
        target: Target,
        class: impl Into<String>,
        max_rows: u32,
        context: u32,
    ) -> Self {
        let high = rows.high.min(max_rows).max(rows.low);
        let middle = rows.low + (high - rows.low) / 2;
        let confirm = if middle == high { vec![high] } else { vec![high, middle] };
        Self {
            operation,
            rows,
            target,
            class: class.into(),
            max_rows,
            context,
            least_effect_permille: 10,
            screen: vec![high],
            confirm,
        }
    }

    /// Most rows of a call in this bucket.
    pub fn high(&self) -> u32 {
        self.rows.high.min(self.max_rows).max(self.rows.low)
    }

    /// The held-out workloads; only their digest stands in the task.
    pub fn held_out(&self) -> Workloads {
        Workloads { cases: self.confirm.iter().map(|r| format!("{r}@{}", self.context)).collect() }
    }

    /// The stored form.
    ///
    /// # Panics
    /// Never: an operation always encodes.
    pub fn pose(&self) -> Task {
        let definition = serde_json::to_string(&self.operation).expect("plain data always encodes");
        Task {
            contract: Contract::Kernel {
                operation: self.operation.to_string(),
                definition,
                class: self.class.clone(),
                rows_low: self.rows.low,
                rows_high: self.rows.high,
            },
            target: self.target.to_string(),
            metric: Metric {
                name: "time of a call".into(),
                unit: "ns".into(),
                direction: Direction::Minimise,
                least_effect_permille: self.least_effect_permille,
            },
            screen: Workloads {
                cases: self.screen.iter().map(|r| format!("{r}@{}", self.context)).collect(),
            },
            confirm: self.held_out().id().digest(),
        }
    }

    /// Reads a stored kernel task. Held-out rows are those of [`KernelTask::new`], checked against the digest.
    ///
    /// # Errors
    /// [`JudgeError::Task`] for engine tasks, damaged definitions and unknown held-out workloads.
    pub fn read(task: &Task, max_rows: u32) -> Result<Self, JudgeError> {
        let bad = |what: String| JudgeError::Task(what);
        let Contract::Kernel { definition, class, rows_low, rows_high, .. } = &task.contract else {
            return Err(bad("an engine task is no kernel task".into()));
        };
        let operation: Operation =
            serde_json::from_str(definition).map_err(|e| bad(format!("definition: {e}")))?;
        let target = task.target.parse::<Target>().map_err(|e| bad(e.to_string()))?;
        let mut screen = Vec::new();
        let mut context = 0;
        for case in &task.screen.cases {
            let parsed = case.split_once('@').and_then(|(r, c)| Some((r.parse().ok()?, c.parse().ok()?)));
            let Some((rows, tokens)) = parsed else {
                return Err(bad(format!("workload '{case}' is not ROWS@CONTEXT")));
            };
            screen.push(rows);
            context = tokens;
        }
        let rows = RowBucket { low: *rows_low, high: *rows_high };
        let mut read = Self::new(operation, rows, target, class.clone(), max_rows, context);
        read.screen = screen;
        read.least_effect_permille = task.metric.least_effect_permille;
        if read.held_out().id().digest() != task.confirm {
            return Err(bad("its held-out workloads are not known here".into()));
        }
        Ok(read)
    }
}

/// A kernel candidate as the judge takes it: complete source and launch description.
#[derive(Clone, Debug, PartialEq)]
pub struct Submission {
    pub candidate: Id<Candidate>,
    pub source: String,
    pub launch: Launch,
}

#[cfg(test)]
mod tests {
    use super::*;
    use plan::{Activation, Epilogue, Feature, Prologue, WeightFormat, WeightLayout, Zero};

    #[test]
    fn stored_and_read_back() {
        let format = WeightFormat::Affine { bits: 8, group: 32, zero: Zero::Midpoint };
        let operation = Operation::Linear {
            n: 64,
            k: 64,
            prologue: Prologue::None,
            epilogue: Epilogue::Store,
            weight: WeightLayout { format, n_block: 16 },
            activation: Activation::I8,
        };
        let target = Target { arch: "x86_64".into(), features: Feature::ALL.into(), threads: 2 };
        for rows in RowBucket::ALL {
            let task = KernelTask::new(operation, rows, target.clone(), "c", 128, 512);
            assert_eq!(KernelTask::read(&task.pose(), 128).unwrap(), task);
        }
        let mut other = KernelTask::new(operation, RowBucket::ALL[2], target, "c", 128, 512);
        other.confirm = vec![7];
        assert!(KernelTask::read(&other.pose(), 128).is_err());
    }
}
