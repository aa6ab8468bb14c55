//! The judge: builds through the sandbox, checks, measures. What it says is evidence; [`crate::rule`] decides.

use crate::cases::plan_cases;
use crate::check::Check;
use crate::disturbance::{ProcessorTime, used_by, used_by_this_thread};
use crate::error::JudgeError;
use crate::lane::Lane;
use crate::layout::ZONE;
use crate::measure::{self, Block, MOST_CALLS, Side};
use crate::rig::{self, Rig, RigSize, check_launch, fault, reject};
use crate::roofline::MeasuredCeilings;
use crate::seed::{Secret, Seed};
use crate::stage::{Built, Checked, Measured};
use crate::stock::Stock;
use crate::task::{KernelTask, Submission};
use evidence::{Content, Digest, Evidence, Fault, Outcome, Phase, Protocol, Reason, Samples, Stop};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use sandbox::{Builder, SharedMemory, WorkerConfig, inspect};
use statistics::{Disturbance, DriftLimits, PairOrder, Sequential, SequentialPlan, Status, disturbance};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Version of the protocol; part of all evidence. Change it when checks or timing change their meaning.
pub const PROTOCOL: &str = "kernel-judge/1";

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

/// How much is measured, and in which memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effort {
    /// Bytes over which timed calls rotate: above the last-level cache, or the whole model's weights.
    pub working_set: usize,
    /// Shortest timed block.
    pub block: Duration,
    /// Most pairs of each phase, and of the first champion's single series.
    pub screen_pairs: u32,
    pub confirm_pairs: u32,
    /// Time limit of one call in a check, and of one timed block.
    pub call_timeout: Duration,
    /// Memory that stocks of earlier tasks may keep, bytes.
    pub kept: usize,
    /// When the machine counts as disturbed.
    pub drift: DriftLimits,
    /// Largest share of processor time that others may take while something is timed.
    pub foreign: f64,
}

impl Default for Effort {
    fn default() -> Self {
        Self {
            working_set: 96 << 20,
            block: Duration::from_micros(1200),
            screen_pairs: 16,
            confirm_pairs: 64,
            call_timeout: Duration::from_secs(2),
            kept: 1 << 30,
            drift: DriftLimits { relative: 0.15, p: 0.01, steal: 0.05 },
            foreign: 0.25,
        }
    }
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
    /// [`Reason::Build`], [`Reason::Inspection`], [`Reason::Resources`] or a fault of ours.
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
        let stock = self.stock(task, phase).map_err(ours)?;
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
        let summary = check.run(&mut rig, champion.as_mut())?;
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
        let stock = self.stock(task, phase).map_err(|e| fault(Fault::Host, e.to_string()))?;
        let rows = timed_rows(task, phase);
        let inputs = rig.inputs.clone();
        let (mut blocks, mut start) = (Vec::new(), 0);
        for rows in rows {
            let block = Block::new(task, &stock, &inputs, rows, start)?;
            start = block.inputs_end;
            blocks.push(block);
        }
        let mut run = Run {
            task,
            seed,
            effort: &self.config.effort,
            ceilings: &self.config.ceilings,
            rng: SmallRng::from_seed(seed.bytes("verify", 0)),
            index: 0,
            checked: 0,
        };
        let samples = match champion.as_mut() {
            None => run.alone(&blocks, &mut rig, phase)?,
            Some(champion) => {
                let tested = opponent.map_or(0, |o| o.tested);
                run.paired(&blocks, champion, &mut rig, phase, tested)?
            }
        };
        summary.timed_checked = run.checked;
        Ok(Measured { built, summary, samples })
    }

    fn champion(&mut self, task: &KernelTask, it: &Submission) -> Result<Built, Stop> {
        self.build(task, it).map_err(champion_fault)
    }

    /// The large tensors of a task and phase, built at their first use.
    fn stock(&mut self, task: &KernelTask, phase: Phase) -> Result<Arc<Stock>, JudgeError> {
        let rows = timed_rows(task, phase);
        let working_set = self.config.effort.working_set;
        let key = format!("{} {rows:?} {} {phase:?} {working_set}", task.operation, task.context);
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

/// What the champion does wrong now is not the challenger's fault.
fn champion_fault(stop: Stop) -> Stop {
    match stop {
        Stop::Rejected(r) => {
            fault(Fault::Worker, format!("the champion itself: {:?}: {}", r.reason, r.detail))
        }
        other => other,
    }
}

fn timed_rows(task: &KernelTask, phase: Phase) -> Vec<u32> {
    match phase {
        Phase::Screen => task.screen.clone(),
        Phase::Confirm => task.confirm.clone(),
    }
}

/// The timed part of one evaluation.
struct Run<'a> {
    task: &'a KernelTask,
    seed: Seed,
    effort: &'a Effort,
    ceilings: &'a MeasuredCeilings,
    rng: SmallRng,
    index: u64,
    checked: u32,
}

