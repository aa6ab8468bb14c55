//! What is known from elsewhere: champions of neighbouring tasks and effects of axis values.

use evidence::{Point, Space};
use std::collections::BTreeMap;

/// Knowledge that the operators use.
#[derive(Clone, Debug, Default)]
pub struct Knowledge {
    /// Good points of neighbouring tasks, nearest first; they may belong to another space.
    pub neighbours: Vec<Point>,
    /// A good first point.
    pub start: Option<Point>,
    /// Effects seen in other tasks.
    pub effects: AxisEffects,
}

/// The effect of one value of an axis.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AxisEffect {
    /// Gain against the average value of its axis.
    pub gain: f64,
    /// Trials that it rests on, discounted by distance.
    pub weight: f64,
}

/// Effects by axis and value.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AxisEffects {
    effects: BTreeMap<String, BTreeMap<String, AxisEffect>>,
}

impl AxisEffects {
    pub fn get(&self, axis: &str, value: &str) -> Option<AxisEffect> {
        self.effects.get(axis)?.get(value).copied()
    }

    /// Adds evidence of `weight` for an effect, by weighted mean.
    pub fn add(&mut self, axis: &str, value: &str, gain: f64, weight: f64) {
        if !(weight > 0.0 && gain.is_finite()) {
            return;
        }
        let slot = self.effects.entry(axis.to_owned()).or_default().entry(value.to_owned()).or_default();
        slot.gain = (slot.gain * slot.weight + gain * weight) / (slot.weight + weight);
        slot.weight += weight;
    }

    /// Adds everything that `other` knows, its weights times `factor`.
    pub fn merge(&mut self, other: &AxisEffects, factor: f64) {
        for (axis, value, effect) in other.iter() {
            self.add(axis, value, effect.gain, effect.weight * factor);
        }
    }

    /// All effects as (axis, value, effect).
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str, AxisEffect)> {
        self.effects
            .iter()
            .flat_map(|(axis, values)| values.iter().map(move |(v, e)| (axis.as_str(), v.as_str(), *e)))
    }

    pub fn is_empty(&self) -> bool {
        self.effects.is_empty()
    }

    /// The widest gap between values of an axis that this knows: how much the axis matters.
    pub fn range(&self, space: &Space, axis: &str) -> f64 {
        let Some(axis) = space.axes.iter().find(|a| a.name == axis) else { return 0.0 };
        let gains: Vec<f64> =
            axis.values.iter().filter_map(|v| self.get(&axis.name, v)).map(|e| e.gain).collect();
        let high = gains.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let low = gains.iter().copied().fold(f64::INFINITY, f64::min);
        if gains.is_empty() { 0.0 } else { high - low }
    }
}
