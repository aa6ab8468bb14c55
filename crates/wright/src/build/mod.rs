//! `wright build`: the main job.
pub mod kernel;
use crate::cli::Build;
pub fn run(_args: &Build) -> anyhow::Result<()> { anyhow::bail!("under construction") }
