//! The plan's steps with memory attached: what the compute threads walk through.

use crate::bundle::Bundle;
use crate::check::effects;
use crate::error::EngineError;
use crate::memory::Memory;
use kernel_abi::{Broken, KernelFn, Member};
use plan::operation::int;
use plan::{ArgsV1, Launch, Phase, RowBucket, RowSet, Source, Step, TensorV1};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// A kernel of one bucket.
struct Choice {
    rows: RowBucket,
    function: KernelFn,
    phases: u32,
    name: String,
}

/// A step that calls a kernel. `function` is null-free only after [`Program::prepare`] chose it for the pass.
struct Call {
    operation: String,
    rows: RowSet,
    choices: Vec<Choice>,
    chosen: usize,
    args: ArgsV1,
    /// Slots whose length depends on the rows of the pass, with bytes for each row.
    row_slots: Vec<(usize, u64)>,
    /// The block tables' slot, whose length depends on the sequences of the pass.
    table_slot: Option<usize>,
    barrier: bool,
}

struct Gather {
    from: *const u8,
    to: *mut u8,
    row_bytes: usize,
}

enum Action {
    Call(Box<Call>),
    Gather(Gather),
}

/// All steps of a pass.
pub struct Program {
    actions: Vec<Action>,
    /// Rows of the prepared pass.
    rows: u32,
    logit_rows: u32,
    /// Row indices of the wanted logits, `logit_rows` of them.
    gather_rows: *const u32,
    profile: Vec<Spent>,
    profiling: bool,
}

/// Nanoseconds of thread 0.
#[derive(Default)]
struct Spent {
    whole: AtomicU64,
    waiting: AtomicU64,
}

// SAFETY: the pointers lead to memory that the executor owns beside the program; kernels write it under the
// discipline of the ABI (disjointly within a phase, ordered by barriers), which `check_plan` and the plan's barriers
// establish. `profile` is atomic; the rest is not written during a pass.
unsafe impl Sync for Program {}
// SAFETY: as above; nothing is tied to a thread.
unsafe impl Send for Program {}

/// Time that one step took on thread 0, waiting for the others included.
#[derive(Clone, Debug, PartialEq)]
pub struct StepProfile {
    pub step: usize,
    /// The plan's name of the operation, or `gather`.
    pub operation: String,
    /// The kernel that ran last.
    pub kernel: String,
    pub nanoseconds: u64,
    /// Of these, at barriers: until the other threads were done, and for the barrier itself.
    pub waiting_nanoseconds: u64,
}

/// Scratch that a plan's kernels need.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScratchNeed {
    /// Bytes of each thread, a multiple of 64.
    pub thread: usize,
    /// Bytes shared by the steps between two barriers.
    pub shared: usize,
}

fn shared_need(launch: &Launch, max_rows: u32) -> u64 {
    let per_row = launch.shared_bytes_per_row.saturating_mul(u64::from(max_rows));
    launch.shared_bytes.saturating_add(per_row).next_multiple_of(64)
}

/// Largest shared scratch of a step, over its kernels.
fn step_shared(bundle: &Bundle, operation: &str) -> u64 {
    let planned = bundle.plan.operations.get(operation);
    let kernels = planned.into_iter().flat_map(|p| &p.kernels);
    let launches = kernels.filter_map(|k| bundle.manifest.kernels.get(&k.kernel)).map(|k| &k.launch);
    launches.map(|launch| shared_need(launch, bundle.sizes.max_rows)).max().unwrap_or(0)
}

/// Where in the shared scratch each step's part begins. Steps without a barrier between them may overlap in time, so
/// they get different parts.
fn shared_offsets(bundle: &Bundle, phase: Phase) -> (Vec<u64>, u64) {
    let (mut offsets, mut next, mut total) = (Vec::new(), 0u64, 0u64);
    for step in bundle.plan.steps_of(phase) {
        offsets.push(next);
        match step {
            Step::Run { operation, barrier, .. } => {
                let end = next.saturating_add(step_shared(bundle, operation));
                total = total.max(end);
                next = if *barrier { 0 } else { end };
            }
            Step::GatherLogitRows { .. } => next = 0,
        }
    }
    (offsets, total)
}

