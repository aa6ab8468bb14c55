//! Linear kernels for AVX-512 with f32 activations, and with bf16 activations by VDPBF16PS.

use super::linear::{self, Linear, PrologueWork, Walk};
use crate::error::KernelError;
use crate::generator::{Generated, Generator};
use crate::numerics::Arith;
use evidence::{Point, Space};
use plan::{Activation, Epilogue, Feature, Operation, RowBucket, Target};
use std::collections::BTreeSet;

const TILE: &str = include_str!("source/linear_avx512.rs");
const DOT_BF16: &str = include_str!("source/linear_dot_bf16.rs");
const DOT_NONE: &str = include_str!("source/linear_dot_none.rs");

/// See the module.
pub struct LinearAvx512 {
    activation: Activation,
}

impl LinearAvx512 {
    pub const F32: Self = Self { activation: Activation::F32 };
    pub const BF16: Self = Self { activation: Activation::Bf16 };

    fn features(&self) -> BTreeSet<Feature> {
        let mut features = BTreeSet::from([Feature::Avx2, Feature::Avx512]);
        if self.activation == Activation::Bf16 {
            features.insert(Feature::Avx512Bf16);
        }
        features
    }
}

impl Generator for LinearAvx512 {
    fn name(&self) -> &'static str {
        if self.activation == Activation::Bf16 { "linear-avx512bf16" } else { "linear-avx512" }
    }

    fn space(&self, operation: &Operation, rows: RowBucket, target: &Target) -> Option<Space> {
        let linear = Linear::of(operation)?;
        // Affine weights with bf16 activations are widened by the AMX kernels and by plain Rust alone.
        let unlike = linear.activation == Activation::Bf16 && linear.affine().is_some();
        if linear.activation != self.activation || unlike || !self.features().is_subset(&target.features) {
            return None;
        }
        let mut space = Space::default()
            .numbers("tile", &linear::tile_heights(rows, &[1, 2, 4, 6, 8, 10, 12]))
            .numbers("columns", &linear::column_blocks(&linear, &[1, 2, 4]))
            .choices("ahead", &linear::AHEAD);
        if rows.high > 64 && !linear.is_direct() {
            space = space.numbers("chunk", &[64, 128, 256]);
        }
        Some(linear::with_prologue(space, &linear, rows))
    }

    fn start(&self, operation: &Operation, rows: RowBucket, target: &Target) -> Option<Point> {
        let space = self.space(operation, rows, target)?;
        let fallback = linear::point(&[
            ("tile", if rows.high <= 4 { "4" } else { "10" }),
            ("columns", "2"),
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
        linear::require_point(self.name(), self.space(operation, rows, target), operation, point)?;
        let prologue = linear::prologue_work(&linear, point);
        let columns = linear::number(self.name(), point, "columns")?;
        let width = if self.activation == Activation::Bf16 { 2 } else { 4 };
        let row_bytes = match prologue {
            PrologueWork::Direct => linear.k * width,
            _ => linear::odd_lines(linear.k * width),
        };
        let rows_at_once =
            if linear.is_direct() { max_rows.max(1) } else { point.number("chunk").unwrap_or(64) };
        let walk = Walk {
            heights: linear::halving(linear::number(self.name(), point, "tile")?),
            columns: if matches!(linear.epilogue, Epilogue::Store | Epilogue::Add) {
                16 * columns
            } else {
                0
            },
            chunk: rows_at_once as usize,
            prologue,
            row_bytes,
            own: false,
            tiled: false,
            unit_scratch: 0,
        };
        let constants = format!(
            "const NR: usize = {columns};\nconst AHEAD: usize = {};\n\n",
            linear.ahead(columns, point)
        );
        let title = format!("{operation}, rows {rows}: {}, {point}.", self.name());
        let dot = if self.activation == Activation::Bf16 { DOT_BF16 } else { DOT_NONE };
        Ok(Generated {
            source: linear.source(&title, Arith::Fused, &walk, &constants, &format!("{TILE}{dot}")),
            launch: linear.launch(&walk, max_rows),
            features: self.features(),
        })
    }

    fn numeric_class(&self, operation: &Operation) -> String {
        Linear::of(operation).map_or_else(|| "none".to_owned(), |l| l.numeric_class(Arith::Fused))
    }
}
