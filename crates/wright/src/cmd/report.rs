//! `wright report`.
use crate::cli::Report;
pub fn run(_args: &Report) -> anyhow::Result<()> { anyhow::bail!("under construction") }
