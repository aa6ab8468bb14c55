//! The whole swarm against synthetic kernels: no clock, no processes; the ledger lies in memory. Everything follows
//! from seeds.

mod toy;

use evidence::*;
use kernels::{Generated, Generator, KernelError};
use ledger::*;
use plan::{Operation, RowBucket, Target};
use statistics::{ErrorBudget, Pairs, Sequential, SequentialPlan, Status};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;
use swarm::*;
use toy::{FAST, SLOW, Toy, toy};

fn spec(width: u32, rows: RowBucket, calls: f64) -> TaskSpec<'static> {
    let operation = Operation::RmsNorm { width, eps_bits: 0 };
    let target = Target::portable("x86_64", 2);
    let task = Task {
        contract: Contract::Kernel {
            operation: operation.to_string(),
            definition: serde_json::to_string(&operation).unwrap(),
            class: "toy".to_owned(),
            rows_low: rows.low,
            rows_high: rows.high,
        },
        target: target.to_string(),
        metric: Metric {
            name: "time".to_owned(),
            unit: "ns".to_owned(),
            direction: Direction::Minimise,
            least_effect_permille: 10,
        },
        screen: Workloads { cases: vec![rows.low.to_string()] },
        confirm: Digest::of(b"held out"),
    };
    TaskSpec {
        name: operation.to_string(),
        task,
        operation,
        rows,
        target,
        max_rows: rows.low,
        generators: vec![&SLOW, &FAST],
        baseline: Recipe { generator: "toy-portable".to_owned(), point: Toy::toy_space().nth(0) },
        calls,
        floor_ns: Some(0.8 * f64::from(width) * f64::from(rows.low)),
        bound: Bound::Memory,
        seeds: vec![],
    }
}

/// Three widths in three buckets; heavy and light ones.
fn specs() -> Vec<TaskSpec<'static>> {
    let mut all = Vec::new();
    for (width, calls) in [(576, 30.0), (1536, 30.0), (4096, 1.0)] {
        for rows in [0, 2, 4] {
            all.push(spec(width, RowBucket::ALL[rows], calls));
        }
    }
    all
}

/// Judges by the true cost plus noise that follows from the candidate alone.
struct Judge {
    ids: BTreeMap<Id<Task>, (u32, u32)>,
    /// One in so many evaluations is disturbed at its first attempt.
    fault_every: u64,
    /// Disturbed whatever happens.
    cursed: Option<u64>,
    evaluations: u64,
    /// Fails after this many.
    dies_after: Option<u64>,
    prepared: usize,
}

impl Judge {
    fn new() -> Self {
        let ids = specs()
            .iter()
            .map(|s| match s.operation {
                Operation::RmsNorm { width, .. } => (s.task.id(), (width, s.rows.low)),
                _ => unreachable!(),
            })
            .collect();
        Self { ids, fault_every: u64::MAX, cursed: None, evaluations: 0, dies_after: None, prepared: 0 }
    }

    fn true_ns(&self, candidate: &Candidate) -> Option<f64> {
        let (width, rows) = self.ids[&candidate.task];
        match &candidate.change {
            Change::Recipe { generator, point, .. } => toy(generator).ns(width, rows, point),
            _ => None,
        }
    }
}

fn hash(parts: &[&str]) -> u64 {
    let d = Digest::of(parts.join("/").as_bytes()).0;
    u64::from_le_bytes(d[..8].try_into().unwrap())
}

fn noisy(ns: f64, key: &str, n: usize) -> Vec<f64> {
    (0..n)
        .map(|i| {
            let h = hash(&[key, &i.to_string()]);
            let spike = if h.is_multiple_of(17) { 0.4 } else { 0.0 };
            ns * (1.0 + 0.02 * ((h >> 8) % 1000) as f64 / 1000.0 + spike)
        })
        .collect()
}

fn evidence_of(proposal: &Proposal, against: Option<Id<Candidate>>, outcome: Outcome) -> Evidence {
    Evidence {
        candidate: proposal.id,
        against,
        phase: Phase::Confirm,
        protocol: Protocol {
            version: "toy".to_owned(),
            seed: String::new(),
            secret_digest: Digest::ZERO,
            corpus: "1".to_owned(),
            layers: vec![],
            toolchain: "none".to_owned(),
        },
        machine: Digest::ZERO,
        outcome,
    }
}

