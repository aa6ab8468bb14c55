//! What was tried in one space.

use evidence::{Point, Space};
use std::collections::BTreeSet;

/// What became of a point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Outcome {
    /// Correct, with this gain.
    Measured(f64),
    /// Wrong, or it breaks a rule.
    Rejected,
}

/// One finished trial.
#[derive(Clone, Debug, PartialEq)]
pub struct Trial {
    pub point: Point,
    pub outcome: Outcome,
}

/// Points proposed and their outcomes, in order. The set of seen points keeps a search from proposing one twice.
#[derive(Clone, Debug, Default)]
pub struct History {
    seen: BTreeSet<Point>,
    trials: Vec<Trial>,
    incumbent: Option<Point>,
    momentum: Option<(String, Step)>,
}

/// A direction along an ordered axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Up,
    Down,
}

impl History {
    /// Notes that a point was proposed.
    pub fn mark(&mut self, point: &Point) {
        self.seen.insert(point.clone());
    }

    /// Adds an outcome.
    pub fn record(&mut self, point: &Point, outcome: Outcome) {
        self.mark(point);
        self.trials.push(Trial { point: point.clone(), outcome });
    }

    /// Names the point that local moves start from. If it differs from the one before in a single ordered axis, local
    /// search goes on in that direction first.
    pub fn set_incumbent(&mut self, space: &Space, point: &Point) {
        self.momentum = self.incumbent.as_ref().and_then(|old| direction(space, old, point));
        self.incumbent = Some(point.clone());
        self.mark(point);
    }

    /// Takes back what was measured of a point: it was found wrong later.
    pub fn revoke(&mut self, point: &Point) {
        for trial in self.trials.iter_mut().filter(|t| t.point == *point) {
            trial.outcome = Outcome::Rejected;
        }
        if self.incumbent.as_ref() == Some(point) {
            (self.incumbent, self.momentum) = (None, None);
        }
    }

    pub fn is_seen(&self, point: &Point) -> bool {
        self.seen.contains(point)
    }

    /// Points proposed so far.
    pub fn seen(&self) -> &BTreeSet<Point> {
        &self.seen
    }

    /// Finished trials in order.
    pub fn trials(&self) -> &[Trial] {
        &self.trials
    }

    /// The point that local moves start from: the incumbent, else the best measured one.
    pub fn incumbent(&self) -> Option<&Point> {
        self.incumbent.as_ref().or_else(|| self.elite(1).first().copied())
    }

    pub(crate) fn momentum(&self) -> Option<(&str, Step)> {
        self.momentum.as_ref().map(|(a, s)| (a.as_str(), *s))
    }

    /// Measured trials as (point, gain).
    pub fn measured(&self) -> impl Iterator<Item = (&Point, f64)> {
        self.trials.iter().filter_map(|t| match t.outcome {
            Outcome::Measured(gain) => Some((&t.point, gain)),
            Outcome::Rejected => None,
        })
    }

    /// The best gain so far.
    pub fn best_gain(&self) -> Option<f64> {
        self.measured().map(|(_, g)| g).max_by(f64::total_cmp)
    }

    /// The best distinct points, best first, the incumbent in front.
    pub fn elite(&self, most: usize) -> Vec<&Point> {
        let mut ranked: Vec<(&Point, f64)> = self.measured().collect();
        ranked.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(b.0)));
        let mut elite: Vec<&Point> = self.incumbent.iter().collect();
        for (point, _) in ranked {
            if !elite.contains(&point) {
                elite.push(point);
            }
        }
        elite.truncate(most);
        elite
    }
}

fn direction(space: &Space, old: &Point, new: &Point) -> Option<(String, Step)> {
    let mut differing = space.axes.iter().filter(|a| old.get(&a.name) != new.get(&a.name));
    let axis = differing.next()?;
    if differing.next().is_some() || !axis.ordered {
        return None;
    }
    let index = |p: &Point| axis.values.iter().position(|v| Some(v.as_str()) == p.get(&axis.name));
    let step = if index(new)? > index(old)? { Step::Up } else { Step::Down };
    Some((axis.name.clone(), step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revoked_point_is_no_incumbent_and_no_elite() {
        let space = Space::default().numbers("n", &[1, 2, 3]);
        let mut history = History::default();
        history.record(&space.nth(0), Outcome::Measured(0.1));
        history.record(&space.nth(1), Outcome::Measured(0.5));
        history.set_incumbent(&space, &space.nth(1));
        history.revoke(&space.nth(1));
        assert_eq!(history.incumbent(), Some(&space.nth(0)));
        assert_eq!(history.elite(9), [&space.nth(0)]);
        assert!(history.is_seen(&space.nth(1)));
    }
}
