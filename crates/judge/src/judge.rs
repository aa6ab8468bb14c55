//! The judge: builds through the sandbox, checks, measures. What it says is evidence; [`crate::rule`] decides.

use crate::cases::plan_cases;
use crate::check::Check;
use crate::error::JudgeError;
use crate::lane::Lane;
use crate::layout::ZONE;
use crate::measure::{self, Block};
use crate::rig::{self, Rig, RigSize, check_launch, fault};
use crate::roofline::MeasuredCeilings;
use crate::seed::{Secret, Seed};
use crate::stage::{Built, Checked, Measured};
use crate::stock::Stock;
use crate::task::{KernelTask, Submission};
use crate::timing::{Effort, Run, champion_fault};
use evidence::{Content, Digest, Evidence, Fault, Outcome, Phase, Protocol, Stop};
use sandbox::{Builder, SharedMemory, WorkerConfig, inspect};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Version of the protocol; part of all evidence. Change it when checks or timing change their meaning.
pub const PROTOCOL: &str = "kernel-judge/2";

/// What a judge needs.
#[derive(Clone, Debug)]
pub struct JudgeConfig {
    pub builder: Builder,
    pub workers: WorkerConfig,
    /// The run's secret; its digest must have been posted before.
    pub secret: Secret,
    /// Digest of the machine's description, and its measured ceilings by name.
    pub machine: Digest,
    pub ceilings: MeasuredCeilings,
    /// Version of the validation corpus.
    pub corpus: String,
    pub lane: Lane,
    pub effort: Effort,
}

impl JudgeConfig {
    /// A judge for a machine, with everything else as usual.
    pub fn new(
        builder: Builder,
        workers: WorkerConfig,
        secret: Secret,
        machine: Digest,
        ceilings: BTreeMap<String, f64>,
    ) -> Self {
        Self {
            builder,
            workers,
            secret,
            machine,
            ceilings: MeasuredCeilings(ceilings),
            corpus: "none".into(),
            lane: Lane::of_machine(),
            effort: Effort::default(),
        }
    }
}

/// Checks and measures candidates of kernel tasks.
pub struct Judge {
    config: JudgeConfig,
    /// Stocks of tasks, most recently used last.
    stocks: Vec<(String, Arc<Stock>)>,
}

/// What an evaluation compares with.
#[derive(Clone, Copy, Debug)]
pub struct Opponent<'a> {
    pub champion: &'a Submission,
    /// Its numeric class. A first champion of plain code may be of another class than the task's: it is then an
    /// opponent in timing alone, and outputs are compared with the oracle and the task's own class.
    pub class: &'a str,
    /// Candidates of this task that were tested before: the error budget is shared by all.
    pub tested: u64,
}

impl Judge {
    /// A judge. Nothing runs yet.
    pub fn new(config: JudgeConfig) -> Self {
        Self { config, stocks: Vec::new() }
    }

    /// The builder, for callers that compile ahead (the cache is shared).
    pub fn builder(&self) -> &Builder {
        &self.config.builder
    }

    /// Digest of the run's secret.
    pub fn secret_digest(&self) -> Digest {
        self.config.secret.digest()
    }

    /// Builds, checks and measures a candidate, alone or against the champion. Waits for the measure lane.
    pub fn evaluate(
        &mut self,
        task: &KernelTask,
        challenger: &Submission,
        opponent: Option<Opponent<'_>>,
        phase: Phase,
    ) -> Evidence {
        let mut protocol = Protocol {
            version: PROTOCOL.into(),
            seed: String::new(),
            secret_digest: self.config.secret.digest(),
            corpus: self.config.corpus.clone(),
            layers: Vec::new(),
            toolchain: self.config.builder.toolchain().describe(&task.target),
        };
        let outcome = self
            .build(task, challenger)
            .and_then(|built| {
                let seed = self.config.secret.seed(&built.artifact.digest, phase);
                protocol.seed = seed.hex();
                let checked = self.check(task, built, opponent, phase, seed)?;
                protocol.layers = checked.rig.worker.layers().clone();
                let lane = self.config.lane.clone();
                let _held = lane.enter().map_err(|e| fault(Fault::Host, e.to_string()))?;
                self.measure(task, checked, opponent, phase, seed)
            })
            .map_or_else(Outcome::Stopped, |m| Outcome::Measured(m.into_evidence()));
        Evidence {
            candidate: challenger.candidate,
            against: opponent.map(|o| o.champion.candidate),
            phase,
            protocol,
            machine: self.config.machine,
            outcome,
        }
    }

    /// Compiles and inspects.
    ///
    /// # Errors
    /// [`Reason::Build`](evidence::Reason::Build), `Inspection`, `Resources` or a fault of ours.
    pub fn build(&self, task: &KernelTask, it: &Submission) -> Result<Built, Stop> {
        check_launch(&it.launch, task.high(), task.target.threads)?;
        let artifact = self.config.builder.build(&it.source, &task.target)?;
        inspect(&artifact.bytes, &task.target)?;
        Ok(Built { artifact, launch: it.launch })
    }