impl Run<'_> {
    /// One timed and checked block of one side.
    fn block(
        &mut self,
        side: &mut Side,
        rig: &mut Rig,
        block: &Block<'_>,
        fresh: &[measure::FreshCall],
    ) -> Result<f64, Stop> {
        let ns = side.block(rig, block, fresh)?;
        self.checked += side.verify(rig, block, fresh, &mut self.rng)?;
        let floor = self.ceilings.floor_ns(
            &self.task.operation,
            block.rows,
            self.task.context,
            self.task.target.threads,
        );
        if ns < floor {
            return Err(reject(
                Reason::Roofline,
                format!("{ns:.0} ns per call of {} rows; the roofline allows {floor:.0}", block.rows),
            ));
        }
        Ok(ns)
    }

    fn refresh(&mut self, block: &Block<'_>, calls: u32) -> Vec<measure::FreshCall> {
        self.index += 1;
        block.refresh(calls, self.seed, self.index)
    }

    /// Calls of a block that take the shortest time that is worth timing.
    fn calls(&self, block: &Block<'_>, ns: f64) -> u32 {
        let wanted = (self.effort.block.as_nanos() as f64 / ns.max(1.0)).ceil();
        (wanted as u32).clamp(1, block.capacity.min(MOST_CALLS))
    }

    /// Time of a call, roughly: two warm blocks.
    fn calibrate(&mut self, side: &mut Side, rig: &mut Rig, block: &Block<'_>) -> Result<f64, Stop> {
        let few = self.refresh(block, block.capacity.min(4));
        self.block(side, rig, block, &few)?;
        let few = self.refresh(block, block.capacity.min(4));
        self.block(side, rig, block, &few)
    }

    /// The first champion's series.
    fn alone(&mut self, blocks: &[Block<'_>], rig: &mut Rig, phase: Phase) -> Result<Samples, Stop> {
        let before = Watch::start(&[rig]);
        let block = &blocks[0];
        let mut side = Side::new(rig, block);
        let ns = self.calibrate(&mut side, rig, block)?;
        let calls = self.calls(block, ns);
        let count = match phase {
            Phase::Screen => self.effort.screen_pairs,
            Phase::Confirm => self.effort.confirm_pairs / 2,
        };
        let mut series = Vec::new();
        for _ in 0..count.max(6) {
            let fresh = self.refresh(block, calls);
            series.push(self.block(&mut side, rig, block, &fresh)?);
        }
        // The other rows are timed once each, so that their outputs are checked too.
        for block in &blocks[1..] {
            let mut side = Side::new(rig, block);
            self.calibrate(&mut side, rig, block)?;
        }
        self.settle(&series, before, &[rig])?;
        Ok(Samples::Single { ns: series, calls })
    }

    /// Interleaved pairs until the sequential test has seen enough.
    fn paired(
        &mut self,
        blocks: &[Block<'_>],
        champion: &mut Rig,
        challenger: &mut Rig,
        phase: Phase,
        tested: u64,
    ) -> Result<Samples, Stop> {
        let before = Watch::start(&[champion, challenger]);
        let most = match phase {
            Phase::Screen => self.effort.screen_pairs,
            Phase::Confirm => self.effort.confirm_pairs,
        };
        let plan = SequentialPlan {
            most_pairs: most,
            ..crate::rule::sequential(self.task.least_effect_permille, tested)
        };
        let mut test = Sequential::new(plan);
        let (mut ours, mut theirs, mut first) = (Vec::new(), Vec::new(), Vec::new());
        let mut most_calls = 1;
        for (i, block) in blocks.iter().enumerate() {
            let mut a = Side::new(champion, block);
            let mut b = Side::new(challenger, block);
            let slow = self.calibrate(&mut a, champion, block).map_err(champion_fault)?;
            self.calibrate(&mut b, challenger, block)?;
            let calls = self.calls(block, slow);
            most_calls = most_calls.max(calls);
            // The first rows get what is left of the pairs; each other one a fair share at the end.
            let share = most / blocks.len() as u32;
            let end = if i + 1 == blocks.len() { most } else { share * (i as u32 + 1) };
            while test.status() == Status::More && test.pairs() < end {
                let fresh = self.refresh(block, calls);
                let (x, y) = match test.next_order() {
                    PairOrder::ChampionFirst => {
                        let x = self.block(&mut a, champion, block, &fresh).map_err(champion_fault)?;
                        (x, self.block(&mut b, challenger, block, &fresh)?)
                    }
                    PairOrder::ChallengerFirst => {
                        let y = self.block(&mut b, challenger, block, &fresh)?;
                        (self.block(&mut a, champion, block, &fresh).map_err(champion_fault)?, y)
                    }
                };
                theirs.push(x);
                ours.push(y);
                if i == 0 {
                    first.push(x);
                }
                test.push(x / y);
            }
        }
        self.settle(&first, before, &[champion, challenger])?;
        Ok(Samples::Paired { champion_ns: theirs, challenger_ns: ours, calls: most_calls })
    }

    /// Refuses to conclude anything from a disturbed machine.
    fn settle(&self, champion: &[f64], before: Option<Watch>, rigs: &[&Rig]) -> Result<(), Stop> {
        let after = before.zip(Watch::start(rigs));
        let stolen = after.and_then(|(a, b)| b.processors.stolen_since(&a.processors));
        match disturbance(champion, stolen, &self.effort.drift) {
            Disturbance::Quiet => {}
            disturbed => return Err(fault(Fault::Disturbed, disturbed.to_string())),
        }
        let foreign = after.and_then(|(a, b)| {
            b.processors.foreign_since(&a.processors, b.own.saturating_sub(a.own))
        });
        match foreign {
            Some(share) if share > self.effort.foreign => Err(fault(
                Fault::Disturbed,
                format!("disturbed: other programs took {:.0} % of the processors' time", 100.0 * share),
            )),
            _ => Ok(()),
        }
    }
}

/// The processors' time and our own part of it.
#[derive(Clone, Copy)]
struct Watch {
    processors: ProcessorTime,
    own: u64,
}

impl Watch {
    /// Reads both; `None` where the system does not tell.
    fn start(rigs: &[&Rig]) -> Option<Self> {
        let workers: Option<u64> = rigs.iter().map(|r| used_by(r.worker.pid())).sum();
        Some(Self { processors: ProcessorTime::now()?, own: workers? + used_by_this_thread()? })
    }
}

/// The stored task's id, as decisions name it.
pub fn task_id(task: &KernelTask) -> evidence::Id<evidence::Task> {
    task.pose().id()
}
