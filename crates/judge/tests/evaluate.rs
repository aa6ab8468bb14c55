//! Whole evaluations of generated kernels.

mod harness;

use evidence::{
    Candidate, Change, Content, Fault, Id, Outcome, Phase, Proposer, Reason, Samples, Stop, Verdict,
};
use harness::{judge, judge_with, small};
use judge::{KernelTask, Opponent, Standing, Submission, rule};
use plan::{Activation, Epilogue, Operation, Prologue, RowBucket, Target, WeightFormat, WeightLayout, Zero};
use std::collections::BTreeMap;
use std::time::Instant;

fn linear(n: u32, k: u32, prologue: Prologue, epilogue: Epilogue) -> Operation {
    Operation::Linear {
        n,
        k,
        prologue,
        epilogue,
        weight: WeightLayout {
            format: WeightFormat::Affine { bits: 8, group: 32, zero: Zero::Midpoint },
            n_block: 16,
        },
        activation: Activation::I8,
    }
}

fn candidate(name: &str, source: &str, task: &KernelTask) -> Id<Candidate> {
    Candidate {
        task: task.pose().id(),
        parents: vec![],
        change: Change::Source { text: source.into(), launch: String::new() },
        hypothesis: String::new(),
        proposer: Proposer { name: name.into() },
    }
    .id()
}

/// The start point of the first generator whose name contains `family`.
fn generated(task: &KernelTask, family: &str) -> Option<(Submission, String)> {
    let generator = kernels::generators()
        .iter()
        .find(|g| g.name().contains(family) && g.space(&task.operation, task.rows, &task.target).is_some())?;
    let point = generator.start(&task.operation, task.rows, &task.target)?;
    let made = generator.generate(&task.operation, task.rows, &task.target, &point, task.max_rows).ok()?;
    let candidate = candidate(generator.name(), &made.source, task);
    let class = generator.numeric_class(&task.operation);
    Some((Submission { candidate, source: made.source, launch: made.launch }, class))
}

fn portable_task(operation: Operation, rows: RowBucket, max_rows: u32) -> (KernelTask, Submission) {
    let target = Target::portable("x86_64", 2);
    let mut task = KernelTask::new(operation, rows, target, "", max_rows, 64);
    let (submission, class) = generated(&task, "portable").or_else(|| generated(&task, "embed")).unwrap();
    task.class = class;
    let submission = Submission { candidate: candidate("portable", &submission.source, &task), ..submission };
    (task, submission)
}

#[test]
fn the_baseline_of_a_small_linear_is_confirmed_and_promoted() {
    let folder = tempfile::tempdir().unwrap();
    let mut judge = judge(folder.path(), small());
    let operation = linear(96, 64, Prologue::None, Epilogue::Store);
    let (task, baseline) = portable_task(operation, RowBucket::ALL[1], 64);
    let mut evidence = Vec::new();
    for phase in [Phase::Screen, Phase::Confirm] {
        let start = Instant::now();
        let e = judge.evaluate(&task, &baseline, None, phase);
        eprintln!("{phase:?} in {:?}: {:?}", start.elapsed(), e.outcome);
        let Outcome::Measured(m) = &e.outcome else { panic!("{:?}", e.outcome) };
        assert_eq!(m.check.keys, [2, 3, 4]);
        assert!(m.check.worst_ratio <= 1.0 && m.check.timed_checked > 6);
        evidence.push(e);
        let standing = Standing { candidate: baseline.candidate, evidence: &evidence };
        let decision = rule(&task.pose(), None, standing, 0);
        match phase {
            Phase::Screen => assert_eq!(decision.verdict, Verdict::Evaluate(Phase::Confirm)),
            Phase::Confirm => assert_eq!(decision.verdict, Verdict::Promote(None)),
        }
    }
}

#[test]
fn a_kernel_against_itself_is_not_better() {
    let folder = tempfile::tempdir().unwrap();
    let mut judge = judge(folder.path(), small());
    let (task, it) = portable_task(linear(96, 64, Prologue::None, Epilogue::Add), RowBucket::ALL[0], 64);
    let twin = Submission {
        candidate: candidate("twin", &it.source, &task),
        source: format!("{}\n// the same\n", it.source),
        launch: it.launch,
    };
    let opponent = Opponent { champion: &it, class: &task.class, tested: 3 };
    let evidence = [judge.evaluate(&task, &twin, Some(opponent), Phase::Confirm)];
    let Outcome::Measured(m) = &evidence[0].outcome else { panic!("{:?}", evidence[0].outcome) };
    let Samples::Paired { champion_ns, challenger_ns, .. } = &m.samples else { panic!() };
    assert!(champion_ns.len() >= 6 && champion_ns.len() == challenger_ns.len());
    let champion = Standing { candidate: it.candidate, evidence: &[] };
    let decision =
        rule(&task.pose(), Some(champion), Standing { candidate: twin.candidate, evidence: &evidence }, 3);
    assert!(matches!(decision.verdict, Verdict::Keep(_)), "{decision:?}");
}

