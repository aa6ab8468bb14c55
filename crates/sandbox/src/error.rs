//! The crate's error: the candidate's fault and ours are different variants.

use evidence::{Fault, Reason, Rejection, Stop};
use std::io;
use thiserror::Error;

/// Why building, inspecting or running a candidate ended early.
#[derive(Debug, Error)]
pub enum SandboxError {
    /// The candidate's fault, final.
    #[error("{reason:?}: {detail}")]
    Rejected { reason: Reason, detail: String },
    /// The host could not do something that has nothing to do with the candidate.
    #[error("cannot {what}: {source}")]
    Host { what: String, source: io::Error },
    /// The trusted part of a worker failed before candidate code ran, or it broke the protocol by our fault.
    #[error("sandbox worker: {0}")]
    Worker(String),
    /// No usable Rust toolchain.
    #[error("toolchain: {0}; install rustc or set RUSTC to its path")]
    Toolchain(String),
}

impl SandboxError {
    /// A rejection.
    pub fn rejected(reason: Reason, detail: impl Into<String>) -> Self {
        Self::Rejected { reason, detail: detail.into() }
    }

    /// A host fault with the error of the failed call.
    pub(crate) fn host(what: impl Into<String>, source: io::Error) -> Self {
        Self::Host { what: what.into(), source }
    }

    /// A host fault with `errno`.
    pub(crate) fn last_os(what: impl Into<String>) -> Self {
        Self::host(what, io::Error::last_os_error())
    }

    /// The same as evidence sees it.
    pub fn stop(&self) -> Stop {
        match self {
            Self::Rejected { reason, detail } => {
                Stop::Rejected(Rejection { reason: *reason, detail: detail.clone() })
            }
            Self::Worker(_) => Stop::Inconclusive { fault: Fault::Worker, detail: self.to_string() },
            Self::Host { .. } | Self::Toolchain(_) => {
                Stop::Inconclusive { fault: Fault::Host, detail: self.to_string() }
            }
        }
    }
}

impl From<SandboxError> for Stop {
    fn from(error: SandboxError) -> Self {
        error.stop()
    }
}
