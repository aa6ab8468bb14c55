//! `wright redteam`.
use crate::cli::Redteam;
pub fn run(_args: &Redteam) -> anyhow::Result<()> { anyhow::bail!("under construction") }