/// The scratch that the bundle's plan needs.
pub fn scratch_need(bundle: &Bundle) -> ScratchNeed {
    let used = bundle.plan.operations.values().flat_map(|planned| &planned.kernels);
    let launches = used.filter_map(|k| bundle.manifest.kernels.get(&k.kernel)).map(|k| &k.launch);
    let thread = launches.map(|launch| launch.scratch_bytes).max().unwrap_or(0);
    let clamp = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    let shared = bundle.plan.phases().iter().map(|phase| shared_offsets(bundle, *phase).1).max().unwrap_or(0);
    ScratchNeed { thread: clamp(thread.saturating_add(63) & !63), shared: clamp(shared) }
}

impl Program {
    /// Attaches the plan's steps of a phase to memory. The bundle was checked; names resolve.
    ///
    /// # Errors
    /// `Plan` where a name does not resolve after all.
    pub fn new(bundle: &Bundle, phase: Phase, memory: &Memory) -> Result<Self, EngineError> {
        let (offsets, _) = shared_offsets(bundle, phase);
        let steps = bundle.plan.steps_of(phase);
        let mut actions = Vec::with_capacity(steps.len());
        for (index, step) in steps.iter().enumerate() {
            let missing = |what: &str| EngineError::Plan {
                plan: bundle.plan.name.clone(),
                place: format!("step {index}"),
                problem: format!("{what} is missing"),
            };
            match step {
                Step::Run { operation, rows, bindings, barrier } => {
                    let planned = bundle.plan.operations.get(operation).ok_or_else(|| missing(operation))?;
                    let mut choices = Vec::new();
                    for bucket in &planned.kernels {
                        let entry = bundle.manifest.kernels.get(&bucket.kernel);
                        let kernel = bundle.kernel(&bucket.kernel);
                        let (Some(entry), Some(kernel)) = (entry, kernel) else {
                            return Err(missing(&bucket.kernel));
                        };
                        choices.push(Choice {
                            rows: bucket.rows,
                            function: kernel.function(),
                            phases: entry.launch.phases,
                            name: bucket.kernel.clone(),
                        });
                    }
                    let before_gather = matches!(steps.get(index + 1), Some(Step::GatherLogitRows { .. }));
                    let mut call = Call {
                        operation: operation.clone(),
                        rows: *rows,
                        choices,
                        chosen: 0,
                        args: memory.base_args(bundle, offsets[index], step_shared(bundle, operation)),
                        row_slots: Vec::new(),
                        table_slot: None,
                        barrier: *barrier || before_gather,
                    };
                    for binding in bindings {
                        let slot = binding.slot as usize;
                        let (tensor, row_bytes) = memory
                            .resolve(bundle, &binding.source)
                            .ok_or_else(|| missing(&format!("{:?}", binding.source)))?;
                        call.args.tensors[slot] = tensor;
                        if binding.source == Source::BlockTables {
                            call.table_slot = Some(slot);
                        } else if row_bytes > 0 {
                            call.row_slots.push((slot, row_bytes));
                        }
                    }
                    debug_assert!(!effects(&planned.operation, bindings).1.is_empty());
                    actions.push(Action::Call(Box::new(call)));
                }
                Step::GatherLogitRows { from, to } => {
                    let find = |name: &str| {
                        let source = Source::Buffer(name.to_owned());
                        memory.resolve(bundle, &source).ok_or_else(|| missing(name))
                    };
                    let ((from, row_bytes), (to, _)) = (find(from)?, find(to)?);
                    actions.push(Action::Gather(Gather {
                        from: from.data,
                        to: to.data,
                        row_bytes: row_bytes as usize,
                    }));
                }
            }
        }
        let profile = actions.iter().map(|_| Spent::default()).collect();
        Ok(Self {
            actions,
            rows: 0,
            logit_rows: 0,
            gather_rows: memory.gather_rows.pointer().cast(),
            profile,
            profiling: false,
        })
    }

    /// Sets the rows of the next pass and chooses kernels for them. Allocates nothing.
    pub fn prepare(&mut self, rows: u32, logit_rows: u32, sequences: u32) {
        self.rows = rows;
        self.logit_rows = logit_rows;
        for action in &mut self.actions {
            let Action::Call(call) = action else { continue };
            let rows = match call.rows {
                RowSet::All => rows,
                RowSet::Logits => logit_rows,
            };
            call.args.rows = rows;
            // The buckets cover all row numbers of a pass (checked); 0 rows are skipped.
            call.chosen = call.choices.iter().position(|c| c.rows.contains(rows)).unwrap_or(0);
            for (slot, row_bytes) in &call.row_slots {
                call.args.tensors[*slot].bytes = row_bytes * u64::from(rows);
            }
            if let Some(slot) = call.table_slot {
                let row = call.args.ints[int::MAX_BLOCKS].unsigned_abs() * 4;
                call.args.tensors[slot].bytes = row * u64::from(sequences);
            }
        }
    }

