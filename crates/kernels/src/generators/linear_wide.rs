//! Linear kernels of `Row16`: 15-bit rows times 16-bit weights, whose sums run over the whole of k in integers. Plain code
//! and AMX int8 tiles.
//!
//! Weights keep their affine layout; each unit of columns turns scales and minima into integers before its products.

use super::linear::{self, Linear, PrologueWork, Walk};
use crate::error::KernelError;
use crate::generator::{Generated, Generator};
use crate::numerics::{Arith, WIDE_TOP};
use evidence::{Point, Space};
use plan::{Epilogue, Feature, Operation, RowBucket, Target};
use std::collections::BTreeSet;

const TILES: &str = super::linear_amx::TILES;
const AMX: &str = include_str!("source/linear_amx_wide.rs");
const PORTABLE: &str = include_str!("source/linear_wide_portable.rs");

/// What an operation needs to be made here, or the reason why not.
fn require(operation: &Operation, generator: &dyn Generator) -> Result<Linear, KernelError> {
    Linear::wide(operation).ok_or_else(|| KernelError::Unsupported {
        operation: operation.to_string(),
        what: format!(
            "{} makes linear kernels with r16 activations and groups of whole 32s",
            generator.name()
        ),
    })
}

fn constant() -> String {
    format!("const TOP: f32 = f32::from_bits({:#010x});\n", WIDE_TOP.to_bits())
}

/// Plain Rust, any architecture.
pub struct WidePortable;

impl Generator for WidePortable {
    fn name(&self) -> &'static str {
        "linear-wide-portable"
    }

    fn space(&self, operation: &Operation, rows: RowBucket, _target: &Target) -> Option<Space> {
        let linear = Linear::wide(operation)?;
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
        let linear = require(operation, self)?;
        linear::require_point(self.name(), self.space(operation, rows, target), operation, point)?;
        let prologue = linear::prologue_work(&linear, point);
        let walk = Walk {
            heights: linear::halving(linear::number(self.name(), point, "tile")?),
            columns: linear.weight.n_block as usize,
            chunk: if prologue == PrologueWork::Redundant { 64 } else { max_rows.max(1) as usize },
            prologue,
            row_bytes: linear.k * 4 + 64,
            own: false,
            tiled: false,
            unit_scratch: 0,
        };
        let title = format!("{operation}, rows {rows}: {}, {point}.", self.name());
        Ok(Generated {
            source: linear.source(&title, Arith::Separate, &walk, &constant(), PORTABLE),
            launch: linear.launch(&walk, max_rows),
            features: BTreeSet::new(),
        })
    }

    fn numeric_class(&self, operation: &Operation) -> String {
        Linear::wide(operation).map_or_else(|| "none".to_owned(), |l| l.numeric_class(Arith::Separate))
    }
}

/// AMX int8 tiles: TDPBSUD on the bytes of 16-bit weights and 15-bit rows.
pub struct WideAmx;

const NEEDED: [Feature; 3] = [Feature::Avx2, Feature::Avx512, Feature::AmxInt8];

/// Inputs whose widened weights stay in L1 while all rows pass: whole groups that divide k.
fn depths(linear: &Linear) -> Vec<u32> {
    let group = linear.affine().map_or(32, |a| a.group) as u32;
    let k = linear.k as u32;
    let whole = |d: &u32| *d < k && k.is_multiple_of(*d) && d.is_multiple_of(group);
    let mut all: Vec<u32> = [64, 96, 128, 192, 256, 288, 384, 512].into_iter().filter(whole).collect();
    all.push(k);
    all
}

impl Generator for WideAmx {
    fn name(&self) -> &'static str {
        "linear-amxwide"
    }

    fn space(&self, operation: &Operation, rows: RowBucket, target: &Target) -> Option<Space> {
        let linear = Linear::wide(operation)?;
        if !NEEDED.iter().all(|f| target.features.contains(f)) {
            return None;
        }
        let mut space = Space::default()
            .numbers("columns", &linear::column_blocks(&linear, &[1, 2, 4]))
            .numbers("depth", &depths(&linear))
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
        let linear = require(operation, self)?;
        linear::require_point(self.name(), self.space(operation, rows, target), operation, point)?;
        let columns = linear::number(self.name(), point, "columns")?;
        let depth = linear::number(self.name(), point, "depth")?;
        let mut walk = Walk {
            heights: vec![16],
            columns: if matches!(linear.epilogue, Epilogue::Store | Epilogue::Add) {
                16 * columns
            } else {
                0
            },
            chunk: point.number("chunk").unwrap_or(64) as usize,
            prologue: linear::prologue_work(&linear, point),
            // Two bytes planes of two bytes for each input, then scale and offsets.
            row_bytes: linear.k * 4 + 64,
            own: true,
            tiled: true,
            unit_scratch: 0,
        };
        let groups = linear.affine().map_or(1, |a| linear.k / a.group);
        let most = walk.chunk.min(max_rows as usize).next_multiple_of(16);
        let tables = 2 * (groups * 128 + 64);
        let panels = 2 * (depth * 32 + 64);
        walk.unit_scratch = tables + panels + most / 16 * 4096 + most * linear.unit(walk.columns) * 4;
        let ahead = linear.ahead(linear.unit(walk.columns) / 16, point);
        let constants =
            format!("const DEPTH: usize = {depth};\nconst AHEAD: usize = {ahead};\n{}\n", constant());
        let title = format!("{operation}, rows {rows}: {}, {point}.", self.name());
        Ok(Generated {
            source: linear.source(&title, Arith::Fused, &walk, &constants, &format!("{TILES}\n{AMX}")),
            launch: linear.launch(&walk, max_rows),
            features: BTreeSet::from(NEEDED),
        })
    }

    fn numeric_class(&self, operation: &Operation) -> String {
        Linear::wide(operation).map_or_else(|| "none".to_owned(), |l| l.numeric_class(Arith::Fused))
    }
}
