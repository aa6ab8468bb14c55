//! Checks against the f64 oracle and the class, before anything is timed.

use crate::cases::{CasePlan, Planned, draw_rows, select_rows};
use crate::rig::{Outcome, Rig, fault, reject};
use crate::seed::Seed;
use crate::stock::Stock;
use crate::task::KernelTask;
use evidence::{CheckSummary, Fault, Phase, Reason, Stop};
use kernels::KernelError;
use kernels::contract::{Outputs, Relation, metamorphic_cases, relation_holds};
use kernels::emulate::emulate;
use kernels::inputs::CaseInputs;
use kernels::numerics::Arith;
use kernels::oracle;
use plan::Operation;
use plan::operation::slot;
use rand::rngs::SmallRng;
use rand::seq::index::sample;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;

/// Shift of all memory for "same contents at another address".
const SHIFT: usize = 4096 + 64;
/// Multiply-adds that the emulation of the class may spend.
const EMULATION_BUDGET: u64 = 12_000_000;

/// Everything that a check reads.
pub struct Check<'a> {
    pub task: &'a KernelTask,
    pub stock: &'a Stock,
    pub plan: &'a CasePlan,
    pub phase: Phase,
    pub seed: Seed,
}

/// A fault of ours in the reference.
pub fn reference_fault(error: KernelError) -> Stop {
    fault(Fault::Host, format!("the reference: {error}"))
}

