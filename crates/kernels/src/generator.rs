//! What a generator is: it turns a point of its space into kernel source.

use crate::error::KernelError;
use evidence::{Point, Space};
use plan::{Launch, Operation, RowBucket, Target};
use std::collections::BTreeSet;

/// Kernel source with its launch description.
#[derive(Clone, Debug, PartialEq)]
pub struct Generated {
    /// A complete `no_std` crate (one file). The trusted prelude (panic handler, memory functions) is included.
    pub source: String,
    pub launch: Launch,
    /// Features that the code needs, a subset of the target's.
    pub features: BTreeSet<plan::Feature>,
}

/// A family of kernels for one kind of operation.
pub trait Generator: Sync {
    /// Stable name, part of recipes, for example `linear-avx512-vnni`.
    fn name(&self) -> &'static str;
    /// The space for this operation, bucket and target; `None` if the generator does not apply there.
    fn space(&self, operation: &Operation, rows: RowBucket, target: &Target) -> Option<Space>;
    /// A good first point, knowledge included, a member of the space.
    fn start(&self, operation: &Operation, rows: RowBucket, target: &Target) -> Option<Point>;
    /// Source for a point. `max_rows` is the most rows of one call (the open bucket has no upper end of its own).
    fn generate(
        &self,
        operation: &Operation,
        rows: RowBucket,
        target: &Target,
        point: &Point,
        max_rows: u32,
    ) -> Result<Generated, KernelError>;
    /// Numeric class of the output: kernels of one class agree bit for bit.
    fn numeric_class(&self, operation: &Operation) -> String;
}
