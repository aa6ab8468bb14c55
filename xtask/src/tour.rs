//! Runs the commands of docs/tour.md that work on a finished bundle, so that the tour stays true.

use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::Command;

/// Runs every `wright ...` line of the tour's `sh` blocks marked `checked`, with the bundle's path put in.
pub fn run(root: &Path, bundle: &str) -> Result<()> {
    let tour = std::fs::read_to_string(root.join("docs/tour.md")).context("docs/tour.md")?;
    let commands = checked(&tour);
    if commands.is_empty() {
        bail!("docs/tour.md has no checked commands");
    }
    let scratch = std::env::temp_dir().join(format!("wright-tour-{}", std::process::id()));
    std::fs::create_dir_all(&scratch).with_context(|| format!("making {}", scratch.display()))?;
    let outcome = commands.iter().try_for_each(|command| {
        let command = command
            .replace("engines/smollm2", bundle)
            .replace("report.html", &scratch.join("report.html").to_string_lossy());
        println!("tour: {command}");
        let program = root.join("target/release/wright");
        let status = Command::new(&program)
            .args(command.split_whitespace().skip(1))
            .status()
            .with_context(|| format!("starting {}", program.display()))?;
        if !status.success() {
            bail!("docs/tour.md: '{command}' ended with {status}");
        }
        Ok(())
    });
    std::fs::remove_dir_all(&scratch).with_context(|| format!("removing {}", scratch.display()))?;
    outcome?;
    println!("tour: {} commands passed", commands.len());
    Ok(())
}

/// The `wright` lines of blocks that begin with "```sh checked".
fn checked(tour: &str) -> Vec<&str> {
    let mut inside = false;
    let mut commands = Vec::new();
    for line in tour.lines().map(str::trim) {
        match line {
            "```sh checked" => inside = true,
            "```" => inside = false,
            command if inside && command.starts_with("wright ") => commands.push(command),
            _ => {}
        }
    }
    commands
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_checked_blocks_count() {
        let page =
            "```sh\nwright build m\n```\n```sh checked\nwright doctor\n# words\nwright verify b\n```\n";
        assert_eq!(checked(page), ["wright doctor", "wright verify b"]);
    }

    #[test]
    fn the_tour_has_commands() {
        let tour = std::fs::read_to_string(crate::root().join("docs/tour.md")).unwrap();
        assert!(checked(&tour).len() >= 3);
    }
}
