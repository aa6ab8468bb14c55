//! Which cases prove a kernel: every dispatch key, every pattern, edges of batches and contexts.

use crate::error::JudgeError;
use crate::seed::Seed;
use crate::stock::Stock;
use crate::task::KernelTask;
use evidence::Phase;
use kernels::dispatch::dispatch_keys;
use kernels::inputs::{Batch, CaseInputs, CaseSpec, Pattern, Tensor, generate_with_weights};
use plan::Operation;
use plan::operation::slot;
use rand::rngs::SmallRng;
use rand::seq::index::sample;
use rand::{Rng, SeedableRng};

/// A case with how much of it is compared with the oracle.
pub struct Planned {
    pub name: String,
    pub case: CaseInputs,
    /// Multiply-adds that the oracle may spend.
    pub budget: u64,
}

/// The cases of a phase.
pub struct CasePlan {
    /// Normal inputs with many rows; the row counts in `keys` are checked as selections of its rows, bit for bit.
    pub base: Planned,
    pub keys: Vec<u32>,
    pub others: Vec<Planned>,
}

/// Selects rows of a case, in order, as a case of its own.
pub fn select_rows(operation: &Operation, case: &CaseInputs, rows: &[u32]) -> CaseInputs {
    fn pick<T: Copy>(values: &[T], rows: &[u32], width: usize) -> Vec<T> {
        rows.iter()
            .flat_map(|r| values[*r as usize * width..(*r as usize + 1) * width].iter().copied())
            .collect()
    }
    let mut out = CaseInputs::new(rows.len() as u32);
    out.ints = case.ints;
    for (slot, tensor) in &case.tensors {
        let value = match (*slot, tensor) {
            (slot::X, Tensor::F32(v)) => Tensor::F32(pick(v, rows, operation.in_width() as usize)),
            (slot::OUT, Tensor::F32(v)) => Tensor::F32(pick(v, rows, operation.out_width() as usize)),
            (slot::POSITIONS | slot::SLOTS | slot::ROW_SEQUENCE | slot::TOKENS, Tensor::U32(v)) => {
                Tensor::U32(pick(v, rows, 1))
            }
            (_, other) => other.clone(),
        };
        out.tensors.insert(*slot, value);
    }
    out
}

/// `count` of `0..rows`, ascending.
pub fn draw_rows(rng: &mut SmallRng, rows: u32, count: u32) -> Vec<u32> {
    let mut picked: Vec<u32> =
        sample(rng, rows as usize, count.min(rows) as usize).into_iter().map(|i| i as u32).collect();
    picked.sort_unstable();
    picked
}

fn positions_matter(operation: &Operation) -> bool {
    match operation {
        Operation::Attention { .. } | Operation::RopeKv(_) => true,
        Operation::Linear { epilogue, .. } => matches!(epilogue, plan::Epilogue::QkvRope(_)),
        _ => false,
    }
}

/// Draws the cases of a phase.
///
/// # Errors
/// An operation that cannot be computed.
pub fn plan_cases(
    task: &KernelTask,
    stock: &Stock,
    phase: Phase,
    seed: Seed,
) -> Result<CasePlan, JudgeError> {
    let mut rng = SmallRng::from_seed(seed.bytes("cases", 0));
    let high = task.high();
    // The largest chunk is a case of its own; the base has every residue.
    let base_rows = if high > 64 { task.rows.low + 15 } else { high };
    let short = task.context.clamp(1, 160);
    let (base_budget, pattern_budget) = match phase {
        Phase::Screen => (3_000_000, 300_000),
        Phase::Confirm => (24_000_000, 2_000_000),
    };
    let make = |name: &str, rows: u32, batch: Batch, pattern: Pattern, budget: u64, index: u64| {
        let spec = CaseSpec { rows, batch, pattern, seed: seed.number("case", index) };
        generate_with_weights(&task.operation, &spec, stock.weights(pattern)).map(|case| Planned {
            name: format!("{name}, {} inputs", pattern.name()),
            case,
            budget,
        })
    };
    let mixed = Batch::Mixed { context: short };
    let mut index = 1;
    let base = make("base", base_rows, mixed, Pattern::Normal, base_budget, 0)?;
    let all_keys = dispatch_keys(&task.operation, task.rows, task.max_rows, seed.number("keys", 0));
    let (keys, mut beyond): (Vec<u32>, Vec<u32>) = all_keys.into_iter().partition(|k| *k <= base_rows);
    if phase == Phase::Screen && beyond.len() > 3 {
        // The largest call and two others; confirmation takes them all.
        let last = beyond.pop();
        beyond = draw_rows(&mut rng, beyond.len() as u32, 2).iter().map(|i| beyond[*i as usize]).collect();
        beyond.extend(last);
    }
    let mut others = Vec::new();
    for rows in beyond {
        // A few rows of each are compared; the last ones are always among them.
        others.push(make("large call", rows, mixed, Pattern::Normal, pattern_budget, index)?);
        index += 1;
    }
    for pattern in Pattern::of(&task.operation) {
        let rows = rng.random_range(task.rows.low..=base_rows).min(task.rows.low + 3);
        others.push(make("pattern", rows, mixed, pattern, pattern_budget, index)?);
        index += 1;
        if phase == Phase::Confirm {
            let rows = rng.random_range(task.rows.low..=base_rows);
            others.push(make("pattern", rows, mixed, pattern, pattern_budget, index)?);
            index += 1;
        }
    }
    if positions_matter(&task.operation) {
        let rows = base_rows;
        let past = task.context.saturating_sub(rows);
        let batches = [
            ("first tokens", Batch::Prefill { past: 0 }),
            ("decode", Batch::Decode { context: short }),
            ("decode at the full context", Batch::DecodeAt { context: task.context.max(1) }),
            ("end of the context", Batch::Prefill { past }),
        ];
        for (name, batch) in batches {
            others.push(make(name, rows, batch, Pattern::Normal, pattern_budget, index)?);
            index += 1;
        }
    }
    Ok(CasePlan { base, keys, others })
}
