//! Whether the machine held still during a block: drift of the champion, and time stolen by a hypervisor.

use crate::error::StatisticsError;
use crate::exact::normal_tail;
use crate::sample::Sample;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Change of the champion's own cost within a block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drift {
    /// Median of the first third.
    pub first: f64,
    /// Median of the last third.
    pub last: f64,
    /// Two-sided rank-sum p value (normal limit) of "both thirds are alike".
    pub p: f64,
}

impl Drift {
    /// From a series in order of time, at least 6 values.
    pub fn of(series: &[f64]) -> Result<Self, StatisticsError> {
        if series.len() < 6 {
            return Err(StatisticsError::TooFew { what: "a drift", have: series.len(), need: 6 });
        }
        let third = series.len() / 3;
        let (head, tail) = (&series[..third], &series[series.len() - third..]);
        Ok(Self {
            first: Sample::new(head)?.median(),
            last: Sample::new(tail)?.median(),
            p: rank_sum(head, tail),
        })
    }

    /// `last / first`: above 1 means that the champion got slower.
    pub fn ratio(&self) -> f64 {
        self.last / self.first
    }
}

/// Two-sided rank-sum test by the normal limit with continuity correction; ties count half.
fn rank_sum(a: &[f64], b: &[f64]) -> f64 {
    let u: f64 =
        a.iter().flat_map(|x| b.iter().map(move |y| if x < y { 1.0 } else { f64::from(x == y) / 2.0 })).sum();
    let (m, n) = (a.len() as f64, b.len() as f64);
    let away = ((u - m * n / 2.0).abs() - 0.5).max(0.0);
    (2.0 * normal_tail(away / (m * n * (m + n + 1.0) / 12.0).sqrt())).min(1.0)
}

/// When a block counts as disturbed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DriftLimits {
    /// Largest relative change of the champion between the first and last third.
    pub relative: f64,
    /// The change must also be this unlikely by chance.
    pub p: f64,
    /// Largest share of the block's CPU time that the hypervisor may have taken.
    pub steal: f64,
}

impl Default for DriftLimits {
    fn default() -> Self {
        Self { relative: 0.05, p: 0.01, steal: 0.02 }
    }
}

/// The machine's behaviour in a block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Disturbance {
    Quiet,
    /// The champion's cost changed by this ratio from the first to the last third.
    Drifted {
        ratio: f64,
    },
    /// This share of CPU time was stolen.
    Stolen {
        share: f64,
    },
}

impl fmt::Display for Disturbance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Disturbance::Quiet => write!(f, "quiet"),
            Disturbance::Drifted { ratio } => {
                let percent = 100.0 * (ratio - 1.0);
                write!(f, "disturbed: the champion's own time changed by {percent:+.1} % within the block")
            }
            Disturbance::Stolen { share } => {
                write!(f, "disturbed: the hypervisor took {:.1} % of the block's CPU time", 100.0 * share)
            }
        }
    }
}

/// Judges a block by the champion's series (fewer than 6 values: no drift can be seen) and, where the host tells it,
/// the share of CPU time that was stolen.
pub fn disturbance(champion: &[f64], steal: Option<f64>, limits: &DriftLimits) -> Disturbance {
    if let Some(share) = steal.filter(|s| *s > limits.steal) {
        return Disturbance::Stolen { share };
    }
    match Drift::of(champion) {
        Ok(d) if (d.ratio() - 1.0).abs() > limits.relative && d.p < limits.p => {
            Disturbance::Drifted { ratio: d.ratio() }
        }
        _ => Disturbance::Quiet,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_drift_and_a_spike_is_not() {
        let step: Vec<f64> = (0..30).map(|i| if i < 15 { 100.0 } else { 120.0 } + f64::from(i % 3)).collect();
        assert!(matches!(
            disturbance(&step, None, &DriftLimits::default()),
            Disturbance::Drifted { ratio } if (ratio - 1.2).abs() < 0.02
        ));
        let mut spike: Vec<f64> = (0..30).map(|i| 100.0 + f64::from(i % 3)).collect();
        spike[28] = 900.0;
        assert_eq!(disturbance(&spike, Some(0.0), &DriftLimits::default()), Disturbance::Quiet);
    }

    #[test]
    fn steal_counts() {
        let d = disturbance(&[1.0; 12], Some(0.10), &DriftLimits::default());
        assert_eq!(d.to_string(), "disturbed: the hypervisor took 10.0 % of the block's CPU time");
    }

    #[test]
    fn short_series_have_no_drift() {
        assert!(matches!(Drift::of(&[1.0; 5]), Err(StatisticsError::TooFew { need: 6, .. })));
        assert_eq!(disturbance(&[1.0, 9.0], None, &DriftLimits::default()), Disturbance::Quiet);
    }
}
