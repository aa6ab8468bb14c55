//! Order statistics.

use crate::error::StatisticsError;

/// The median of any finite numbers; `None` if there are none or one is NaN.
pub fn median(values: &[f64]) -> Option<f64> {
    Sample::new(values).ok().map(|s| s.median())
}

/// A sorted, finite, non-empty sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    sorted: Vec<f64>,
}

impl Sample {
    /// Sorts `values`. Errors: empty, or a value that is not finite.
    pub fn new(values: &[f64]) -> Result<Self, StatisticsError> {
        if values.is_empty() {
            return Err(StatisticsError::Empty);
        }
        if let Some(index) = values.iter().position(|v| !v.is_finite()) {
            return Err(StatisticsError::NotFinite { index, value: values[index] });
        }
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        Ok(Self { sorted })
    }

    /// The values in ascending order, at least one.
    pub fn sorted(&self) -> &[f64] {
        &self.sorted
    }

    /// Number of values.
    pub fn count(&self) -> usize {
        self.sorted.len()
    }

    pub fn min(&self) -> f64 {
        self.sorted[0]
    }

    pub fn max(&self) -> f64 {
        self.sorted[self.sorted.len() - 1]
    }

    pub fn mean(&self) -> f64 {
        self.sorted.iter().sum::<f64>() / self.sorted.len() as f64
    }

    pub fn median(&self) -> f64 {
        self.interpolated(0.5)
    }

    /// The quartile spread, a robust width.
    pub fn quartiles(&self) -> (f64, f64) {
        (self.interpolated(0.25), self.interpolated(0.75))
    }

    /// Median absolute deviation from the median, times 1.4826 (the standard deviation if the noise is Gaussian).
    pub fn deviation(&self) -> f64 {
        let m = self.median();
        let away: Vec<f64> = self.sorted.iter().map(|v| (v - m).abs()).collect();
        1.4826 * median(&away).unwrap_or(0.0)
    }

    /// Access to the tail, for 100 values or more: below that a p95 is the luck of one or two values.
    pub fn tail(&self) -> Result<Tail<'_>, StatisticsError> {
        let have = self.count();
        if have < Tail::LEAST {
            return Err(StatisticsError::TooFew { what: "a p95", have, need: Tail::LEAST });
        }
        Ok(Tail { sample: self })
    }

    /// Linear interpolation between order statistics (type 7 of Hyndman and Fan, as numpy does). Private beyond the
    /// quartiles: tails are asked of [`Tail`].
    fn interpolated(&self, q: f64) -> f64 {
        let at = q.clamp(0.0, 1.0) * (self.sorted.len() - 1) as f64;
        let low = at.floor() as usize;
        let high = at.ceil() as usize;
        let (a, b) = (self.sorted[low], self.sorted[high]);
        a + (b - a) * (at - low as f64)
    }
}

/// Tail quantiles; exists only for samples that are large enough.
#[derive(Clone, Copy, Debug)]
pub struct Tail<'a> {
    sample: &'a Sample,
}

impl Tail<'_> {
    /// Fewest values for a p95.
    pub const LEAST: usize = 100;
    /// Fewest values for a p99.
    pub const LEAST_P99: usize = 500;

    pub fn p90(&self) -> f64 {
        self.sample.interpolated(0.90)
    }

    pub fn p95(&self) -> f64 {
        self.sample.interpolated(0.95)
    }

    /// Errors below [`Tail::LEAST_P99`] values.
    pub fn p99(&self) -> Result<f64, StatisticsError> {
        let have = self.sample.count();
        if have < Self::LEAST_P99 {
            return Err(StatisticsError::TooFew { what: "a p99", have, need: Self::LEAST_P99 });
        }
        Ok(self.sample.interpolated(0.99))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn medians_and_quartiles() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[1.0, f64::NAN]), None);
        let s = Sample::new(&[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        assert_eq!(s.quartiles(), (2.0, 4.0));
        assert_eq!((s.min(), s.max(), s.mean()), (1.0, 5.0, 3.0));
    }

    #[test]
    fn tails_need_large_samples() {
        let values: Vec<f64> = (0..101).map(f64::from).collect();
        assert!(matches!(
            Sample::new(&values[..99]).unwrap().tail(),
            Err(StatisticsError::TooFew { have: 99, need: 100, .. })
        ));
        let s = Sample::new(&values).unwrap();
        assert_eq!(s.tail().unwrap().p95(), 95.0);
        assert!(s.tail().unwrap().p99().is_err());
    }

    proptest! {
        #[test]
        fn the_median_splits_the_sample(values in prop::collection::vec(-1e6f64..1e6, 1..60)) {
            let m = median(&values).unwrap();
            let below = values.iter().filter(|v| **v < m).count();
            let above = values.iter().filter(|v| **v > m).count();
            prop_assert!(2 * below <= values.len() && 2 * above <= values.len());
        }
    }
}
