//! Interleaved pairs: ratios, intervals and what they show.

use crate::error::StatisticsError;
use crate::exact::{binomial_tail, sign_test, wilcoxon};
use crate::sample::{Sample, median};
use evidence::Effect;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Resamples of the bootstrap.
const RESAMPLES: usize = 999;

/// Paired measurements as log ratios: above 0 means that the challenger was better in that pair.
#[derive(Clone, Debug, PartialEq)]
pub struct Pairs {
    logs: Vec<f64>,
}

impl Pairs {
    /// From costs (nanoseconds, bytes): lower is better. Errors: empty, unequal counts, a value that is not positive.
    pub fn of_costs(champion: &[f64], challenger: &[f64]) -> Result<Self, StatisticsError> {
        Self::new(champion, challenger)
    }

    /// From rates (tokens per second): higher is better. Errors as [`Pairs::of_costs`].
    pub fn of_rates(champion: &[f64], challenger: &[f64]) -> Result<Self, StatisticsError> {
        Self::new(challenger, champion)
    }

    fn new(numerator: &[f64], denominator: &[f64]) -> Result<Self, StatisticsError> {
        if numerator.len() != denominator.len() {
            return Err(StatisticsError::Unpaired {
                champion: numerator.len(),
                challenger: denominator.len(),
            });
        }
        if numerator.is_empty() {
            return Err(StatisticsError::Empty);
        }
        for side in [numerator, denominator] {
            if let Some(index) = side.iter().position(|v| !(v.is_finite() && *v > 0.0)) {
                return Err(StatisticsError::NotPositive { index, value: side[index] });
            }
        }
        Ok(Self { logs: numerator.iter().zip(denominator).map(|(a, b)| (a / b).ln()).collect() })
    }

    /// Number of pairs, at least one.
    pub fn count(&self) -> usize {
        self.logs.len()
    }

    /// Natural logarithms of the ratios, in the order of measurement.
    pub fn logs(&self) -> &[f64] {
        &self.logs
    }

    /// Median of the pairwise ratios.
    pub fn ratio(&self) -> f64 {
        self.median_log().exp()
    }

    fn median_log(&self) -> f64 {
        median(&self.logs).unwrap_or(0.0)
    }

    /// Median ratio with an interval at `confidence` (for example 0.95): the wider, on each side, of the percentile
    /// bootstrap and the distribution-free interval of order statistics. The bootstrap alone is too narrow on few
    /// pairs; with too few pairs for any interval at this confidence, it is the whole range of the pairs.
    pub fn effect(&self, confidence: f64, seed: u64) -> Effect {
        let (bootstrap_low, bootstrap_high) = self.bootstrap(confidence, seed);
        let (order_low, order_high) = self.order_interval(confidence);
        Effect {
            ratio: self.ratio(),
            low: bootstrap_low.min(order_low).exp(),
            high: bootstrap_high.max(order_high).exp(),
            pairs: u32::try_from(self.count()).unwrap_or(u32::MAX),
        }
    }

    /// Percentile bootstrap of the median log ratio.
    fn bootstrap(&self, confidence: f64, seed: u64) -> (f64, f64) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let n = self.logs.len();
        let mut draw = vec![0.0; n];
        let mut medians: Vec<f64> = (0..RESAMPLES)
            .map(|_| {
                draw.iter_mut().for_each(|d| *d = self.logs[rng.random_range(0..n)]);
                median(&draw).unwrap_or(0.0)
            })
            .collect();
        medians.sort_by(f64::total_cmp);
        let tail = (1.0 - confidence.clamp(0.0, 1.0)) / 2.0;
        let low = (tail * RESAMPLES as f64).floor() as usize;
        (medians[low.min(RESAMPLES - 1)], medians[RESAMPLES - 1 - low.min(RESAMPLES - 1)])
    }

    /// Distribution-free interval of the median from order statistics.
    fn order_interval(&self, confidence: f64) -> (f64, f64) {
        let mut sorted = self.logs.clone();
        sorted.sort_by(f64::total_cmp);
        let n = sorted.len();
        let tail = (1.0 - confidence.clamp(0.0, 1.0)) / 2.0;
        // Largest k such that P(Bin(n, 1/2) <= k - 1) = P(Bin >= n - k + 1) <= tail: take the k-th smallest.
        let k = (1..=n / 2).take_while(|k| binomial_tail(n - k + 1, n) <= tail).last().unwrap_or(1);
        (sorted[k - 1], sorted[n - k])
    }

    /// One-sided sign test of "the median ratio is above `threshold`" (1 = any improvement).
    pub fn sign_p(&self, threshold: f64) -> f64 {
        sign_test(&self.against(threshold))
    }

    /// One-sided Wilcoxon signed-rank test of "the ratios lie above `threshold`".
    pub fn wilcoxon_p(&self, threshold: f64) -> f64 {
        wilcoxon(&self.against(threshold))
    }

    fn against(&self, threshold: f64) -> Vec<f64> {
        let log = threshold.ln();
        self.logs.iter().map(|l| l - log).collect()
    }

    /// The robust standard deviation of the log ratios: the relative noise of one pair.
    pub fn spread(&self) -> f64 {
        Sample::new(&self.logs).map_or(0.0, |s| s.deviation())
    }
}