impl Evaluator for Judge {
    fn prepare(&mut self, upcoming: &[Proposal]) {
        self.prepared = self.prepared.max(upcoming.len());
    }

    fn evaluate(&mut self, p: &Proposal, standing: &Standing) -> Result<Evaluation, EvaluatorError> {
        if self.dies_after == Some(self.evaluations) {
            return Err("killed".into());
        }
        self.evaluations += 1;
        let champion = standing.champion.as_ref().map(Content::id);
        let key = p.id.to_string();
        let decide = |evidence: Evidence, verdict| Evaluation {
            decision: Decision {
                task: p.task,
                champion,
                challenger: p.id,
                read: vec![evidence.id()],
                verdict,
                rule: "toy/1".to_owned(),
                lesson: None,
            },
            evidence: vec![evidence],
        };
        let h = hash(&["fault", &key]);
        if (p.faults == 0 && h % self.fault_every == 1) || self.cursed.is_some_and(|c| h.is_multiple_of(c)) {
            let stop = Stop::Inconclusive { fault: Fault::Disturbed, detail: "toy".to_owned() };
            let e = evidence_of(p, champion, Outcome::Stopped(stop));
            return Ok(decide(e, Verdict::Evaluate(Phase::Confirm)));
        }
        let Some(ns) = self.true_ns(&p.candidate) else {
            let rejection = Rejection { reason: Reason::Wrong, detail: "toy".to_owned() };
            let e = evidence_of(p, champion, Outcome::Stopped(Stop::Rejected(rejection)));
            return Ok(decide(e, Verdict::Refuse));
        };
        let (samples, verdict) = match &standing.champion {
            None => (Samples::Single { ns: noisy(ns, &key, 16), calls: 1 }, Verdict::Promote(None)),
            Some(c) => {
                let theirs = self.true_ns(c).unwrap();
                let champion_ns = noisy(theirs, &format!("{key}-champion"), 48);
                let challenger_ns = noisy(ns, &key, 48);
                let pairs = Pairs::of_costs(&champion_ns, &challenger_ns).unwrap();
                let effect = pairs.effect(0.95, 1);
                let plan = SequentialPlan::new(ErrorBudget::default().grant(standing.tested), 0.01);
                let better = Sequential::replay(plan, &pairs).status() == Status::Better;
                let verdict = if better { Verdict::Promote(Some(effect)) } else { Verdict::Keep(effect) };
                (Samples::Paired { champion_ns, challenger_ns, calls: 1 }, verdict)
            }
        };
        let check = CheckSummary {
            cases: 1,
            keys: vec![],
            worst_ratio: 0.0,
            timed_checked: 0,
            quality: BTreeMap::new(),
        };
        let measured = Measured { artifact: Digest::ZERO, check, samples };
        Ok(decide(evidence_of(p, champion, Outcome::Measured(measured)), verdict))
    }
}

fn memory() -> SqliteLedger {
    SqliteLedger::in_memory(Path::new("/nonexistent")).unwrap()
}

fn search(
    ledger: &mut dyn Ledger,
    judge: &mut Judge,
    seed: u64,
    evaluations: u64,
) -> Result<Ended, SwarmError> {
    let before: u64 = Fold::read(ledger)?.statistics.values().map(|s| s.observed).sum();
    let mut swarm = Swarm::open(specs(), Settings::new(seed), ledger)?;
    let budget = Budget { wall: None, evaluations: Some(evaluations) };
    let mut meter = Meter::new(budget, Spent { wall_ms: 0, evaluations: before });
    run(&mut swarm, judge, ledger, &mut meter, &mut || Duration::ZERO, 3, None, &mut |_| ())
}

/// Share of the optimal speed that the champions reach, weighed by time in the workload.
fn reached(ledger: &dyn Ledger) -> f64 {
    let fold = Fold::read(ledger).unwrap();
    let judge = Judge::new();
    let (mut optimal, mut actual) = (0.0, 0.0);
    for s in specs() {
        let (width, rows) = judge.ids[&s.task.id()];
        let space = Toy::toy_space();
        let best = (0..space.size())
            .filter_map(|i| FAST.ns(width, rows, &space.nth(i)))
            .fold(f64::INFINITY, f64::min);
        let champion = &fold.candidates[&fold.champions.get(s.task.id()).unwrap()];
        optimal += s.calls * best;
        actual += s.calls * judge.true_ns(champion).unwrap();
    }
    optimal / actual
}

