//! Runs passes of a plan: one dispatch of the compute threads for each pass, every thread walks all steps itself.

use crate::batch::Batch;
use crate::bundle::Bundle;
use crate::error::EngineError;
use crate::memory::Memory;
use crate::options::{EngineOptions, Pinning};
use crate::program::{Program, StepProfile, scratch_need};
use crate::sizes::Sizes;
use kernel_abi::{Pool, allowed_processors};
use plan::Plan;

/// Whether the time of each step is recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profiling {
    On,
    #[default]
    Off,
}

/// A plan ready to run, with its memory and threads. Not shared: passes follow one another.
pub struct Executor {
    // Fields are dropped in this order: threads end before the memory and the kernels that they use.
    pool: Pool,
    /// One for each phase of the plan, in its order.
    programs: Vec<Program>,
    memory: Memory,
    bundle: Bundle,
    logit_rows: usize,
}

impl Executor {
    /// Allocates memory and starts threads for a bundle. The calling thread is compute thread 0: it runs the passes
    /// and is pinned with the others.
    ///
    /// # Errors
    /// Memory or threads that the system refuses.
    pub fn new(bundle: Bundle, options: &EngineOptions) -> Result<Self, EngineError> {
        let memory = Memory::new(&bundle, scratch_need(&bundle))?;
        let phases = bundle.plan.phases().iter();
        let programs =
            phases.map(|phase| Program::new(&bundle, *phase, &memory)).collect::<Result<_, _>>()?;
        let processors = match options.pinning {
            Pinning::Pinned => allowed_processors()?,
            Pinning::Free => Vec::new(),
        };
        let pool = Pool::new(bundle.sizes.threads, bundle.plan.spin, &processors)?;
        Ok(Self { pool, programs, memory, bundle, logit_rows: 0 })
    }

    /// The plan that runs.
    pub fn plan(&self) -> &Plan {
        &self.bundle.plan
    }

    /// The bundle that the plan came from.
    pub fn bundle(&self) -> &Bundle {
        &self.bundle
    }

    /// Sizes in force.
    pub fn sizes(&self) -> &Sizes {
        &self.bundle.sizes
    }

    /// Bytes of buffers, caches and scratch.
    pub fn memory_bytes(&self) -> usize {
        self.memory.bytes()
    }

    /// An empty batch for this executor.
    pub fn new_batch(&self) -> Batch {
        Batch::new(self.bundle.sizes.max_blocks, self.bundle.sizes.block_tokens)
    }

    /// Runs one pass and returns the logits `[logit rows][vocab]`, in the order of the batch's logit rows. Allocates
    /// nothing.
    ///
    /// # Errors
    /// `Batch` for rows that do not fit (nothing has run then), `KernelAbi` if a compute thread panicked.
    pub fn forward(&mut self, batch: &Batch) -> Result<&[f32], EngineError> {
        self.logit_rows = 0;
        check_batch(batch, &self.bundle)?;
        let memory = &mut self.memory;
        for (to, from) in [
            (&mut memory.tokens, &batch.tokens),
            (&mut memory.positions, &batch.positions),
            (&mut memory.slots, &batch.slots),
            (&mut memory.row_sequence, &batch.sequence_of_row),
            (&mut memory.block_tables, &batch.tables),
            (&mut memory.gather_rows, &batch.logit_rows),
        ] {
            to.u32s_mut()[..from.len()].copy_from_slice(from);
        }
        let logit_rows = batch.logit_rows.len();
        let at = self.bundle.plan.phases().iter().position(|p| *p == batch.phase()).unwrap_or(0);
        let program = &mut self.programs[at];
        program.prepare(batch.rows() as u32, logit_rows as u32, batch.sequences() as u32);
        let program = &*program;
        self.pool.run(&|member| {
            // SAFETY: memory and kernels are fields of `self`, which is borrowed for the run; the inputs were
            // checked against the plan's sizes; the pool makes every member walk.
            unsafe { program.walk(member) }
        })?;
        self.logit_rows = logit_rows;
        Ok(self.logits())
    }