    /// One thread's way through the prepared pass.
    ///
    /// # Errors
    /// [`Broken`] if another thread panicked.
    ///
    /// # Safety
    /// The memory given to [`Program::new`] lives and is not touched by others, the kernels are loaded, and the
    /// input arrays hold valid values for the rows that were prepared. All members of the job walk.
    pub unsafe fn walk(&self, member: Member<'_>) -> Result<(), Broken> {
        let timed = self.profiling && member.thread == 0;
        let mut before = timed.then(Instant::now);
        let wait = |spent: &Spent| -> Result<(), Broken> {
            let Some(since) = timed.then(Instant::now) else { return member.barrier() };
            member.barrier()?;
            spent.waiting.fetch_add(since.elapsed().as_nanos() as u64, Ordering::Relaxed);
            Ok(())
        };
        for (action, spent) in self.actions.iter().zip(&self.profile) {
            match action {
                Action::Call(call) => {
                    if call.args.rows > 0 {
                        let choice = &call.choices[call.chosen];
                        for phase in 0..choice.phases {
                            if phase > 0 {
                                wait(spent)?;
                            }
                            // SAFETY: the arguments fit the operation (`check_plan`), the caller vouches for memory
                            // and inputs, and every member makes this call with barriers between phases.
                            unsafe {
                                (choice.function)(&call.args, phase, member.thread, member.threads);
                            }
                        }
                    }
                    // Also after a step without rows: its barrier may order the steps around it.
                    if call.barrier {
                        wait(spent)?;
                    }
                }
                Action::Gather(gather) => {
                    // SAFETY: the buffers hold `max_rows` and `logit_rows` rows, indices are below `rows`
                    // (checked with the batch), rows are disjoint between members, and the step before ended in a
                    // barrier.
                    unsafe { self.gather(gather, member) };
                    wait(spent)?;
                }
            }
            if let Some(before) = &mut before {
                let now = Instant::now();
                let nanoseconds = now.duration_since(*before).as_nanos() as u64;
                spent.whole.fetch_add(nanoseconds, Ordering::Relaxed);
                *before = now;
            }
        }
        Ok(())
    }

    unsafe fn gather(&self, gather: &Gather, member: Member<'_>) {
        let mut row = member.thread;
        while row < self.logit_rows {
            // SAFETY: `gather_rows` holds `logit_rows` indices.
            let from = unsafe { *self.gather_rows.add(row as usize) } as usize;
            // SAFETY: both rows lie within their buffers, see `walk`; the buffers are distinct.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    gather.from.add(from * gather.row_bytes),
                    gather.to.add(row as usize * gather.row_bytes),
                    gather.row_bytes,
                );
            }
            row += member.threads;
        }
    }

    /// Begins (with zeros) or ends the timing of steps.
    pub fn set_profiling(&mut self, profiling: crate::executor::Profiling) {
        self.profiling = profiling == crate::executor::Profiling::On;
        self.profile.fill_with(Spent::default);
    }

    /// Times since profiling began.
    pub fn profile(&self) -> Vec<StepProfile> {
        let steps = self.actions.iter().zip(&self.profile).enumerate();
        steps
            .map(|(step, (action, spent))| {
                let (operation, kernel) = match action {
                    Action::Call(call) => {
                        let kernel = call.choices.get(call.chosen).map(|c| c.name.clone());
                        (call.operation.clone(), kernel.unwrap_or_default())
                    }
                    Action::Gather(_) => ("gather".to_owned(), String::new()),
                };
                StepProfile {
                    step,
                    operation,
                    kernel,
                    nanoseconds: spent.whole.load(Ordering::Relaxed),
                    waiting_nanoseconds: spent.waiting.load(Ordering::Relaxed),
                }
            })
            .collect()
    }
}

/// A tensor over a whole buffer.
pub(crate) fn whole(buffer: &kernel_abi::AlignedBuffer) -> TensorV1 {
    TensorV1 { data: buffer.pointer(), bytes: buffer.len() as u64 }
}
