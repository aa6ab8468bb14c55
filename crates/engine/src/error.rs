//! The crate's error.

use crate::request::RequestId;
use std::path::PathBuf;
use thiserror::Error;

/// What the engine refuses or fails at.
#[derive(Debug, Error)]
pub enum EngineError {
    #[error("cannot read {path}: {source} (is it a bundle of `wright build`?)")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path} is not valid: {source}")]
    Json { path: PathBuf, source: serde_json::Error },
    #[error(
        "{what} has version {found}, this program reads version {expected}: rebuild the bundle or use the matching program"
    )]
    Version { what: String, found: u32, expected: u32 },
    #[error(
        "the plan `{plan}` is made for {needed}, this machine ({arch}) lacks {missing}: start it with --portable"
    )]
    Target { plan: String, needed: String, arch: String, missing: String },
    /// Bytes of the bundle differ from what its manifest says.
    #[error("{path} does not match the manifest: {problem}; copy or build the bundle again")]
    Damaged { path: PathBuf, problem: String },
    /// The plan and the manifest do not fit together.
    #[error("plan `{plan}`, {place}: {problem}")]
    Plan { plan: String, place: String, problem: String },
    #[error("kernel `{kernel}` refused before loading: {reason}")]
    Inspection { kernel: String, reason: String },
    #[error(transparent)]
    KernelAbi(#[from] kernel_abi::KernelAbiError),
    #[error("option {option}: {problem}")]
    Option { option: &'static str, problem: String },
    /// A batch that the executor does not run.
    #[error("batch: {0}")]
    Batch(String),
    #[error("request {id}: {problem}")]
    Invalid { id: RequestId, problem: String },
    #[error("request {id}: {prompt} prompt tokens do not fit the context of {context} tokens")]
    TooLong { id: RequestId, prompt: usize, context: u32 },
    #[error("{waiting} requests wait already (the limit): try again later")]
    QueueFull { waiting: usize },
    #[error("the engine is shutting down and takes no requests")]
    Draining,
    #[error("the engine stopped: {0}")]
    Stopped(String),
}