    /// Proves a kernel against oracle, class and champion.
    ///
    /// # Errors
    /// A rejection, or a fault of ours.
    fn check(
        &mut self,
        task: &KernelTask,
        built: Built,
        opponent: Option<Opponent<'_>>,
        phase: Phase,
        seed: Seed,
    ) -> Result<Checked, Stop> {
        let ours = |e: JudgeError| fault(Fault::Host, e.to_string());
        let stock = self.stock(task).map_err(ours)?;
        let plan = plan_cases(task, &stock, phase, seed).map_err(ours)?;
        let champion = match opponent {
            Some(o) => Some(self.champion(task, o.champion)?),
            None => None,
        };
        let rows = timed_rows(task, phase);
        let cases = || std::iter::once(&plan.base).chain(&plan.others);
        let (mut inputs, mut arenas) = (0, [0; 2]);
        let launches = [Some(&built.launch), champion.as_ref().map(|c| &c.launch)];
        for (arena, launch) in arenas.iter_mut().zip(launches) {
            let Some(launch) = launch else { continue };
            for planned in cases() {
                let (i, a) = rig::demand(&task.operation, &planned.case, launch, task.target.threads);
                (inputs, *arena) = (inputs.max(i), (*arena).max(a));
            }
            let timed: Vec<_> = rows.iter().map(|r| measure::demand(task, &stock, launch, *r)).collect();
            inputs = inputs.max(timed.iter().map(|(i, _)| i + 64).sum());
            *arena = timed.iter().map(|(_, a)| *a).max().unwrap_or(0).max(*arena);
        }
        // Room for the shifted repetition.
        let slack = 16384 + ZONE;
        let memory = SharedMemory::new(inputs + slack).map_err(|e| e.stop())?;
        let memory = Arc::new(memory);
        let start = |built: &Built, arena: usize| {
            let size = RigSize { arena_bytes: arena + slack, timeout: self.config.effort.call_timeout };
            Rig::start(
                &self.config.workers,
                &built.artifact,
                &task.target,
                &task.operation,
                &built.launch,
                &stock,
                &memory,
                size,
            )
        };
        let mut rig = start(&built, arenas[0])?;
        let mut champion = match &champion {
            Some(c) => Some(start(c, arenas[1]).map_err(|e| champion_fault(e.stop()))?),
            None => None,
        };
        let check = Check { task, stock: &stock, plan: &plan, phase, seed };
        let kin = opponent.is_some_and(|o| o.class == task.class);
        let summary = check.run(&mut rig, if kin { champion.as_mut() } else { None })?;
        Ok(Checked { built, summary, rig, champion })
    }

    /// Times a checked kernel.
    ///
    /// # Errors
    /// [`Reason::TimedOutput`], [`Reason::Roofline`], or a disturbed machine.
    fn measure(
        &mut self,
        task: &KernelTask,
        checked: Checked,
        opponent: Option<Opponent<'_>>,
        phase: Phase,
        seed: Seed,
    ) -> Result<Measured, Stop> {
        let Checked { built, mut summary, mut rig, mut champion } = checked;
        let stock = self.stock(task).map_err(|e| fault(Fault::Host, e.to_string()))?;
        let rows = timed_rows(task, phase);
        let inputs = rig.inputs.clone();
        let (mut blocks, mut start) = (Vec::new(), 0);
        for rows in rows {
            let block = Block::new(task, &stock, &inputs, rows, start)?;
            start = block.inputs_end;
            blocks.push(block);
        }
        let mut run = Run::new(task, seed, &self.config.effort, &self.config.ceilings);
        let tested = opponent.map_or(0, |o| o.tested);
        let processor = self.config.workers.processors.first().copied();
        let samples = on_processor(processor, || match champion.as_mut() {
            None => run.alone(&blocks, &mut rig, phase),
            Some(champion) => run.paired(&blocks, champion, &mut rig, phase, tested),
        })?;
        summary.timed_checked = run.checked;
        Ok(Measured { built, summary, samples })
    }

    fn champion(&mut self, task: &KernelTask, it: &Submission) -> Result<Built, Stop> {
        self.build(task, it).map_err(champion_fault)
    }

    /// The large tensors of a task, built at their first use. Both phases share them; what is fresh in every call is
    /// drawn for each phase and candidate.
    fn stock(&mut self, task: &KernelTask) -> Result<Arc<Stock>, JudgeError> {
        let mut rows = [task.screen.clone(), task.confirm.clone()].concat();
        rows.sort_unstable();
        rows.dedup();
        let working_set = self.config.effort.working_set;
        let key = format!("{} {rows:?} {} {working_set}", task.operation, task.context);
        if let Some(at) = self.stocks.iter().position(|(k, _)| *k == key) {
            let found = self.stocks.remove(at);
            self.stocks.push(found.clone());
            return Ok(found.1);
        }
        let seed = self.config.secret.shared(&key);
        let stock = Arc::new(Stock::build(task, &rows, seed, working_set)?);
        self.stocks.push((key, stock.clone()));
        let mut total: usize = self.stocks.iter().map(|(_, s)| s.bytes()).sum();
        while total > self.config.effort.kept && self.stocks.len() > 1 {
            total -= self.stocks.remove(0).1.bytes();
        }
        Ok(stock)
    }

    /// Gives back the memory that earlier tasks left.
    pub fn forget(&mut self) {
        self.stocks.clear();
    }
}

/// Does `work` on a thread that is kept on the first worker thread's processor: when that thread replies it goes to
/// sleep, and the judge's clock is stopped at once. On another processor the judge would wait for a polling thread.
fn on_processor<T: Send>(
    processor: Option<usize>,
    work: impl FnOnce() -> Result<T, Stop> + Send,
) -> Result<T, Stop> {
    let pinned = || {
        if let Some(processor) = processor {
            kernel_abi::pin_current_thread(processor).map_err(|e| fault(Fault::Host, e.to_string()))?;
        }
        work()
    };
    std::thread::scope(|scope| scope.spawn(pinned).join())
        .unwrap_or_else(|_| Err(fault(Fault::Host, "the judge's timing thread panicked")))
}

fn timed_rows(task: &KernelTask, phase: Phase) -> Vec<u32> {
    match phase {
        Phase::Screen => task.screen.clone(),
        Phase::Confirm => task.confirm.clone(),
    }
}

/// The stored task's id, as decisions name it.
pub fn task_id(task: &KernelTask) -> evidence::Id<evidence::Task> {
    task.pose().id()
}
