//! `wright build`: the main job. See ARCHITECTURE.md for the flow.

mod audit;
mod engines;
mod evaluator;
mod finish;
mod formats;
pub mod kernel;
mod plan_stage;
mod plan_trials;
mod progress;
mod table;
pub mod tasks;

use crate::cli::{Build, duration};
use crate::goal::Goal;
use crate::portable::{self, Loaded};
use crate::trial::quality::Scales;
use crate::{paths, workshop};
use anyhow::{Context, Result, bail};
use emit::PlanChoices;
use engines::Bench;
use evaluator::JudgeEvaluator;
use evidence::{Content, Digest, Machine, Point};
use judge::{Judge, JudgeConfig, MeasuredCeilings, Secret};
use ledger::{BuildEvent, BuildHeader, BuildId, Fold, Ledger, Options, Position};
use plan::Target;
use sandbox::Builder;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use swarm::{Budget, Meter, Settings, Swarm};

/// Wall time of a build whose goal and command line name none.
const DEFAULT_BUDGET: Duration = Duration::from_secs(600);
/// Part of the budget for kernels; the rest is for plans and the audit.
const KERNELS: f64 = 0.70;
/// Part of the budget at whose end the plan search ends.
const PLANS: f64 = 0.90;
/// Part of the budget that the audit may take at least.
const AUDIT: f64 = 0.05;

/// Name of the journal's entry that holds the ledger's last position before the build.
const BEGAN: &str = "began";

/// What all stages share.
pub struct Site {
    pub goal: Goal,
    pub target: Target,
    pub machine: Machine,
    pub ceilings: MeasuredCeilings,
    pub builder: Builder,
    pub ledger_url: String,
    pub seed: u64,
}

impl Site {
    /// Describes the machine, masks features, opens the toolchain.
    pub fn open(goal: Goal, ledger: Option<&str>, seed: u64) -> Result<Self> {
        kernel_abi::request_amx();
        let builder = workshop::builder()?;
        let features = workshop::features(&goal.target.mask);
        let target = workshop::target(&features, goal.target.threads);
        let machine = workshop::machine(&builder, &workshop::features(&[]))?;
        let ledger_url = match ledger {
            Some(url) => url.to_owned(),
            None => paths::ledger()?.to_string_lossy().into_owned(),
        };
        let ceilings = MeasuredCeilings(machine.ceilings.clone());
        Ok(Self { goal, target, machine, ceilings, builder, ledger_url, seed })
    }

    /// The ledger, for writing.
    pub fn ledger(&self) -> Result<Box<dyn Ledger>> {
        Ok(ledger::open(Some(&self.ledger_url), Options::read_write())?)
    }

    /// A judge of this run; the digest of its secret must be posted before it evaluates.
    pub fn judge(&self, secret: Secret) -> Result<Judge> {
        let processors = kernel_abi::allowed_processors()?;
        let workers = workshop::workers(processors)?;
        let machine = self.machine.id().digest();
        let ceilings = self.machine.ceilings.clone();
        let mut config = JudgeConfig::new(self.builder.clone(), workers, secret, machine, ceilings);
        // Pairs are interleaved, so a neighbour (or a hypervisor that gives time to others) costs power, not truth;
        // drift of the champion within an evaluation is still refused.
        config.effort.foreign = 0.5;
        config.effort.drift.steal = 0.5;
        // All tasks of a build take turns: what is built once is kept while a quarter of the memory suffices.
        config.effort.kept = (workshop::memory_bytes(&self.machine) / 4).clamp(1 << 30, 6 << 30);
        Ok(Judge::new(config))
    }
}

