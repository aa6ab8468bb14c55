//! Emits engines: plan composition, weight packing, bundles. The emitted engine contains composition, not search.

#![forbid(unsafe_code)]

pub mod choices;
pub mod compose;
pub mod error;

pub use choices::{ClassChoice, Fusion, PlanChoices, SourceFormat, TensorClass};
pub use compose::{compose, operations};
pub use error::EmitError;
