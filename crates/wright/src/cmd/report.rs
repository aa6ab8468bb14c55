//! `wright report`: one self-contained HTML page about a bundle or a ledger.

use crate::cli::Report;
use crate::report::page;
use crate::report::source::Source;
use anyhow::{Context, Result};

/// Writes the page and prints its path.
pub fn run(args: &Report) -> Result<()> {
    let source = Source::open(&args.source)?;
    if let Some(damage) = &source.damage {
        eprintln!("warning: the evidence is damaged, the page will be incomplete: {damage}");
    }
    let page = page::render(&source);
    std::fs::write(&args.out, &page).with_context(|| format!("writing {}", args.out.display()))?;
    eprintln!("{} entries, {:.1} MB", source.entries, page.len() as f64 / 1e6);
    println!("{}", args.out.display());
    Ok(())
}
