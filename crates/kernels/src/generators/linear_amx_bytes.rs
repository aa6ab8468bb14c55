//! Linear kernels on AMX int8 tiles that read 8-bit weights as they lie: `linear-amxbytes`. The class is that of VNNI.

use super::linear::{self, Linear, Walk};
use super::linear_amx::{ROWS, TILES};
use crate::error::KernelError;
use crate::generator::{Generated, Generator};
use crate::numerics::Arith;
use evidence::{Point, Space};
use plan::{Activation, Epilogue, Feature, Operation, RowBucket, Target};
use std::collections::BTreeSet;

const NAME: &str = "linear-amxbytes";
const BODY: &str = include_str!("source/linear_amx_bytes.rs");
const NEEDED: [Feature; 3] = [Feature::Avx2, Feature::Avx512, Feature::AmxInt8];

/// See the module.
pub struct LinearAmxBytes;

impl LinearAmxBytes {
    /// Integer activations and 8-bit weights in groups of whole tiles.
    fn linear(operation: &Operation) -> Option<Linear> {
        Linear::of(operation).filter(|l| {
            matches!(l.activation, Activation::I8 | Activation::I16)
                && l.affine().is_some_and(|a| a.bits == 8 && a.group.is_multiple_of(64))
        })
    }
}

impl Generator for LinearAmxBytes {
    fn name(&self) -> &'static str {
        NAME
    }

    fn space(&self, operation: &Operation, rows: RowBucket, target: &Target) -> Option<Space> {
        let linear = Self::linear(operation)?;
        if !NEEDED.iter().all(|f| target.features.contains(f)) {
            return None;
        }
        let mut space = Space::default()
            .numbers("columns", &linear::column_blocks(&linear, &[1, 2, 4]))
            .choices("ahead", &linear::AHEAD);
        if rows.high > 64 {
            space = space.numbers("chunk", &[64, 128, 256, 512]);
        }
        Some(linear::with_prologue(space, &linear, rows))
    }

    fn start(&self, operation: &Operation, rows: RowBucket, target: &Target) -> Option<Point> {
        let space = self.space(operation, rows, target)?;
        let fallback = linear::point(&[
            ("columns", "2"),
            ("ahead", "tile"),
            ("chunk", "256"),
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
        let linear = Self::linear(operation).ok_or_else(|| KernelError::Unsupported {
            operation: operation.to_string(),
            what: format!("{NAME} makes integer kernels of 8-bit weights in groups of whole 64s"),
        })?;
        linear::require_point(NAME, self.space(operation, rows, target), operation, point)?;
        let columns = linear::number(NAME, point, "columns")?;
        let groups = linear.affine().map_or(1, |a| linear.k / a.group);
        let passes = if linear.activation == Activation::I16 { 2 } else { 1 };
        let mut walk = Walk {
            heights: vec![16],
            columns: if matches!(linear.epilogue, Epilogue::Store | Epilogue::Add) {
                16 * columns
            } else {
                0
            },
            chunk: point.number("chunk").unwrap_or(64) as usize,
            prologue: linear::prologue_work(&linear, point),
            row_bytes: linear::odd_lines(linear.k * passes + groups * 8),
            own: true,
            tiled: false,
            unit_scratch: 0,
        };
        let most = walk.chunk.min(max_rows as usize).next_multiple_of(16);
        // Sums of two groups, then the results of a unit.
        walk.unit_scratch = 2 * 4096 + most * linear.unit(walk.columns) * 4;
        let ahead = linear.ahead(linear.unit(walk.columns) / 16, point);
        let constants = format!(
            "const UNPACKED: bool = false;\nconst AHEAD: usize = {ahead};\nconst DEPTH: usize = 64;\n\n"
        );
        let title = format!("{operation}, rows {rows}: {NAME}, {point}.");
        Ok(Generated {
            source: linear.source(
                &title,
                Arith::Fused,
                &walk,
                &constants,
                &format!("{TILES}\n{ROWS}\n{BODY}"),
            ),
            launch: linear.launch(&walk, max_rows),
            features: BTreeSet::from(NEEDED),
        })
    }

    fn numeric_class(&self, operation: &Operation) -> String {
        Self::linear(operation).map_or_else(|| "none".to_owned(), |l| l.numeric_class(Arith::Fused))
    }
}
