//! A whole page from a made-up search. Set `WRIGHT_TEST_PAGE` to a file to look at it.

use super::page;
use super::source::Source;
use evidence::{
    Candidate, Change, CheckSummary, Content, Contract, Decision, Digest, Direction, Effect, Entry, Evidence,
    Fault, Id, Lesson, Measured, Metric, Outcome, Phase, Point, Proposer, Protocol, Reason, Rejection,
    Samples, Stop, Task, Verdict, Workloads,
};
use ledger::{Position, Record};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;
use std::collections::BTreeMap;

const ATTACK: &str = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'";

/// A search as the swarm leaves it, with times that mean nothing.
struct Search {
    records: Vec<Record>,
    random: StdRng,
    operations: Vec<serde_json::Value>,
}

impl Search {
    fn append(&mut self, entry: Entry) {
        let position = self.records.len() as u64 + 1;
        self.records.push(Record {
            position: Position(position),
            recorded_ms: 1_790_000_000_000 + position * 700,
            previous: Digest::ZERO,
            chain: Digest::ZERO,
            content: entry.content(),
            entry,
        });
    }

    fn propose(
        &mut self,
        task: Id<Task>,
        parent: Option<Id<Candidate>>,
        n: u32,
        by: &str,
        why: &str,
    ) -> Id<Candidate> {
        let axis = |a: u32| ["4", "8", "16", "32"][((n / a) % 4) as usize].to_owned();
        let point = Point(BTreeMap::from([
            ("n_block".to_owned(), axis(1)),
            ("unroll".to_owned(), axis(4)),
            ("prefetch".to_owned(), n.to_string()),
        ]));
        let candidate = Candidate {
            task,
            parents: parent.into_iter().collect(),
            change: Change::Recipe { generator: "linear-vnni".into(), point, max_rows: 64 },
            hypothesis: why.into(),
            proposer: Proposer { name: by.into() },
        };
        let id = candidate.id();
        self.append(Entry::Proposed(candidate));
        id
    }

    fn observe(
        &mut self,
        candidate: Id<Candidate>,
        against: Option<Id<Candidate>>,
        outcome: Outcome,
    ) -> Id<Evidence> {
        let e = Evidence {
            candidate,
            against,
            phase: Phase::Confirm,
            protocol: Protocol {
                version: "kernel-judge/1".into(),
                seed: "00".repeat(32),
                secret_digest: Digest::ZERO,
                corpus: "none".into(),
                layers: vec![
                    "landlock".into(),
                    "seccomp".into(),
                    "no-new-privileges".into(),
                    "rlimits".into(),
                ],
                toolchain: "rustc 1.95.0 -Copt-level=3".into(),
            },
            machine: Digest::of(b"machine"),
            outcome,
        };
        let id = e.id();
        self.append(Entry::Observed(e));
        id
    }

    fn decide(
        &mut self,
        task: Id<Task>,
        champion: Option<Id<Candidate>>,
        challenger: Id<Candidate>,
        read: Vec<Id<Evidence>>,
        verdict: Verdict,
        lesson: Option<Lesson>,
    ) -> Id<Decision> {
        let d = Decision {
            task,
            champion,
            challenger,
            read,
            verdict,
            rule: "paired-sequential/1".into(),
            lesson,
        };
        let id = d.id();
        self.append(Entry::Decided(d));
        id
    }
}

fn measured(samples: Samples) -> Outcome {
    Outcome::Measured(Measured {
        artifact: Digest::of(b"binary"),
        check: CheckSummary {
            cases: 37,
            keys: vec![9, 12, 16],
            worst_ratio: 0.41,
            timed_checked: 24,
            quality: BTreeMap::new(),
        },
        samples,
    })
}

