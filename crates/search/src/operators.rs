//! Variation operators.

use crate::history::{History, Step};
use crate::knowledge::Knowledge;
use crate::surrogate::Additive;
use evidence::{Axis, Point, Space};
use rand::Rng;
use rand::seq::{IndexedRandom, SliceRandom};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How a point is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operator {
    /// The champion of a neighbouring task, projected into this space.
    Transfer,
    /// The next untried neighbour of the incumbent, axis by axis.
    LocalSearch,
    /// The best prediction of an additive model over axis values.
    Surrogate,
    /// One or a few axes of a good point changed.
    Mutate,
    /// A mix of two good points.
    Crossover,
    /// A uniform random point.
    Random,
    /// A random point far from all that was tried.
    Restart,
}

impl Operator {
    /// In the order in which an untried bandit takes them.
    pub const ALL: [Operator; 7] = [
        Operator::Transfer,
        Operator::LocalSearch,
        Operator::Surrogate,
        Operator::Mutate,
        Operator::Crossover,
        Operator::Random,
        Operator::Restart,
    ];

    /// The proposer's name in candidates.
    pub fn name(self) -> &'static str {
        match self {
            Operator::Transfer => "transfer",
            Operator::LocalSearch => "local-search",
            Operator::Surrogate => "surrogate",
            Operator::Mutate => "mutate",
            Operator::Crossover => "crossover",
            Operator::Random => "random",
            Operator::Restart => "restart",
        }
    }

    /// The operator with this proposer name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|o| o.name() == name)
    }
}

/// One axis that differs from the parent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AxisChange {
    pub axis: String,
    pub from: String,
    pub to: String,
}

/// A new point and where it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suggestion {
    pub operator: Operator,
    pub point: Point,
    /// Points of this space that it was made from; the first is what `changes` is relative to.
    pub parents: Vec<Point>,
    pub changes: Vec<AxisChange>,
}

/// The axes of `space` in which two points differ.
pub fn changes(space: &Space, from: &Point, to: &Point) -> Vec<AxisChange> {
    let text = |p: &Point, a: &Axis| p.get(&a.name).unwrap_or("").to_owned();
    space
        .axes
        .iter()
        .filter(|a| from.get(&a.name) != to.get(&a.name))
        .map(|a| AxisChange { axis: a.name.clone(), from: text(from, a), to: text(to, a) })
        .collect()
}

/// Random draws before an operator gives up.
const DRAWS: usize = 48;
/// Feasibility tests of one walk over the space.
const WALK: u64 = 4096;
/// Points that the surrogate ranks.
const RANKED: usize = 512;
/// Good points that are varied.
const ELITE: usize = 4;

/// One suggestion by `operator`: a member of the space, not seen before, accepted by `feasible`. `None` if this
/// operator finds none (another may).
pub fn propose<R: Rng>(
    operator: Operator,
    space: &Space,
    history: &History,
    knowledge: &Knowledge,
    feasible: &dyn Fn(&Point) -> bool,
    rng: &mut R,
) -> Option<Suggestion> {
    let mut walk = Walk { space, history, knowledge, feasible, rng };
    let (point, parents) = match operator {
        Operator::Transfer => walk.transfer(),
        Operator::LocalSearch => walk.local_search(),
        Operator::Surrogate => walk.surrogate(),
        Operator::Mutate => walk.mutate(),
        Operator::Crossover => walk.crossover(),
        Operator::Random => walk.random(),
        Operator::Restart => walk.restart(),
    }?;
    let base = parents.first().or_else(|| history.incumbent());
    let changes = base.map_or_else(Vec::new, |b| changes(space, b, &point));
    Some(Suggestion { operator, point, parents, changes })
}

/// An unseen feasible point by walking the space from a random start with a stride that visits every point once;
/// `None` if there is none (or 4,096 unseen points in a row are infeasible).
pub fn unseen<R: Rng>(
    space: &Space,
    history: &History,
    feasible: &dyn Fn(&Point) -> bool,
    rng: &mut R,
) -> Option<Point> {
    let size = space.size();
    if space.axes.iter().any(|a| a.values.is_empty()) {
        return None;
    }
    let stride = coprime(size, rng.random_range(0..size));
    let mut at = rng.random_range(0..size);
    let mut tests = 0;
    for _ in 0..size {
        let point = space.nth(at);
        if !history.is_seen(&point) {
            if feasible(&point) {
                return Some(point);
            }
            tests += 1;
            if tests == WALK {
                return None;
            }
        }
        at = ((u128::from(at) + u128::from(stride)) % u128::from(size)) as u64;
    }
    None
}

