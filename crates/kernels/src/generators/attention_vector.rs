//! Generators of attention kernels with vectors: `attention-avx512` and `attention-avx2`, one source for both.

use super::attention::{PARTS, ROWS, Shape, dealt, launch, numeric_class};
use super::small_constants as constants;
use super::small_vector::Isa;
use crate::error::KernelError;
use crate::generator::{Generated, Generator};
use crate::numerics::Arith;
use evidence::{Point, Space};
use plan::{KvDtype, Operation, RowBucket, Target};

const BODY: &str = include_str!("source/attention_vector.rs");

/// Attention with the vectors of one instruction set. Axes:
///
/// * `register`: queries (rows times heads of one KV head) that share each load in registers;
/// * `tile`: rows of one sequence that go through the pages together, sharing what the caches hold;
/// * `stage`: whether tiles of more than `register` queries widen a page to f32 once, in scratch;
/// * `prefetch`: what is asked for line by line while keys and values are read: nothing (`no`), the values of the same
///   page and the keys of the next one (`near`), or keys and values of the next page (`page`); staged pages ask for none;
/// * `split`: whether threads part at any query (`query`: best balance) or only between rows (`row`);
/// * `deal`: pieces for each thread that are dealt out to whoever is free, or fixed shares (`no`).
pub struct AttentionVector {
    pub isa: Isa,
}

/// Values of a point.
struct Choice {
    register: usize,
    tile: usize,
    stage: bool,
    prefetch: usize,
    split: usize,
    pieces: u32,
}

/// Rows that a bucket can hold, as far as tiles reach.
fn most_rows(rows: RowBucket) -> u32 {
    rows.high.min(64)
}

impl AttentionVector {
    fn shape(&self, operation: &Operation, target: &Target) -> Option<Shape> {
        let shape = Shape::of(operation)?;
        (self.isa.present(target) && shape.head_dim.is_multiple_of(16)).then_some(shape)
    }

    fn registers(&self, shape: &Shape, rows: RowBucket) -> Vec<u32> {
        let all: &[u32] = match self.isa {
            Isa::Avx512 => &[3, 4, 6, 8, 12],
            Isa::Avx2 => &[2, 3, 4, 6],
        };
        let most = most_rows(rows).saturating_mul(shape.group());
        all.iter().copied().filter(|r| *r <= most.max(all[0])).collect()
    }

    fn choice(&self, point: &Point, shape: &Shape) -> Result<Choice, KernelError> {
        let number = |axis| constants::number(self, point, axis);
        let (tile, group) = (number("tile")?, shape.group() as usize);
        Ok(Choice {
            register: number("register")?.min(tile * group),
            tile,
            stage: point.get("stage") == Some("yes"),
            prefetch: ["no", "near", "page"]
                .into_iter()
                .position(|p| point.get("prefetch") == Some(p))
                .unwrap_or(0),
            split: if point.get("split") == Some("query") { 1 } else { group },
            pieces: point.get("deal").and_then(|pieces| pieces.parse().ok()).unwrap_or(0),
        })
    }
}

/// Sizes of register tiles, largest first, that make up any number of queries: the whole, half of it, the heads of one
/// row, and small rests.
fn ladder(register: usize, group: usize) -> Vec<usize> {
    let mut sizes = vec![register, register / 2, group, 3, 2, 1];
    sizes.retain(|n| (1..=register).contains(n));
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    sizes.dedup();
    sizes
}

/// The function that cuts queries into register tiles. Plain loops, since a `match` could become a jump table.
fn tiles(sizes: &[usize]) -> String {
    let steps: String = sizes
        .iter()
        .map(|n| {
            format!(
                "        while count - at >= {n} {{\n            tile::<{n}, STAGED>(s, page, at);\n            at += {n};\n        }}\n"
            )
        })
        .collect();
    format!(
        "\n/// One page for `count` queries.\n#[inline(always)]\nunsafe fn tiles<const STAGED: bool>(s: *mut Scratch, page: &Page, count: usize) {{\n    unsafe {{\n        let mut at = 0;\n{steps}    }}\n}}\n"
    )
}

