//! Embedding look-up: gathers rows of a packed matrix. One generator for all targets: its products are exact.

use super::{linear, prelude};
use crate::error::KernelError;
use crate::generator::{Generated, Generator};
use evidence::{Point, Space};
use plan::{Launch, Operation, RowBucket, Target, WeightFormat, Zero};
use std::collections::BTreeSet;

const NAME: &str = "embed";
const GATHER: &str = include_str!("source/embed.rs");
const FLOAT: &str = include_str!("source/float.rs");
const SEPARATE: &str = include_str!("source/float_separate.rs");

/// See the module.
pub struct Embed;

impl Generator for Embed {
    fn name(&self) -> &'static str {
        NAME
    }

    fn space(&self, operation: &Operation, _rows: RowBucket, _target: &Target) -> Option<Space> {
        let Operation::Embed { hidden, weight, .. } = operation else { return None };
        weight.refuse(*hidden as usize).is_none().then(|| Space::default().choices("split", &["parts"]))
    }

    fn start(&self, operation: &Operation, rows: RowBucket, target: &Target) -> Option<Point> {
        Some(self.space(operation, rows, target)?.nth(0))
    }

    fn generate(
        &self,
        operation: &Operation,
        rows: RowBucket,
        target: &Target,
        point: &Point,
        max_rows: u32,
    ) -> Result<Generated, KernelError> {
        linear::require_point(NAME, self.space(operation, rows, target), operation, point)?;
        let Operation::Embed { hidden, weight, .. } = *operation else {
            return Err(KernelError::Unsupported {
                operation: operation.to_string(),
                what: "not an embedding".to_owned(),
            });
        };
        let k = hidden as usize;
        let (format, bits, group, stored) = match weight.format {
            WeightFormat::Affine { bits, group, zero } => (0, bits, group as usize, zero == Zero::Stored),
            WeightFormat::Bf16 => (1, 8, k, false),
            WeightFormat::F32 => (2, 8, k, false),
        };
        let parts = k / group;
        let (block, record, bytes) = (weight.n_block, weight.record_bytes(), weight.block_bytes(k));
        let mut source = prelude::begin(&format!("{operation}: {NAME}."));
        source += &format!(
            "\nconst HIDDEN: usize = {k};\nconst NB: usize = {block};\nconst GROUP: usize = {group};\nconst PARTS: usize = {parts};\nconst RECORD: usize = {record};\nconst BLOCK: usize = {bytes};\nconst BITS: u32 = {bits};\nconst STORED: bool = {stored};\nconst FORMAT: u32 = {format};\n\n"
        );
        source += SEPARATE;
        source += FLOAT;
        source += GATHER;
        let launch = Launch {
            phases: 1,
            scratch_bytes: 0,
            shared_bytes: 0,
            shared_bytes_per_row: 0,
            max_rows,
            max_threads: linear::MAX_THREADS,
        };
        Ok(Generated { source, launch, features: BTreeSet::new() })
    }

    fn numeric_class(&self, _operation: &Operation) -> String {
        "embed/exact".to_owned()
    }
}
