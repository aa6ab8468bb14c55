//! Linear kernels in plain Rust: every format, any architecture. The first champion.

use super::linear::{self, Linear, PrologueWork, Walk};
use crate::error::KernelError;
use crate::generator::{Generated, Generator};
use crate::numerics::Arith;
use evidence::{Point, Space};
use plan::{Activation, Operation, RowBucket, Target};
use std::collections::BTreeSet;

const NAME: &str = "linear-portable";
const TILE: &str = include_str!("source/linear_portable.rs");

/// See the module.
pub struct LinearPortable;

impl Generator for LinearPortable {
    fn name(&self) -> &'static str {
        NAME
    }

    fn space(&self, operation: &Operation, rows: RowBucket, _target: &Target) -> Option<Space> {
        let linear = Linear::of(operation)?;
        let space = Space::default().numbers("tile", &linear::tile_heights(rows, &[1, 2, 4]));
        Some(linear::with_prologue(space, &linear, rows))
    }

    fn start(&self, operation: &Operation, rows: RowBucket, target: &Target) -> Option<Point> {
        let space = self.space(operation, rows, target)?;
        let fallback = linear::point(&[("tile", "2"), ("prologue", linear::first_prologue(rows))]);
        Some(space.project(&fallback, &fallback))
    }

    fn generate(
        &self,
        operation: &Operation,
        rows: RowBucket,
        target: &Target,
        point: &Point,
        max_rows: u32,
    ) -> Result<Generated, KernelError> {
        let linear = Linear::require(operation)?;
        linear::require_point(NAME, self.space(operation, rows, target), operation, point)?;
        let groups = linear.affine().map_or(1, |a| linear.k / a.group);
        let row_bytes = match linear.activation {
            Activation::F32 | Activation::Bf16 | Activation::Row16 => linear.k * 4,
            Activation::I8 | Activation::I16 => (linear.k * 2 + groups * 8).next_multiple_of(64),
        };
        let prologue = linear::prologue_work(&linear, point);
        let walk = Walk {
            heights: linear::halving(linear::number(NAME, point, "tile")?),
            columns: linear.weight.n_block as usize,
            chunk: if prologue == PrologueWork::Redundant { 64 } else { max_rows.max(1) as usize },
            prologue,
            row_bytes,
            own: false,
            tiled: false,
            unit_scratch: 0,
        };
        let title = format!("{operation}, rows {rows}: {NAME}, {point}.");
        Ok(Generated {
            source: linear.source(&title, Arith::Separate, &walk, "", TILE),
            launch: linear.launch(&walk, max_rows),
            features: BTreeSet::new(),
        })
    }

    fn numeric_class(&self, operation: &Operation) -> String {
        Linear::of(operation).map_or_else(|| "none".to_owned(), |l| l.numeric_class(Arith::Separate))
    }
}