/// Runs or resumes a build.
pub fn run(args: &Build) -> Result<()> {
    let goal = Goal::load(args.goal.as_deref())?;
    let loaded = portable::load(&args.model)?;
    let out = out_folder(args, &loaded.name)?;
    let budget = match (args.budget, &goal.budget.wall) {
        (Some(b), _) => b,
        (None, Some(text)) => duration(text).map_err(anyhow::Error::msg)?,
        (None, None) => DEFAULT_BUDGET,
    };
    eprintln!("model: {}, {} parameters", loaded.name, loaded.model.parameters());
    let site = Site::open(goal, args.ledger.as_deref(), args.seed)?;
    eprintln!("machine: {} ({})", site.machine.facts.get("cpu").map_or("unknown", |c| c), site.target);
    let mut ledger = site.ledger()?;
    let header = header(&site, &loaded, &out.to_string_lossy())?;
    let build = ledger.open_build(&header)?;
    if build.finished().is_some() && out.join("build.json").is_file() {
        eprintln!("this build is finished; another --seed, --out or --goal starts a new one");
        return finish::show(&out, args.json);
    }
    if build.resumed() {
        eprintln!(
            "resuming build {}: {} s of the search are spent",
            build.id.short(),
            build.spent().wall_ms / 1000
        );
    }
    let secret = start_run(&mut *ledger, &build.id)?;
    let provenance = plan_trials::Provenance::new(&site, secret.digest());
    // Where this build began in the ledger: what others found before is not its work.
    let since = match build.stage(BEGAN).and_then(|at| at.parse().ok()) {
        Some(at) => Position(at),
        None => {
            let head = ledger.head()?.position;
            let detail = head.0.to_string();
            ledger.record_build(&build.id, &BuildEvent::Stage { name: BEGAN.to_owned(), detail })?;
            head
        }
    };
    let scratch = Scratch::new(&out)?;
    let workload = site.goal.workload.clone();
    let mut bench =
        Bench::new(&loaded, site.target.clone(), site.builder.clone(), workload, scratch.0.clone())?;

    // Before the clock of the search: the reference's side of quality, and the arithmetic that keeps the bound.
    eprintln!("reference: hidden states of the held-out text (cached after the first build)");
    let states = paths::cache()?.join("reference");
    let mut scales = Scales::new(&loaded.model, &states)?;
    let mut figures = formats::Figures { build: &build, ledger: &mut *ledger };
    let reference = reference_choices(&site, &loaded, &mut bench, &mut scales, &mut figures)?;

    let began = Instant::now();
    let spent = build.spent();
    let mut meter = Meter::new(
        Budget { wall: Some(budget.mul_f64(KERNELS)), evaluations: site.goal.budget.evaluations },
        spent,
    );
    let mut judged = JudgeEvaluator::new(site.judge(secret.clone())?, site.machine.id().digest())?;
    search_kernels(&site, &bench, &reference, &mut judged, &mut *ledger, &mut meter, &build.id)?;

    let spent_so_far = |evaluations| ledger::Spent {
        wall_ms: spent.wall_ms + began.elapsed().as_millis() as u64,
        evaluations,
    };
    let plans = plan_stage::Stage {
        site: &site,
        reference: &reference,
        provenance: &provenance,
        budget,
        spent: spent_so_far(meter.spent().evaluations),
        build: &build.id,
    };
    let found = plans.run(&mut bench, &mut judged, &mut *ledger, &mut scales)?;
    let total = spent_so_far(found.evaluations);
    ledger.record_build(&build.id, &BuildEvent::Spent(total))?;
    let mut work = finish::Work {
        site: &site,
        loaded: &loaded,
        out: &out,
        spent: total,
        since,
        provenance: &provenance,
        scales: &mut scales,
    };
    work.finish(&mut bench, &mut *ledger, &build.id, found)?;
    drop(judged);
    end_run(&mut *ledger, &build.id, &secret)?;
    finish::show(&out, args.json)
}

fn out_folder(args: &Build, name: &str) -> Result<PathBuf> {
    let out = args.out.clone().unwrap_or_else(|| Path::new("engines").join(name));
    let parent = out.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(parent).with_context(|| format!("making {}", parent.display()))?;
    if out.exists() && !out.is_dir() {
        bail!("--out {}: there is a file of that name", out.display());
    }
    let absolute = std::path::absolute(&out).with_context(|| format!("--out {}", out.display()))?;
    Ok(absolute)
}

/// What identifies the build: the budget is not part of it, so that a longer one goes on where a shorter one was
/// interrupted.
fn header(site: &Site, loaded: &Loaded, out: &str) -> Result<BuildHeader> {
    Ok(BuildHeader {
        model: Digest::of(loaded.model.digest().as_bytes()),
        goal: Digest::of(&serde_json::to_vec(&site.goal)?),
        target: site.target.to_string(),
        seed: site.seed,
        out: out.to_owned(),
    })
}

/// Draws the secret of a run, and posts its digest.
fn start_run(ledger: &mut dyn Ledger, build: &BuildId) -> Result<Secret> {
    let secret = Secret::draw().context("drawing the run's secret")?;
    ledger.record_build(build, &BuildEvent::RunStarted { secret_digest: secret.digest() })?;
    Ok(secret)
}

/// Reveals the secret of a run that evaluates no more.
fn end_run(ledger: &mut dyn Ledger, build: &BuildId, secret: &Secret) -> Result<()> {
    Ok(ledger.record_build(build, &BuildEvent::RunEnded { secret: secret.reveal() })?)
}

