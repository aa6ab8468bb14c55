//! Generators of attention kernels: `attention-portable` here, the vector forms in [`super::attention_vector`].

use super::prelude;
use super::small_constants as constants;
use crate::error::KernelError;
use crate::generator::{Generated, Generator};
use crate::numerics::Arith;
use evidence::{Point, Space};
use plan::{KvLayout, Launch, Operation, RowBucket, Target};
use std::collections::BTreeSet;

pub(super) const ROWS: &str = include_str!("source/attention_rows.rs");
pub(super) const PARTS: &str = include_str!("source/attention_parts.rs");
const SCALAR: &str = include_str!("source/scalar_portable.rs");
const PORTABLE: &str = include_str!("source/attention_portable.rs");

/// Most threads that attention kernels are made for.
const MAX_THREADS: u32 = 1024;

/// Shape of an attention operation that kernels can be made for.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub heads: u32,
    pub kv_heads: u32,
    pub head_dim: u32,
    pub kv: KvLayout,
    pub window: Option<u32>,
}

impl Shape {
    /// The shape, if `operation` is attention with whole groups of heads, whole pages and a window that sees a token.
    pub fn of(operation: &Operation) -> Option<Self> {
        match *operation {
            Operation::Attention { heads, kv_heads, head_dim, kv, window }
                if constants::heads_fit(heads, kv_heads, head_dim, kv) && window != Some(0) =>
            {
                Some(Self { heads, kv_heads, head_dim, kv, window })
            }
            _ => None,
        }
    }

    /// Query heads of one KV head.
    pub fn group(&self) -> u32 {
        self.heads / self.kv_heads
    }

    /// What all attention sources begin with.
    pub fn begin(&self, title: &str) -> String {
        let window = self.window.map_or("usize::MAX".to_owned(), |w| w.to_string());
        prelude::begin(title)
            + &constants::slots()
            + &constants::exp()
            + &constants::heads(self.heads, self.kv_heads, self.head_dim, self.kv)
            + &constants::floats(&[("SCALE", 1.0 / (self.head_dim as f32).sqrt())])
            + &format!("const WINDOW: usize = {window};\n")
    }
}

/// Numeric class of attention kernels.
pub(super) fn numeric_class(arith: Arith) -> String {
    format!("attention-pages/{}", arith.name())
}

/// The `deal` axis: pieces for each thread that are dealt out to whoever is free, or fixed shares.
pub(super) fn dealt(rows: RowBucket) -> &'static [&'static str] {
    if rows.high > 4 { &["no", "2", "4", "8"] } else { &["no"] }
}

/// The launch of a kernel whose threads part the work as `source/attention_parts.rs` says.
pub(super) fn launch(scratch: usize, pieces: u32, max_rows: u32) -> Launch {
    Launch {
        phases: if pieces > 0 { 2 } else { 1 },
        scratch_bytes: scratch.next_multiple_of(64) as u64,
        shared_bytes: if pieces > 0 { 64 } else { 0 },
        shared_bytes_per_row: 0,
        max_rows,
        max_threads: MAX_THREADS,
    }
}

/// Plain Rust, any architecture: one row at a time, with the query heads of a KV head (axis `share`) reading it together.
pub struct AttentionPortable;

impl Generator for AttentionPortable {
    fn name(&self) -> &'static str {
        "attention-portable"
    }

    fn space(&self, operation: &Operation, _rows: RowBucket, _target: &Target) -> Option<Space> {
        let group = Shape::of(operation)?.group();
        let shares: Vec<u32> = (1..=group).filter(|s| group.is_multiple_of(*s)).collect();
        Some(Space::default().numbers("share", &shares))
    }

    fn start(&self, operation: &Operation, _rows: RowBucket, _target: &Target) -> Option<Point> {
        Some(Point::default().with("share", Shape::of(operation)?.group().to_string()))
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
        let Some(shape) = Shape::of(operation) else {
            return Err(KernelError::Unsupported {
                operation: operation.to_string(),
                what: "not attention".to_owned(),
            });
        };
        let share = constants::number(self, point, "share")?;
        let (dim, tokens) = (shape.head_dim as usize, shape.kv.block_tokens as usize);
        let line = dim.max(tokens);
        let source = shape.begin(&format!("{operation}, portable, {point}"))
            + &constants::sizes(&[("SHARE", share), ("LINE", line)])
            + SCALAR
            + ROWS
            + PORTABLE;
        let launch = Launch {
            phases: 1,
            scratch_bytes: ((share * (dim + tokens) + line) * 4).next_multiple_of(64) as u64,
            shared_bytes: 0,
            shared_bytes_per_row: 0,
            max_rows,
            max_threads: MAX_THREADS,
        };
        Ok(Generated { source, launch, features: BTreeSet::new() })
    }

    fn numeric_class(&self, _operation: &Operation) -> String {
        numeric_class(Arith::Separate)
    }
}
