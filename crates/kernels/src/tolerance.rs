//! Error bounds of honest f32 arithmetic, derived, not guessed.
//!
//! The oracle evaluates an operation in f64 on the stored inputs, with activations rounded as the numeric class says
//! (that rounding is part of the contract), and carries with every value a bound on what the f32 arithmetic of the
//! class may differ from it: running error analysis (Higham, *Accuracy and Stability of Numerical Algorithms*,
//! 3.3), in which each rounded operation adds `U` times the size of its result. The bounds hold for both variants of
//! [`crate::numerics::Arith`]. Where the activation rounding itself is in doubt (an f32 value within its own error
//! of a rounding tie), the bound takes in both outcomes.

/// Unit roundoff of f32, nearest: `2^-24`.
pub const U: f64 = 1.0 / (1 << 24) as f64;
/// Relative error of [`crate::numerics::exp`] inside its range (a test measures below 2 `U`).
pub const EXP_ERROR: f64 = 2.0 * U;
/// Absolute error that underflow may add to an operation, flushed denormals included.
pub const UNDERFLOW: f64 = f32::MIN_POSITIVE as f64;

/// A value in f64 with a bound on the error of an honest kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bounded {
    pub value: f64,
    /// `|kernel - value| <= error`.
    pub error: f64,
}

impl Bounded {
    /// A value that kernels hold exactly.
    pub fn exact(value: f64) -> Self {
        Self { value, error: 0.0 }
    }

    /// The same after `roundings` f32 roundings of its size.
    pub fn rounded(self, roundings: f64) -> Self {
        Self { value: self.value, error: self.error + roundings * U * (self.value.abs() + self.error) }
    }

    /// Product with one rounding.
    pub fn times(self, other: Self) -> Self {
        let error =
            self.value.abs() * other.error + other.value.abs() * self.error + self.error * other.error;
        Self { value: self.value * other.value, error }.rounded(1.0)
    }

    /// Sum with one rounding.
    pub fn plus(self, other: Self) -> Self {
        Self { value: self.value + other.value, error: self.error + other.error }.rounded(1.0)
    }

    /// Whether an output is within the bound (never for NaN).
    pub fn admits(self, got: f32) -> bool {
        (got as f64 - self.value).abs() <= self.error
    }

    /// The error of an output in units of the bound; infinite for NaN and for any error where the bound is 0.
    pub fn ratio(self, got: f32) -> f64 {
        let error = (got as f64 - self.value).abs();
        if error == 0.0 {
            0.0
        } else if error.is_nan() {
            f64::INFINITY
        } else {
            error / self.error
        }
    }
}

/// Relative error of the computed `1 / sqrt(mean(x^2) + eps)` for exact inputs of this width.
///
/// Each of the 16 lanes adds `width / 16` positive terms (product and sum rounded), the tree four more; divide and
/// eps follow. The root halves all that; root and reciprocal add one rounding each.
pub fn rms_inverse_error(width: usize) -> f64 {
    (((width.div_ceil(16) + 7) as f64) / 2.0 + 2.0) * U * 1.01
}

/// RMSNorm of values that carry errors themselves; weights are exact. Returns the normalised values.
pub fn rms_norm(x: &[Bounded], weight: &[f32], eps: f32) -> Vec<Bounded> {
    let n = x.len() as f64;
    let mean = x.iter().map(|x| x.value * x.value).sum::<f64>() / n;
    let doubt = x.iter().map(|x| (2.0 * x.value.abs() + x.error) * x.error).sum::<f64>() / n + UNDERFLOW;
    let inverse = 1.0 / (mean + eps as f64).sqrt();
    let largest = 1.0 / ((mean - doubt).max(0.0) + eps as f64).sqrt();
    let relative = rms_inverse_error(x.len());
    let inverse = Bounded { value: inverse, error: largest - inverse + relative * largest };
    x.iter().zip(weight).map(|(x, w)| x.times(inverse).times(Bounded::exact(*w as f64))).collect()
}

/// `silu(x)`: the slope of silu is at most 1.1; exponential, sum and quotient are rounded. Far below zero the exponent is
/// clamped, which leaves `|x| * 2^-126` at most.
pub fn silu(x: Bounded) -> Bounded {
    let value = x.value / (1.0 + (-x.value).exp());
    let rounding = (EXP_ERROR + 2.0 * U) * (value.abs() + 1.1 * x.error);
    Bounded { value, error: 1.1 * x.error + rounding + (x.value.abs() + 1.0) * UNDERFLOW }
}

/// Rope of a pair: `(a cos - b sin, b cos + a sin)`, each with two products and a sum rounded.
pub fn rope_pair(a: Bounded, b: Bounded, cos: f32, sin: f32) -> (Bounded, Bounded) {
    let (cos, sin) = (Bounded::exact(cos as f64), Bounded::exact(sin as f64));
    let minus = Bounded { value: -b.value, error: b.error };
    (a.times(cos).plus(minus.times(sin)), b.times(cos).plus(a.times(sin)))
}

/// Rounding to the type of a KV cache: half a unit in the last place of the largest value that the bound admits.
pub fn stored(x: Bounded, dtype: plan::KvDtype) -> Bounded {
    let size = x.value.abs() + x.error;
    let half_unit = |bits: i32, lowest: f64| power_below(size).max(lowest) * 2f64.powi(-bits);
    let rounding = match dtype {
        plan::KvDtype::F32 => 0.0,
        plan::KvDtype::F16 => half_unit(11, 2f64.powi(-14)),
        plan::KvDtype::Bf16 => half_unit(8, UNDERFLOW) + UNDERFLOW,
    };
    Bounded { value: x.value, error: x.error + rounding }
}

/// The largest power of two that is not above `size`; 0 for 0.
fn power_below(size: f64) -> f64 {
    f64::from_bits(size.to_bits() & (0x7ff << 52))
}
