//! Linear kernels for AMX: int8 products (the class of VNNI, since integer sums are exact) and bf16 products.
//!
//! Tests run them on emulated tiles too (`tests/harness/amx_tiles_emulated.rs`), wherever AVX-512 is.

use super::linear::{self, Linear, Walk};
use crate::error::KernelError;
use crate::generator::{Generated, Generator};
use crate::numerics::Arith;
use evidence::{Point, Space};
use plan::{Activation, Epilogue, Feature, Operation, RowBucket, Target};
use std::collections::BTreeSet;

pub(super) const TILES: &str = include_str!("source/amx_tiles.rs");
pub(super) const ROWS: &str = include_str!("source/linear_int8_rows.rs");
const INT8: &str = include_str!("source/linear_amx_int8.rs");
const BF16: &str = include_str!("source/linear_amx_bf16.rs");
/// Inputs that stay in L1 while all rows pass: some that are whole groups and tiles, or all.
fn depths(linear: &Linear) -> Vec<u32> {
    let group = linear.affine().map_or(32, |a| a.group) as u32;
    let whole =
        |d: &u32| *d < linear.k as u32 && (linear.k as u32).is_multiple_of(*d) && d.is_multiple_of(group);
    let mut all: Vec<u32> = [96, 128, 192, 256, 288, 384, 512].into_iter().filter(whole).collect();
    all.push(linear.k as u32);
    all
}

/// Bytes of int32 sums that the int8 kernel keeps at the end of its unit scratch.
const RESULTS: usize = 4096;

/// See the module.
pub struct LinearAmx {
    feature: Feature,
}

impl LinearAmx {
    pub const INT8: Self = Self { feature: Feature::AmxInt8 };
    pub const BF16: Self = Self { feature: Feature::AmxBf16 };

    fn features(&self) -> BTreeSet<Feature> {
        let mut features = BTreeSet::from([Feature::Avx2, Feature::Avx512, self.feature]);
        if self.feature == Feature::AmxBf16 {
            // Weights are widened by VCVTNE2PS2BF16.
            features.insert(Feature::Avx512Bf16);
        }
        features
    }

    fn fits(&self, linear: &Linear) -> bool {
        match linear.activation {
            Activation::I8 | Activation::I16 => self.feature == Feature::AmxInt8,
            Activation::Bf16 => self.feature == Feature::AmxBf16 && linear.k.is_multiple_of(32),
            Activation::F32 | Activation::Row16 => false,
        }
    }

    fn int8_source(&self, linear: &Linear, title: &str, walk: &mut Walk, ahead: usize) -> String {
        let group = linear.affine().map_or(linear.k, |a| a.group);
        let depth = [64, 32, 16].into_iter().find(|d| group.is_multiple_of(*d)).unwrap_or(16);
        walk.unit_scratch =
            linear.unit(walk.columns) / 16 * (linear.k / group) * (group * 16 + 128) + RESULTS;
        let constants = format!(
            "const UNPACKED: bool = true;\nconst AHEAD: usize = {ahead};\nconst DEPTH: usize = {depth};\n\n"
        );
        linear.source(title, Arith::Fused, walk, &constants, &format!("{TILES}\n{ROWS}\n{INT8}"))
    }
}

impl Generator for LinearAmx {
    fn name(&self) -> &'static str {
        if self.feature == Feature::AmxInt8 { "linear-amxint8" } else { "linear-amxbf16" }
    }

    fn space(&self, operation: &Operation, rows: RowBucket, target: &Target) -> Option<Space> {
        let linear = Linear::of(operation)?;
        if !self.fits(&linear) || !self.features().is_subset(&target.features) {
            return None;
        }
        let int8 = self.feature == Feature::AmxInt8;
        let heights = match self.feature {
            Feature::AmxInt8 => linear::tile_heights(rows, &[1, 4, 8, 12, 16]),
            _ if rows.high <= 16 => vec![16],
            _ => vec![16, 32],
        };
        let mut space = Space::default()
            .numbers("tile", &heights)
            .numbers("columns", &linear::column_blocks(&linear, &[1, 2, 4]));
        if !int8 {
            space = space.numbers("depth", &depths(&linear)).choices("rows", &["lines", "tiles"]);
        }
        if int8 || linear.affine().is_some() {
            space = space.choices("ahead", &linear::AHEAD);
        }
        if rows.high > 64 {
            space = space.numbers("chunk", &[64, 128, 256, 512]);
        }
        Some(linear::with_prologue(space, &linear, rows))
    }

    fn start(&self, operation: &Operation, rows: RowBucket, target: &Target) -> Option<Point> {
        let space = self.space(operation, rows, target)?;
        let tall = self.feature == Feature::AmxBf16 && rows.high >= 32;
        let fallback = linear::point(&[
            ("tile", if tall { "32" } else { "16" }),
            ("columns", "2"),
            ("rows", "lines"),
            ("depth", "192"),
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
        let linear = Linear::require(operation)?;
        linear::require_point(self.name(), self.space(operation, rows, target), operation, point)?;
        let columns = linear::number(self.name(), point, "columns")?;
        let (width, scales) = match linear.activation {
            Activation::I8 => (1, 8),
            Activation::I16 => (2, 8),
            Activation::F32 | Activation::Bf16 | Activation::Row16 => (2, 0),
        };
        let int8 = self.feature == Feature::AmxInt8;
        let tiled = point.get("rows") == Some("tiles");
        let groups = linear.affine().map_or(1, |a| linear.k / a.group);
        let mut walk = Walk {
            heights: linear::halving(linear::number(self.name(), point, "tile")?),
            columns: if matches!(linear.epilogue, Epilogue::Store | Epilogue::Add) {
                16 * columns
            } else {
                0
            },
            chunk: point.number("chunk").unwrap_or(64) as usize,
            prologue: linear::prologue_work(&linear, point),
            row_bytes: if tiled {
                linear.k * width
            } else {
                linear::odd_lines(linear.k * width + groups * scales)
            },
            own: !int8,
            tiled,
            unit_scratch: 0,
        };
        let title = format!("{operation}, rows {rows}: {}, {point}.", self.name());
        let source = if int8 {
            self.int8_source(&linear, &title, &mut walk, linear.ahead(columns, point))
        } else {
            let ahead = linear.ahead(columns, point);
            let depth = linear::number(self.name(), point, "depth")?;
            // Two sets of widened weights, and raw results of all rows of a chunk.
            let (unit, tile) = (linear.unit(walk.columns), walk.heights.first().copied().unwrap_or(16));
            let panels = if linear.affine().is_some() { unit / 16 * (depth * 32 + 64) } else { 0 };
            let most = walk.chunk.min(max_rows as usize).next_multiple_of(tile);
            walk.unit_scratch = 2 * panels + most * unit * 4;
            let constants = format!(
                "const NR: usize = {columns};\nconst DEPTH: usize = {depth};\nconst AHEAD: usize = {ahead};\n\n"
            );
            linear.source(&title, Arith::Fused, &walk, &constants, &format!("{TILES}\n{BF16}"))
        };
        Ok(Generated { source, launch: linear.launch(&walk, max_rows), features: self.features() })
    }

    /// TDPBF16PS sums even and odd inputs of a tile apart, so bf16 tiles are a class of their own.
    fn numeric_class(&self, operation: &Operation) -> String {
        match Linear::of(operation) {
            None => "none".to_owned(),
            Some(l) if l.activation == Activation::Bf16 => l.numeric_class(Arith::Tiles),
            Some(l) => l.numeric_class(Arith::Fused),
        }
    }
}
