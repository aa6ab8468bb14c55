//! Emits engines: plan composition, weight packing, bundles. The emitted engine contains composition, not search.

#![forbid(unsafe_code)]

pub mod bundle;
pub mod choices;
pub mod compose;
pub mod error;
mod place;
pub mod shape;
pub mod weights;

pub use bundle::{About, BundledKernel, Contents, PackedFile};
pub use choices::{ClassChoice, Fusion, PlanChoices, SourceFormat, TensorClass};
pub use compose::{compose, operations};
pub use error::EmitError;
pub use shape::{shape_of, source_formats};
