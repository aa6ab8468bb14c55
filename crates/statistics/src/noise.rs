//! How noisy a block was, in words, and what effect it could have shown.

use crate::paired::Pairs;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Standard errors of a median for a one-sided test at 1e-3 with a power of 0.9: (3.09 + 1.28), times 1.2533 for the
/// median instead of the mean.
const DETECTION: f64 = (3.09 + 1.28) * 1.2533;

/// Noise of a block of pairs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Noise {
    /// Robust relative standard deviation of one pair's ratio.
    pub spread: f64,
    pub pairs: u32,
}

/// A block's noise in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoiseLevel {
    /// Pairs agree within 1 %.
    Quiet,
    /// Within 5 %.
    Moderate,
    /// Worse.
    Noisy,
}

impl Noise {
    pub fn of(pairs: &Pairs) -> Self {
        Self { spread: pairs.spread(), pairs: u32::try_from(pairs.count()).unwrap_or(u32::MAX) }
    }

    pub fn level(&self) -> NoiseLevel {
        match self.spread {
            s if s <= 0.01 => NoiseLevel::Quiet,
            s if s <= 0.05 => NoiseLevel::Moderate,
            _ => NoiseLevel::Noisy,
        }
    }

    /// The least relative effect that `pairs` pairs of this noise would show reliably.
    pub fn least_effect(&self, pairs: u32) -> f64 {
        DETECTION * self.spread / f64::from(pairs.max(1)).sqrt()
    }

    /// Pairs that would show `effect` reliably.
    pub fn pairs_for(&self, effect: f64) -> u32 {
        let n = (DETECTION * self.spread / effect.abs().max(1e-9)).powi(2).ceil();
        n.clamp(1.0, f64::from(u32::MAX)) as u32
    }
}

impl fmt::Display for Noise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self.level() {
            NoiseLevel::Quiet => "quiet",
            NoiseLevel::Moderate => "moderate noise",
            NoiseLevel::Noisy => "noisy",
        };
        let (spread, least) = (100.0 * self.spread, 100.0 * self.least_effect(self.pairs));
        write!(
            f,
            "{word}: pairs differ by {spread:.2} %, so {} of them show effects of {least:.2} % and more",
            self.pairs
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words() {
        let champion = [100.0; 9];
        let challenger = [100.0, 101.0, 99.0, 100.5, 99.5, 100.2, 99.8, 100.7, 99.3];
        let noise = Noise::of(&Pairs::of_costs(&champion, &challenger).unwrap());
        assert_eq!(noise.level(), NoiseLevel::Quiet);
        assert!(noise.to_string().starts_with("quiet: pairs differ by 0.7"), "{noise}");
        let pairs = noise.pairs_for(0.01);
        assert!(noise.least_effect(pairs) <= 0.01 && noise.least_effect(pairs - 1) > 0.01);
    }
}