#[test]
fn every_operation_passes_on_the_portable_baseline() {
    let folder = tempfile::tempdir().unwrap();
    let mut judge = judge(folder.path(), small());
    let eps = 1e-5f32.to_bits();
    let norm = Prologue::RmsNorm { eps_bits: eps };
    let kv = plan::KvLayout { dtype: plan::KvDtype::F16, block_tokens: 16 };
    let qkv = plan::operation::QkvRope {
        heads: 2,
        kv_heads: 1,
        head_dim: 32,
        bias: true,
        qk_norm_eps_bits: None,
        kv,
    };
    let weight = WeightLayout { format: WeightFormat::F32, n_block: 16 };
    let operations = [
        linear(64, 64, norm, Epilogue::SiluGate),
        linear(128, 64, norm, Epilogue::QkvRope(qkv)),
        Operation::RopeKv(qkv),
        Operation::Attention { heads: 4, kv_heads: 2, head_dim: 32, kv, window: None },
        Operation::Embed { vocab: 100, hidden: 64, weight },
        Operation::RmsNorm { width: 96, eps_bits: eps },
        Operation::SiluGate { ffn: 96 },
    ];
    for operation in operations {
        for bucket in [RowBucket::ALL[2], RowBucket::ALL[5]] {
            let (task, it) = portable_task(operation, bucket, 70);
            let start = Instant::now();
            let e = judge.evaluate(&task, &it, None, Phase::Screen);
            match &e.outcome {
                Outcome::Measured(m) => {
                    eprintln!("{operation} {bucket}: {:?}, {} cases", start.elapsed(), m.check.cases)
                }
                other => panic!("{operation} {bucket}: {other:?}"),
            }
        }
    }
}

#[test]
fn another_class_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut judge = judge(folder.path(), small());
    let (mut task, it) =
        portable_task(linear(96, 64, Prologue::None, Epilogue::Store), RowBucket::ALL[1], 64);
    task.class = "linear-i8/fma".into();
    let e = judge.evaluate(&task, &it, None, Phase::Screen);
    match e.outcome {
        Outcome::Stopped(Stop::Rejected(r)) => assert_eq!(r.reason, Reason::Class, "{}", r.detail),
        other => panic!("{other:?}"),
    }
}

#[test]
fn faster_than_the_roofline_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    // A machine that moves a thousand bytes a second.
    let ceilings = BTreeMap::from([("stream_cached_bytes_per_s_t2".to_owned(), 1e3)]);
    let mut judge = judge_with(folder.path(), small(), ceilings);
    let (task, it) = portable_task(linear(96, 64, Prologue::None, Epilogue::Store), RowBucket::ALL[1], 64);
    match judge.evaluate(&task, &it, None, Phase::Screen).outcome {
        Outcome::Stopped(Stop::Rejected(r)) => assert_eq!(r.reason, Reason::Roofline, "{}", r.detail),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_disturbed_machine_blames_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let mut effort = small();
    // Whatever the champion's series does is too much.
    (effort.drift.relative, effort.drift.p) = (0.0, 1.1);
    let mut judge = judge(folder.path(), effort);
    let (task, it) = portable_task(linear(96, 64, Prologue::None, Epilogue::Store), RowBucket::ALL[0], 64);
    match judge.evaluate(&task, &it, None, Phase::Screen).outcome {
        Outcome::Stopped(Stop::Inconclusive { fault: Fault::Disturbed, .. }) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_broken_champion_is_not_the_challengers_fault() {
    let folder = tempfile::tempdir().unwrap();
    let mut judge = judge(folder.path(), small());
    let (task, it) = portable_task(linear(96, 64, Prologue::None, Epilogue::Store), RowBucket::ALL[0], 64);
    let broken = Submission { source: "fn kernel(".into(), ..it.clone() };
    let opponent = Opponent { champion: &broken, class: &task.class, tested: 0 };
    match judge.evaluate(&task, &it, Some(opponent), Phase::Screen).outcome {
        Outcome::Stopped(Stop::Inconclusive { .. }) => {}
        other => panic!("{other:?}"),
    }
}

/// Filter, compiler and inspection need no hardware: kernels that this machine cannot run are proved that far.
#[test]
fn kernels_of_every_generator_are_built_and_inspected() {
    let folder = tempfile::tempdir().unwrap();
    let judge = judge(folder.path(), small());
    let target = Target { arch: "x86_64".into(), features: plan::Feature::ALL.into(), threads: 2 };
    let whole = |format, n_block, activation| Operation::Linear {
        n: 64,
        k: 64,
        prologue: Prologue::None,
        epilogue: Epilogue::Store,
        weight: WeightLayout { format, n_block },
        activation,
    };
    let mut operations = kernels::contract::examples();
    operations.push(whole(WeightFormat::Bf16, 32, Activation::Bf16));
    operations.push(whole(WeightFormat::F32, 16, Activation::F32));
    let affine = |bits, group| WeightFormat::Affine { bits, group, zero: plan::Zero::Stored };
    operations.push(whole(affine(8, 64), 16, Activation::I16));
    operations.push(whole(affine(4, 32), 16, Activation::Row16));
    let kv = plan::KvLayout { dtype: plan::KvDtype::Bf16, block_tokens: 32 };
    operations.push(Operation::Attention { heads: 9, kv_heads: 3, head_dim: 64, kv, window: None });
    for generator in kernels::generators() {
        let mut built = 0;
        for rows in [RowBucket::ALL[0], RowBucket::ALL[5]] {
            let of = |o: &&Operation| generator.space(o, rows, &target).is_some();
            for operation in operations.iter().filter(of).take(2) {
                let mut task = KernelTask::new(*operation, rows, target.clone(), "", 64, 64);
                task.class = generator.numeric_class(operation);
                let point = generator.start(operation, rows, &target).expect("a space has a start");
                let made = generator.generate(operation, rows, &target, &point, 64).unwrap();
                let it = Submission {
                    candidate: candidate(generator.name(), &made.source, &task),
                    source: made.source,
                    launch: made.launch,
                };
                if let Err(stop) = judge.build(&task, &it) {
                    panic!("{} {operation} {rows} [{point}]: {stop:?}", generator.name());
                }
                built += 1;
            }
        }
        assert!(built > 0, "{} makes nothing for the examples", generator.name());
    }
}
