//! Plan search on a synthetic engine.

use evidence::*;
use ledger::*;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;
use swarm::plans::PlanProgress;
use swarm::*;

fn space() -> Space {
    Space::default()
        .choices("format.ffn", &["q8", "q4", "bf16"])
        .choices("kv", &["f32", "bf16"])
        .numbers("chunk", &[32, 64, 128, 256])
        .choices("fuse.qkv", &["no", "yes"])
}

fn point(format: &str, kv: &str, chunk: &str, fuse: &str) -> Point {
    let values = [("format.ffn", format), ("kv", kv), ("chunk", chunk), ("fuse.qkv", fuse)];
    Point(values.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect())
}

/// True cost; the prediction does not see that fusion and chunks interact.
fn true_cost(p: &Point) -> f64 {
    let format = match p.get("format.ffn") {
        Some("q4") => 60.0,
        Some("q8") => 80.0,
        _ => 120.0,
    };
    let kv = if p.get("kv") == Some("bf16") { 10.0 } else { 16.0 };
    let steps = (f64::from(p.number("chunk").unwrap()) / 128.0).log2();
    let chunk = if steps > 0.0 { 5.0 } else { -4.0 * steps };
    let fuse = if p.get("fuse.qkv") == Some("yes") { -5.0 } else { 0.0 };
    let clash = if p.get("fuse.qkv") == Some("yes") && p.number("chunk") == Some(128) { 12.0 } else { 0.0 };
    format + kv + chunk + fuse + clash
}

#[derive(Default)]
struct Engine {
    replays: u32,
    trials: u32,
    dies_after: Option<u32>,
    disturbed: u32,
}

impl PlanTrials for Engine {
    fn cost(&mut self, p: &Point) -> Option<f64> {
        let clash =
            if p.get("fuse.qkv") == Some("yes") && p.number("chunk") == Some(128) { 12.0 } else { 0.0 };
        (p.get("format.ffn") != Some("bf16")).then(|| true_cost(p) - clash)
    }
    fn kernels(&mut self, _: &Point) -> BTreeMap<String, Id<Candidate>> {
        BTreeMap::new()
    }
    fn replay(&mut self, p: &Point) -> Result<Option<f64>, EvaluatorError> {
        self.replays += 1;
        Ok(Some(true_cost(p)))
    }
    fn trial(&mut self, p: &Proposal, standing: &Standing) -> Result<Evaluation, EvaluatorError> {
        if self.dies_after == Some(self.trials) {
            return Err("killed".into());
        }
        self.trials += 1;
        let choices = |c: &Candidate| match &c.change {
            Change::Plan { choices, .. } => choices.clone(),
            _ => unreachable!(),
        };
        let ours = choices(&p.candidate);
        let champion = standing.champion.as_ref().map(Content::id);
        let quality = |p: &Point| p.get("format.ffn") != Some("q4") || p.get("kv") == Some("f32");
        let (outcome, verdict) = if self.disturbed > 0 {
            self.disturbed -= 1;
            let stop = Stop::Inconclusive { fault: Fault::Disturbed, detail: String::new() };
            (Outcome::Stopped(stop), Verdict::Evaluate(Phase::Confirm))
        } else if !quality(&ours) {
            let r = Rejection { reason: Reason::Quality, detail: "kl".to_owned() };
            (Outcome::Stopped(Stop::Rejected(r)), Verdict::Refuse)
        } else {
            let ratio = standing.champion.as_ref().map_or(1.0, |c| true_cost(&choices(c)) / true_cost(&ours));
            let effect = Effect { ratio, low: ratio, high: ratio, pairs: 9 };
            let verdict = match champion {
                None => Verdict::Promote(None),
                Some(_) if ratio > 1.01 => Verdict::Promote(Some(effect)),
                Some(_) => Verdict::Keep(effect),
            };
            let series = BTreeMap::from([("tokens_per_s_c1".to_owned(), vec![1e6 / true_cost(&ours)])]);
            let check = CheckSummary {
                cases: 1,
                keys: vec![],
                worst_ratio: 0.0,
                timed_checked: 0,
                quality: BTreeMap::new(),
            };
            let samples = Samples::Series { series, champion: BTreeMap::new() };
            (Outcome::Measured(Measured { artifact: Digest::ZERO, check, samples }), verdict)
        };
        let evidence = Evidence {
            candidate: p.id,
            against: champion,
            phase: Phase::Confirm,
            protocol: Protocol {
                version: "toy".to_owned(),
                seed: String::new(),
                secret_digest: Digest::ZERO,
                corpus: "1".to_owned(),
                layers: vec![],
                toolchain: String::new(),
            },
            machine: Digest::ZERO,
            outcome,
        };
        let decision = Decision {
            task: p.task,
            champion,
            challenger: p.id,
            read: vec![evidence.id()],
            verdict,
            rule: "toy/1".to_owned(),
            lesson: None,
        };
        Ok(Evaluation { evidence: vec![evidence], decision })
    }
}

