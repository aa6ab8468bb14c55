//! The kernel tasks of a build: one for each operation and row bucket that the workload can reach.

use crate::assemble::{self, ANY_ROWS};
use crate::goal::Workload;
use anyhow::{Result, anyhow};
use emit::PlanChoices;
use evidence::Change;
use judge::{KernelTask, MeasuredCeilings};
use kernels::Generator;
use kernels::numerics::Arith;
use plan::{ModelShape, Operation, Phase, RowBucket, Target};
use std::collections::BTreeMap;
use swarm::{Bound, Recipe, TaskSpec};

/// Buckets of what only prompts run: short prompts and ends of chunks, and all else.
const PROMPTS: [RowBucket; 2] = [RowBucket { low: 1, high: 32 }, RowBucket { low: 33, high: u32::MAX }];

/// An operation of the plan with its tasks.
#[derive(Clone, Debug)]
pub struct PlannedTask {
    /// Name in the plan, for example `gate_up`.
    pub name: String,
    pub task: KernelTask,
    pub baseline: Recipe,
    /// Calls for one unit of the workload.
    pub calls: f64,
    /// Calls in one pass.
    pub per_pass: u32,
}

/// All tasks of a plan with these choices.
pub fn tasks(
    shape: &ModelShape,
    choices: &PlanChoices,
    target: &Target,
    workload: &Workload,
) -> Result<Vec<PlannedTask>> {
    let mut all = Vec::new();
    for (name, operation) in emit::operations(shape, choices) {
        let logits = name == emit::compose::name::HEAD;
        let batching = &choices.batching;
        let phase = emit::compose::phase_of(choices, &name);
        // The head runs for one row of each sequence, and so does what only generated tokens run.
        let few = logits || phase == Some(Phase::Decode);
        let most = if few { batching.max_sequences.min(batching.max_rows) } else { batching.max_rows };
        let class = class_of(&operation, target)?;
        let buckets: Vec<RowBucket> = match phase {
            _ if !searchable(&operation, target) => vec![ANY_ROWS],
            Some(Phase::Prefill) => PROMPTS.into_iter().filter(|b| b.low <= most).collect(),
            _ => RowBucket::ALL.into_iter().filter(|b| b.low <= most).collect(),
        };
        let per_pass = match name.as_str() {
            emit::compose::name::EMBED | emit::compose::name::HEAD => 1,
            emit::compose::name::NORM => 2 * shape.layers + 1,
            _ => shape.layers,
        };
        for rows in buckets {
            let context = workload.prompt_tokens + workload.output_tokens / 2;
            let task = KernelTask::new(operation, rows, target.clone(), class.clone(), most, context);
            let passes = passes(workload, choices, rows, logits, phase);
            let baseline = assemble::portable_recipe(&operation, rows, target, most)?;
            all.push(PlannedTask {
                name: name.clone(),
                task,
                baseline: Recipe { generator: baseline.generator, point: baseline.point },
                calls: passes * f64::from(per_pass),
                per_pass,
            });
        }
    }
    Ok(all)
}

/// Passes with rows in this bucket for one output token, averaged over the workload's concurrencies, each weighed by
/// the inverse of the time that a token takes there (the metric is a geometric mean). Large passes count by their rows:
/// calls of the open bucket are timed at the most rows of a pass.
fn passes(
    workload: &Workload,
    choices: &PlanChoices,
    bucket: RowBucket,
    logits: bool,
    phase: Option<Phase>,
) -> f64 {
    let (prompt, output) = (f64::from(workload.prompt_tokens), f64::from(workload.output_tokens));
    let (mut sum, mut weights) = (0.0, 0.0);
    for &c in &workload.concurrency {
        let rows = c.min(choices.batching.max_sequences);
        // A pass of c rows costs about 1 + 0.08 c passes of one row on machines that stream weights.
        let weight = f64::from(c) / (1.0 + 0.08 * f64::from(c));
        weights += weight;
        let mut passes = 0.0;
        if bucket.contains(rows) && phase != Some(Phase::Prefill) {
            passes += 1.0 / f64::from(c);
        }
        let chunk = choices.batching.prefill_chunk.min(workload.prompt_tokens).max(1);
        if !logits && phase != Some(Phase::Decode) && bucket.contains(chunk) {
            let share =
                if bucket.low > 32 { f64::from(chunk) / f64::from(choices.batching.max_rows) } else { 1.0 };
            passes += share * prompt / f64::from(chunk) / output;
        }
        sum += weight * passes;
    }
    // Buckets that only mixed batches reach still count a little.
    (sum / weights).max(0.001)
}

/// The numeric class that a search for this operation and target is about: that of the fastest kind of code, which the
/// generators name last.
fn class_of(operation: &Operation, target: &Target) -> Result<String> {
    let fitting = fitting(operation, target);
    let fused = fitting
        .iter()
        .rfind(|g| matches!(Arith::of_class(&g.numeric_class(operation)), Some(Arith::Fused | Arith::Tiles)));
    let chosen = fused.or(fitting.first());
    chosen.map(|g| g.numeric_class(operation)).ok_or_else(|| anyhow!("no generator for {operation}"))
}

/// Generators whose features the target has.
pub fn fitting(operation: &Operation, target: &Target) -> Vec<&'static dyn Generator> {
    let rows = RowBucket::ALL[0];
    let all = kernels::generators::generators().iter().copied();
    all.filter(|g| g.space(operation, rows, target).is_some()).collect()
}

fn searchable(operation: &Operation, target: &Target) -> bool {
    fitting(operation, target).len() > 1
}

/// The swarm's view of a task.
pub fn spec(planned: &PlannedTask, ceilings: &MeasuredCeilings, seeds: Vec<Change>) -> TaskSpec<'static> {
    let t = &planned.task;
    let high = t.high();
    let floor = ceilings.floor_ns(&t.operation, high, t.context, t.target.threads);
    let generators = kernels::generators::generators().to_vec();
    TaskSpec {
        name: planned.name.clone(),
        task: t.pose(),
        operation: t.operation,
        rows: t.rows,
        target: t.target.clone(),
        max_rows: t.max_rows,
        generators,
        baseline: planned.baseline.clone(),
        calls: planned.calls,
        floor_ns: (floor > 0.0).then_some(floor),
        bound: if high >= 9 { Bound::Compute } else { Bound::Memory },
        seeds,
    }
}

/// Tasks by id.
pub fn by_id(tasks: &[PlannedTask]) -> BTreeMap<evidence::Id<evidence::Task>, PlannedTask> {
    tasks.iter().map(|t| (judge::task_id(&t.task), t.clone())).collect()
}