    /// The logits of the last pass.
    pub fn logits(&self) -> &[f32] {
        let vocab = self.bundle.plan.model.vocab as usize;
        let buffer = self.memory.buffer(&self.bundle.plan.logits);
        buffer.map_or(&[], |b| &b.f32s()[..self.logit_rows * vocab])
    }

    /// Calls `visit(thread, row, logits of the row)` for every logit row of the last pass, rows spread over the
    /// compute threads.
    ///
    /// # Errors
    /// `KernelAbi` if a compute thread panicked.
    pub fn visit_logits(&mut self, visit: &(dyn Fn(usize, usize, &[f32]) + Sync)) -> Result<(), EngineError> {
        let vocab = self.bundle.plan.model.vocab as usize;
        let rows = self.logit_rows;
        let Some(buffer) = self.memory.buffer(&self.bundle.plan.logits) else { return Ok(()) };
        let logits = &buffer.f32s()[..rows * vocab];
        let share = |thread: usize, threads: usize| {
            for (row, logits) in logits.chunks_exact(vocab).enumerate() {
                if row % threads == thread {
                    visit(thread, row, logits);
                }
            }
        };
        if rows < 2 {
            share(0, 1);
            return Ok(());
        }
        self.pool.run(&|member| {
            share(member.thread as usize, member.threads as usize);
            Ok(())
        })?;
        Ok(())
    }

    /// Begins (with zeros) or ends the timing of steps.
    pub fn set_profiling(&mut self, profiling: Profiling) {
        self.programs.iter_mut().for_each(|program| program.set_profiling(profiling));
    }

    /// Times of the steps since profiling began, phase by phase.
    pub fn profile(&self) -> Vec<StepProfile> {
        self.programs.iter().flat_map(Program::profile).collect()
    }
}

/// Refuses what would lead a kernel out of its memory.
fn check_batch(batch: &Batch, bundle: &Bundle) -> Result<(), EngineError> {
    let sizes = &bundle.sizes;
    let refuse = |problem: String| Err(EngineError::Batch(problem));
    let rows = batch.rows();
    let most = sizes.rows_of(batch.phase());
    if rows == 0 || rows > most as usize {
        return refuse(format!("{rows} rows, not 1 to {most}"));
    }
    if batch.max_blocks() != sizes.max_blocks as usize || batch.sequences() > sizes.max_sequences as usize {
        return refuse(format!(
            "{} block tables of {} entries, not up to {} of {}",
            batch.sequences(),
            batch.max_blocks(),
            sizes.max_sequences,
            sizes.max_blocks
        ));
    }
    if batch.logit_rows.len() > sizes.logit_rows as usize {
        let wanted = batch.logit_rows.len();
        return refuse(format!("logits of {wanted} rows, at most {}", sizes.logit_rows));
    }
    let ascending = batch.logit_rows.windows(2).all(|w| w[0] < w[1]);
    if !ascending || batch.logit_rows.last().is_some_and(|last| *last as usize >= rows) {
        return refuse("logit rows are not ascending rows of the batch".into());
    }
    let slots = u64::from(sizes.pages) * u64::from(sizes.block_tokens);
    for row in 0..rows {
        let (token, position) = (batch.tokens[row], batch.positions[row]);
        if token >= bundle.plan.model.vocab {
            return refuse(format!("row {row}: token {token} is not in the vocabulary"));
        }
        if position >= sizes.max_context {
            return refuse(format!("row {row}: position {position} is beyond the context"));
        }
        if u64::from(batch.slots[row]) >= slots || batch.sequence_of_row[row] as usize >= batch.sequences() {
            return refuse(format!("row {row}: no page for position {position}"));
        }
        let sequence = batch.sequence_of_row[row];
        let next_same = batch.sequence_of_row.get(row + 1) == Some(&sequence);
        if next_same && batch.positions[row + 1] <= position {
            return refuse(format!("row {}: positions of a sequence do not ascend", row + 1));
        }
        if !next_same {
            // The sequence's last row: all pages up to its own are read.
            let start = sequence as usize * batch.max_blocks();
            let used = (position / sizes.block_tokens) as usize + 1;
            if batch.tables[start..start + used].iter().any(|page| *page >= sizes.pages) {
                return refuse(format!("sequence {sequence}: a page beyond the cache"));
            }
        }
    }
    Ok(())
}