fn trajectory(ledger: &dyn Ledger) -> Vec<Digest> {
    ledger.entries(Position::START, 100_000).unwrap().iter().map(|r| r.content).collect()
}

/// Proposals and final decisions in order. A kill between a fault and the decision to try again loses that decision.
fn course(ledger: &dyn Ledger) -> Vec<Digest> {
    let lasting = |e: &Entry| match e {
        Entry::Proposed(_) => true,
        Entry::Decided(d) => !matches!(d.verdict, Verdict::Evaluate(_)),
        _ => false,
    };
    let records = ledger.entries(Position::START, 100_000).unwrap();
    records.iter().filter(|r| lasting(&r.entry)).map(|r| r.content).collect()
}

#[test]
fn the_swarm_finds_the_optimum_and_beats_random_search() {
    let budget = 150;
    let mut worst = f64::INFINITY;
    for seed in 0..3 {
        let mut ledger = memory();
        let mut judge = Judge::new();
        assert_eq!(search(&mut ledger, &mut judge, seed, budget).unwrap(), Ended::Budget);
        assert_eq!(judge.evaluations, budget);
        assert_eq!(judge.prepared, 3, "builds run ahead");
        worst = worst.min(reached(&ledger));
    }
    let random = random_search(budget);
    println!("swarm (worst of 3 seeds) {worst:.4}, random search {random:.4}");
    assert!(worst >= 0.95, "{worst}");
    assert!(worst > random + 0.05, "{worst} against {random}");
}

/// The same budget spread evenly over tasks, points drawn at random from the faster family.
fn random_search(budget: u64) -> f64 {
    let judge = Judge::new();
    let (mut optimal, mut actual) = (0.0, 0.0);
    let space = Toy::toy_space();
    let all = specs();
    for s in &all {
        let (width, rows) = judge.ids[&s.task.id()];
        let ns = |i: u64| FAST.ns(width, rows, &space.nth(i)).unwrap_or(f64::INFINITY);
        optimal += s.calls * (0..space.size()).map(ns).fold(f64::INFINITY, f64::min);
        let draws = budget / all.len() as u64;
        let found = (0..draws).map(|d| ns(hash(&[&s.label(), &d.to_string()]) % space.size()));
        actual += s.calls * found.fold(f64::INFINITY, f64::min);
    }
    optimal / actual
}

#[test]
fn the_same_seed_gives_the_same_trajectory_and_another_another() {
    let of = |seed| {
        let mut ledger = memory();
        search(&mut ledger, &mut Judge::new(), seed, 60).unwrap();
        trajectory(&ledger)
    };
    let first = of(7);
    assert_eq!(first, of(7));
    assert_ne!(first, of(8));
}

/// Dies at the n-th append, like a process that is killed there.
struct Dying<'a> {
    inner: &'a mut SqliteLedger,
    appends: u64,
}

impl Ledger for Dying<'_> {
    fn append(&mut self, entry: &Entry) -> Result<Appended, LedgerError> {
        let appended = self.inner.append(entry)?;
        if let Appended::New(_) = appended {
            if self.appends == 0 {
                return Err(LedgerError::NoDataFolder);
            }
            self.appends -= 1;
        }
        Ok(appended)
    }
    fn entries(&self, after: Position, limit: u32) -> Result<Vec<Record>, LedgerError> {
        self.inner.entries(after, limit)
    }
    fn get(&self, content: Digest) -> Result<Option<Record>, LedgerError> {
        self.inner.get(content)
    }
    fn find(&self, prefix: &str) -> Result<Record, LedgerError> {
        self.inner.find(prefix)
    }
    fn head(&self) -> Result<Head, LedgerError> {
        self.inner.head()
    }
    fn head_at(&self, position: Position) -> Result<Option<Head>, LedgerError> {
        self.inner.head_at(position)
    }
    fn champion(&self, task: Id<Task>) -> Result<Option<Id<Candidate>>, LedgerError> {
        self.inner.champion(task)
    }
    fn check(&self) -> Result<Check, LedgerError> {
        self.inner.check()
    }
    fn open_build(&mut self, header: &BuildHeader) -> Result<Build, LedgerError> {
        self.inner.open_build(header)
    }
    fn record_build(&mut self, build: &BuildId, event: &BuildEvent) -> Result<(), LedgerError> {
        self.inner.record_build(build, event)
    }
    fn builds(&self) -> Result<Vec<Build>, LedgerError> {
        self.inner.builds()
    }
    fn artifacts(&self) -> &Artifacts {
        self.inner.artifacts()
    }
}

