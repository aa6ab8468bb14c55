//! Activations of a linear operation as the numeric class sees them, in f64, with what is in doubt about them.

use super::{Rounding, prologue_eps};
use crate::error::KernelError;
use crate::inputs::CaseInputs;
use crate::numerics::{ACTIVATION_FLOOR, split_i16};
use crate::tolerance::{U, UNDERFLOW, rms_inverse_error};
use half::bf16;
use plan::operation::slot;
use plan::{Activation, Operation};

/// One row of activations.
#[derive(Clone, Debug)]
pub(super) struct ActivationRow {
    /// What multiplies the weights.
    pub value: Vec<f64>,
    /// Absolute doubt about each element on its own: rounding ties within reach, rounded products of the prologue.
    pub doubt: Vec<f64>,
    /// Relative doubt common to all elements: the inverse root of the prologue.
    pub common: f64,
    /// `Row16`: what the low byte of each element stands for.
    pub low: Vec<f64>,
}

/// The selected rows of `X`, after prologue and activation rounding.
pub(super) fn activations(
    operation: &Operation,
    inputs: &CaseInputs,
    rows: &[u32],
    rounding: Rounding,
) -> Result<Vec<ActivationRow>, KernelError> {
    let Operation::Linear { k, prologue, weight, activation, .. } = operation else { return Ok(vec![]) };
    let k = *k as usize;
    let x = inputs.f32(slot::X, inputs.rows as usize * k)?;
    let norm = match prologue_eps(prologue) {
        Some(eps) => Some((eps, inputs.f32(slot::NORM, k)?)),
        None => None,
    };
    let class = Class {
        activation: *activation,
        group: if *activation == Activation::Row16 { k } else { weight.group(k) },
        rounding,
    };
    Ok(rows.iter().map(|r| class.row(&x[*r as usize * k..][..k], norm)).collect())
}

struct Class {
    activation: Activation,
    group: usize,
    rounding: Rounding,
}

impl Class {
    fn row(&self, x: &[f32], norm: Option<(f32, &[f32])>) -> ActivationRow {
        let x: Vec<f64> = x.iter().map(|v| *v as f64).collect();
        // Relative doubt: `own` for each element, `common` for all of them alike.
        let (value, own, common) = match norm {
            None => (x, 0.0, 0.0),
            Some((eps, weight)) => {
                let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
                let inverse = 1.0 / (mean + eps as f64).sqrt();
                let y = x.iter().zip(weight).map(|(x, w)| x * inverse * *w as f64).collect();
                (y, 2.0 * U, rms_inverse_error(x.len()) + UNDERFLOW / (mean + eps as f64))
            }
        };
        match self.activation {
            Activation::Row16 => {
                let most = value.iter().fold(0.0f64, |m, v| m.max(v.abs()));
                let mut row = self.grouped(value, 16256.0, own, common);
                let d = most / 16256.0;
                let low = |v: &f64| f64::from(split_i16((v / d).round() as i32).1) * d;
                row.low =
                    if most > 0.0 { row.value.iter().map(low).collect() } else { vec![0.0; row.value.len()] };
                row
            }
            Activation::F32 => {
                let doubt = value.iter().map(|v| own * v.abs()).collect();
                ActivationRow { value, doubt, common, low: vec![] }
            }
            Activation::I8 => self.grouped(value, 127.0, own, common),
            Activation::I16 => self.grouped(value, 16256.0, own, common),
            Activation::Bf16 => self.bf16(value, own + common),
        }
    }

    /// Symmetric integers in groups. The common factor cancels in `x / d`; what is left of it scales the whole row.
    fn grouped(&self, x: Vec<f64>, limit: f64, own: f64, common: f64) -> ActivationRow {
        let mut row = ActivationRow {
            value: Vec::with_capacity(x.len()),
            doubt: Vec::with_capacity(x.len()),
            common,
            low: vec![],
        };
        // Element and maximum each carry `own`; d, 1/d and their product with x are rounded.
        let ratio_doubt = 2.0 * own + 4.0 * U;
        let floor = ACTIVATION_FLOOR as f64;
        for group in x.chunks(self.group) {
            let max = group.iter().fold(0.0f64, |m, v| m.max(v.abs()));
            let d = max / limit;
            for v in group {
                let (value, doubt) = if self.rounding == Rounding::None {
                    (
                        *v,
                        d / 2.0
                            + (ratio_doubt + own) * v.abs()
                            + if max < 2.0 * floor { v.abs() } else { 0.0 },
                    )
                } else if max < floor * (1.0 - 1e-4) || max == 0.0 {
                    (0.0, 0.0)
                } else if max < floor * (1.0 + 1e-4) {
                    (*v, 2.0 * max)
                } else {
                    let t = v / d;
                    let near_tie = (t.abs().fract() - 0.5).abs() <= ratio_doubt * t.abs() && t.abs() < limit;
                    if near_tie && own == 0.0 {
                        // The inputs are f32 values: the class itself says how the tie falls.
                        let inverse = 1.0 / (max as f32 / limit as f32);
                        ((*v as f32 * inverse).round_ties_even() as f64 * d, 0.0)
                    } else {
                        (t.round_ties_even() * d, if near_tie { d } else { 0.0 })
                    }
                };
                row.value.push(value);
                row.doubt.push(doubt);
            }
        }
        row
    }

    /// Rounded to bf16; both neighbours count where the f32 value may round to either.
    fn bf16(&self, x: Vec<f64>, relative: f64) -> ActivationRow {
        let round = |v: f64| {
            // Not `from_f64`, which forgets the lower half of the bits and so takes for ties what are none.
            let y = bf16::from_f32(v as f32).to_f64();
            if y.abs() < UNDERFLOW { 0.0 } else { y }
        };
        let mut row = ActivationRow {
            value: Vec::with_capacity(x.len()),
            doubt: Vec::with_capacity(x.len()),
            common: 0.0,
            low: vec![],
        };
        for v in x {
            let (low, high) = (round(v * (1.0 - relative)), round(v * (1.0 + relative)));
            if self.rounding == Rounding::None {
                row.value.push(v);
                row.doubt.push((v - low).abs().max((v - high).abs()));
            } else {
                row.value.push(round(v));
                row.doubt.push((high - low).abs());
            }
        }
        row
    }
}
