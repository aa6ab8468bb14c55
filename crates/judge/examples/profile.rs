//! Where the time of evaluations goes, on shapes of a real model: each operation's baseline, then the fastest family's
//! start point against it. Run with the path of a worker binary (`judge-worker`) as argument.

use evidence::{Candidate, Change, Content, Digest, Outcome, Phase, Proposer, Samples};
use judge::{Judge, JudgeConfig, KernelTask, Opponent, Secret, Standing, Submission, rule};
use plan::{Activation, Epilogue, Operation, Prologue, RowBucket, Target, WeightFormat, WeightLayout, Zero};
use sandbox::{BuildLimits, Builder, Helper, WorkerConfig};
use std::collections::BTreeMap;
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let worker = std::env::args().nth(1).ok_or("usage: profile PATH-OF-judge-worker [filter]")?;
    let filter = std::env::args().nth(2).unwrap_or_default();
    let helper = Helper::program(worker);
    let cache = std::env::temp_dir().join("wright-judge-profile");
    let builder = Builder::new(helper.clone(), &cache, BuildLimits::default())?;
    let workers = WorkerConfig::new(helper, kernel_abi::allowed_processors()?);
    let mut config = JudgeConfig::new(builder, workers, Secret::draw()?, Digest::ZERO, BTreeMap::new());
    config.effort.drift.relative = 10.0;
    config.effort.drift.steal = 1.0;
    config.effort.foreign = 1.0;
    let mut judge = Judge::new(config);
    let target = Target { arch: "x86_64".into(), features: kernel_abi::detect(), threads: 2 };
    for (name, operation) in operations() {
        for bucket in [RowBucket::ALL[0], RowBucket::ALL[3], RowBucket::ALL[5]] {
            let label = format!("{name} {bucket}");
            if !label.contains(&filter) {
                continue;
            }
            let mut champion: Option<Submission> = None;
            for generator in kernels::generators() {
                let task = KernelTask::new(
                    operation,
                    bucket,
                    target.clone(),
                    generator.numeric_class(&operation),
                    128,
                    512,
                );
                let Some(point) = generator.start(&operation, bucket, &target) else { continue };
                let Ok(made) = generator.generate(&operation, bucket, &target, &point, 128) else { continue };
                if !made.features.is_subset(&target.features)
                    || generator.numeric_class(&operation).contains("nofma")
                {
                    continue;
                }
                let candidate = Candidate {
                    task: task.pose().id(),
                    parents: vec![],
                    change: Change::Source { text: made.source.clone(), launch: String::new() },
                    hypothesis: String::new(),
                    proposer: Proposer { name: generator.name().into() },
                }
                .id();
                let it = Submission { candidate, source: made.source, launch: made.launch };
                let start = Instant::now();
                let built = judge.build(&task, &it).map(|_| start.elapsed());
                for phase in [Phase::Screen, Phase::Screen, Phase::Confirm] {
                    let (start, cpu) = (Instant::now(), cpu_ms());
                    let opponent = champion.as_ref().map(|champion| Opponent {
                        champion,
                        class: &task.class,
                        tested: 0,
                    });
                    let e = judge.evaluate(&task, &it, opponent, phase);
                    let took = format!("{:?} (cpu {:?} ms)", start.elapsed(), cpu_ms() - cpu);
                    let words = match &e.outcome {
                        Outcome::Measured(m) => {
                            let (ns, pairs) = match &m.samples {
                                Samples::Paired { challenger_ns, .. } => (challenger_ns, challenger_ns.len()),
                                Samples::Single { ns, .. } => (ns, ns.len()),
                                Samples::Series { .. } => continue,
                            };
                            let median = statistics::median(ns).unwrap_or(f64::NAN);
                            format!(
                                "{median:.0} ns, {pairs} samples, {} cases, worst {:.2}",
                                m.check.cases, m.check.worst_ratio
                            )
                        }
                        Outcome::Stopped(stop) => format!("{stop:?}"),
                    };
                    let standing = Standing { candidate, evidence: std::slice::from_ref(&e) };
                    let against =
                        champion.as_ref().map(|c| Standing { candidate: c.candidate, evidence: &[] });
                    let verdict = rule(&task.pose(), against, standing, 0).verdict;
                    println!(
                        "{label} {}: build {built:?} {phase:?} {took}: {words}; {verdict:?}",
                        generator.name()
                    );
                }
                champion.get_or_insert(it);
            }
        }
    }
    Ok(())
}

/// Milliseconds of CPU time of this process (all threads, children not).
fn cpu_ms() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    let field = |i: usize| after.split(' ').nth(i).and_then(|f| f.parse::<u64>().ok()).unwrap_or(0);
    10 * (field(11) + field(12))
}

fn operations() -> Vec<(&'static str, Operation)> {
    let weight = WeightLayout {
        format: WeightFormat::Affine { bits: 8, group: 32, zero: Zero::Midpoint },
        n_block: 16,
    };
    let norm = Prologue::RmsNorm { eps_bits: 1e-5f32.to_bits() };
    let linear = |n, k, prologue, epilogue| Operation::Linear {
        n,
        k,
        prologue,
        epilogue,
        weight,
        activation: Activation::I8,
    };
    let kv = plan::KvLayout { dtype: plan::KvDtype::F16, block_tokens: 16 };
    let qkv = plan::operation::QkvRope {
        heads: 9,
        kv_heads: 3,
        head_dim: 64,
        bias: false,
        qk_norm_eps_bits: None,
        kv,
    };
    vec![
        ("linear960", linear(960, 576, Prologue::None, Epilogue::Store)),
        ("qkv", linear(960, 576, norm, Epilogue::QkvRope(qkv))),
        ("gateup", linear(3072, 576, norm, Epilogue::SiluGate)),
        ("down", linear(576, 1536, Prologue::None, Epilogue::Add)),
        ("head", linear(49152, 576, norm, Epilogue::Store)),
        ("attention", Operation::Attention { heads: 9, kv_heads: 3, head_dim: 64, kv, window: None }),
        ("rmsnorm", Operation::RmsNorm { width: 576, eps_bits: 1e-5f32.to_bits() }),
    ]
}
