//! Development tasks: `cargo xtask tidy` checks the map, layers and tidiness; `tour` runs the commands of
//! docs/tour.md; `long-check` runs what takes too long for CI.

mod layers;
mod long_check;
mod tidy;
mod tour;

use anyhow::{Result, bail};

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["tidy"] => tidy::run(),
        ["tour", bundle] => tour::run(bundle),
        ["long-check", rest @ ..] => long_check::run(rest),
        _ => bail!("usage: cargo xtask tidy | tour BUNDLE | long-check [PART ...]"),
    }
}
