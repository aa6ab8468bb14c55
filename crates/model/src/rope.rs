//! Rotary position embedding: frequencies with every scaling variant that the supported configurations use.
//!
//! Sources: RoFormer (arXiv 2104.09864), YaRN (arXiv 2309.00071), and `modeling_rope_utils.py` of transformers, whose numbers
//! these functions reproduce.

use std::f64::consts::PI;

/// Rotary position embedding in the half-split convention: within a head, dimension `j` of the first `dim / 2` pairs with
/// dimension `j + dim / 2`; dimensions from `dim` on pass through.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Rope {
    /// Base of the frequencies.
    pub theta: f64,
    /// How many leading dimensions of a head are rotated; even.
    pub dim: usize,
    /// How frequencies are changed for long contexts.
    pub scaling: RopeScaling,
}

/// Variants of frequency scaling.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RopeScaling {
    /// None.
    None,
    /// Positions divided by `factor`.
    Linear {
        /// How much longer the context became.
        factor: f64,
    },
    /// Llama 3.1 and later: low frequencies divided by `factor`, high ones kept, a smooth ramp between.
    Llama3 {
        /// Divisor of low frequencies.
        factor: f64,
        /// Wavelengths above `original_context / low_freq_factor` count as low.
        low_freq_factor: f64,
        /// Wavelengths below `original_context / high_freq_factor` count as high.
        high_freq_factor: f64,
        /// Context of the first training.
        original_context: usize,
    },
    /// YaRN: a linear ramp over dimensions between interpolation and extrapolation, and a factor on attention.
    Yarn {
        /// How much longer the context became.
        factor: f64,
        /// Context of the first training.
        original_context: usize,
        /// Rotations above which a dimension is extrapolated.
        beta_fast: f64,
        /// Rotations below which a dimension is interpolated.
        beta_slow: f64,
        /// Factor on cosines and sines; `None` for `0.1 ln(factor) + 1`.
        attention_factor: Option<f64>,
    },
    /// One divisor per frequency, `dim / 2` of them, as GGUF's `rope_freqs.weight` gives them.
    Factors(Vec<f32>),
}

impl Rope {
    /// What scaling divides the plain frequencies by, `dim / 2` of them: a GGUF's `rope_freqs.weight`.
    pub fn divisors(&self) -> Vec<f32> {
        let plain = Self { scaling: RopeScaling::None, ..self.clone() }.frequencies().0;
        plain.iter().zip(self.frequencies().0).map(|(p, s)| p / s).collect()
    }

    /// The `dim / 2` inverse frequencies (radians per position), and the factor on cosines and sines.
    pub fn frequencies(&self) -> (Vec<f32>, f32) {
        let base: Vec<f64> =
            (0..self.dim / 2).map(|j| self.theta.powf(-((2 * j) as f64) / self.dim as f64)).collect();
        let mut attention = 1.0;
        let scaled: Vec<f64> = match &self.scaling {
            RopeScaling::None => base,
            RopeScaling::Linear { factor } => base.iter().map(|f| f / factor).collect(),
            RopeScaling::Factors(factors) => {
                base.iter().zip(factors).map(|(f, &x)| f / f64::from(x)).collect()
            }
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => base
                .iter()
                .map(|&f| llama3(f, *factor, *low_freq_factor, *high_freq_factor, *original_context as f64))
                .collect(),
            RopeScaling::Yarn { factor, original_context, beta_fast, beta_slow, attention_factor } => {
                attention =
                    attention_factor.unwrap_or(if *factor > 1.0 { 0.1 * factor.ln() + 1.0 } else { 1.0 });
                let correction = |rotations: f64| {
                    self.dim as f64 * (*original_context as f64 / (rotations * 2.0 * PI)).ln()
                        / (2.0 * self.theta.ln())
                };
                let low = correction(*beta_fast).floor().max(0.0);
                let high = correction(*beta_slow).ceil().min(self.dim as f64 - 1.0);
                let span = if high == low { 0.001 } else { high - low };
                base.iter()
                    .enumerate()
                    .map(|(j, &f)| {
                        let ramp = ((j as f64 - low) / span).clamp(0.0, 1.0);
                        f / factor * ramp + f * (1.0 - ramp)
                    })
                    .collect()
            }
        };
        (scaled.into_iter().map(|f| f as f32).collect(), attention as f32)
    }

    /// Cosines and sines for positions `first .. first + count`, each `count x dim / 2`, row-major, with the attention factor
    /// applied. The angle is the f32 product of position and inverse frequency, as in Hugging Face's implementation.
    pub fn table(&self, first: usize, count: usize) -> (Vec<f32>, Vec<f32>) {
        let (frequencies, attention) = self.frequencies();
        let angles = (first..first + count).flat_map(|p| frequencies.iter().map(move |f| p as f32 * f));
        angles.map(|a| (a.cos() * attention, a.sin() * attention)).unzip()
    }
}

fn llama3(frequency: f64, factor: f64, low: f64, high: f64, original_context: f64) -> f64 {
    let wavelength = 2.0 * PI / frequency;
    if wavelength < original_context / high {
        frequency
    } else if wavelength > original_context / low {
        frequency / factor
    } else {
        let smooth = (original_context / wavelength - low) / (high - low);
        (1.0 - smooth) * frequency / factor + smooth * frequency
    }
}
