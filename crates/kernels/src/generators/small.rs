//! Generators of the small operations (RopeKv, RmsNorm, SiluGate): `small-portable` here, the vector forms in
//! [`super::small_vector`].

use super::prelude;
use super::small_constants as constants;
use crate::error::KernelError;
use crate::generator::{Generated, Generator};
use crate::numerics::Arith;
use evidence::{Point, Space};
use plan::{Launch, Operation, RowBucket, Target};
use std::collections::BTreeSet;

const SHARE: &str = include_str!("source/small_share.rs");
const SCALAR: &str = include_str!("source/scalar_portable.rs");
const ROPE: &str = include_str!("source/small_rope_portable.rs");
const RMSNORM: &str = include_str!("source/small_rmsnorm_portable.rs");
const SILU: &str = include_str!("source/small_silu_portable.rs");

/// Most threads that small kernels are made for.
const MAX_THREADS: u32 = 1024;

/// Whether the operation is one of the three, with a shape that kernels can be made for.
pub(super) fn applies(operation: &Operation) -> bool {
    match operation {
        Operation::RopeKv(q) => constants::heads_fit(q.heads, q.kv_heads, q.head_dim, q.kv),
        Operation::RmsNorm { width, .. } => *width > 0,
        Operation::SiluGate { ffn } => *ffn > 0,
        _ => false,
    }
}

/// The space of all forms. RMSNorm: calls of `columns` rows or fewer are split by columns, others by rows.
pub(super) fn space(operation: &Operation, rows: RowBucket) -> Space {
    match operation {
        Operation::RmsNorm { .. } => {
            let limits: Vec<u32> = [0, 1, 2, 4, 8].into_iter().filter(|c| *c <= rows.high).collect();
            Space::default().numbers("columns", &limits)
        }
        _ => Space::default(),
    }
}

/// The start of all forms: only what cannot be split by rows is split by columns.
pub(super) fn start(operation: &Operation) -> Point {
    match operation {
        Operation::RmsNorm { .. } => Point::default().with("columns", "1"),
        _ => Point::default(),
    }
}

/// What all sources begin with.
pub(super) fn begin(
    generator: &dyn Generator,
    operation: &Operation,
    point: &Point,
) -> Result<String, KernelError> {
    let mut text = prelude::begin(&format!("{operation}, {}, {point}", generator.name()));
    text += &constants::slots();
    text += &constants::exp();
    text += &match operation {
        Operation::RopeKv(q) => constants::rope(q),
        Operation::RmsNorm { width, eps_bits } => {
            let columns = constants::number(generator, point, "columns")?;
            constants::sizes(&[("WIDTH", *width as usize), ("COLUMN_ROWS", columns)])
                + &constants::floats(&[("EPS", f32::from_bits(*eps_bits))])
        }
        Operation::SiluGate { ffn } => constants::sizes(&[("FFN", *ffn as usize)]),
        _ => String::new(),
    };
    Ok(text + SHARE)
}

/// Launch of all small kernels: one phase, no scratch.
pub(super) fn launch(max_rows: u32) -> Launch {
    Launch {
        phases: 1,
        scratch_bytes: 0,
        shared_bytes: 0,
        shared_bytes_per_row: 0,
        max_rows,
        max_threads: MAX_THREADS,
    }
}

/// Numeric class of a small kernel.
pub(super) fn numeric_class(operation: &Operation, arith: Arith) -> String {
    format!("{}/{}", operation.kind(), arith.name())
}

/// Plain Rust, any architecture.
pub struct SmallPortable;

impl Generator for SmallPortable {
    fn name(&self) -> &'static str {
        "small-portable"
    }

    fn space(&self, operation: &Operation, rows: RowBucket, _target: &Target) -> Option<Space> {
        applies(operation).then(|| space(operation, rows))
    }

    fn start(&self, operation: &Operation, _rows: RowBucket, _target: &Target) -> Option<Point> {
        applies(operation).then(|| start(operation))
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
        let body = match operation {
            Operation::RopeKv(_) => ROPE,
            Operation::RmsNorm { .. } => RMSNORM,
            _ => SILU,
        };
        let source = begin(self, operation, point)? + SCALAR + body;
        Ok(Generated { source, launch: launch(max_rows), features: BTreeSet::new() })
    }

    fn numeric_class(&self, operation: &Operation) -> String {
        numeric_class(operation, Arith::Separate)
    }
}

/// The scalar arithmetic of portable kernels, compiled here too, against the standard library and `half`.
#[cfg(test)]
#[allow(dead_code)]
mod scalar {
    use crate::numerics::{Arith, EXP_HIGH, EXP_LOW, EXP_POLY, LN2_HIGH, LN2_LOW, LOG2_E, Lanes};

    const ROUND: f32 = 12_582_912.0;
    const EXP_C0: f32 = EXP_POLY[0];
    const EXP_C1: f32 = EXP_POLY[1];
    const EXP_C2: f32 = EXP_POLY[2];
    const EXP_C3: f32 = EXP_POLY[3];
    const EXP_C4: f32 = EXP_POLY[4];
    const EXP_C5: f32 = EXP_POLY[5];
    const EXP_C6: f32 = EXP_POLY[6];

    include!("source/scalar_portable.rs");

    /// Bit patterns all over the range, every 65,521st.
    fn some_floats() -> impl Iterator<Item = f32> {
        (0..u32::MAX / 65_521).map(|i| f32::from_bits(i * 65_521))
    }

    #[test]
    fn half_precision_is_exact() {
        for h in 0..=u16::MAX {
            let want = half::f16::from_bits(h).to_f32();
            assert!(f16_to_f32(h).to_bits() == want.to_bits() || want.is_nan(), "{h:#x}");
            assert!(!want.is_nan() || f16_to_f32(h).is_nan());
            if !want.is_nan() {
                assert_eq!(f32_to_f16(want), h);
                // Halfway to the next number, and to either side of that.
                let next = half::f16::from_bits(h.wrapping_add(1)).to_f32();
                if next.is_finite() && want.is_finite() {
                    let middle = ((want as f64 + next as f64) / 2.0) as f32;
                    for x in [middle.next_down(), middle, middle.next_up()] {
                        assert_eq!(f32_to_f16(x), half::f16::from_f32(x).to_bits(), "{x:e}");
                    }
                }
            }
        }
        for x in some_floats() {
            assert_eq!(f32_to_f16(x), half::f16::from_f32(x).to_bits(), "{x:e}");
            assert_eq!(f32_to_bf16(x), half::bf16::from_f32(x).to_bits(), "{x:e}");
        }
    }

    #[test]
    fn roots_and_powers_are_exact() {
        let edges = [0.0, 1e-45, 1e-40, f32::MIN_POSITIVE, f32::MAX, f32::INFINITY, 1.0, 2.0, 4.0];
        for x in some_floats().chain(edges) {
            let (got, want) = (sqrt(x), x.sqrt());
            assert!(got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()), "sqrt {x:e}");
            let (got, want) = (exp(x), crate::numerics::exp(Arith::Separate, x));
            assert!(got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()), "exp {x:e}");
        }
        let lanes = std::array::from_fn(|i| 1.0 / (i as f32 + 3.0));
        assert_eq!(total(&lanes).to_bits(), Lanes(lanes).total().to_bits());
    }
}