/// What a fixed block of pairs shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Better by the least effect or more, at the error rate that was granted.
    Better,
    /// The whole interval lies below the least effect: not worth more pairs.
    NotBetter,
    /// Neither is shown.
    Unclear,
}

/// A comparison on a fixed block of pairs. For peeking while pairs arrive use [`crate::Sequential`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Comparison {
    pub effect: Effect,
    /// Exact one-sided p values against "no improvement".
    pub sign_p: f64,
    pub wilcoxon_p: f64,
    pub finding: Finding,
}

/// Compares a fixed block: [`Finding::Better`] needs the sign test at `alpha` and a median ratio of `1 + least_effect`
/// or more. The Wilcoxon value is reported as a second opinion and decides nothing (it assumes more).
pub fn compare(pairs: &Pairs, least_effect: f64, alpha: f64, seed: u64) -> Comparison {
    let effect = pairs.effect(1.0 - 2.0 * alpha.clamp(1e-3, 0.25), seed);
    let sign_p = pairs.sign_p(1.0);
    let finding = if sign_p <= alpha && effect.ratio >= 1.0 + least_effect {
        Finding::Better
    } else if effect.high < 1.0 + least_effect && pairs.count() >= 6 {
        Finding::NotBetter
    } else {
        Finding::Unclear
    };
    Comparison { effect, sign_p, wilcoxon_p: pairs.wilcoxon_p(1.0), finding }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn orientation() {
        let costs = Pairs::of_costs(&[2.0, 2.0], &[1.0, 1.0]).unwrap();
        let rates = Pairs::of_rates(&[1.0, 1.0], &[2.0, 2.0]).unwrap();
        assert_eq!(costs.ratio(), 2.0);
        assert_eq!(rates.ratio(), 2.0);
    }

    #[test]
    fn bad_pairs_are_refused() {
        assert_eq!(Pairs::of_costs(&[], &[]), Err(StatisticsError::Empty));
        assert!(matches!(
            Pairs::of_costs(&[1.0], &[1.0, 2.0]),
            Err(StatisticsError::Unpaired { champion: 1, challenger: 2 })
        ));
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(matches!(
                Pairs::of_costs(&[1.0, bad], &[1.0, 1.0]),
                Err(StatisticsError::NotPositive { index: 1, .. })
            ));
        }
    }

    #[test]
    fn a_clear_win_is_better_and_a_tie_is_not() {
        let champion: Vec<f64> = (0..30).map(|i| 100.0 + f64::from(i % 5)).collect();
        let faster: Vec<f64> = champion.iter().map(|c| c * 0.9).collect();
        let c = compare(&Pairs::of_costs(&champion, &faster).unwrap(), 0.01, 1e-4, 1);
        assert_eq!(c.finding, Finding::Better);
        assert!((c.effect.ratio - 1.0 / 0.9).abs() < 1e-9);
        let c = compare(&Pairs::of_costs(&champion, &champion).unwrap(), 0.01, 0.05, 1);
        assert_eq!(c.finding, Finding::NotBetter);
    }

    proptest! {
        #[test]
        fn intervals_hold_the_ratio_and_repeat(
            a in prop::collection::vec(1.0f64..1000.0, 1..50),
            seed in any::<u64>(),
        ) {
            let b: Vec<f64> = a.iter().rev().copied().collect();
            let pairs = Pairs::of_costs(&a, &b).unwrap();
            let e = pairs.effect(0.95, seed);
            prop_assert!(e.low <= e.ratio && e.ratio <= e.high);
            prop_assert_eq!(e, pairs.effect(0.95, seed));
        }
    }
}