impl Check<'_> {
    /// Proves the kernel in `rig`; `champion` runs the same base case for the comparison within the class.
    ///
    /// # Errors
    /// A rejection with the first case that went wrong, or a fault of ours.
    pub fn run(&self, rig: &mut Rig, champion: Option<&mut Rig>) -> Result<CheckSummary, Stop> {
        let mut rng = SmallRng::from_seed(self.seed.bytes("check", 0));
        let base = &self.plan.base;
        let threads = rig.threads();
        let mut tally = Tally::default();
        let out = rig.run(&base.case, threads, 0)?;
        tally.add(self.compare(base, &out, &mut rng)?, base.case.rows);
        self.project(base, &out)?;
        self.repeat(rig, base, &out)?;
        for rows in &self.plan.keys {
            self.select(rig, base, &out, *rows, &mut rng)?;
            tally.add(0.0, *rows);
        }
        for planned in &self.plan.others {
            // Threads other than the target's too: 1 now and then.
            let threads = if rng.random_ratio(1, 4) { 1 } else { threads };
            let out = rig.run(&planned.case, threads, 0)?;
            tally.add(self.compare(planned, &out, &mut rng)?, planned.case.rows);
        }
        self.anchor(base, &out, &mut rng)?;
        self.relations(rig, base, &out)?;
        if let Some(champion) = champion {
            self.against_champion(champion, base, &out)?;
        }
        Ok(tally.summary())
    }

    /// Compares with the oracle: few rows in all columns, all rows in few columns, as the budget allows.
    fn compare(&self, planned: &Planned, got: &Outcome, rng: &mut SmallRng) -> Result<f64, Stop> {
        let operation = &self.task.operation;
        let (rows, width) = (planned.case.rows, operation.out_width());
        let per_output = cost_per_output(operation, &planned.case);
        let outputs = (planned.budget / per_output.max(1)).max(u64::from(rows.min(8))).max(64);
        let whole = u64::from(rows) * u64::from(width) <= outputs;
        let mut worst = 0.0f64;
        let rectangles: Vec<(Vec<u32>, Vec<u32>)> = if whole {
            vec![(oracle::all(rows), oracle::all(width))]
        } else {
            let full = (outputs / 2 / u64::from(width)).min(u64::from(rows)) as u32;
            let mut list = Vec::new();
            if full > 0 {
                list.push((with_last(draw_rows(rng, rows, full), rows), oracle::all(width)));
            }
            let some_rows = if u64::from(rows) * 4 > outputs {
                with_last(draw_rows(rng, rows, (outputs / 4).max(1) as u32), rows)
            } else {
                oracle::all(rows)
            };
            let share = outputs / 2 / some_rows.len() as u64 / columns_per_column(operation);
            let columns = share.clamp(1, u64::from(width));
            list.push((some_rows, draw_columns(rng, width, columns as u32)));
            list
        };
        for (rows, columns) in rectangles {
            let want =
                oracle::oracle_at(operation, &planned.case, &rows, &columns).map_err(reference_fault)?;
            let caches = got.caches.as_ref().map(|(k, v)| (k.as_slice(), v.as_slice()));
            match oracle::check(operation, &planned.case, &want, &got.out, caches).map_err(reference_fault)? {
                Ok(ratio) => worst = worst.max(ratio),
                Err(mismatch) => {
                    let reason = if is_untouchable(&mismatch) { Reason::Memory } else { Reason::Wrong };
                    let rows = planned.case.rows;
                    return Err(reject(reason, format!("{} ({rows} rows): {mismatch}", planned.name)));
                }
            }
        }
        Ok(worst)
    }

    /// Freivalds' check of all rows and columns of the base case.
    fn project(&self, planned: &Planned, got: &Outcome) -> Result<(), Stop> {
        let projection = self.stock.timed.values().flatten().find_map(|base| {
            let same = base.case.tensors.get(&slot::W) == planned.case.tensors.get(&slot::W);
            base.projection.as_ref().filter(|_| same)
        });
        let Some(projection) = projection else { return Ok(()) };
        let rows = oracle::all(planned.case.rows);
        let projected = projection.check(&planned.case, &got.out, &rows).map_err(reference_fault)?;
        match projected.iter().find(|p| !p.passes()) {
            None => Ok(()),
            Some(p) => Err(reject(
                Reason::Wrong,
                format!(
                    "{}: row {} of {} departs by {:e} in a random projection; {:e} is allowed",
                    planned.name, p.row, planned.case.rows, p.difference, p.tolerance
                ),
            )),
        }
    }

    /// The same again, at another address, and on one thread: always the same bits.
    fn repeat(&self, rig: &mut Rig, base: &Planned, first: &Outcome) -> Result<(), Stop> {
        let threads = rig.threads();
        let again =
            [("once more", threads, 0), ("at another address", threads, SHIFT), ("on one thread", 1, 0)];
        for (how, threads, shift) in again {
            if !rig.run(&base.case, threads, shift)?.same_bits(first) {
                let what = format!("{}: another result {how} ({} rows)", base.name, base.case.rows);
                return Err(reject(Reason::Nondeterministic, what));
            }
        }
        Ok(())
    }

    /// A row's result does not depend on what shares the call.
    fn select(
        &self,
        rig: &mut Rig,
        base: &Planned,
        whole: &Outcome,
        rows: u32,
        rng: &mut SmallRng,
    ) -> Result<(), Stop> {
        let operation = &self.task.operation;
        let picked = draw_rows(rng, base.case.rows, rows);
        let case = select_rows(operation, &base.case, &picked);
        let got = rig.run(&case, rig.threads(), 0)?;
        let width = operation.out_width() as usize;
        for (i, row) in picked.iter().enumerate() {
            let (a, b) = (&got.out[i * width..][..width], &whole.out[*row as usize * width..][..width]);
            if let Some(c) = a.iter().zip(b).position(|(a, b)| a.to_bits() != b.to_bits()) {
                return Err(reject(
                    Reason::Class,
                    format!(
                        "a row in a call of {rows} rows (place {i}) gives {:e} in column {c}, in a call of {} rows {:e}",
                        a[c], base.case.rows, b[c]
                    ),
                ));
            }
        }
        if got.caches.is_some() {
            let planned = Planned { name: format!("{rows} rows"), case, budget: 0 };
            self.compare(&planned, &got, rng)?;
        }
        Ok(())
    }

    /// Other calls that must give the base's bits, or its bits scaled: rows apart, in another order, inputs times a power
    /// of two, pages elsewhere, tokens changed that nobody may see. What is drawn in them follows from the secret.
    fn relations(&self, rig: &mut Rig, base: &Planned, got: &Outcome) -> Result<(), Stop> {
        fn outputs(of: &Outcome) -> Outputs<'_> {
            Outputs { out: &of.out, caches: of.caches.as_ref().map(|(k, v)| (k.as_slice(), v.as_slice())) }
        }
        let operation = &self.task.operation;
        let seed = self.seed.number("relations", 0);
        for case in metamorphic_cases(operation, &base.case, seed).map_err(reference_fault)? {
            // `repeat` has done that; and a kernel need not know calls outside its bucket.
            if case.relation == Relation::Repeat || !self.task.rows.contains(case.inputs.rows) {
                continue;
            }
            let changed = rig.run(&case.inputs, rig.threads(), 0)?;
            let held = relation_holds(operation, (&base.case, outputs(got)), &case, outputs(&changed));
            if let Err(violation) = held.map_err(reference_fault)? {
                return Err(reject(Reason::Class, format!("{}: {violation}", base.name)));
            }
        }
        Ok(())
    }

    /// Bitwise agreement with the emulation of the class on a few rows, where the class is one of the generators'.
    fn anchor(&self, base: &Planned, got: &Outcome, rng: &mut SmallRng) -> Result<(), Stop> {
        let operation = &self.task.operation;
        let Some(arith) = arithmetic(operation, &self.task.class) else { return Ok(()) };
        let once = operation.weight().map_or(0, |(_, n, k)| u64::from(n) * u64::from(k));
        let each = cost_per_output(operation, &base.case) * u64::from(operation.out_width());
        if once * 2 + each > EMULATION_BUDGET {
            return Ok(());
        }
        let rows = ((EMULATION_BUDGET / 4).saturating_sub(once) / each.max(1)).clamp(1, 2) as u32;
        let picked = draw_rows(rng, base.case.rows, rows);
        let want = emulate(operation, arith, &select_rows(operation, &base.case, &picked))
            .map_err(reference_fault)?;
        let width = operation.out_width() as usize;
        for (i, row) in picked.iter().enumerate() {
            let (a, b) = (&got.out[*row as usize * width..][..width], &want.out[i * width..][..width]);
            if let Some(c) = a.iter().zip(b).position(|(a, b)| a.to_bits() != b.to_bits()) {
                return Err(reject(
                    Reason::Class,
                    format!(
                        "row {row} column {c}: {:e} where class {} has {:e}",
                        a[c], self.task.class, b[c]
                    ),
                ));
            }
        }
        Ok(())
    }

    /// Bitwise agreement with the champion on the same inputs.
    fn against_champion(&self, champion: &mut Rig, base: &Planned, got: &Outcome) -> Result<(), Stop> {
        let threads = champion.threads();
        let theirs = champion.run(&base.case, threads, 0).map_err(|stop| {
            fault(Fault::Worker, format!("the champion failed on the same case: {stop:?}"))
        })?;
        if theirs.same_bits(got) {
            return Ok(());
        }
        let at = theirs.out.iter().zip(&got.out).position(|(a, b)| a.to_bits() != b.to_bits());
        let what = match at {
            Some(i) => format!("{:e} where the champion has {:e}", got.out[i], theirs.out[i]),
            None => "the caches differ from the champion's".into(),
        };
        Err(reject(Reason::Class, format!("not of class {}: {what}", self.task.class)))
    }
}

