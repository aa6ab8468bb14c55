//! What takes too long for CI, each part one command; output goes to docs/measurements/.

use anyhow::{Context, Result, bail};
use std::process::Command;

/// Parts: name, script.
const PARTS: &[(&str, &str)] = &[
    ("seeds", "xtask/long/seeds.sh"),
    ("rivals", "xtask/long/rivals.sh"),
    ("soak", "xtask/long/soak.sh"),
    ("resume", "xtask/long/resume.sh"),
    ("bad-input", "xtask/long/bad-input.sh"),
];

/// Runs all parts or the named ones.
pub fn run(wanted: &[&str]) -> Result<()> {
    for name in wanted {
        if !PARTS.iter().any(|(n, _)| n == name) {
            let known: Vec<_> = PARTS.iter().map(|(n, _)| *n).collect();
            bail!("long-check has no part '{name}'; it has {}", known.join(", "));
        }
    }
    for (name, script) in PARTS {
        if wanted.is_empty() || wanted.contains(name) {
            println!("long-check: {name}");
            let status = Command::new("bash").arg(script).status().with_context(|| script.to_string())?;
            if !status.success() {
                bail!("long-check {name} ended with {status}");
            }
        }
    }
    Ok(())
}
