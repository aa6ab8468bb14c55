//! One evaluation's timing: blocks of both sides in balanced order, until the sequential test has seen enough.

use crate::disturbance::Watch;
use crate::measure::{Block, FreshCall, MOST_CALLS, Side};
use crate::rig::{Rig, fault, reject};
use crate::roofline::MeasuredCeilings;
use crate::seed::Seed;
use crate::task::KernelTask;
use evidence::{Fault, Phase, Reason, Samples, Stop};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use statistics::{Disturbance, DriftLimits, PairOrder, Sequential, SequentialPlan, Status, disturbance};
use std::time::Duration;

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
    /// A first champion's series ends after this much time, with at least six samples.
    pub series_wall: Duration,
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
            series_wall: Duration::from_millis(400),
            call_timeout: Duration::from_secs(4),
            kept: 1 << 30,
            drift: DriftLimits { relative: 0.15, p: 0.01, steal: 0.05 },
            foreign: 0.25,
        }
    }
}

/// What the champion does wrong now is not the challenger's fault.
pub fn champion_fault(stop: Stop) -> Stop {
    match stop {
        Stop::Rejected(r) => {
            fault(Fault::Worker, format!("the champion itself: {:?}: {}", r.reason, r.detail))
        }
        other => other,
    }
}

/// Most blocks that only warm up.
const MOST_WARM_UP: u32 = 24;

/// The timed part of one evaluation.
pub struct Run<'a> {
    pub task: &'a KernelTask,
    pub seed: Seed,
    pub effort: &'a Effort,
    pub ceilings: &'a MeasuredCeilings,
    rng: SmallRng,
    index: u64,
    /// Outputs of timed calls that were checked.
    pub checked: u32,
}

impl<'a> Run<'a> {
    /// Nothing timed yet.
    pub fn new(task: &'a KernelTask, seed: Seed, effort: &'a Effort, ceilings: &'a MeasuredCeilings) -> Self {
        let rng = SmallRng::from_seed(seed.bytes("verify", 0));
        Self { task, seed, effort, ceilings, rng, index: 0, checked: 0 }
    }

    /// One timed and checked block of one side.
    fn block(
        &mut self,
        side: &mut Side,
        rig: &mut Rig,
        block: &Block<'_>,
        fresh: &[FreshCall],
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

    fn refresh(&mut self, block: &Block<'_>, calls: u32) -> Vec<FreshCall> {
        self.index += 1;
        block.refresh(calls, self.seed, self.index)
    }

    /// Calls of a block that take the shortest time that is worth timing.
    fn calls(&self, block: &Block<'_>, ns: f64) -> u32 {
        let wanted = (self.effort.block.as_nanos() as f64 / ns.max(1.0)).ceil();
        (wanted as u32).clamp(1, block.capacity.min(MOST_CALLS))
    }

    /// Time of a call, roughly: one call, then a few.
    fn calibrate(&mut self, side: &mut Side, rig: &mut Rig, block: &Block<'_>) -> Result<f64, Stop> {
        let one = self.refresh(block, 1);
        self.block(side, rig, block, &one)?;
        let few = self.refresh(block, block.capacity.min(4));
        self.block(side, rig, block, &few)
    }

    /// Runs blocks that count for nothing until three in a row bring no better time: tables and weights then lie in the caches as
    /// far as they do in service. (Rows of a large table, drawn at random, took a dozen blocks to get there, which looked
    /// like a machine that speeds up.)
    fn warm_up(&mut self, side: &mut Side, rig: &mut Rig, block: &Block<'_>, calls: u32) -> Result<(), Stop> {
        let (mut best, mut idle) = (f64::INFINITY, 0);
        let began = std::time::Instant::now();
        for _ in 0..MOST_WARM_UP {
            let fresh = self.refresh(block, calls);
            let ns = self.block(side, rig, block, &fresh)?;
            idle = if ns < 0.99 * best { 0 } else { idle + 1 };
            best = best.min(ns);
            if idle == 3 || began.elapsed() > self.effort.series_wall / 2 {
                break;
            }
        }
        Ok(())
    }

    /// The first champion's series.
    pub fn alone(&mut self, blocks: &[Block<'_>], rig: &mut Rig, phase: Phase) -> Result<Samples, Stop> {
        let before = watch(&[rig]);
        let block = &blocks[0];
        let mut side = Side::new(rig, block);
        let ns = self.calibrate(&mut side, rig, block)?;
        let calls = self.calls(block, ns);
        self.warm_up(&mut side, rig, block, calls)?;
        let count = match phase {
            Phase::Screen => self.effort.screen_pairs,
            Phase::Confirm => self.effort.confirm_pairs / 2,
        };
        let mut series = Vec::new();
        let began = std::time::Instant::now();
        for n in 0..count.max(6) {
            if n >= 6 && began.elapsed() > self.effort.series_wall {
                break;
            }
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
    pub fn paired(
        &mut self,
        blocks: &[Block<'_>],
        champion: &mut Rig,
        challenger: &mut Rig,
        phase: Phase,
        tested: u64,
    ) -> Result<Samples, Stop> {
        let before = watch(&[champion, challenger]);
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
            if i == 0 {
                self.warm_up(&mut a, champion, block, calls).map_err(champion_fault)?;
            }
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
        let after = before.zip(watch(rigs));
        let stolen = after.and_then(|(a, b)| b.stolen_since(&a));
        match disturbance(champion, stolen, &self.effort.drift) {
            Disturbance::Quiet => {}
            disturbed => return Err(fault(Fault::Disturbed, disturbed.to_string())),
        }
        match after.and_then(|(a, b)| b.foreign_since(&a)) {
            Some(share) if share > self.effort.foreign => Err(fault(
                Fault::Disturbed,
                format!("disturbed: other programs took {:.0} % of the processors' time", 100.0 * share),
            )),
            _ => Ok(()),
        }
    }
}

/// The time of the processors, of this process and of the workers.
fn watch(rigs: &[&Rig]) -> Option<Watch> {
    Watch::start(&rigs.iter().map(|r| r.worker.pid()).collect::<Vec<_>>())
}