/// Whether a mismatch is a byte that must not have changed.
fn is_untouchable(mismatch: &oracle::Mismatch) -> bool {
    mismatch.row == u32::MAX
}

/// Multiply-adds behind one output, where all columns are asked for.
pub fn cost_per_output(operation: &Operation, case: &CaseInputs) -> u64 {
    match operation {
        Operation::Linear { k, epilogue, .. } => match epilogue {
            plan::Epilogue::SiluGate => 2 * u64::from(*k),
            // Keys and values go with the queries.
            plan::Epilogue::QkvRope(_) => 3 * u64::from(*k),
            _ => u64::from(*k),
        },
        Operation::Attention { .. } => {
            let last = case.u32(slot::POSITIONS, case.rows as usize).ok();
            let longest = last.and_then(|p| p.iter().max().copied()).unwrap_or(0);
            4 * (u64::from(longest) + 1)
        }
        Operation::RmsNorm { .. } => 4,
        _ => 8,
    }
}

/// Columns that are computed for one that is asked for: the QKV epilogue and attention work on whole heads.
pub fn columns_per_column(operation: &Operation) -> u64 {
    match operation {
        Operation::Linear { epilogue: plan::Epilogue::QkvRope(q), .. } => u64::from(q.head_dim),
        _ => 1,
    }
}

/// The arithmetic of a class that some generator declares for this operation.
fn arithmetic(operation: &Operation, class: &str) -> Option<Arith> {
    if !kernels::generators().iter().any(|g| g.numeric_class(operation) == class) {
        return None;
    }
    Arith::of_class(class)
}

/// Adds the last row: tails are where kernels go wrong.
fn with_last(mut rows: Vec<u32>, count: u32) -> Vec<u32> {
    if let Some(last) = rows.last_mut() {
        *last = count - 1;
    }
    rows
}

/// `count` columns: the first and last ones, the rest drawn.
fn draw_columns(rng: &mut SmallRng, width: u32, count: u32) -> Vec<u32> {
    let mut columns: Vec<u32> =
        sample(rng, width as usize, count.min(width) as usize).into_iter().map(|c| c as u32).collect();
    if count > 2 {
        columns.extend([0, width - 1]);
    }
    columns.sort_unstable();
    columns.dedup();
    columns
}

/// Running totals of a check.
#[derive(Default)]
struct Tally {
    cases: u32,
    keys: Vec<u32>,
    worst: f64,
}

impl Tally {
    fn add(&mut self, ratio: f64, rows: u32) {
        self.cases += 1;
        self.worst = self.worst.max(ratio);
        self.keys.push(rows);
    }

    fn summary(mut self) -> CheckSummary {
        self.keys.sort_unstable();
        self.keys.dedup();
        CheckSummary {
            cases: self.cases,
            keys: self.keys,
            worst_ratio: self.worst,
            timed_checked: 0,
            quality: BTreeMap::new(),
        }
    }
}