#[test]
fn killed_at_every_step_and_resumed_it_goes_the_same_way() {
    let evaluations = 50;
    let mut whole = memory();
    let faulty = || Judge { fault_every: 6, ..Judge::new() };
    search(&mut whole, &mut faulty(), 3, evaluations).unwrap();
    let expected = course(&whole);
    // The evaluation in flight when the budget ends may lack its decision.
    let same = |killed: &SqliteLedger| {
        let found = course(killed);
        assert!(found.len() + 3 >= expected.len() && expected.len() + 3 >= found.len());
        let both = found.len().min(expected.len());
        assert_eq!(found[..both], expected[..both]);
    };
    // One search that is killed after every single entry.
    let mut killed = memory();
    let mut kills = 0;
    loop {
        let mut dying = Dying { inner: &mut killed, appends: 0 };
        match search(&mut dying, &mut faulty(), 3, evaluations) {
            Ok(_) => break,
            Err(SwarmError::Ledger(LedgerError::NoDataFolder)) => kills += 1,
            Err(e) => panic!("{e}"),
        }
    }
    assert!(kills > 100, "{kills}");
    same(&killed);
    // And one whose evaluator dies before every evaluation's end.
    let mut killed = memory();
    for n in 0.. {
        let mut judge = Judge { dies_after: Some(u64::from(n % 2 == 0)), ..faulty() };
        match search(&mut killed, &mut judge, 3, evaluations) {
            Ok(_) => break,
            Err(SwarmError::Evaluator { .. }) => {}
            Err(e) => panic!("{e}"),
        }
    }
    same(&killed);
}

#[test]
fn faults_are_retried_never_promote_and_are_given_up_in_the_end() {
    let mut ledger = memory();
    let mut judge = Judge { fault_every: 3, cursed: Some(11), ..Judge::new() };
    search(&mut ledger, &mut judge, 1, 120).unwrap();
    let fold = Fold::read(&ledger).unwrap();
    let (mut retried, mut given_up) = (0, 0);
    for (id, seen) in &fold.evidence {
        let stopped = |s: &&Seen| matches!(s.evidence.outcome, Outcome::Stopped(Stop::Inconclusive { .. }));
        let faults = seen.iter().filter(stopped).count();
        let verdicts: Vec<&Verdict> = fold.decisions[id].iter().map(|(_, d)| &d.verdict).collect();
        let ends = |v: &Verdict| !matches!(v, Verdict::Evaluate(_));
        assert_eq!(verdicts.iter().filter(|v| !ends(v)).count(), faults);
        assert!(faults <= 3);
        retried += usize::from((1..3).contains(&faults) && ends(verdicts[verdicts.len() - 1]));
        given_up += usize::from(faults == 3 && !ends(verdicts[verdicts.len() - 1]));
    }
    assert!(retried > 10 && given_up > 2, "{retried} {given_up}");
    for s in specs() {
        for reign in fold.champions.history(s.task.id()) {
            assert!(
                fold.evidence_of(reign.champion)
                    .iter()
                    .any(|s| matches!(s.evidence.outcome, Outcome::Measured(_)))
            );
        }
    }
}

#[test]
fn a_second_search_starts_from_what_the_ledger_knows() {
    let mut ledger = memory();
    search(&mut ledger, &mut Judge::new(), 1, 150).unwrap();
    let known = reached(&ledger);
    let before = trajectory(&ledger).len();
    // Same model, another seed: not one evaluation is needed to be there again.
    let swarm = Swarm::open(specs(), Settings::new(99), &mut ledger).unwrap();
    assert_eq!(trajectory(&ledger).len(), before, "posing known tasks adds nothing");
    assert_eq!(swarm.champions().len(), specs().len());
    search(&mut ledger, &mut Judge::new(), 99, 170).unwrap();
    assert!(reached(&ledger) >= known);
}

