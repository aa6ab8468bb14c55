//! Freivalds' check of a linear output: a few random projections of all its columns in f64.
//!
//! For random signs `r` over the columns, drawn after the output was written, `y . r` must equal `x . (W^T r)`. Signs are
//! independent of the errors, so a projection of an honest row departs by at most `sqrt(2 ln(2 / p) * sum error_n^2)`
//! but for probability `p` (Hoeffding), here 1e-12. A row with wrong columns departs by the size of their errors' norm.

use super::activation::{ActivationRow, activations};
use super::weights::{group_at, weights_for, wide_low, wide_of};
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

/// Independent projections of a matrix: a wrong row that one of them cannot see will not escape all.
const PROJECTIONS: usize = 4;

/// Drawn projections of one weight matrix.
#[derive(Clone, Debug)]
pub struct Freivalds {
    operation: Operation,
    /// Signs over the columns.
    signs: Vec<[f64; PROJECTIONS]>,
    /// `W^T r`, `[k]`.
    projected: Vec<[f64; PROJECTIONS]>,
    /// The same of what low bytes stand for (`Row16`), or nothing.
    lows: Vec<[f64; PROJECTIONS]>,
    /// Frobenius norm of the units of columns (`Row16`).
    units: f64,
    /// Frobenius norm of the terms that kernels sum (`|scale| q + |min|` for stored minima in integer classes).
    norm: f64,
}

/// One checked row: the projection in which it departs most.
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

    fn worse(self, other: Self) -> Self {
        if !other.passes() || other.difference / other.tolerance > self.difference / self.tolerance {
            other
        } else {
            self
        }
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
        let Operation::Linear { n, k, epilogue: Epilogue::Store | Epilogue::Add, weight, activation, .. } =
            operation
        else {
            return Err(unsupported());
        };
        let (n, k) = (*n as usize, *k as usize);
        let integers = matches!(activation, Activation::I8 | Activation::I16);
        if weights.len() != weight.bytes(n, k) {
            let what = format!("{} bytes are due, found {}", weight.bytes(n, k), weights.len());
            return Err(KernelError::Case { slot: "W", what });
        }
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut sign = || if rng.random::<bool>() { 1.0 } else { -1.0 };
        let signs: Vec<[f64; PROJECTIONS]> = (0..n).map(|_| std::array::from_fn(|_| sign())).collect();
        let mut projected = vec![[0.0f64; PROJECTIONS]; k];
        let wide = *activation == Activation::Row16;
        let mut lows = vec![[0.0f64; PROJECTIONS]; if wide { k } else { 0 }];
        let mut squares = 0.0f64;
        let mut units = 0.0f64;
        for (row, sign) in signs.iter().enumerate() {
            let w = weights_for(weight, *activation, k, weights, row);
            for (p, w) in projected.iter_mut().zip(&w) {
                for (p, sign) in p.iter_mut().zip(sign) {
                    *p += sign * w;
                }
            }
            if wide {
                let (unit, whole) = wide_of(weight, k, weights, row);
                units += unit * unit;
                for (low, w) in lows.iter_mut().zip(whole) {
                    for (low, sign) in low.iter_mut().zip(sign) {
                        *low += sign * unit * wide_low(w);
                    }
                }
            }
            squares += match weight.format {
                WeightFormat::Affine { group, zero: Zero::Stored, .. } if integers => {
                    let term = |(g, w): (usize, &[f64])| {
                        let (_, min) = group_at(weight, k, weights, row, g);
                        w.iter().map(|w| ((w - min).abs() + min.abs()).powi(2)).sum::<f64>()
                    };
                    w.chunks(group as usize).enumerate().map(term).sum::<f64>()
                }
                _ => w.iter().map(|w| w * w).sum::<f64>(),
            };
        }
        Ok(Self { operation: *operation, signs, projected, lows, units: units.sqrt(), norm: squares.sqrt() })
    }

    /// Checks rows of an output `[rows][n]` against the inputs of the call.
    pub fn check(
        &self,
        inputs: &CaseInputs,
        out: &[f32],
        rows: &[u32],
    ) -> Result<Vec<Projection>, KernelError> {
        let n = self.signs.len();
        if out.len() != inputs.rows as usize * n || rows.iter().any(|r| *r >= inputs.rows) {
            let what = format!("{} elements where [{}][{n}] are due", out.len(), inputs.rows);
            return Err(KernelError::Case { slot: "OUT", what });
        }
        let adds = matches!(self.operation, Operation::Linear { epilogue: Epilogue::Add, .. });
        let before = if adds { Some(inputs.f32(slot::OUT, out.len())?) } else { None };
        let activations = activations(&self.operation, inputs, rows, Rounding::Class)?;
        let check_row = |(row, x): (&u32, &ActivationRow)| {
            let at = *row as usize * n..(*row as usize + 1) * n;
            let each = (0..PROJECTIONS)
                .map(|p| self.project(p, *row, x, &out[at.clone()], before.map(|b| &b[at.clone()])));
            each.reduce(Projection::worse).unwrap_or(Projection {
                row: *row,
                difference: f64::NAN,
                tolerance: 0.0,
            })
        };
        Ok(rows.iter().zip(&activations).map(check_row).collect())
    }

    /// Projection `p` of one row `y`; `before` is what the operation added to.
    fn project(
        &self,
        p: usize,
        row: u32,
        x: &ActivationRow,
        y: &[f32],
        before: Option<&[f32]>,
    ) -> Projection {
        let dot = |y: &[f32]| y.iter().zip(&self.signs).map(|(y, r)| *y as f64 * r[p]).sum::<f64>();
        let norm = |y: &[f32]| y.iter().map(|y| (*y as f64).powi(2)).sum::<f64>().sqrt();
        let dropped: f64 = x.low.iter().zip(&self.lows).map(|(x, w)| x * w[p]).sum();
        let want: f64 = x.value.iter().zip(&self.projected).map(|(x, w)| x * w[p]).sum::<f64>() - dropped;
        let mut doubt: f64 = x.doubt.iter().zip(&self.projected).map(|(d, w)| d * w[p].abs()).sum();
        if !self.lows.is_empty() {
            // A step that carries moves a low byte by up to 127, against low bytes of weights of random sign.
            doubt += HOEFFDING * x.doubt.iter().sum::<f64>() * 127.0 * 128.0 * self.units;
        }
        let size = x.value.iter().map(|x| x * x).sum::<f64>().sqrt();
        let added = before.map_or(0.0, |_| U * norm(y));
        let arithmetic = self.roundings() * U * size * self.norm + added;
        let tolerance = HOEFFDING * arithmetic + doubt + x.common * want.abs() + 1e-30;
        Projection { row, difference: (dot(y) - before.map_or(0.0, dot) - want).abs(), tolerance }
    }

    /// Roundings of one column in units of `|x| |w|` (Cauchy-Schwarz bounds every partial sum by it).
    fn roundings(&self) -> f64 {
        let Operation::Linear { k, weight, activation, .. } = &self.operation else { return 0.0 };
        match activation {
            Activation::I8 | Activation::I16 => 2.0 * (*k as f64 / weight.group(*k as usize) as f64) + 12.0,
            Activation::Row16 => 12.0,
            Activation::F32 | Activation::Bf16 => *k as f64 + 3.0,
        }
    }
}
