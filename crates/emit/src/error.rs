//! Errors of the emitter.

use std::path::PathBuf;

/// Why a plan or a bundle could not be made.
#[derive(Debug, thiserror::Error)]
pub enum EmitError {
    #[error("plan choice {axis} = '{value}' is not known; see the plan space in docs/")]
    Choice { axis: String, value: String },
    #[error("model: {0}")]
    Model(String),
    #[error("packing tensor {tensor}: {source}")]
    Pack { tensor: String, source: kernels::KernelError },
    #[error("building kernel {kernel}: {what}")]
    Build { kernel: String, what: String },
    #[error("{path}: {source}; check free space and permissions of that folder")]
    Io { path: PathBuf, source: std::io::Error },
    #[error("{path}: {source}")]
    Json { path: PathBuf, source: serde_json::Error },
}

impl EmitError {
    /// Wraps an I/O error with the path it happened at.
    pub fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| EmitError::Io { path, source }
    }
}
