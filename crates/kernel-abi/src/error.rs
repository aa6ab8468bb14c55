//! The crate's error.

use std::path::PathBuf;
use thiserror::Error;

/// Why a kernel could not be loaded or threads could not be had.
#[derive(Debug, Error)]
pub enum KernelAbiError {
    #[error("cannot load kernel {name}: {problem}")]
    Load { name: String, problem: String },
    #[error("kernel {name} has no function `kernel`: {problem}")]
    Symbol { name: String, problem: String },
    #[error("cannot read kernel {path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("cannot {what}: {source}")]
    System { what: String, source: std::io::Error },
    #[error("cannot allocate {bytes} bytes for {what}: {source}")]
    Memory { what: String, bytes: usize, source: std::io::Error },
    #[error("a compute thread panicked: {0}")]
    Panicked(String),
}