/// A folder beside the bundle that is gone when the build ends.
struct Scratch(PathBuf);

impl Scratch {
    fn new(out: &Path) -> Result<Self> {
        Ok(Self(emit::bundle::scratch_beside(out)?))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The choices that the kernel search starts from: the file's own formats, the goal's fixed axes, and as much arithmetic
/// as the quality bound demands.
fn reference_choices(
    site: &Site,
    loaded: &Loaded,
    bench: &mut Bench<'_>,
    scales: &mut Scales,
    figures: &mut formats::Figures<'_>,
) -> Result<PlanChoices> {
    let fixed = Point(site.goal.space.clone());
    let mut start = loaded.start.at(&fixed).context("[space] of the goal")?;
    // As many sequences as the workload has open requests, so that none waits for another's end.
    let most = site.goal.workload.concurrency.iter().copied().max().unwrap_or(1);
    start.batching.max_sequences = start.batching.max_sequences.max(most).min(start.batching.max_rows);
    let tell = |words: &str, q: &crate::trial::quality::Quality| {
        eprintln!(
            "formats: {words}: KL {:.5}, top-1 {:.4}, perplexity {:.3} (reference {:.3})",
            q.kl, q.top1, q.perplexity, q.reference_perplexity
        );
    };
    let settled = formats::settle(bench, &start, scales, &site.goal.constraints, figures, tell)?;
    let settled =
        formats::alternatives(bench, &settled, &fixed, scales, &site.goal.constraints, figures, tell)?;
    // The goal may fix it.
    if site.goal.space.keys().any(|axis| axis.ends_with(".prefill")) {
        return Ok(settled);
    }
    formats::prefill(bench, &settled, scales, &site.goal.constraints, figures, tell)
}

/// Settings of a search on a machine that others may use too: a disturbed evaluation is tried again for long.
fn settings(seed: u64) -> Settings {
    Settings { attempts: 12, ..Settings::new(seed) }
}

fn search_kernels(
    site: &Site,
    bench: &Bench<'_>,
    choices: &PlanChoices,
    judged: &mut JudgeEvaluator,
    ledger: &mut dyn Ledger,
    meter: &mut Meter,
    build: &BuildId,
) -> Result<()> {
    let planned = bench.tasks(choices)?;
    judged.extend(tasks::by_id(&planned));
    judged.remember(&Fold::read(ledger)?);
    let specs = planned.iter().map(|p| tasks::spec(p, &site.ceilings, Vec::new())).collect();
    let mut swarm = Swarm::open(specs, settings(site.seed), ledger)?;
    let start = Instant::now();
    let mut clock = || start.elapsed();
    let mut teller = progress::Teller::new();
    let mut tell = |p: swarm::Progress<'_>| teller.kernel(p);
    swarm::run(&mut swarm, judged, ledger, meter, &mut clock, 3, Some(build), &mut tell)?;
    // An engine needs a judged kernel for every task, whatever the budget: the baselines at least.
    let missing = |fold: &Fold| -> Vec<tasks::PlannedTask> {
        // A portable champion where the task is about faster code counts as lacking: a plan uses one numeric class for
        // an operation, so a single bucket without one would cost the operation its fast kernels everywhere.
        planned.iter().filter(|p| !engines::has_own_class(fold, p)).cloned().collect()
    };
    for _ in 0..6 {
        let fold = Fold::read(ledger)?;
        let lacking = missing(&fold);
        if lacking.is_empty() {
            return Ok(());
        }
        eprintln!("{} tasks have no judged kernel yet: going on beyond the budget for those", lacking.len());
        let specs = lacking.iter().map(|p| tasks::spec(p, &site.ceilings, Vec::new())).collect();
        let mut rest = Swarm::open(specs, settings(site.seed), ledger)?;
        // A baseline where there is none, and a start point, for each.
        let none = lacking.iter().filter(|p| fold.champions.get(judge::task_id(&p.task)).is_none()).count();
        let budget = Budget { wall: None, evaluations: Some((none + lacking.len()) as u64) };
        let mut more = Meter::new(budget, Default::default());
        swarm::run(&mut rest, judged, ledger, &mut more, &mut clock, 3, None, &mut tell)?;
    }
    let fold = Fold::read(ledger)?;
    let none = planned.iter().filter(|p| fold.champions.get(judge::task_id(&p.task)).is_none()).count();
    match none {
        0 => Ok(()),
        n => bail!("{n} tasks have no kernel that the judge accepts; `wright ledger list` shows why"),
    }
}
