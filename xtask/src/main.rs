//! Development tasks: `cargo xtask tidy` checks the map, layers and tidiness; `tour` runs the commands of
//! docs/tour.md; `long-check` runs what takes too long for CI.

mod layers;
mod long_check;
mod tidy;
mod tour;

use anyhow::{Result, bail};
use std::path::{Path, PathBuf};

/// The workspace's folder.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_owned).unwrap_or_default()
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["tidy"] => tidy::run(&root()),
        ["tour", bundle] => tour::run(&root(), bundle),
        ["long-check", rest @ ..] => long_check::run(&root(), rest),
        _ => bail!("usage: cargo xtask tidy | tour BUNDLE | long-check [PART ...]"),
    }
}