impl Generator for AttentionVector {
    fn name(&self) -> &'static str {
        match self.isa {
            Isa::Avx512 => "attention-avx512",
            Isa::Avx2 => "attention-avx2",
        }
    }

    fn space(&self, operation: &Operation, rows: RowBucket, target: &Target) -> Option<Space> {
        let shape = self.shape(operation, target)?;
        let tiles: Vec<u32> =
            [1, 2, 4, 8, 16, 32, 64].into_iter().filter(|t| *t <= most_rows(rows)).collect();
        let staged = shape.kv.dtype != KvDtype::F32 && rows.high > 1;
        Some(
            Space::default()
                .numbers("register", &self.registers(&shape, rows))
                .numbers("tile", &tiles)
                .choices("stage", if staged { &["no", "yes"] } else { &["no"] })
                .choices("prefetch", &["no", "near", "page"])
                .choices("split", &["query", "row"])
                .choices("deal", dealt(rows)),
        )
    }

    fn start(&self, operation: &Operation, rows: RowBucket, target: &Target) -> Option<Point> {
        let shape = self.shape(operation, target)?;
        // Tiles as tall as the bucket, while queries and outputs of a tile fit beside two pages into a small L2.
        let bytes = shape.group() * shape.head_dim * 8;
        let tile =
            (0..7).map(|p| 1 << p).rfind(|t| *t <= most_rows(rows) && t * bytes <= 128 << 10).unwrap_or(1);
        let wanted = Point::default()
            .with("register", if self.isa == Isa::Avx512 && rows.high <= 4 { "12" } else { "6" })
            .with("tile", tile.to_string())
            .with("stage", if shape.kv.dtype != KvDtype::F32 && rows.high > 4 { "yes" } else { "no" })
            .with("prefetch", "near")
            .with("split", "query")
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
        let Some(shape) = self.shape(operation, target) else {
            return Err(KernelError::Unsupported {
                operation: operation.to_string(),
                what: "not attention".to_owned(),
            });
        };
        let choice = self.choice(point, &shape)?;
        let (dim, tokens) = (shape.head_dim as usize, shape.kv.block_tokens as usize);
        let queries = choice.tile * shape.group() as usize;
        let stage = if choice.stage { dim * tokens } else { 0 };
        let source = shape.begin(&format!("{operation}, {}, {point}", self.name()))
            + &constants::sizes(&[
                ("TILE_ROWS", choice.tile),
                ("QUERIES", queries),
                ("REGISTER_QUERIES", choice.register),
                ("STAGE", stage),
                ("SPLIT", choice.split),
                ("PREFETCH", choice.prefetch),
            ])
            + &format!("const PIECES: u32 = {};\n", choice.pieces)
            + self.isa.source()
            + ROWS
            + BODY
            + PARTS
            + &tiles(&ladder(choice.register, shape.group() as usize));
        let elements = 2 * queries * dim + choice.register * tokens + 2 * stage + 4 * queries;
        let launch = launch(elements * 4, choice.pieces, max_rows);
        Ok(Generated { source, launch, features: self.isa.features() })
    }

    fn numeric_class(&self, _operation: &Operation) -> String {
        numeric_class(Arith::Fused)
    }
}

#[cfg(test)]
mod tests {
    use super::ladder;

    #[test]
    fn ladders_reach_every_count() {
        assert_eq!(ladder(12, 3), [12, 6, 3, 2, 1]);
        assert_eq!(ladder(12, 7), [12, 7, 6, 3, 2, 1]);
        assert_eq!(ladder(8, 4), [8, 4, 3, 2, 1]);
        assert_eq!(ladder(1, 8), [1]);
    }
}
