//! Linear kernels with int8 products: AVX-512 VNNI.

use super::linear::{self, Linear, Walk};
use crate::error::KernelError;
use crate::generator::{Generated, Generator};
use crate::numerics::Arith;
use evidence::{Point, Space};
use plan::{Activation, Epilogue, Feature, Operation, RowBucket, Target};
use std::collections::BTreeSet;

const NAME: &str = "linear-avx512vnni";
const ROWS: &str = include_str!("source/linear_int8_rows.rs");
const TILE: &str = include_str!("source/linear_vnni.rs");

/// See the module.
pub struct LinearVnni;

impl Generator for LinearVnni {
    fn name(&self) -> &'static str {
        NAME
    }

    fn space(&self, operation: &Operation, rows: RowBucket, target: &Target) -> Option<Space> {
        let linear = Linear::of(operation)?;
        let fits = matches!(linear.activation, Activation::I8 | Activation::I16)
            && target.features.contains(&Feature::Avx512)
            && target.features.contains(&Feature::Avx512Vnni);
        if !fits {
            return None;
        }
        let mut space = Space::default()
            .numbers("tile", &linear::tile_heights(rows, &[1, 2, 4, 5, 6, 7, 8, 10, 12]))
            .numbers("columns", &linear::column_blocks(&linear, &[1, 2, 4]))
            .choices("ahead", &linear::AHEAD);
        if rows.high >= 8 {
            space = space.choices("unpack", &["register", "scratch"]);
        }
        if rows.high > 64 {
            space = space.numbers("chunk", &[64, 128, 256, 512]);
        }
        Some(linear::with_prologue(space, &linear, rows))
    }

    fn start(&self, operation: &Operation, rows: RowBucket, target: &Target) -> Option<Point> {
        let space = self.space(operation, rows, target)?;
        let fallback = linear::point(&[
            ("tile", if rows.high <= 32 { "8" } else { "7" }),
            ("columns", if rows.high == 1 { "4" } else { "2" }),
            ("ahead", "tile"),
            ("unpack", if rows.high > 16 { "scratch" } else { "register" }),
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
        let groups = linear.affine().map_or(1, |a| linear.k / a.group);
        let passes = if linear.activation == Activation::I16 { 2 } else { 1 };
        let prologue = linear::prologue_work(&linear, point);
        let columns = linear::number(NAME, point, "columns")?;
        let unpacked = point.get("unpack") == Some("scratch");
        let chunk = point.number("chunk").unwrap_or(64) as usize;
        let unit = match linear.epilogue {
            Epilogue::Store | Epilogue::Add => 16 * columns,
            _ => 0,
        };
        let mut walk = Walk {
            heights: linear::halving(linear::number(NAME, point, "tile")?),
            columns: unit,
            chunk,
            prologue,
            row_bytes: linear::odd_lines(linear.k * passes + groups * 8),
            own: false,
            tiled: false,
            unit_scratch: 0,
        };
        if unpacked {
            let group = linear.affine().map_or(linear.k, |a| a.group);
            walk.unit_scratch = linear.unit(unit) / 16 * groups * (group * 16 + 128);
        }
        let ahead = linear.ahead(columns, point);
        let constants = format!(
            "const NR: usize = {columns};\nconst AHEAD: usize = {ahead};\nconst UNPACKED: bool = {unpacked};\n\n"
        );
        let title = format!("{operation}, rows {rows}: {NAME}, {point}.");
        Ok(Generated {
            source: linear.source(&title, Arith::Fused, &walk, &constants, &format!("{ROWS}\n{TILE}")),
            launch: linear.launch(&walk, max_rows),
            features: BTreeSet::from([Feature::Avx2, Feature::Avx512, Feature::Avx512Vnni]),
        })
    }

    fn numeric_class(&self, operation: &Operation) -> String {
        Linear::of(operation).map_or_else(|| "none".to_owned(), |l| l.numeric_class(Arith::Fused))
    }
}
