//! Generators of the small operations with vectors: `small-avx512` and `small-avx2`, one source for both.

use super::small::{applies, begin, launch, numeric_class, space, start};
use super::small_constants as constants;
use crate::error::KernelError;
use crate::generator::{Generated, Generator};
use crate::numerics::Arith;
use evidence::{Point, Space};
use plan::{Feature, Operation, RowBucket, Target};
use std::collections::BTreeSet;

const AVX512: &str =
    concat!(include_str!("source/vector_avx512.rs"), include_str!("source/vector_shared.rs"));
const AVX2: &str = concat!(include_str!("source/vector_avx2.rs"), include_str!("source/vector_shared.rs"));
const ROPE: &str = include_str!("source/small_rope_vector.rs");
const RMSNORM: &str = include_str!("source/small_rmsnorm_vector.rs");
const SILU: &str = include_str!("source/small_silu_vector.rs");

/// Instruction set of a vector form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    Avx2,
    Avx512,
}

impl Isa {
    fn feature(self) -> Feature {
        match self {
            Isa::Avx2 => Feature::Avx2,
            Isa::Avx512 => Feature::Avx512,
        }
    }

    /// Whether the target has it.
    pub(super) fn present(self, target: &Target) -> bool {
        target.arch == "x86_64" && target.features.contains(&self.feature())
    }

    /// What its kernels need.
    pub(super) fn features(self) -> BTreeSet<Feature> {
        BTreeSet::from([self.feature()])
    }

    /// Its vectors, as source: type `V` of `W` lanes and the functions on it.
    pub(super) fn source(self) -> &'static str {
        match self {
            Isa::Avx2 => AVX2,
            Isa::Avx512 => AVX512,
        }
    }

    /// Lanes of a vector.
    fn lanes(self) -> u32 {
        match self {
            Isa::Avx2 => 8,
            Isa::Avx512 => 16,
        }
    }
}

/// The three small operations with the vectors of one instruction set. Widths are multiples of 16, halves of heads of
/// the lanes of a vector.
pub struct SmallVector {
    pub isa: Isa,
}

impl SmallVector {
    fn applies(&self, operation: &Operation, target: &Target) -> bool {
        let fits = match operation {
            Operation::RopeKv(q) => {
                q.head_dim.is_multiple_of(16) && (q.head_dim / 2).is_multiple_of(self.isa.lanes())
            }
            Operation::RmsNorm { width, .. } => width.is_multiple_of(16),
            Operation::SiluGate { ffn } => ffn.is_multiple_of(16),
            _ => false,
        };
        fits && applies(operation) && self.isa.present(target)
    }
}

impl Generator for SmallVector {
    fn name(&self) -> &'static str {
        match self.isa {
            Isa::Avx512 => "small-avx512",
            Isa::Avx2 => "small-avx2",
        }
    }

    fn space(&self, operation: &Operation, rows: RowBucket, target: &Target) -> Option<Space> {
        self.applies(operation, target).then(|| space(operation, rows))
    }

    fn start(&self, operation: &Operation, _rows: RowBucket, target: &Target) -> Option<Point> {
        self.applies(operation, target).then(|| start(operation))
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
        let source = begin(self, operation, point)? + self.isa.source() + body;
        Ok(Generated { source, launch: launch(max_rows), features: self.isa.features() })
    }

    fn numeric_class(&self, operation: &Operation) -> String {
        numeric_class(operation, Arith::Fused)
    }
}