fn plan_search() -> PlanSearch {
    PlanSearch {
        task: Task {
            contract: Contract::Engine {
                model: "m".to_owned(),
                goal: "g".to_owned(),
                quality: BTreeMap::new(),
            },
            target: "x86_64/t2".to_owned(),
            metric: Metric {
                name: "tokens".to_owned(),
                unit: "1/s".to_owned(),
                direction: Direction::Maximise,
                least_effect_permille: 10,
            },
            screen: Workloads { cases: vec![] },
            confirm: Digest::ZERO,
        },
        space: space(),
        reference: point("q8", "f32", "64", "no"),
        replays: 8,
        finalists: 3,
        quality_axes: vec!["format.ffn".to_owned(), "kv".to_owned()],
    }
}

fn go(engine: &mut Engine, ledger: &mut dyn Ledger) -> Result<Ended, SwarmError> {
    let mut meter = Meter::new(Budget::default(), Spent::default());
    let mut tried = 0;
    run_plans(&plan_search(), engine, ledger, &mut meter, &mut || Duration::ZERO, None, &mut |p| {
        tried += u32::from(matches!(p, PlanProgress::Tried { .. }));
    })
}

fn champion(ledger: &dyn Ledger) -> Point {
    let fold = Fold::read(ledger).unwrap();
    match &fold.candidates[&fold.champions.get(plan_search().task.id()).unwrap()].change {
        Change::Plan { choices, .. } => choices.clone(),
        _ => unreachable!(),
    }
}

#[test]
fn the_best_plan_within_the_quality_bound_wins_and_a_killed_search_resumes() {
    let mut whole = SqliteLedger::in_memory(Path::new("/nonexistent")).unwrap();
    let mut engine = Engine { disturbed: 1, ..Engine::default() };
    assert_eq!(go(&mut engine, &mut whole).unwrap(), Ended::Complete);
    let best = champion(&whole);
    assert_eq!(
        best,
        point("q4", "f32", "64", "yes"),
        "kv bf16 with q4 breaks the bound, fused chunks of 128 clash"
    );
    assert!(engine.replays <= 17 && engine.trials <= 6, "{} {}", engine.replays, engine.trials);
    let mut killed = SqliteLedger::in_memory(Path::new("/nonexistent")).unwrap();
    let mut total = 0;
    for _ in 0..20 {
        let mut engine = Engine { dies_after: Some(1), ..Engine::default() };
        let result = go(&mut engine, &mut killed);
        total += engine.trials;
        if result.is_ok() {
            break;
        }
    }
    assert_eq!(champion(&killed), best);
    assert!(total <= 8, "decided plans are not tried again: {total}");
}

#[test]
fn beams_find_what_whole_rankings_find() {
    let mut wide = Space::default();
    for i in 0..9 {
        wide = wide.numbers(&format!("axis{i}"), &[0, 1, 2, 3]);
    }
    assert!(wide.size() > 20_000);
    let mut asked = 0u64;
    let mut cost = |p: &Point| {
        asked += 1;
        let sum: u32 =
            p.0.iter().enumerate().map(|(i, (_, v))| v.parse::<u32>().unwrap().abs_diff(i as u32 % 4)).sum();
        (p.get("axis0") != Some("3")).then_some(f64::from(sum))
    };
    let best = rank(&wide, &[wide.nth(0)], &mut cost, 3);
    assert_eq!(best[0].cost, 0.0);
    assert!(asked < 20_000, "{asked}");
    let mut none = |_: &Point| None;
    assert!(rank(&space(), &[], &mut none, 3).is_empty());
}
