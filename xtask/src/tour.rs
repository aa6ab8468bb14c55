//! Runs the commands of docs/tour.md that work on a finished bundle, so that the tour stays true.

use anyhow::{Context, Result, bail};
use std::process::Command;

/// Runs every `wright ...` line of the tour's `sh` blocks marked `checked`, with the bundle's path put in.
pub fn run(bundle: &str) -> Result<()> {
    let tour = std::fs::read_to_string("docs/tour.md").context("docs/tour.md")?;
    let scratch = std::env::temp_dir().join(format!("wright-tour-{}", std::process::id()));
    std::fs::create_dir_all(&scratch)?;
    let mut ran = 0;
    let mut checked = false;
    for line in tour.lines() {
        match line.trim() {
            "```sh checked" => checked = true,
            "```" => checked = false,
            command if checked && command.starts_with("wright ") => {
                let command = command
                    .replace("engines/smollm2", bundle)
                    .replace("report.html", &scratch.join("report.html").to_string_lossy());
                let words: Vec<&str> = command.split_whitespace().skip(1).collect();
                println!("tour: wright {}", words.join(" "));
                let status = Command::new("target/release/wright").args(&words).status()?;
                if !status.success() {
                    bail!("docs/tour.md: '{command}' ended with {status}");
                }
                ran += 1;
            }
            _ => {}
        }
    }
    std::fs::remove_dir_all(&scratch)?;
    if ran == 0 {
        bail!("docs/tour.md has no checked commands");
    }
    println!("tour: {ran} commands passed");
    Ok(())
}