fn search() -> Search {
    let mut s = Search { records: vec![], random: StdRng::seed_from_u64(7), operations: vec![] };
    let shapes = [
        ("qkv", 90e3),
        ("attention", 30e3),
        ("o", 35e3),
        ("gate_up", 310e3),
        ("down", 150e3),
        ("head", 2.9e6),
    ];
    let buckets = [(1, 1, 1.0), (2, 4, 2.6), (9, 16, 9.0), (33, u32::MAX, 30.0)];
    let mut standing = Vec::new();
    for (name, ns) in shapes {
        for (low, high, scale) in buckets {
            let task = Task {
                contract: Contract::Kernel {
                    operation: format!("norm-linear-{name} {ATTACK}"),
                    definition: "{}".into(),
                    class: "linear-i8".into(),
                    rows_low: low,
                    rows_high: high,
                },
                target: "x86_64+avx2+avx512+avx512vnni/t2".into(),
                metric: Metric {
                    name: "time".into(),
                    unit: "ns".into(),
                    direction: Direction::Minimise,
                    least_effect_permille: 10,
                },
                screen: Workloads { cases: vec!["1".into()] },
                confirm: Digest::of(name.as_bytes()),
            };
            let id = task.id();
            s.append(Entry::Posed(task));
            let base = ns * scale;
            let first = s.propose(id, None, 0, "baseline", "The portable kernel is right everywhere.");
            let series = (0..12).map(|i| base * (1.0 + 0.002 * f64::from(i))).collect();
            let evidence = s.observe(first, None, measured(Samples::Single { ns: series, calls: 40 }));
            s.decide(id, None, first, vec![evidence], Verdict::Promote(None), None);
            standing.push((name, (low, high), base, id, first, 1.0, None));
        }
    }
    let proposers = ["mutate", "crossover", "local-search", "transfer", "restart", "seed"];
    for n in 1..420u32 {
        let at = s.random.random_range(0..standing.len());
        let (_, _, base, task, champion, total, _) = standing[at];
        let by = proposers[s.random.random_range(0..proposers.len())];
        let why = match n {
            5 => ATTACK.to_owned(),
            _ => format!(
                "Wider blocks of {} columns should keep both multipliers busy while weights stream in.",
                4 << (n % 4)
            ),
        };
        let id = s.propose(task, Some(champion), n, by, &why);
        let luck: f64 = s.random.random();
        if luck < 0.18 {
            let reason = [Reason::Build, Reason::Wrong, Reason::Class, Reason::Roofline, Reason::TimedOutput]
                [n as usize % 5];
            let detail = format!("row 3, column 17: off by 4.1 bounds {ATTACK}");
            s.observe(id, Some(champion), Outcome::Stopped(Stop::Rejected(Rejection { reason, detail })));
            s.decide(task, Some(champion), id, vec![], Verdict::Refuse, None);
            continue;
        }
        if luck < 0.24 {
            s.observe(
                id,
                Some(champion),
                Outcome::Stopped(Stop::Inconclusive {
                    fault: Fault::Disturbed,
                    detail: "another process ran".into(),
                }),
            );
            continue;
        }
        let ratio: f64 = if luck > 0.72 {
            1.02 + s.random.random::<f64>().powi(3) * 2.2 / total
        } else {
            0.7 + 0.3 * luck
        };
        let old = base / total;
        let pairs =
            Samples::Paired { champion_ns: vec![old; 16], challenger_ns: vec![old / ratio; 16], calls: 12 };
        let evidence = s.observe(id, Some(champion), measured(pairs));
        let effect = Effect { ratio, low: ratio * 0.985, high: ratio * 1.015, pairs: 16 };
        if ratio > 1.0 {
            let lesson = (ratio > 1.3).then(|| Lesson {
                statement: format!("Blocks of 16 pay where rows are few {ATTACK}"),
                scope: "linear, rows 1-4".into(),
                effect: Some(effect),
                support: 3,
            });
            let decision =
                s.decide(task, Some(champion), id, vec![evidence], Verdict::Promote(Some(effect)), lesson);
            standing[at].4 = id;
            standing[at].5 = total * ratio;
            standing[at].6 = Some(decision);
        } else {
            s.decide(task, Some(champion), id, vec![evidence], Verdict::Keep(effect), None);
        }
    }
    for (name, (low, high), base, _, champion, total, decision) in standing {
        let ns = base / total;
        s.operations.push(json!({
            "name": name, "rows": plan::RowBucket { low, high }.to_string(), "kernel": "linear-vnni", "point": "n_block=16 unroll=4",
            "ns": ns, "floor_ns": if name == "attention" { None } else { Some(ns * 0.62) }, "baseline_ns": base,
            "calls_per_pass": if name == "head" { 1 } else { 30 }, "candidate": champion, "decision": decision,
        }));
    }
    s
}

