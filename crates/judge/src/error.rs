//! Errors of setting up a judge. What happens within an evaluation is evidence, not an error.

use std::path::PathBuf;
use thiserror::Error;

/// Why a judge or a task could not be set up.
#[derive(Debug, Error)]
pub enum JudgeError {
    #[error("task: {0}")]
    Task(String),
    #[error("measure lane {path}: {source}")]
    Lane { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Sandbox(#[from] sandbox::SandboxError),
    #[error(transparent)]
    Kernel(#[from] kernels::KernelError),
    #[error("the secret's digest {posted} was posted, not {found}")]
    Secret { posted: String, found: String },
    #[error("conformance candidate {path}: {what}")]
    Conformance { path: PathBuf, what: String },
}
