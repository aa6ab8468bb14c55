//! What takes too long for CI, each part one command; what is measured goes to docs/measurements/.

use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::Command;

/// Parts: name, script. The scripts say what they need.
const PARTS: &[(&str, &str)] = &[
    ("seeds", "xtask/long/seeds.sh"),
    ("rivals", "xtask/long/rivals.sh"),
    ("soak", "xtask/long/soak.sh"),
    ("resume", "xtask/long/resume.sh"),
    ("bad-input", "xtask/long/bad-input.sh"),
];

/// Runs all parts or the named ones, in the folder `root`.
pub fn run(root: &Path, wanted: &[&str]) -> Result<()> {
    for name in wanted {
        if !PARTS.iter().any(|(n, _)| n == name) {
            let known: Vec<_> = PARTS.iter().map(|(n, _)| *n).collect();
            bail!("long-check has no part '{name}'; it has {}", known.join(", "));
        }
    }
    for (name, script) in PARTS {
        if wanted.is_empty() || wanted.contains(name) {
            println!("long-check: {name}");
            let status = Command::new("bash")
                .current_dir(root)
                .arg(script)
                .status()
                .with_context(|| format!("starting bash {script}"))?;
            if !status.success() {
                bail!("long-check {name} ended with {status}");
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_a_script_that_parses() {
        let shared = ("lib", "xtask/long/lib.sh");
        for (name, script) in PARTS.iter().chain([&shared]) {
            let out = Command::new("bash").current_dir(crate::root()).args(["-n", script]).output().unwrap();
            assert!(out.status.success(), "{name}: {}", String::from_utf8_lossy(&out.stderr));
        }
    }

    #[test]
    fn unknown_parts_are_refused() {
        let error = run(&crate::root(), &["no-such-part"]).unwrap_err().to_string();
        assert!(error.contains("it has seeds"), "{error}");
    }
}
