//! Freivalds' check of a linear output: one random projection of all its columns in f64.
//!
//! For random signs `r` over the columns, drawn after the output was written, `y . r` must equal `x . (W^T r)`. Signs are
//! independent of the errors, so an honest row departs by at most `sqrt(2 ln(2 / p) * sum error_n^2)` but for
//! probability `p` (Hoeffding), here 1e-12. A row with wrong columns departs by the size of their errors' norm.

use super::activation::activations;
use super::weights::{group_at, weight_at};
use super::{Rounding, supported};
use crate::error::KernelError;
use crate::inputs::CaseInputs;
use crate::tolerance::U;
use plan::operation::slot;
use plan::{Activation, Epilogue, Operation, WeightFormat, Zero};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// `sqrt(2 ln(2 / 1e-12))`.
const HOEFFDING: f64 = 7.53;

/// A drawn projection of one weight matrix.
#[derive(Clone, Debug)]
pub struct Freivalds {
    operation: Operation,
    /// Signs over the columns.
    signs: Vec<f64>,
    /// `W^T r`, `[k]`.
    projected: Vec<f64>,
    /// Frobenius norm of the terms that kernels sum (`|scale| q + |min|` for stored minima in integer classes).
    norm: f64,
}

/// One checked row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Projection {
    pub row: u32,
    /// `|y . r - x . (W^T r)|`; infinite or NaN outputs make it so.
    pub difference: f64,
    pub tolerance: f64,
}

impl Projection {
    /// Whether the row passes; never for NaN.
    pub fn passes(&self) -> bool {
        self.difference <= self.tolerance
    }
}

impl Freivalds {
    /// Draws the signs from a secret seed and projects the weights once (`n * k` steps).
    ///
    /// Errors: operations other than linear with `Store` or `Add`.
    pub fn new(operation: &Operation, weights: &[u8], seed: u64) -> Result<Self, KernelError> {
        supported(operation)?;
        let unsupported = || KernelError::Unsupported {
            operation: operation.to_string(),
            what: "only plain linear outputs can be projected".into(),
        };
        let Operation::Linear { n, k, epilogue: Epilogue::Store | Epilogue::Add, weight, activation, .. } = operation else {
            return Err(unsupported());
        };
        let (n, k) = (*n as usize, *k as usize);
        let integers = matches!(activation, Activation::I8 | Activation::I16);
        if weights.len() != weight.bytes(n, k) {
            let what = format!("{} bytes are due, found {}", weight.bytes(n, k), weights.len());
            return Err(KernelError::Case { slot: "W", what });
        }
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let signs: Vec<f64> = (0..n).map(|_| if rng.random::<bool>() { 1.0 } else { -1.0 }).collect();
        let mut projected = vec![0.0f64; k];
        let mut squares = 0.0f64;
        for (row, sign) in signs.iter().enumerate() {
            for (i, p) in projected.iter_mut().enumerate() {
                let w = weight_at(weight, k, weights, row, i);
                *p += sign * w;
                let term = match weight.format {
                    WeightFormat::Affine { group, zero: Zero::Stored, .. } if integers => {
                        let (_, min) = group_at(weight, k, weights, row, i / group as usize);
                        (w - min).abs() + min.abs()
                    }
                    _ => w.abs(),
                };
                squares += term * term;
            }
        }
        Ok(Self { operation: *operation, signs, projected, norm: squares.sqrt() })
    }

    /// Checks rows of an output `[rows][n]` against the inputs of the call.
    pub fn check(&self, inputs: &CaseInputs, out: &[f32], rows: &[u32]) -> Result<Vec<Projection>, KernelError> {
        let n = self.signs.len();
        if out.len() != inputs.rows as usize * n || rows.iter().any(|r| *r >= inputs.rows) {
            let what = format!("{} elements where [{}][{n}] are due", out.len(), inputs.rows);
            return Err(KernelError::Case { slot: "OUT", what });
        }
        let adds = matches!(self.operation, Operation::Linear { epilogue: Epilogue::Add, .. });
        let before = if adds { Some(inputs.f32(slot::OUT, out.len())?) } else { None };
        let activations = activations(&self.operation, inputs, rows, Rounding::Class)?;
        let check_row = |(row, x): (&u32, &super::activation::ActivationRow)| {
            let at = *row as usize * n;
            let y = &out[at..at + n];
            let dot = |y: &[f32]| y.iter().zip(&self.signs).map(|(y, r)| *y as f64 * r).sum::<f64>();
            let old = before.map_or(0.0, |b| dot(&b[at..at + n]));
            let want: f64 = x.value.iter().zip(&self.projected).map(|(x, p)| x * p).sum();
            let doubt: f64 = x.doubt.iter().zip(&self.projected).map(|(d, p)| d * p.abs()).sum();
            let size = x.value.iter().map(|x| x * x).sum::<f64>().sqrt();
            let added = if adds { U * y.iter().map(|y| (*y as f64).powi(2)).sum::<f64>().sqrt() } else { 0.0 };
            let arithmetic = self.roundings() * U * size * self.norm + added;
            let tolerance = HOEFFDING * arithmetic + doubt + x.common * want.abs() + 1e-30;
            Projection { row: *row, difference: (dot(y) - old - want).abs(), tolerance }
        };
        Ok(rows.iter().zip(&activations).map(check_row).collect())
    }

    /// Roundings of one column in units of `|x| |w|` (Cauchy-Schwarz bounds every partial sum by it).
    fn roundings(&self) -> f64 {
        let Operation::Linear { k, weight, activation, .. } = &self.operation else { return 0.0 };
        match activation {
            Activation::I8 | Activation::I16 => 2.0 * (*k as f64 / weight.group(*k as usize) as f64) + 12.0,
            Activation::F32 | Activation::Bf16 => *k as f64 + 3.0,
        }
    }
}
