//! The sequential test on simulated machines: heavy tails, bursts, drift. Seeds are fixed; the bounds have slack for
//! the number of runs, and none for a wrong test.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use statistics::{ErrorBudget, PairOrder, Sequential, SequentialPlan, Status};

/// A machine whose next timing depends on a state: slow drift, bursts, heavy-tailed interruptions.
struct Machine {
    rng: ChaCha8Rng,
    level: f64,
    drift: f64,
    burst: u32,
    tail: f64,
}

impl Machine {
    fn new(seed: u64, drift: f64, tail: f64) -> Self {
        Self { rng: ChaCha8Rng::seed_from_u64(seed), level: 1.0, drift, burst: 0, tail }
    }

    fn time(&mut self, cost: f64) -> f64 {
        self.level *= 1.0 + self.drift;
        if self.burst == 0 && self.rng.random::<f64>() < 0.02 {
            self.burst = self.rng.random_range(1..12);
        }
        self.burst = self.burst.saturating_sub(1);
        let slow = if self.burst > 0 { 1.3 } else { 1.0 };
        let jitter = 1.0 + 0.01 * (self.rng.random::<f64>() + self.rng.random::<f64>() - 1.0);
        // Pareto interruptions with infinite variance.
        let u: f64 = self.rng.random::<f64>().max(1e-9);
        let spike = if self.rng.random::<f64>() < self.tail { 0.02 * u.powf(-1.0 / 1.5) } else { 0.0 };
        cost * self.level * slow * jitter + spike
    }

    fn run(&mut self, plan: SequentialPlan, speedup: f64) -> (Status, u32) {
        let mut test = Sequential::new(plan);
        while test.status() == Status::More {
            let (champion, challenger) = match test.next_order() {
                PairOrder::ChampionFirst => {
                    let a = self.time(1.0);
                    (a, self.time(1.0 / speedup))
                }
                PairOrder::ChallengerFirst => {
                    let b = self.time(1.0 / speedup);
                    (self.time(1.0), b)
                }
            };
            test.push(champion / challenger);
        }
        (test.status(), test.pairs())
    }
}

const MACHINES: [(f64, f64); 4] = [(0.0, 0.0), (0.0, 0.3), (0.002, 0.1), (-0.002, 0.1)];

#[test]
fn equal_candidates_are_rarely_promoted_in_a_whole_task() {
    // 200 tasks per machine, 20 equal challengers each, 10 % budget, least effect 0 (the hardest null).
    for (i, (drift, tail)) in MACHINES.into_iter().enumerate() {
        let budget = ErrorBudget::new(0.10);
        let false_tasks = (0..200u64)
            .filter(|task| {
                (0..20u64).any(|k| {
                    let mut plan = SequentialPlan::new(budget.grant(k), 0.0);
                    plan.most_pairs = 60;
                    let seed = (i as u64) << 32 | task << 8 | k;
                    Machine::new(seed, drift, tail).run(plan, 1.0).0 == Status::Better
                })
            })
            .count();
        // Expected at most 20; three standard deviations above that is 33.
        assert!(false_tasks <= 33, "machine {i}: {false_tasks} of 200 tasks");
    }
}

#[test]
fn worse_candidates_are_never_promoted() {
    for (i, (drift, tail)) in MACHINES.into_iter().enumerate() {
        for seed in 0..100 {
            let plan = SequentialPlan::new(0.01, 0.01);
            let (status, _) = Machine::new(seed ^ (i as u64) << 20, drift, tail).run(plan, 0.97);
            assert_ne!(status, Status::Better, "machine {i} seed {seed}");
        }
    }
}

#[test]
fn clear_gains_are_found_even_late_in_a_task() {
    let budget = ErrorBudget::new(0.05);
    for (i, (drift, tail)) in MACHINES.into_iter().enumerate() {
        for (speedup, tested, need) in [(1.05, 0, 95), (1.05, 100, 90), (1.20, 500, 98)] {
            let plan = SequentialPlan::new(budget.grant(tested), 0.01);
            let mut pairs = 0;
            let found = (0..100u64)
                .filter(|seed| {
                    let (status, n) = Machine::new(seed ^ (i as u64) << 20, drift, tail).run(plan, speedup);
                    pairs += n;
                    status == Status::Better
                })
                .count();
            assert!(found >= need, "machine {i}, {speedup}, after {tested}: {found} of 100");
            assert!(pairs / 100 < 60, "machine {i}, {speedup}, after {tested}: {} pairs", pairs / 100);
        }
    }
}

#[test]
fn hopeless_candidates_cost_few_pairs() {
    let pairs: u32 =
        (0..100).map(|seed| Machine::new(seed, 0.0, 0.1).run(SequentialPlan::new(0.001, 0.01), 0.8).1).sum();
    assert!(pairs / 100 <= 10, "{}", pairs / 100);
}
