//! Attention kernels on AMX bf16 tiles: `attention-amxbf16`.

use super::attention::{PARTS, ROWS, Shape, dealt, launch};
use super::linear_amx::TILES;
use super::small_constants as constants;
use super::small_vector::Isa;
use crate::error::KernelError;
use crate::generator::{Generated, Generator};
use crate::numerics::CHUNK;
use evidence::{Point, Space};
use plan::{Feature, KvDtype, Operation, RowBucket, Target};
use std::collections::BTreeSet;

const BODY: &str = include_str!("source/attention_amx.rs");

/// Attention over bf16 caches whose products are those of bf16 tiles. Axes:
///
/// * `tile`: rows of one sequence that go through the pages together: a page is paired once for them;
/// * `prefetch`: whether the next page is asked for line by line while a page is paired;
/// * `split`, `deal`: as in [`super::attention_vector`].
pub struct AttentionAmx;

const NEEDED: [Feature; 4] = [Feature::Avx2, Feature::Avx512, Feature::Avx512Bf16, Feature::AmxBf16];

impl AttentionAmx {
    /// The shape, if whole tiles fit into heads and pages, and whole pages into chunks.
    fn shape(operation: &Operation) -> Option<Shape> {
        let shape = Shape::of(operation)?;
        let tokens = shape.kv.block_tokens;
        (shape.kv.dtype == KvDtype::Bf16
            && shape.head_dim.is_multiple_of(32)
            && tokens.is_multiple_of(32)
            && (CHUNK as u32).is_multiple_of(tokens))
        .then_some(shape)
    }
}

impl Generator for AttentionAmx {
    fn name(&self) -> &'static str {
        "attention-amxbf16"
    }

    fn space(&self, operation: &Operation, rows: RowBucket, target: &Target) -> Option<Space> {
        Self::shape(operation)?;
        if !NEEDED.iter().all(|f| target.features.contains(f)) {
            return None;
        }
        let most = rows.high.min(64);
        let tiles: Vec<u32> =
            [1, 2, 4, 5, 8, 10, 16, 21, 32, 64].into_iter().filter(|t| *t <= most).collect();
        Some(
            Space::default()
                .numbers("tile", &tiles)
                .choices("prefetch", &["no", "page"])
                .choices("split", &["query", "row"])
                .choices("deal", dealt(rows)),
        )
    }

    fn start(&self, operation: &Operation, rows: RowBucket, target: &Target) -> Option<Point> {
        let wanted = Point::default()
            .with("tile", rows.high.min(32).to_string())
            .with("prefetch", if rows.high > 32 { "no" } else { "page" })
            .with("split", "row")
            .with("deal", if rows.high > 8 { "4" } else { "no" });
        Some(self.space(operation, rows, target)?.project(&wanted, &wanted))
    }

    fn generate(
        &self,
        operation: &Operation,
        rows: RowBucket,
        target: &Target,
        point: &Point,
        max_rows: u32,
    ) -> Result<Generated, KernelError> {
        constants::admit(self, operation, rows, target, point)?;
        let Some(shape) = Self::shape(operation) else {
            return Err(KernelError::Unsupported {
                operation: operation.to_string(),
                what: "not attention on a bf16 cache in whole tiles".to_owned(),
            });
        };
        let tile = constants::number(self, point, "tile")?;
        let (dim, tokens) = (shape.head_dim as usize, shape.kv.block_tokens as usize);
        let query_tiles = (tile * shape.group() as usize).div_ceil(16);
        let pieces = point.get("deal").and_then(|pieces| pieces.parse().ok()).unwrap_or(0);
        let source = shape.begin(&format!("{operation}, {}, {point}", self.name()))
            + &constants::sizes(&[
                ("TILE_ROWS", tile),
                ("QUERY_TILES", query_tiles),
                ("CHUNK", CHUNK),
                ("SPLIT", if point.get("split") == Some("query") { 1 } else { shape.group() as usize }),
            ])
            + &constants::flags(&[("PREFETCH", point.get("prefetch") == Some("page"))])
            + &format!("const PIECES: u32 = {pieces};\n")
            + Isa::Avx512.source()
            + "\n"
            + TILES
            + ROWS
            + BODY
            + PARTS;
        // As `Scratch` of the source.
        let queries = query_tiles * 16;
        let tiles = query_tiles * dim / 32 + CHUNK / 32 + tokens / 16 * (dim / 32) + CHUNK / 32 * (dim / 16);
        let bytes = tiles * 1024 + queries * (dim + CHUNK + 16 + 4) * 4 + 64;
        Ok(Generated { source, launch: launch(bytes, pieces, max_rows), features: BTreeSet::from(NEEDED) })
    }

    fn numeric_class(&self, operation: &Operation) -> String {
        if Self::shape(operation).is_some() {
            format!("attention-chunks{CHUNK}/tiles")
        } else {
            "none".to_owned()
        }
    }
}