/// A number of `1..=size` near `wanted` that shares no factor with `size`.
fn coprime(size: u64, wanted: u64) -> u64 {
    let gcd = |mut a: u64, mut b: u64| {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    (wanted.max(1)..=size).find(|s| gcd(*s, size) == 1).unwrap_or(1)
}

type Made = Option<(Point, Vec<Point>)>;

struct Walk<'a, R: Rng> {
    space: &'a Space,
    history: &'a History,
    knowledge: &'a Knowledge,
    feasible: &'a dyn Fn(&Point) -> bool,
    rng: &'a mut R,
}

impl<R: Rng> Walk<'_, R> {
    fn is_new(&self, point: &Point) -> bool {
        !self.history.is_seen(point) && self.space.contains(point) && (self.feasible)(point)
    }

    fn elite(&self) -> Vec<Point> {
        self.history.elite(ELITE).into_iter().filter(|p| self.space.contains(p)).cloned().collect()
    }

    /// The incumbent more often than the others.
    fn parent(&mut self) -> Option<Point> {
        let elite = self.elite();
        if elite.len() > 1 && self.rng.random::<f64>() < 0.4 {
            return elite[1..].choose(self.rng).cloned();
        }
        elite.into_iter().next()
    }

    fn transfer(&mut self) -> Made {
        let fallback =
            self.history.incumbent().or(self.knowledge.start.as_ref()).cloned().unwrap_or_default();
        let projected: Vec<Point> =
            self.knowledge.neighbours.iter().map(|n| self.space.project(n, &fallback)).collect();
        if let Some(whole) = projected.iter().find(|p| self.is_new(p)) {
            return Some((whole.clone(), vec![]));
        }
        // All whole ones were tried: mix one with the incumbent.
        let incumbent = self.history.incumbent().cloned()?;
        for _ in 0..DRAWS {
            let other = projected.choose(self.rng)?.clone();
            let mixed = self.mix(&incumbent, &other);
            if self.is_new(&mixed) {
                return Some((mixed, vec![incumbent]));
            }
        }
        None
    }

    /// Neighbours on ordered axes, all other values on plain ones; axes that matter most first, and first of all
    /// onwards in the direction of the last improvement.
    fn local_search(&mut self) -> Made {
        let incumbent = self.history.incumbent().filter(|p| self.space.contains(p))?.clone();
        let model = Additive::fit(self.space, self.history, &self.knowledge.effects);
        let mut axes: Vec<&Axis> = self.space.axes.iter().collect();
        let weight = |a: &Axis| model.range(&a.name);
        axes.sort_by(|a, b| weight(b).total_cmp(&weight(a)));
        let mut moves: Vec<Point> = Vec::new();
        if let Some((axis, step)) = self.history.momentum() {
            moves.extend(self.step(&incumbent, axis, step));
        }
        for distance in [1, 2] {
            for axis in &axes {
                let mut near = neighbours(axis, &incumbent, distance);
                near.sort_by(|a, b| model.predict(b).gain.total_cmp(&model.predict(a).gain));
                moves.extend(near);
            }
        }
        let found = moves.into_iter().find(|p| self.is_new(p))?;
        Some((found, vec![incumbent]))
    }

    fn step(&self, from: &Point, axis: &str, step: Step) -> Option<Point> {
        let axis = self.space.axes.iter().find(|a| a.name == axis)?;
        let at = axis.values.iter().position(|v| Some(v.as_str()) == from.get(&axis.name))?;
        let next = match step {
            Step::Up => at.checked_add(1)?,
            Step::Down => at.checked_sub(1)?,
        };
        Some(from.with(&axis.name, axis.values.get(next)?.clone()))
    }

    fn surrogate(&mut self) -> Made {
        let model = Additive::fit(self.space, self.history, &self.knowledge.effects);
        if !model.is_informed() {
            return None;
        }
        let mut ranked: Vec<(f64, Point)> = Vec::new();
        for point in self.pool() {
            if !self.history.is_seen(&point) && self.space.contains(&point) {
                ranked.push((model.predict(&point).optimistic(0.5), point));
            }
        }
        ranked.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
        ranked.dedup_by(|a, b| a.1 == b.1);
        let found = ranked.into_iter().map(|(_, p)| p).take(RANKED).find(|p| (self.feasible)(p))?;
        Some((found, self.history.incumbent().cloned().into_iter().collect()))
    }

    /// The whole space if it is small, else random points and variations of the good ones.
    fn pool(&mut self) -> Vec<Point> {
        let size = self.space.size();
        if size <= 4 * RANKED as u64 {
            return (0..size).map(|i| self.space.nth(i)).collect();
        }
        let mut pool: Vec<Point> =
            (0..RANKED).map(|_| self.space.nth(self.rng.random_range(0..size))).collect();
        for elite in self.elite() {
            pool.extend(self.space.axes.iter().flat_map(|a| others(a, &elite)));
            for _ in 0..RANKED / ELITE {
                pool.push(self.vary(&elite, 3));
            }
        }
        pool
    }

    fn mutate(&mut self) -> Made {
        for draw in 0..DRAWS {
            let parent = self.parent()?;
            // Wider steps when the near ones are used up.
            let child = self.vary(&parent, 1 + draw / 16);
            if self.is_new(&child) {
                return Some((child, vec![parent]));
            }
        }
        None
    }

    /// Changes `least` axes and, with falling chance, more.
    fn vary(&mut self, parent: &Point, least: usize) -> Point {
        let mut axes: Vec<&Axis> = self.space.axes.iter().filter(|a| a.values.len() > 1).collect();
        axes.shuffle(self.rng);
        let mut count = least;
        while count < axes.len() && self.rng.random::<f64>() < 0.3 {
            count += 1;
        }
        axes.into_iter().take(count).fold(parent.clone(), |p, axis| self.nudge(&p, axis))
    }

    /// A neighbouring value mostly on ordered axes, any other value on plain ones.
    fn nudge(&mut self, point: &Point, axis: &Axis) -> Point {
        let near = if axis.ordered && self.rng.random::<f64>() < 0.75 {
            neighbours(axis, point, 1)
        } else {
            others(axis, point).collect()
        };
        near.choose(self.rng).cloned().unwrap_or_else(|| point.clone())
    }

    fn crossover(&mut self) -> Made {
        let elite = self.elite();
        if elite.len() < 2 {
            return None;
        }
        for _ in 0..DRAWS {
            let pair: Vec<&Point> = elite.choose_multiple(self.rng, 2).collect();
            let child = self.mix(pair[0], pair[1]);
            if self.is_new(&child) {
                return Some((child, vec![pair[0].clone(), pair[1].clone()]));
            }
        }
        None
    }

    fn mix(&mut self, a: &Point, b: &Point) -> Point {
        let values: BTreeMap<String, String> = self
            .space
            .axes
            .iter()
            .filter_map(|axis| {
                let from = if self.rng.random::<bool>() { a } else { b };
                from.get(&axis.name).map(|v| (axis.name.clone(), v.to_owned()))
            })
            .collect();
        Point(values)
    }

    fn random(&mut self) -> Made {
        let size = self.space.size();
        for _ in 0..DRAWS.min(16) {
            let point = self.space.nth(self.rng.random_range(0..size.max(1)));
            if self.is_new(&point) {
                return Some((point, vec![]));
            }
        }
        unseen(self.space, self.history, self.feasible, self.rng).map(|p| (p, vec![]))
    }

    /// Of some random points the one that shares the fewest values with what was tried.
    fn restart(&mut self) -> Made {
        let tried: Vec<&Point> = self.history.seen().iter().collect();
        let distance = |p: &Point| {
            let differing = |q: &&Point| p.0.iter().filter(|(k, v)| q.get(k) != Some(v)).count();
            tried.iter().map(differing).min().unwrap_or(usize::MAX)
        };
        let drawn: Vec<Point> = (0..16).filter_map(|_| self.random()).map(|(p, _)| p).collect();
        let mut best: Option<(usize, Point)> = None;
        for point in drawn {
            let d = distance(&point);
            if best.as_ref().is_none_or(|(b, _)| d > *b) {
                best = Some((d, point));
            }
        }
        best.map(|(_, p)| (p, vec![]))
    }
}

/// The values `distance` steps away on an ordered axis; on a plain axis all others (at distance 1 only).
fn neighbours(axis: &Axis, point: &Point, distance: usize) -> Vec<Point> {
    if !axis.ordered {
        return if distance == 1 { others(axis, point).collect() } else { vec![] };
    }
    let Some(at) = axis.values.iter().position(|v| Some(v.as_str()) == point.get(&axis.name)) else {
        return vec![];
    };
    [at.checked_sub(distance), at.checked_add(distance)]
        .into_iter()
        .flatten()
        .filter_map(|i| axis.values.get(i))
        .map(|v| point.with(&axis.name, v.clone()))
        .collect()
}

fn others<'a>(axis: &'a Axis, point: &'a Point) -> impl Iterator<Item = Point> + 'a {
    axis.values
        .iter()
        .filter(|v| Some(v.as_str()) != point.get(&axis.name))
        .map(|v| point.with(&axis.name, v.clone()))
}
