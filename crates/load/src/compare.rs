//! Two servers, interleaved round by round, so that drift of the machine hits both.

use crate::error::LoadError;
use crate::run::run;
use crate::seeded::Seeded;
use crate::summary::{Slo, Summary, quantile};
use crate::workload::{Item, Workload};
use serde::{Deserialize, Serialize};

/// With fewer rounds than this, all of them pointing one way is not rare enough (2 x 0.5^6 < 5 %) to be called an effect.
pub const MIN_ROUNDS: usize = 6;

/// One of the two servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// The first one given: numerator of every ratio
    Ours,
    /// `--against`
    Theirs,
}

/// One round: both sides on the same prompts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Round {
    /// Who went first: alternates
    pub first: Side,
    /// Ours
    pub ours: Summary,
    /// Theirs
    pub theirs: Summary,
}

/// What the interval says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The interval includes 1
    Noise,
    /// Fewer than [`MIN_ROUNDS`] rounds: the interval means nothing
    TooFewRounds,
    /// The whole interval lies above 1
    Higher,
    /// The whole interval lies below 1
    Lower,
}

impl Verdict {
    /// The word to print.
    pub fn word(self) -> &'static str {
        match self {
            Self::Noise => "noise",
            Self::TooFewRounds => "too few rounds",
            Self::Higher => "higher",
            Self::Lower => "lower",
        }
    }
}

/// Ours / theirs of one metric.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MetricRatio {
    /// Such as `output_tokens_per_s`
    pub metric: String,
    /// One ratio per round
    pub per_round: Vec<f64>,
    /// Median over rounds
    pub median: f64,
    /// Lower end of the 95 % bootstrap interval of the median
    pub low: f64,
    /// Upper end
    pub high: f64,
    /// What that says
    pub verdict: Verdict,
}

/// A finished comparison.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Rounds in order
    pub rounds: Vec<Round>,
    /// Ratios ours / theirs
    pub ratios: Vec<MetricRatio>,
}

/// Runs `rounds` rounds. Each side's workload says everything but the items; `items` makes those of a round, which both
/// sides get (fresh prompts per round keep prefix caches out of it). Warm-up is sent in each side's first round only.
///
/// # Errors
/// As [`run`], and when a side completes nothing in a round.
pub fn compare(
    ours: &Workload,
    theirs: &Workload,
    rounds: usize,
    slo: Option<Slo>,
    mut items: impl FnMut(usize) -> Result<Vec<Item>, LoadError>,
) -> Result<Comparison, LoadError> {
    let mut done = Vec::with_capacity(rounds);
    for round in 0..rounds {
        let items = items(round)?;
        let one = |side: &Workload| {
            let warm_up = if round == 0 { side.warm_up.clone() } else { Vec::new() };
            let workload = Workload { items: items.clone(), warm_up, ..side.clone() };
            let summary = run(&workload)?.summary(slo);
            if summary.completed == 0 {
                let reason =
                    summary.failures.iter().max_by_key(|f| f.1).map_or("all abandoned", |f| f.0).to_owned();
                return Err(LoadError::NothingCompleted { round, url: side.url.clone(), reason });
            }
            Ok(summary)
        };
        let first = if round % 2 == 0 { Side::Ours } else { Side::Theirs };
        let (ours, theirs) = match first {
            Side::Ours => {
                let ours = one(ours)?;
                (ours, one(theirs)?)
            }
            Side::Theirs => {
                let theirs = one(theirs)?;
                (one(ours)?, theirs)
            }
        };
        done.push(Round { first, ours, theirs });
    }
    let ratios = METRICS.iter().filter_map(|(name, of)| ratio_over(&done, name, *of)).collect();
    Ok(Comparison { rounds: done, ratios })
}

type Metric = fn(&Summary) -> Option<f64>;

const METRICS: [(&str, Metric); 6] = [
    ("output_tokens_per_s", |s| Some(s.output_tokens_per_s)),
    ("ttft_ms_median", |s| s.ttft.map(|d| d.median_ms)),
    ("tpot_ms_median", |s| s.tpot.map(|d| d.median_ms)),
    ("itl_ms_median", |s| s.itl.map(|d| d.median_ms)),
    ("e2el_ms_median", |s| s.e2el.map(|d| d.median_ms)),
    ("goodput_requests_per_s", |s| s.goodput.map(|g| g.requests_per_s)),
];

/// A metric that a round lacks on either side has no ratio: rounds are never dropped to make one.
fn ratio_over(rounds: &[Round], metric: &str, of: Metric) -> Option<MetricRatio> {
    let pairs: Option<Vec<f64>> = rounds
        .iter()
        .map(|r| {
            let (ours, theirs) = (of(&r.ours)?, of(&r.theirs)?);
            (ours > 0.0 && theirs > 0.0).then_some(ours / theirs)
        })
        .collect();
    ratio(metric, pairs?)
}

/// Median and bootstrap interval (10,000 resamples, fixed seed) of ratios, one per round; none for no ratios.
pub fn ratio(metric: &str, per_round: Vec<f64>) -> Option<MetricRatio> {
    if per_round.is_empty() {
        return None;
    }
    let median = |values: &mut Vec<f64>| {
        values.sort_by(f64::total_cmp);
        quantile(values, 0.5)
    };
    let mut random = Seeded::new(0x7261_7469_6f73);
    let mut medians: Vec<f64> = (0..10_000)
        .map(|_| {
            median(&mut (0..per_round.len()).map(|_| per_round[random.below(per_round.len())]).collect())
        })
        .collect();
    medians.sort_by(f64::total_cmp);
    let (low, high) = (quantile(&medians, 0.025), quantile(&medians, 0.975));
    let verdict = match () {
        () if per_round.len() < MIN_ROUNDS => Verdict::TooFewRounds,
        () if low > 1.0 => Verdict::Higher,
        () if high < 1.0 => Verdict::Lower,
        () => Verdict::Noise,
    };
    Some(MetricRatio {
        metric: metric.into(),
        median: median(&mut per_round.clone()),
        per_round,
        low,
        high,
        verdict,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts() {
        let verdict = |v: &[f64]| ratio("x", v.to_vec()).unwrap().verdict;
        assert_eq!(verdict(&[1.1, 1.2, 1.15]), Verdict::TooFewRounds);
        assert_eq!(verdict(&[1.1, 1.2, 1.15, 1.12, 1.3, 1.09, 1.2]), Verdict::Higher);
        assert_eq!(verdict(&[0.9, 0.8, 0.85, 0.95, 0.7, 0.9]), Verdict::Lower);
        assert_eq!(verdict(&[0.9, 1.1, 1.05, 0.95, 1.01, 0.99]), Verdict::Noise);
        assert_eq!(ratio("x", vec![]), None);
    }

    #[test]
    fn noise_is_seldom_called_an_effect() {
        let mut random = Seeded::new(1);
        let trials = 200;
        let effects = (0..trials).filter(|_| {
            let rounds = (0..10).map(|_| 1.0 + (random.unit() - 0.5) * 0.1).collect();
            ratio("x", rounds).unwrap().verdict != Verdict::Noise
        });
        let share = effects.count() as f64 / f64::from(trials);
        assert!(share < 0.12, "{share}");
    }
}
