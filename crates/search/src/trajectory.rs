//! A search in one space: history, bandit and operators together.

use crate::bandit::Bandit;
use crate::history::{History, Outcome};
use crate::knowledge::Knowledge;
use crate::operators::{Operator, Suggestion, changes, propose, unseen};
use evidence::{Point, Space};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// Gain that counts as full reward: 10 %.
const FULL_REWARD: f64 = 0.095;
/// Reward of a correct point that is no improvement, at most (less the farther it is below the best).
const INFORMATION: f64 = 0.12;

/// The state of a search. It depends on the calls of [`Search::mark`], [`Search::record`] and
/// [`Search::set_incumbent`] alone, and each suggestion on that state, the seed and the knowledge: a ledger rebuilds it.
#[derive(Clone, Debug)]
pub struct Search {
    space: Space,
    history: History,
    bandit: Bandit<Operator>,
    pending: Vec<(Point, Operator)>,
    seed: u64,
}

impl Search {
    pub fn new(space: Space, seed: u64) -> Self {
        Self {
            space,
            history: History::default(),
            bandit: Bandit::new(0.95, 0.25),
            pending: Vec::new(),
            seed,
        }
    }

    pub fn space(&self) -> &Space {
        &self.space
    }

    pub fn history(&self) -> &History {
        &self.history
    }

    pub fn bandit(&self) -> &Bandit<Operator> {
        &self.bandit
    }

    /// Notes that a point was handed out, by an operator of ours or by somebody else.
    pub fn mark(&mut self, point: &Point, operator: Option<Operator>) {
        self.history.mark(point);
        if let Some(operator) = operator {
            self.pending.push((point.clone(), operator));
        }
    }

    /// Adds the outcome of a point, and rewards its operator.
    pub fn record(&mut self, point: &Point, outcome: Outcome) {
        let reward = self.reward_of(outcome);
        self.history.record(point, outcome);
        if let Some(i) = self.pending.iter().position(|(p, _)| p == point) {
            let (_, operator) = self.pending.remove(i);
            self.bandit.reward(operator, reward);
        }
    }

    /// Forgets that a point is pending, without an outcome (given up after faults of ours).
    pub fn abandon(&mut self, point: &Point) {
        self.pending.retain(|(p, _)| p != point);
    }

    /// Takes back what was measured of a point: it was found wrong later.
    pub fn revoke(&mut self, point: &Point) {
        self.history.revoke(point);
    }

    /// Names the champion's point.
    pub fn set_incumbent(&mut self, point: &Point) {
        self.history.set_incumbent(&self.space, point);
    }

    /// Improvement first; a correct point near the best is worth something too.
    fn reward_of(&self, outcome: Outcome) -> f64 {
        let Outcome::Measured(gain) = outcome else { return 0.0 };
        let best = self.history.best_gain().unwrap_or(gain - FULL_REWARD);
        let improvement = gain - best;
        if improvement > 0.0 {
            0.3 + 0.7 * (improvement / FULL_REWARD).min(1.0)
        } else {
            INFORMATION * (improvement / FULL_REWARD).exp()
        }
    }

    /// The next point by the operators of `allowed`, chosen by the bandit. If all of them are at their ends, any
    /// unseen point; `None` if the space is exhausted.
    pub fn suggest(
        &self,
        knowledge: &Knowledge,
        allowed: &[Operator],
        feasible: &dyn Fn(&Point) -> bool,
    ) -> Option<Suggestion> {
        let drawn = self.history.seen().len() as u64;
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed ^ drawn.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        if self.space.axes.iter().any(|a| a.values.is_empty()) {
            return None;
        }
        let pending: Vec<Operator> = self.pending.iter().map(|(_, o)| *o).collect();
        for operator in self.bandit.rank(allowed, &pending) {
            let made = propose(operator, &self.space, &self.history, knowledge, feasible, &mut rng);
            if made.is_some() {
                return made;
            }
        }
        let point = unseen(&self.space, &self.history, feasible, &mut rng)?;
        let changes = self.history.incumbent().map_or_else(Vec::new, |i| changes(&self.space, i, &point));
        Some(Suggestion { operator: Operator::Random, point, parents: vec![], changes })
    }
}
