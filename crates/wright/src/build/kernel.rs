//! `wright kernel build`.
use crate::cli::KernelBuild;
pub fn run(_args: &KernelBuild) -> anyhow::Result<()> { anyhow::bail!("under construction") }
