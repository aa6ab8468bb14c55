//! Bundled kernels: inspected, and built again from their bundled sources.

use super::files::read_within;
use super::finding::Finding;
use crate::workshop;
use anyhow::{Context, Result};
use plan::{KernelEntry, Manifest};
use sandbox::{BuildLimits, Builder};
use std::path::{Path, PathBuf};

/// A folder that goes away.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// One finding for the inspection of all binaries, one for their rebuild.
pub fn check(bundle: &Path, manifest: &Manifest) -> Vec<Finding> {
    let inspected = match inspect_all(bundle, manifest) {
        Ok(instructions) => Finding::agrees(
            "kernel inspection",
            format!("{} binaries, {instructions} instructions, nothing forbidden", manifest.kernels.len()),
        ),
        Err(e) => Finding::differs("kernel inspection", format!("{e:#}")),
    };
    vec![inspected, rebuild_all(bundle, manifest)]
}

fn inspect_all(bundle: &Path, manifest: &Manifest) -> Result<u64> {
    let mut instructions = 0;
    for (name, entry) in &manifest.kernels {
        let binary = read_within(bundle, &entry.binary)?;
        let seen = sandbox::inspect(&binary, &entry.target).with_context(|| format!("kernel {name}"))?;
        instructions += u64::from(seen.instructions);
    }
    Ok(instructions)
}

fn rebuild_all(bundle: &Path, manifest: &Manifest) -> Finding {
    let subject = "kernel rebuild";
    // A fresh cache: a binary of an earlier build proves nothing.
    let scratch = Scratch(std::env::temp_dir().join(format!("wright-verify-{}", std::process::id())));
    let builder =
        match workshop::helper().and_then(|h| Ok(Builder::new(h, &scratch.0, BuildLimits::default())?)) {
            Ok(builder) => builder,
            Err(e) => return Finding::unchecked(subject, format!("kernels cannot be built here: {e:#}")),
        };
    let here = builder.toolchain().version();
    let same_toolchain = here == manifest.toolchain;
    let mut other = Vec::new();
    for (n, (name, entry)) in manifest.kernels.iter().enumerate() {
        eprint!("\rbuilding kernel {} of {} ", n + 1, manifest.kernels.len());
        match rebuild(bundle, entry, &builder) {
            Ok(true) => {}
            Ok(false) => other.push(name.as_str()),
            Err(e) => {
                eprintln!();
                return Finding::differs(subject, format!("kernel {name}: {e:#}"));
            }
        }
    }
    eprintln!();
    let all = manifest.kernels.len();
    match (other.is_empty(), same_toolchain) {
        (true, true) => Finding::agrees(subject, format!("{all} of {all} binaries equal, by {here}")),
        (true, false) => Finding::agrees(
            subject,
            format!(
                "{all} of {all} binaries equal, though built by {} and here by {here}",
                manifest.toolchain
            ),
        ),
        (false, true) => Finding::differs(
            subject,
            format!(
                "{} of {all} binaries are not what {here} makes of their sources: {}",
                other.len(),
                other.join(", ")
            ),
        ),
        (false, false) => Finding::unchecked(
            subject,
            format!(
                "another toolchain ({here} here, {} there): all sources build, {} of {all} binaries differ",
                manifest.toolchain,
                other.len()
            ),
        ),
    }
}

/// Whether the bundled source gives the bundled binary.
fn rebuild(bundle: &Path, entry: &KernelEntry, builder: &Builder) -> Result<bool> {
    let source = String::from_utf8(read_within(bundle, &entry.source)?).context("the source is no text")?;
    let binary = read_within(bundle, &entry.binary)?;
    let artifact = builder.build(&source, &entry.target).context("building its source")?;
    Ok(*artifact.bytes == *binary)
}