#[test]
fn a_new_shape_profits_from_its_neighbours() {
    let fresh = || vec![spec(2048, RowBucket::ALL[2], 1.0)];
    let found = |ledger: &mut SqliteLedger| {
        let mut judge = Judge::new();
        judge.ids.insert(fresh()[0].task.id(), (2048, 5));
        let mut swarm = Swarm::open(fresh(), Settings::new(5), ledger).unwrap();
        let mut meter = Meter::new(Budget { wall: None, evaluations: Some(8) }, Spent::default());
        run(&mut swarm, &mut judge, ledger, &mut meter, &mut || Duration::ZERO, 1, None, &mut |_| ())
            .unwrap();
        let champion = swarm.champions().into_values().next().unwrap();
        FAST.ns(2048, 5, &{
            let space = Toy::toy_space();
            let best = (0..space.size()).filter(|i| FAST.ns(2048, 5, &space.nth(*i)).is_some());
            let ns = |i: &u64| FAST.ns(2048, 5, &space.nth(*i)).unwrap();
            space.nth(best.min_by(|a, b| ns(a).total_cmp(&ns(b))).unwrap())
        })
        .unwrap()
            / judge.true_ns(&champion).unwrap()
    };
    let mut experienced = memory();
    search(&mut experienced, &mut Judge::new(), 1, 150).unwrap();
    let (with, without) = (found(&mut experienced), found(&mut memory()));
    println!("8 evaluations of a new shape: with the ledger {with:.3}, without {without:.3}");
    assert!(with > 0.9 && with > without + 0.1, "{with} against {without}");
}

#[test]
fn equal_sources_and_refused_points_are_never_proposed_and_hypotheses_and_parents_are_there() {
    let mut ledger = memory();
    search(&mut ledger, &mut Judge::new(), 2, 150).unwrap();
    let fold = Fold::read(&ledger).unwrap();
    let mut sources = BTreeSet::new();
    let mut with_parents = 0;
    for c in fold.candidates.values() {
        let Change::Recipe { generator, point, max_rows } = &c.change else { panic!() };
        let s = specs().into_iter().find(|s| s.task.id() == c.task).unwrap();
        let made = toy(generator).generate(&s.operation, s.rows, &s.target, point, *max_rows).unwrap();
        assert!(sources.insert((c.task, made.source)), "proposed twice: {point}");
        assert!(c.hypothesis.len() > 20, "{}", c.hypothesis);
        with_parents += usize::from(!c.parents.is_empty());
    }
    assert!(with_parents > 50, "{with_parents}");
    // Lessons carry effects that exclude "none".
    assert!(fold.lessons.len() > 10, "{}", fold.lessons.len());
    for (_, _, lesson) in &fold.lessons {
        assert!(lesson.effect.is_none_or(|e| e.low > 1.0 || e.high < 1.0), "{lesson:?}");
        assert!(lesson.scope.starts_with("rmsnorm rows "), "{}", lesson.scope);
    }
}

#[test]
fn tasks_end_at_their_ceiling_and_a_search_without_points_completes() {
    let mut ledger = memory();
    let mut one = spec(576, RowBucket::ALL[0], 1.0);
    one.floor_ns = Some(FAST.best * 576.0 / 1.01);
    let mut swarm = Swarm::open(vec![one.clone()], Settings::new(1), &mut ledger).unwrap();
    let mut meter = Meter::new(Budget::default(), Spent::default());
    let mut events = Vec::new();
    let ended = run(
        &mut swarm,
        &mut Judge::new(),
        &mut ledger,
        &mut meter,
        &mut || Duration::ZERO,
        2,
        None,
        &mut |p| {
            if let Progress::Tried { overall, .. } = p {
                events.push(overall);
            }
        },
    )
    .unwrap();
    assert_eq!(ended, Ended::Complete);
    assert_eq!(swarm.tasks()[0].closed, Some(Closed::Ceiling));
    assert!(events.last().unwrap() > &3.0 && events.len() < 200, "{events:?}");
    assert!((swarm.speedup() - swarm.tasks()[0].speedup).abs() < 1e-9);
    // A space of two points.
    struct Tiny;
    impl Generator for Tiny {
        fn name(&self) -> &'static str {
            "toy-slow"
        }
        fn space(&self, _: &Operation, _: RowBucket, _: &Target) -> Option<Space> {
            let mut space = Toy::toy_space();
            for axis in &mut space.axes {
                axis.values.truncate(1 + usize::from(axis.name == "tile"));
            }
            Some(space)
        }
        fn start(&self, o: &Operation, r: RowBucket, t: &Target) -> Option<Point> {
            Some(self.space(o, r, t)?.nth(0))
        }
        fn generate(
            &self,
            o: &Operation,
            r: RowBucket,
            t: &Target,
            p: &Point,
            m: u32,
        ) -> Result<Generated, KernelError> {
            SLOW.generate(o, r, t, p, m)
        }
        fn numeric_class(&self, o: &Operation) -> String {
            SLOW.numeric_class(o)
        }
    }
    let tiny = TaskSpec { generators: vec![&Tiny], floor_ns: None, ..one };
    let mut ledger = memory();
    let mut swarm = Swarm::open(vec![tiny], Settings::new(1), &mut ledger).unwrap();
    let mut meter = Meter::new(Budget::default(), Spent::default());
    let mut judge = Judge::new();
    let ended =
        run(&mut swarm, &mut judge, &mut ledger, &mut meter, &mut || Duration::ZERO, 2, None, &mut |_| ())
            .unwrap();
    assert_eq!((ended, judge.evaluations), (Ended::Complete, 3));
    assert_eq!(swarm.tasks()[0].closed, Some(Closed::Exhausted));
}

