//! `wright verify`.
use crate::cli::Verify;
pub fn run(_args: &Verify) -> anyhow::Result<()> { anyhow::bail!("under construction") }
