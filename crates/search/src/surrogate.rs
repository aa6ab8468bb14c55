//! An additive model of gains over axis values: cheap, good enough to rank points on small budgets.

use crate::history::{History, Outcome};
use crate::knowledge::AxisEffects;
use evidence::{Point, Space};
use std::collections::BTreeMap;

/// Sweeps of backfitting; the model is small and converges fast.
const SWEEPS: usize = 12;
/// Trials' worth of pull towards no effect.
const RIDGE: f64 = 0.7;
/// Most trials' worth of weight that knowledge from elsewhere gets: a few trials here overrule it.
const MOST_PRIOR: f64 = 3.0;

#[derive(Clone, Copy, Debug, Default)]
struct Value {
    gain: f64,
    /// Measured trials with this value, and trials' worth of prior.
    support: f64,
    measured: f64,
    rejected: f64,
}

/// `gain(point) = mean + sum over axes of effect(axis, value)`, with shrinkage, priors, and neighbours' effects for
/// values of ordered axes that were never tried.
#[derive(Clone, Debug)]
pub struct Additive {
    mean: f64,
    noise: f64,
    trials: usize,
    informed: bool,
    values: BTreeMap<String, BTreeMap<String, Value>>,
}

/// What the model expects of a point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    pub gain: f64,
    /// Standard error, roughly.
    pub error: f64,
    /// Chance of not being rejected, from the rejections of its values.
    pub accepted: f64,
}

impl Prediction {
    /// An upper bound `width` errors above, lowered by the chance of rejection.
    pub fn optimistic(&self, width: f64) -> f64 {
        self.gain + width * self.error + 0.3 * self.accepted.max(1e-3).ln()
    }
}

impl Additive {
    /// Fits the measured trials of `history`, with `prior` effects from elsewhere.
    pub fn fit(space: &Space, history: &History, prior: &AxisEffects) -> Self {
        let measured: Vec<(&Point, f64)> = history.measured().filter(|(p, _)| space.contains(p)).collect();
        let mean = measured.iter().map(|(_, g)| g).sum::<f64>() / measured.len().max(1) as f64;
        let mut model =
            Self { mean, noise: 0.05, trials: measured.len(), informed: false, values: BTreeMap::new() };
        model.count(space, history);
        model.backfit(space, &measured, prior);
        if measured.len() > 2 {
            let squares: f64 = measured.iter().map(|(p, g)| (g - model.raw(p)).powi(2)).sum();
            model.noise = (squares / measured.len() as f64).sqrt().max(0.01);
        }
        model.interpolate(space);
        model.informed = measured.len() >= 2 || !prior.is_empty();
        model
    }

    /// Whether anything is known beyond the first trial.
    pub fn is_informed(&self) -> bool {
        self.informed
    }

    fn count(&mut self, space: &Space, history: &History) {
        for axis in &space.axes {
            let values = self.values.entry(axis.name.clone()).or_default();
            for v in &axis.values {
                values.insert(v.clone(), Value::default());
            }
        }
        for trial in history.trials() {
            for (axis, value) in &trial.point.0 {
                if let Some(v) = self.values.get_mut(axis).and_then(|a| a.get_mut(value)) {
                    match trial.outcome {
                        Outcome::Measured(_) => v.measured += 1.0,
                        Outcome::Rejected => v.rejected += 1.0,
                    }
                }
            }
        }
    }

    fn backfit(&mut self, space: &Space, measured: &[(&Point, f64)], prior: &AxisEffects) {
        for _ in 0..SWEEPS {
            for axis in &space.axes {
                let mut sums: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
                for (point, gain) in measured {
                    let Some(value) = point.get(&axis.name) else { continue };
                    let residual = gain - self.raw(point) + self.value(&axis.name, value).gain;
                    let sum = sums.entry(value).or_default();
                    sum.0 += residual;
                    sum.1 += 1.0;
                }
                for value in &axis.values {
                    let (sum, n) = sums.get(value.as_str()).copied().unwrap_or_default();
                    let known = prior.get(&axis.name, value).unwrap_or_default();
                    let weight = known.weight.min(MOST_PRIOR);
                    if let Some(v) = self.values.get_mut(&axis.name).and_then(|a| a.get_mut(value)) {
                        v.gain = (sum + weight * known.gain) / (n + weight + RIDGE);
                        v.support = n + weight;
                    }
                }
            }
        }
    }

    /// Values of ordered axes without support take the supported neighbours' mean, at a fraction of their support.
    fn interpolate(&mut self, space: &Space) {
        for axis in space.axes.iter().filter(|a| a.ordered) {
            let Some(values) = self.values.get_mut(&axis.name) else { continue };
            let support: Vec<Value> = axis.values.iter().map(|v| values[v]).collect();
            for (i, name) in axis.values.iter().enumerate().filter(|(i, _)| support[*i].support == 0.0) {
                let left = support[..i].iter().rev().find(|v| v.support > 0.0);
                let right = support[i + 1..].iter().find(|v| v.support > 0.0);
                let near: Vec<f64> = left.into_iter().chain(right).map(|v| v.gain).collect();
                if !near.is_empty() {
                    let gain = near.iter().sum::<f64>() / near.len() as f64;
                    values.insert(name.clone(), Value { gain, support: 0.2, ..support[i] });
                }
            }
        }
    }

    fn value(&self, axis: &str, value: &str) -> Value {
        self.values.get(axis).and_then(|a| a.get(value)).copied().unwrap_or_default()
    }

    fn raw(&self, point: &Point) -> f64 {
        self.mean + point.0.iter().map(|(a, v)| self.value(a, v).gain).sum::<f64>()
    }

    /// The expectation for a point.
    pub fn predict(&self, point: &Point) -> Prediction {
        let values: Vec<Value> = point.0.iter().map(|(a, v)| self.value(a, v)).collect();
        let variance: f64 = values.iter().map(|v| 1.0 / (1.0 + v.support)).sum::<f64>();
        let accepted = values.iter().map(|v| (v.measured + 1.0) / (v.measured + v.rejected + 1.0)).product();
        Prediction { gain: self.raw(point), error: self.noise * variance.sqrt(), accepted }
    }

    /// The widest gap between the effects of an axis's values.
    pub fn range(&self, axis: &str) -> f64 {
        let Some(values) = self.values.get(axis) else { return 0.0 };
        let high = values.values().map(|v| v.gain).fold(f64::NEG_INFINITY, f64::max);
        let low = values.values().map(|v| v.gain).fold(f64::INFINITY, f64::min);
        if values.is_empty() { 0.0 } else { high - low }
    }

    /// The fitted effects that rest on measured trials here, for use as knowledge elsewhere.
    pub fn effects(&self) -> AxisEffects {
        let mut effects = AxisEffects::default();
        if self.trials < 3 {
            return effects;
        }
        for (axis, values) in &self.values {
            // One value alone says nothing against the others.
            if values.values().filter(|v| v.measured > 0.0).count() > 1 {
                for (value, v) in values.iter().filter(|(_, v)| v.measured > 0.0) {
                    effects.add(axis, value, v.gain, v.measured);
                }
            }
        }
        effects
    }
}
