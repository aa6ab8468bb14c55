//! Linear kernels of the fused class for AVX2.
//!
//! Activations in f32 and bf16 use the plain tile: the compiler turns its sixteen-column loops into full vectors (checked
//! for up to four rows). Int8 activations have a tile of their own.

use super::linear::{self, Linear, PrologueWork, Walk};
use crate::error::KernelError;
use crate::generator::{Generated, Generator};
use crate::numerics::Arith;
use evidence::{Point, Space};
use plan::{Activation, Feature, Operation, RowBucket, Target};
use std::collections::BTreeSet;

const PLAIN: &str = include_str!("source/linear_portable.rs");
const AVX2: &str = include_str!("source/linear_avx2.rs");

const NAME: &str = "linear-avx2";

/// See the module.
pub struct LinearAvx2;

impl LinearAvx2 {
    fn is_integer(linear: &Linear) -> bool {
        matches!(linear.activation, Activation::I8 | Activation::I16)
    }
}

impl Generator for LinearAvx2 {
    fn name(&self) -> &'static str {
        NAME
    }

    fn space(&self, operation: &Operation, rows: RowBucket, target: &Target) -> Option<Space> {
        let linear = Linear::of(operation)?;
        let integer = Self::is_integer(&linear);
        if !target.features.contains(&Feature::Avx2) {
            return None;
        }
        let tiles: &[u32] = if integer { &[1, 2, 3, 4, 6] } else { &[1, 2, 4] };
        let mut space = Space::default().numbers("tile", &linear::tile_heights(rows, tiles));
        if integer {
            space = space.choices("ahead", &linear::AHEAD);
        }
        if rows.high > 64 && !linear.is_direct() {
            space = space.numbers("chunk", &[64, 128, 256]);
        }
        Some(linear::with_prologue(space, &linear, rows))
    }

    fn start(&self, operation: &Operation, rows: RowBucket, target: &Target) -> Option<Point> {
        let space = self.space(operation, rows, target)?;
        let fallback = linear::point(&[
            ("tile", "4"),
            ("ahead", "tile"),
            ("chunk", "128"),
            ("prologue", linear::first_prologue(rows)),
        ]);
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
        let affine = linear.affine();
        let groups = affine.map_or(1, |a| linear.k / a.group);
        let width = match linear.activation {
            Activation::I8 if affine.is_some_and(|a| a.bits == 4) => 1,
            Activation::I8 | Activation::I16 => 2,
            Activation::F32 | Activation::Bf16 | Activation::Row16 => 4,
        };
        let integer = Self::is_integer(&linear);
        let prologue = linear::prologue_work(&linear, point);
        let row_bytes = match prologue {
            PrologueWork::Direct => linear.k * 4,
            _ if integer => linear::odd_lines(linear.k * width + groups * 8),
            _ => linear::odd_lines(linear.k * width),
        };
        let rows_at_once =
            if linear.is_direct() { max_rows.max(1) } else { point.number("chunk").unwrap_or(64) };
        let walk = Walk {
            heights: linear::halving(linear::number(NAME, point, "tile")?),
            columns: linear.weight.n_block as usize,
            chunk: rows_at_once as usize,
            prologue,
            row_bytes,
            own: false,
            tiled: false,
            unit_scratch: 0,
        };
        let constants = format!("const AHEAD: usize = {};\n\n", linear.ahead(1, point));
        let title = format!("{operation}, rows {rows}: {}, {point}.", NAME);
        let tile = if integer { AVX2 } else { PLAIN };
        Ok(Generated {
            source: linear.source(&title, Arith::Fused, &walk, &constants, tile),
            launch: linear.launch(&walk, max_rows),
            features: BTreeSet::from([Feature::Avx2]),
        })
    }

    fn numeric_class(&self, operation: &Operation) -> String {
        Linear::of(operation).map_or_else(|| "none".to_owned(), |l| l.numeric_class(Arith::Fused))
    }
}
