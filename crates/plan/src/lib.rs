//! The engine as data (layer 0): operations, packed layouts, the kernel ABI, plans and bundles.
//!
//! Values only: no I/O, no clock, no unsafe. The factory writes these values, the engine reads them.

#![forbid(unsafe_code)]

pub mod abi;
pub mod bundle;
pub mod layout;
pub mod operation;
pub mod steps;
pub mod target;

pub use abi::{ABI_VERSION, ArgsV1, Launch, TensorV1};
pub use bundle::{Claim, KernelEntry, Manifest, PLAN_VERSION, RequestLengths, TensorEntry};
pub use layout::{KvDtype, KvLayout, WeightFormat, WeightLayout, Zero};
pub use operation::{Activation, Epilogue, Operation, Prologue, QkvRope, RowBucket};
pub use steps::{
    Batching, Binding, BucketKernel, Buffer, ModelShape, Phase, Plan, PlannedOperation, RowSet, Source, Step,
};
pub use target::{Feature, Target};
