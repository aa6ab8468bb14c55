//! Patterns of input values, and the seeded draws that make them.

use plan::{Activation, Operation};
use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// What the values of a case look like. Never NaN or infinite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pattern {
    /// Independent, bell-shaped, about unit size.
    Normal,
    /// As activations of real models: rows of different size, a few channels tens of times larger.
    Outliers,
    /// Each row one constant.
    Constant,
    /// One element of a row is not zero.
    OneHot,
    /// The same size with alternating sign: sums cancel.
    Alternating,
    /// Blocks of 32 that are zero, large or small in turn.
    Blocks,
    /// Some rows are zero.
    ZeroRows,
    /// As large as the operation can take without overflow.
    Huge,
    /// About `1e-20`, and weights at the lower end of f16.
    Tiny,
    /// Subnormal f32 and values at the floor of activation rounding.
    Denormal,
    /// Activations on exact ties of their integer rounding.
    Ties,
    /// Largest activations against largest quants: 16-bit sums of products would saturate.
    Saturating,
    /// Attention: all keys equal.
    EqualKeys,
    /// Attention: scores that differ in the last digits.
    NearEqualLogits,
    /// Attention: scores hundreds apart.
    ExtremeLogits,
}

impl Pattern {
    /// All patterns.
    pub const ALL: [Pattern; 15] = [
        Pattern::Normal,
        Pattern::Outliers,
        Pattern::Constant,
        Pattern::OneHot,
        Pattern::Alternating,
        Pattern::Blocks,
        Pattern::ZeroRows,
        Pattern::Huge,
        Pattern::Tiny,
        Pattern::Denormal,
        Pattern::Ties,
        Pattern::Saturating,
        Pattern::EqualKeys,
        Pattern::NearEqualLogits,
        Pattern::ExtremeLogits,
    ];

    /// Patterns that say something about this operation.
    pub fn of(operation: &Operation) -> Vec<Pattern> {
        let applies = |p: &Pattern| match operation {
            Operation::Attention { .. } => {
                !matches!(p, Pattern::Ties | Pattern::Saturating | Pattern::Denormal)
            }
            Operation::Linear { activation, .. } => match p {
                Pattern::Ties | Pattern::Saturating => {
                    matches!(activation, Activation::I8 | Activation::I16 | Activation::Row16)
                }
                p => !p.attention_only(),
            },
            Operation::Embed { .. } => {
                matches!(p, Pattern::Normal | Pattern::ZeroRows | Pattern::Huge | Pattern::Tiny)
            }
            _ => !p.attention_only() && !matches!(p, Pattern::Ties | Pattern::Saturating),
        };
        Self::ALL.into_iter().filter(applies).collect()
    }

    /// A stable name.
    pub fn name(self) -> &'static str {
        match self {
            Pattern::Normal => "normal",
            Pattern::Outliers => "outliers",
            Pattern::Constant => "constant",
            Pattern::OneHot => "one-hot",
            Pattern::Alternating => "alternating",
            Pattern::Blocks => "blocks",
            Pattern::ZeroRows => "zero-rows",
            Pattern::Huge => "huge",
            Pattern::Tiny => "tiny",
            Pattern::Denormal => "denormal",
            Pattern::Ties => "ties",
            Pattern::Saturating => "saturating",
            Pattern::EqualKeys => "equal-keys",
            Pattern::NearEqualLogits => "near-equal-logits",
            Pattern::ExtremeLogits => "extreme-logits",
        }
    }

    fn attention_only(self) -> bool {
        matches!(self, Pattern::EqualKeys | Pattern::NearEqualLogits | Pattern::ExtremeLogits)
    }
}

/// Seeded draws. The same seed gives the same values on every machine.
pub(super) struct Draw(ChaCha8Rng);

impl Draw {
    /// A stream of its own for each purpose.
    pub fn new(seed: u64, purpose: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(purpose);
        Self(rng)
    }

    /// About normal, mean 0 and standard deviation 1, within +-3.5 (a sum of four uniform numbers).
    pub fn normal(&mut self) -> f32 {
        let bits = self.0.next_u64();
        let sum: u32 = (0..4).map(|i| (bits >> (16 * i)) as u32 & 0xffff).sum();
        (sum as f32 / 65536.0 - 2.0) * 1.732
    }

