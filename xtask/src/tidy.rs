//! What can be checked of the house rules: the map is true, files keep to a size, nothing is ignored or left open.

use crate::layers;
use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::Command;

/// Longest source file, lines. One subject per file.
const MOST_LINES: usize = 700;

/// Module names that say nothing.
const EMPTY_NAMES: &[&str] = &["core", "common", "util", "utils", "misc", "manager", "helpers"];

/// Runs all checks.
pub fn run() -> Result<()> {
    layers::check()?;
    map()?;
    sources()?;
    println!("tidy: layers, map and sources are in order");
    Ok(())
}

/// Every crate stands in ARCHITECTURE.md, and every `crates/NAME` there exists.
fn map() -> Result<()> {
    let map = std::fs::read_to_string("ARCHITECTURE.md").context("ARCHITECTURE.md")?;
    for (name, _) in layers::LAYERS {
        if !map.contains(&format!("`{name}`")) {
            bail!("ARCHITECTURE.md does not name the crate `{name}`");
        }
    }
    for word in map.split(|c: char| c.is_whitespace() || "()`,;".contains(c)) {
        let path = word.trim_end_matches(['.', ':']);
        let looks = path.starts_with("crates/") || path.starts_with("docs/");
        if looks && !Path::new(path).exists() {
            bail!("ARCHITECTURE.md names {path}, which does not exist");
        }
    }
    Ok(())
}

fn sources() -> Result<()> {
    let listed = Command::new("git").args(["ls-files", "-z", "*.rs"]).output().context("git ls-files")?;
    let mut faults = Vec::new();
    for path in String::from_utf8(listed.stdout)?.split('\0').filter(|p| !p.is_empty()) {
        let Ok(text) = std::fs::read_to_string(path) else { continue };
        let lines = text.lines().count();
        if lines > MOST_LINES {
            faults.push(format!("{path}: {lines} lines, more than {MOST_LINES}"));
        }
        let stem = Path::new(path).file_stem().and_then(|s| s.to_str()).unwrap_or_default();
        if EMPTY_NAMES.contains(&stem) {
            faults.push(format!("{path}: the name '{stem}' says nothing"));
        }
        // Split, so that this file does not find itself.
        for word in [concat!("#[ig", "nore"), concat!("to", "do!("), concat!("unimple", "mented!(")] {
            if text.contains(word) {
                faults.push(format!("{path}: contains {word}"));
            }
        }
    }
    if !faults.is_empty() {
        bail!("sources:\n  {}", faults.join("\n  "));
    }
    Ok(())
}
