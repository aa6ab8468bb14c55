//! What commands share: the kernel builder, the machine's description, the clock.

use crate::paths;
use anyhow::{Context, Result};
use evidence::{Content, Machine};
use plan::{Feature, Target};
use sandbox::{BuildLimits, Builder, Helper, Worker, WorkerConfig};
use std::collections::BTreeSet;
use std::time::{SystemTime, UNIX_EPOCH};

/// This program as the helper that builds and runs candidates.
pub fn helper() -> Result<Helper> {
    Ok(Helper::current("__worker")?)
}

/// The kernel builder with its cache of binaries.
pub fn builder() -> Result<Builder> {
    let cache = paths::cache()?.join("kernels");
    Ok(Builder::new(helper()?, &cache, BuildLimits::default())?)
}

/// Seconds since the epoch.
pub fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// Features that may be used: detected, permitted by the kernel, less the masked ones.
pub fn features(mask: &[String]) -> BTreeSet<Feature> {
    let mut features = kernel_abi::detect();
    features.retain(|f| !mask.iter().any(|m| m == f.name()));
    // AVX-512 parts without their base are no target.
    if !features.contains(&Feature::Avx512) {
        features.retain(|f| matches!(f, Feature::Avx2));
    }
    features
}

/// The target of a search on this machine.
pub fn target(features: &BTreeSet<Feature>, threads: u32) -> Target {
    let cores = machine::fingerprint::cores();
    let threads = if threads == 0 { cores } else { threads.min(cores) };
    Target { arch: std::env::consts::ARCH.to_owned(), features: features.clone(), threads }
}

/// This machine with measured ceilings; the same host measured before is read from the cache.
pub fn machine(builder: &Builder, features: &BTreeSet<Feature>) -> Result<Machine> {
    let mut facts = machine::fingerprint::facts();
    facts.insert("toolchain".to_owned(), builder.toolchain().version().to_owned());
    let key = Machine {
        facts,
        features: features.iter().map(|f| f.name().to_owned()).collect(),
        cores: machine::fingerprint::cores(),
        ceilings: Default::default(),
    };
    let folder = paths::cache()?.join("machines");
    let path = folder.join(format!("{}.json", key.id().short()));
    if let Some(known) = std::fs::read(&path).ok().and_then(|b| serde_json::from_slice(&b).ok()) {
        return Ok(known);
    }
    let (machine, quiet) = measured(builder, features)?;
    if !quiet {
        eprintln!("other programs kept this machine busy: its ceilings are measured again the next time");
        return Ok(machine);
    }
    std::fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    let staged = folder.join(format!(".{}.json", std::process::id()));
    std::fs::write(&staged, serde_json::to_vec_pretty(&machine)?)
        .and_then(|()| std::fs::rename(&staged, &path))
        .with_context(|| format!("writing {}", path.display()))?;
    Ok(machine)
}

/// Share of the processors' time that others may take while ceilings are measured.
const BUSY: f64 = 0.1;

/// The machine with its ceilings, the best of up to three tries, and whether one of them was undisturbed. A ceiling that is
/// too low would refuse honest kernels.
fn measured(builder: &Builder, features: &BTreeSet<Feature>) -> Result<(Machine, bool)> {
    let mut best: Option<Machine> = None;
    for _ in 0..3 {
        let (found, foreign) =
            judge::disturbance::while_running(&[], || machine::describe(builder, features));
        let mut found = found.context("measuring the machine's ceilings")?;
        for (name, before) in best.iter().flat_map(|b| &b.ceilings) {
            let now = found.ceilings.entry(name.clone()).or_insert(*before);
            // Times are better when short, rates when high.
            *now = if name.contains("_ns_") { now.min(*before) } else { now.max(*before) };
        }
        if foreign.is_none_or(|f| f <= BUSY) {
            return Ok((found, true));
        }
        best = Some(found);
    }
    best.map(|b| (b, false)).context("measuring the machine's ceilings")
}

/// The sandbox layers that stand on this host: an empty kernel is built and a worker started for it.
pub fn sandbox_layers() -> Result<Vec<String>> {
    let probes = machine::ceilings::probes(&BTreeSet::new());
    let empty = probes.iter().find(|p| p.name == "barrier_ns").context("no empty probe")?;
    let target = Target::portable(std::env::consts::ARCH, 1);
    let artifact = builder()?.build(&empty.source, &target)?;
    let config = workers(Vec::new())?;
    let worker = Worker::start(&config, &artifact, &target, 1, &[])?;
    Ok(worker.layers().clone())
}

/// How workers are started. This program's allocator reserves address space at its start, so the limit on address
/// space leaves room for that; it bounds what is reserved, not what is used.
pub fn workers(processors: Vec<usize>) -> Result<WorkerConfig> {
    let mut config = WorkerConfig::new(helper()?, processors);
    config.memory_bytes = 6 << 30;
    Ok(config)
}

/// Memory of a machine, bytes; 4 GiB where its system does not say.
pub fn memory_bytes(machine: &Machine) -> usize {
    let kib = machine.facts.get("memory").and_then(|m| m.split_whitespace().next()?.parse::<usize>().ok());
    kib.map_or(4 << 30, |k| k << 10)
}
