//! `wright kernel build`: the kernel factory on one operation.

use super::evaluator::JudgeEvaluator;
use super::{Site, end_run, header, progress, start_run, tasks};
use crate::cli::KernelBuild;
use crate::goal::Goal;
use crate::portable;
use anyhow::{Result, bail};
use evidence::Content;
use std::time::Instant;
use swarm::{Budget, Meter, Settings, Swarm};

/// Searches kernels for one operation and prints the champions.
pub fn run(args: &KernelBuild) -> Result<()> {
    let mut goal = Goal::default();
    goal.target.mask = match args.target.as_str() {
        "host" => Vec::new(),
        "avx512" => vec!["amxint8".into(), "amxbf16".into()],
        "avx2" => vec!["avx512".into()],
        "portable" => vec!["avx512".into(), "avx2".into()],
        other => bail!("--target {other} is not known; write portable, avx2, avx512 or host"),
    };
    let loaded = portable::load(&args.model)?;
    let site = Site::open(goal, args.ledger.as_deref(), args.seed)?;
    let all = tasks::tasks(&loaded.shape, &loaded.start, &site.target, &site.goal.workload)?;
    let mut names: Vec<&str> = all.iter().map(|t| t.name.as_str()).collect();
    names.dedup();
    let names = names.join(", ");
    let chosen: Vec<_> = all
        .into_iter()
        .filter(|t| t.name == args.operation && args.rows.is_none_or(|r| t.task.rows.contains(r)))
        .collect();
    if chosen.is_empty() {
        bail!(
            "no operation '{}' with these rows in the plan of {}; it has {names}",
            args.operation,
            loaded.name
        );
    }
    let mut ledger = site.ledger()?;
    let journal = ledger.open_build(&header(&site, &loaded, &format!("kernels of {}", args.operation))?)?;
    let secret = start_run(&mut *ledger, &journal.id)?;
    let mut judged = JudgeEvaluator::new(site.judge(secret.clone())?, site.machine.id().digest())?;
    judged.extend(tasks::by_id(&chosen));
    judged.remember(&ledger::Fold::read(&*ledger)?);
    let specs = chosen.iter().map(|p| tasks::spec(p, &site.ceilings, Vec::new())).collect();
    let mut swarm = Swarm::open(specs, Settings::new(args.seed), &mut *ledger)?;
    let mut meter = Meter::new(Budget { wall: Some(args.budget), evaluations: None }, Default::default());
    let start = Instant::now();
    let mut clock = || start.elapsed();
    let mut teller = progress::Teller::new();
    swarm::run(&mut swarm, &mut judged, &mut *ledger, &mut meter, &mut clock, 3, None, &mut |p| {
        teller.kernel(p)
    })?;
    drop(judged);
    end_run(&mut *ledger, &journal.id, &secret)?;
    for task in swarm.tasks() {
        let ns = task.champion_ns.map_or("-".to_owned(), |n| format!("{n:.0} ns"));
        let floor = task.floor_ns.map_or("-".to_owned(), |n| format!("{n:.0} ns"));
        if args.json {
            let line = serde_json::json!({
                "task": task.label, "speedup": task.speedup, "champion_ns": task.champion_ns,
                "floor_ns": task.floor_ns, "proposed": task.proposed,
            });
            println!("{line}");
        } else {
            println!(
                "{}: x{:.2} of the baseline, {ns} (roofline {floor}), {} proposed",
                task.label, task.speedup, task.proposed
            );
        }
    }
    Ok(())
}
