//! Errors of the kernels crate.

use thiserror::Error;

/// Why packing, checking or generating failed.
#[derive(Debug, Error)]
pub enum KernelError {
    #[error("{operation}: {what}")]
    Unsupported { operation: String, what: String },
    #[error("{generator}: point '{point}' is not in the space: {what}")]
    Point { generator: String, point: String, what: String },
    #[error("packing {layout}: {what}")]
    Pack { layout: String, what: String },
    #[error("inputs of a case, slot {slot}: {what}")]
    Case { slot: &'static str, what: String },
}