fn summary(s: &mut Search) -> serde_json::Value {
    let mut table = vec![
        json!({ "engine": "reference", "concurrency": 1, "prompt_tokens": 32, "output_tokens": 16,
        "tokens_per_s": 4.1, "ttft_ms": [900.0], "itl_ms": [240.0, 241.0], "requests": 1, "memory_bytes": 538_000_000u64 }),
    ];
    for (c, portable, champion) in [(1, 8.2, 151.0), (4, 11.0, 310.0), (16, 12.9, 428.0)] {
        for (engine, speed) in [("portable", portable), ("champion", champion)] {
            let mut draw = |mean: f64, n: usize| -> Vec<f64> {
                (0..n)
                    .map(|_| {
                        mean * (0.8 + 0.4 * s.random.random::<f64>() + s.random.random::<f64>().powi(12))
                    })
                    .collect()
            };
            let (ttft, itl) = (draw(9000.0 / speed, 24), draw(1000.0 * f64::from(c) / speed, 700));
            table.push(json!({ "engine": engine, "concurrency": c, "prompt_tokens": 128, "output_tokens": 128, "tokens_per_s": speed,
                "ttft_ms": ttft, "itl_ms": itl, "requests": 24, "memory_bytes": 240_000_000u64 }));
        }
    }
    let steps = [
        ("gate_up", 0.45),
        ("down", 0.2),
        ("qkv", 0.12),
        ("o", 0.06),
        ("attention", 0.05),
        ("head", 0.1),
        ("barriers", 0.02),
    ];
    let profile: Vec<_> = [(1, 128), (4, 128), (16, 128), (128, 0)]
        .iter()
        .flat_map(|(rows, context)| {
            steps.iter().map(move |(step, share)| json!({ "rows": rows, "context": context, "step": step, "ns": 6e6 * share * f64::from(*rows).sqrt() }))
        })
        .collect();
    json!({
        "model": "smollm2-135m", "machine": { "name": "Test CPU @ 2.0 GHz" }, "ceilings": { "stream_bytes_per_s_t2": 2.1e10, "barrier_ns_t2": 240.0 },
        "target": "x86_64+avx2+avx512+avx512vnni/t2", "seed": 1, "search_s": 581.0, "evaluations": 443, "table": table,
        "quality": { "kl": 0.0021, "top1": 0.973, "perplexity": 18.21, "reference_perplexity": 18.17, "tokens": 8192, "bound_kl": 0.01, "evidence": "" },
        "operations": s.operations, "profile": profile, "audit": [{ "part": "gate_up 1", "verdict": "pays", "ratio": 1.21 }],
        "plan": { "kv": "i8", "fusion": "all", "chunk": "128" }, "plan_trials": [{ "choices": format!("kv=f32 {ATTACK}"), "verdict": "not better x0.97" }],
    })
}

fn source() -> Source {
    let mut s = search();
    let summary = serde_json::from_value(summary(&mut s)).unwrap();
    let mut source = Source { summary: Some(summary), entries: s.records.len(), ..Source::default() };
    source.span_ms = (s.records[0].recorded_ms, s.records[s.records.len() - 1].recorded_ms);
    s.records.iter().for_each(|r| source.fold.apply(r));
    source
}

/// Every link within the page leads somewhere.
fn check_links(page: &str) {
    for link in page.split("href=\"#").skip(1) {
        let anchor = link.split('"').next().unwrap();
        assert!(page.contains(&format!("id=\"{anchor}\"")), "#{anchor} leads nowhere");
    }
}

#[test]
fn a_whole_page() {
    let page = page::render(&source());
    if let Some(path) = std::env::var_os("WRIGHT_TEST_PAGE") {
        std::fs::write(path, &page).unwrap();
    }
    for part in [
        "speed",
        "progress",
        "operations",
        "stairs",
        "roofline",
        "pass",
        "latency",
        "quality",
        "tried",
        "candidates-list",
        "plan",
        "lessons",
        "evidence",
    ] {
        assert!(page.contains(&format!("<section id=\"{part}\">")), "{part}");
    }
    check_links(&page);
    assert!(!page.contains("<script>alert") && !page.contains("<img"), "text of candidates became markup");
    assert!(page.contains("&lt;script&gt;alert(1)"), "the attack should show as text");
    assert!(!page.contains("NaN") && !page.contains("inf\""), "a number is missing");
    for outside in ["http://", "https://", "//cdn", "url(", "@import"] {
        assert!(!page.contains(outside), "the page asks for {outside}");
    }
}

#[test]
fn a_ledger_alone_and_nothing_at_all() {
    let ledger = Source { summary: None, ..source() };
    let page = page::render(&ledger);
    check_links(&page);
    assert!(page.contains("<section id=\"stairs\">") && !page.contains("<section id=\"latency\">"));
    let empty = page::render(&Source::default());
    assert!(empty.contains("Search ledger"));
}
