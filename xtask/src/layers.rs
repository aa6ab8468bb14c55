//! The layers: a crate uses only lower ones. `tidy` compares this table with `cargo metadata` and with the map.

use anyhow::{Result, bail};
use cargo_metadata::{DependencyKind, MetadataCommand};
use std::collections::BTreeMap;
use std::path::Path;

/// A crate's place: the layer that the map shows, and its floor within the layer. Only layer 2 has two floors, since
/// the sandbox loads kernels by `kernel-abi`. Lower is whatever compares lower.
pub type Place = (u8, u8);

/// Crate and place.
pub const LAYERS: &[(&str, Place)] = &[
    ("evidence", (0, 0)),
    ("plan", (0, 0)),
    ("search", (1, 0)),
    ("statistics", (1, 0)),
    ("kernels", (1, 0)),
    ("kernel-abi", (2, 0)),
    ("ledger", (2, 0)),
    ("load", (2, 0)),
    ("sandbox", (2, 1)),
    ("model", (3, 0)),
    ("engine", (3, 0)),
    ("swarm", (3, 0)),
    ("judge", (3, 0)),
    ("machine", (3, 0)),
    ("emit", (4, 0)),
    ("server", (5, 0)),
    ("wright", (6, 0)),
    ("xtask", (7, 0)),
];

/// Crates of the engine side: what users deploy. They use nothing of the factory.
pub const ENGINE_SIDE: &[&str] = &["plan", "kernel-abi", "engine", "model", "server", "load"];

/// Layers that do no I/O and forbid `unsafe`.
const PURE: std::ops::RangeInclusive<u8> = 0..=1;

/// Fails on a crate without a layer, a dependency that does not point down, an engine crate that uses the factory, or
/// a pure crate that allows `unsafe`.
pub fn check(root: &Path) -> Result<()> {
    let metadata = MetadataCommand::new().manifest_path(root.join("Cargo.toml")).no_deps().exec()?;
    let crates: Vec<Crate> = metadata
        .packages
        .iter()
        .map(|p| Crate {
            name: p.name.to_string(),
            // Tests may use what they like: a development dependency ships nothing.
            uses: p
                .dependencies
                .iter()
                .filter(|d| d.kind == DependencyKind::Normal)
                .map(|d| d.name.clone())
                .collect(),
        })
        .collect();
    let mut faults = faults(&crates);
    for (name, (layer, _)) in LAYERS.iter().filter(|(_, (layer, _))| PURE.contains(layer)) {
        let page = root.join("crates").join(name).join("src/lib.rs");
        let text = std::fs::read_to_string(&page).unwrap_or_default();
        if !text.contains("#![forbid(unsafe_code)]") {
            faults.push(format!("{name} (layer {layer}) does not forbid unsafe code"));
        }
    }
    if !faults.is_empty() {
        bail!("layers:\n  {}", faults.join("\n  "));
    }
    Ok(())
}

/// A crate of the workspace and the names that it depends on.
struct Crate {
    name: String,
    uses: Vec<String>,
}

fn faults(crates: &[Crate]) -> Vec<String> {
    let places: BTreeMap<&str, Place> = LAYERS.iter().copied().collect();
    let mut faults = Vec::new();
    for it in crates {
        let name = it.name.as_str();
        let Some(place) = places.get(name) else {
            faults.push(format!("crate {name} has no layer in xtask/src/layers.rs"));
            continue;
        };
        for used in it.uses.iter().map(String::as_str) {
            // Crates of other people have no layer.
            let Some(below) = places.get(used) else { continue };
            if below >= place {
                faults.push(format!("{name} (layer {}) uses {used} (layer {})", place.0, below.0));
            }
            if ENGINE_SIDE.contains(&name) && !ENGINE_SIDE.contains(&used) {
                faults.push(format!("{name} is engine side and uses {used}"));
            }
        }
    }
    for (name, _) in LAYERS {
        if !crates.iter().any(|c| c.name == *name) {
            faults.push(format!("xtask/src/layers.rs names {name}, which does not exist"));
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Crate> {
        LAYERS.iter().map(|(name, _)| Crate { name: (*name).to_owned(), uses: Vec::new() }).collect()
    }

    fn with(name: &str, uses: &str) -> Vec<String> {
        let mut crates = all();
        crates.iter_mut().find(|c| c.name == name).unwrap().uses.push(uses.to_owned());
        faults(&crates)
    }

    #[test]
    fn the_workspace_keeps_its_layers() {
        check(&crate::root()).unwrap();
    }

    #[test]
    fn dependencies_point_down_only() {
        for (name, uses) in [("judge", "sandbox"), ("sandbox", "kernel-abi"), ("judge", "serde")] {
            assert_eq!(with(name, uses), Vec::<String>::new(), "{name} uses {uses}");
        }
        for (name, uses) in [("sandbox", "judge"), ("judge", "swarm"), ("kernel-abi", "sandbox")] {
            assert_eq!(with(name, uses).len(), 1 + usize::from(name == "kernel-abi"), "{name} uses {uses}");
        }
    }

    #[test]
    fn the_engine_side_knows_nothing_of_the_factory() {
        let faults = with("engine", "kernels");
        assert_eq!(faults, ["engine is engine side and uses kernels"]);
    }

    #[test]
    fn unknown_and_missing_crates_are_named() {
        let mut crates = all();
        crates[0].name = "stranger".to_owned();
        let faults = faults(&crates);
        assert!(faults.iter().any(|f| f.contains("stranger has no layer")), "{faults:?}");
        assert!(faults.iter().any(|f| f.contains("names evidence")), "{faults:?}");
    }
}