#[test]
fn another_process_that_moves_the_champion_is_noticed() {
    let mut ledger = memory();
    search(&mut ledger, &mut Judge::new(), 1, 20).unwrap();
    let mut swarm = Swarm::open(specs(), Settings::new(1), &mut ledger).unwrap();
    let proposal = swarm.top_up(&mut ledger, 1).unwrap().remove(0);
    // While this one is evaluated, somebody proposes and promotes another for the same task.
    struct Late<'a> {
        judge: Judge,
        ledger: &'a std::cell::RefCell<Vec<Entry>>,
    }
    impl Evaluator for Late<'_> {
        fn evaluate(&mut self, p: &Proposal, s: &Standing) -> Result<Evaluation, EvaluatorError> {
            let mut made = self.judge.evaluate(p, s)?;
            if self.ledger.borrow().is_empty() {
                self.ledger.borrow_mut().push(Entry::Proposed(p.candidate.clone()));
                // Claims a champion that does not stand.
                made.decision.champion = Some(p.id);
                made.decision.verdict = Verdict::Promote(None);
            }
            Ok(made)
        }
    }
    let log = std::cell::RefCell::new(Vec::new());
    let mut late = Late { judge: Judge::new(), ledger: &log };
    let mut meter = Meter::new(Budget { wall: None, evaluations: Some(2) }, Spent::default());
    let mut moved = 0;
    run(&mut swarm, &mut late, &mut ledger, &mut meter, &mut || Duration::ZERO, 1, None, &mut |p| {
        moved += usize::from(matches!(p, Progress::Moved { .. }));
    })
    .unwrap();
    assert_eq!(moved, 1);
    let fold = Fold::read(&ledger).unwrap();
    assert!(fold.last_decision(proposal.id).is_some(), "it was evaluated again");
}

#[test]
fn a_champion_found_wrong_falls_and_is_not_built_upon() {
    let mut ledger = memory();
    search(&mut ledger, &mut Judge::new(), 1, 100).unwrap();
    let fold = Fold::read(&ledger).unwrap();
    let task = specs()[0].task.id();
    let history: Vec<_> = fold.champions.history(task).iter().map(|r| r.champion).collect();
    let [.., before, last] = history[..] else { panic!("{history:?}") };
    let revoke = Decision {
        task,
        champion: Some(last),
        challenger: before,
        read: vec![],
        verdict: Verdict::Revoke,
        rule: "adversary/1".to_owned(),
        lesson: None,
    };
    let speed = Swarm::open(specs(), Settings::new(1), &mut ledger).unwrap().tasks()[0].speedup;
    ledger.append_decision(&revoke).unwrap();
    let mut swarm = Swarm::open(specs(), Settings::new(1), &mut ledger).unwrap();
    assert_eq!(swarm.champions()[&task].id(), before);
    assert!(swarm.tasks()[0].speedup < speed);
    for p in swarm.top_up(&mut ledger, 30).unwrap() {
        assert!(!p.candidate.parents.contains(&last), "{}", p.candidate.hypothesis);
    }
}
