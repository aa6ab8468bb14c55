//! Design spaces as data: named axes with finite, ordered values. Generators declare them, searches walk them.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// One axis. Values are strings (numbers as decimal text) in their natural order, so that a local search can step
/// to a neighbour.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Axis {
    pub name: String,
    /// Distinct, at least one.
    pub values: Vec<String>,
    /// Whether neighbouring values are alike (numbers) or the axis is a plain choice.
    pub ordered: bool,
}

/// A finite product space.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Space {
    pub axes: Vec<Axis>,
}

/// A point: one value for each axis, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Point(pub BTreeMap<String, String>);

impl Space {
    /// Adds an ordered axis of numbers.
    pub fn numbers(mut self, name: &str, values: &[u32]) -> Self {
        let values = values.iter().map(u32::to_string).collect();
        self.axes.push(Axis { name: name.to_owned(), values, ordered: true });
        self
    }

    /// Adds an unordered axis.
    pub fn choices(mut self, name: &str, values: &[&str]) -> Self {
        let values = values.iter().map(|v| (*v).to_owned()).collect();
        self.axes.push(Axis { name: name.to_owned(), values, ordered: false });
        self
    }

    /// Number of points (saturating).
    pub fn size(&self) -> u64 {
        self.axes.iter().fold(1u64, |n, a| n.saturating_mul(a.values.len() as u64))
    }

    /// Whether `point` names exactly the axes of this space, each with one of its values.
    pub fn contains(&self, point: &Point) -> bool {
        point.0.len() == self.axes.len()
            && self.axes.iter().all(|a| point.0.get(&a.name).is_some_and(|v| a.values.contains(v)))
    }

    /// The point with the given index in mixed radix over the axes (the first axis runs fastest).
    pub fn nth(&self, mut index: u64) -> Point {
        let mut point = BTreeMap::new();
        for axis in &self.axes {
            let len = axis.values.len() as u64;
            point.insert(axis.name.clone(), axis.values[(index % len) as usize].clone());
            index /= len;
        }
        Point(point)
    }

    /// The nearest point of this space to a point of another one: shared axes keep their value where it exists
    /// here (for numbers: the nearest one), others take the value of `fallback`.
    pub fn project(&self, from: &Point, fallback: &Point) -> Point {
        let mut point = BTreeMap::new();
        for axis in &self.axes {
            let wanted = from.0.get(&axis.name).or_else(|| fallback.0.get(&axis.name));
            let value = wanted.and_then(|w| axis.nearest(w)).unwrap_or(&axis.values[0]);
            point.insert(axis.name.clone(), value.clone());
        }
        Point(point)
    }
}

impl Axis {
    fn nearest(&self, wanted: &str) -> Option<&String> {
        if let Some(v) = self.values.iter().find(|v| *v == wanted) {
            return Some(v);
        }
        let w: f64 = wanted.parse().ok()?;
        let distance = |v: &String| v.parse::<f64>().map_or(f64::INFINITY, |x| (x - w).abs());
        self.values.iter().min_by(|a, b| distance(a).total_cmp(&distance(b)))
    }
}

impl Point {
    /// The value of an axis.
    pub fn get(&self, axis: &str) -> Option<&str> {
        self.0.get(axis).map(String::as_str)
    }

    /// The value of a numeric axis.
    pub fn number(&self, axis: &str) -> Option<u32> {
        self.get(axis)?.parse().ok()
    }

    /// This point with one value changed.
    pub fn with(&self, axis: &str, value: impl Into<String>) -> Self {
        let mut next = self.clone();
        next.0.insert(axis.to_owned(), value.into());
        next
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (k, v)) in self.0.iter().enumerate() {
            write!(f, "{}{k}={v}", if i > 0 { " " } else { "" })?;
        }
        Ok(())
    }
}