    /// Below `n` (which is at least 1).
    pub fn below(&mut self, n: usize) -> usize {
        self.0.random_range(0..n.max(1))
    }

    pub fn uniform(&mut self, low: f32, high: f32) -> f32 {
        self.0.random_range(low..high)
    }

    pub fn coin(&mut self) -> bool {
        self.0.random::<bool>()
    }

    pub fn bytes(&mut self, out: &mut [u8]) {
        self.0.fill_bytes(out);
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }

    pub fn normals(&mut self, n: usize, size: f32) -> Vec<f32> {
        (0..n).map(|_| self.normal() * size).collect()
    }
}

/// What bounds the values of a tensor.
#[derive(Clone, Copy)]
pub(super) struct Extent {
    /// Size of `Huge` values.
    pub huge: f32,
    /// Values along a row that share an activation scale.
    pub group: usize,
    /// Steps of the activation rounding: 127 or 16256.
    pub limit: f32,
}

/// Rows of activations `[rows][width]`.
pub(super) fn rows(draw: &mut Draw, pattern: Pattern, rows: usize, width: usize, extent: Extent) -> Vec<f32> {
    let outliers: Vec<usize> = (0..width.div_ceil(100)).map(|_| draw.below(width)).collect();
    let mut out = Vec::with_capacity(rows * width);
    for r in 0..rows {
        let size = 2.0f32.powi(draw.below(7) as i32 - 3);
        let from = out.len();
        match pattern {
            Pattern::Normal | Pattern::EqualKeys | Pattern::NearEqualLogits => {
                out.extend(draw.normals(width, 1.0))
            }
            Pattern::Outliers => {
                out.extend(draw.normals(width, size));
                for c in &outliers {
                    out[from + c] *= draw.uniform(10.0, 80.0);
                }
            }
            Pattern::Constant => out.extend(std::iter::repeat_n(draw.normal() * size + 0.01, width)),
            Pattern::OneHot => {
                out.extend(std::iter::repeat_n(0.0, width));
                out[from + draw.below(width)] = if draw.coin() { size } else { -size };
            }
            Pattern::Alternating => {
                out.extend((0..width).map(|i| if (i + r) % 2 == 0 { size } else { -size }))
            }
            Pattern::Blocks => {
                for i in 0..width {
                    let factor = [0.0, 8.0, 1e-3][(i / 32 + r) % 3];
                    out.push(draw.normal() * factor);
                }
            }
            Pattern::ZeroRows => {
                let factor = if (r + draw.below(2)).is_multiple_of(2) { 0.0 } else { 1.0 };
                out.extend(draw.normals(width, factor));
            }
            Pattern::Huge => out.extend(draw.normals(width, extent.huge)),
            Pattern::Tiny => out.extend(draw.normals(width, 1e-20)),
            Pattern::Denormal => {
                for i in 0..width {
                    let factor = [1e-39, 1e-30, 1e-44, 1e-36][(i / extent.group + r) % 4];
                    out.push(draw.normal() * factor);
                }
            }
            Pattern::Ties => ties(draw, width, extent, &mut out),
            Pattern::Saturating => {
                let flip = draw.below(3);
                let sign = |i: usize| if flip == 0 || (flip == 1 && i % 2 == 1) { -size } else { size };
                out.extend((0..width).map(sign));
            }
            Pattern::ExtremeLogits => out.extend(draw.normals(width, 40.0)),
        }
    }
    out
}

/// Groups whose largest value is `limit * 2^e` and whose others lie on half steps.
fn ties(draw: &mut Draw, width: usize, extent: Extent, out: &mut Vec<f32>) {
    let from = out.len();
    for start in (0..width).step_by(extent.group) {
        let step = 2.0f32.powi(draw.below(9) as i32 - 12);
        let len = extent.group.min(width - start);
        for _ in 0..len {
            let whole = draw.below(2 * extent.limit as usize) as f32 - extent.limit;
            out.push((whole + 0.5) * step);
        }
        let top = from + start + draw.below(len);
        out[top] = if draw.coin() { extent.limit * step } else { -extent.limit * step };
    }
}
