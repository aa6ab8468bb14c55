//! The layers: a crate uses only lower ones. The table here is the one of ARCHITECTURE.md; `tidy` compares both with
//! `cargo metadata`.

use anyhow::{Result, bail};
use cargo_metadata::{DependencyKind, MetadataCommand};
use std::collections::BTreeMap;

/// Crate and layer.
pub const LAYERS: &[(&str, u8)] = &[
    ("evidence", 0),
    ("plan", 0),
    ("search", 1),
    ("statistics", 1),
    ("kernels", 1),
    ("kernel-abi", 2),
    ("ledger", 2),
    ("sandbox", 2),
    ("load", 2),
    ("model", 3),
    ("engine", 3),
    ("swarm", 3),
    ("judge", 3),
    ("emit", 4),
    ("machine", 3),
    ("server", 5),
    ("wright", 6),
    ("xtask", 7),
];

/// Crates of the engine side: what users deploy. They use nothing of the factory.
pub const ENGINE_SIDE: &[&str] = &["plan", "kernel-abi", "engine", "model", "server", "load"];

/// Fails on a crate without a layer, a dependency that does not point down, or an engine crate that uses the factory.
pub fn check() -> Result<()> {
    let layers: BTreeMap<&str, u8> = LAYERS.iter().copied().collect();
    let metadata = MetadataCommand::new().no_deps().exec()?;
    let mut faults = Vec::new();
    for package in &metadata.packages {
        let name = package.name.as_str();
        let Some(layer) = layers.get(name) else {
            faults.push(format!("crate {name} has no layer in xtask/src/layers.rs"));
            continue;
        };
        for dependency in &package.dependencies {
            let Some(below) = layers.get(dependency.name.as_str()) else { continue };
            let normal = dependency.kind == DependencyKind::Normal;
            if normal && below >= layer {
                faults.push(format!("{name} (layer {layer}) uses {} (layer {below})", dependency.name));
            }
            if normal && ENGINE_SIDE.contains(&name) && !ENGINE_SIDE.contains(&dependency.name.as_str()) {
                faults.push(format!("{name} is engine side and uses {}", dependency.name));
            }
        }
    }
    let found: Vec<&str> = metadata.packages.iter().map(|p| p.name.as_str()).collect();
    for (name, _) in LAYERS {
        if !found.contains(name) {
            faults.push(format!("xtask/src/layers.rs names {name}, which does not exist"));
        }
    }
    if !faults.is_empty() {
        bail!("layers:\n  {}", faults.join("\n  "));
    }
    Ok(())
}
