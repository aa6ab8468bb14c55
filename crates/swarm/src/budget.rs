//! The budget of a search, enforced in one place.

use ledger::Spent;
use std::time::Duration;

/// What may be spent; `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    pub wall: Option<Duration>,
    pub evaluations: Option<u64>,
}

/// What is left of a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    pub wall: Option<Duration>,
    pub evaluations: Option<u64>,
}

/// A clock as an input: time since any fixed moment of this process.
pub type Clock<'a> = &'a mut dyn FnMut() -> Duration;

/// Counts what is spent, over all processes of a build.
#[derive(Clone, Debug)]
pub struct Meter {
    budget: Budget,
    before: Spent,
    started: Option<Duration>,
    now: Duration,
    evaluations: u64,
}

impl Meter {
    /// A meter that goes on from what earlier processes of this build spent.
    pub fn new(budget: Budget, before: Spent) -> Self {
        Self { budget, before, started: None, now: Duration::ZERO, evaluations: 0 }
    }

    /// Reads the clock; the first reading starts the time.
    pub fn tick(&mut self, now: Duration) {
        self.started.get_or_insert(now);
        self.now = self.now.max(now);
    }

    /// Counts one evaluation.
    pub fn evaluated(&mut self) {
        self.evaluations += 1;
    }

    /// Totals over all processes of the build.
    pub fn spent(&self) -> Spent {
        let wall = u64::try_from(self.here().as_millis()).unwrap_or(u64::MAX);
        Spent {
            wall_ms: self.before.wall_ms.saturating_add(wall),
            evaluations: self.before.evaluations.saturating_add(self.evaluations),
        }
    }

    fn here(&self) -> Duration {
        self.started.map_or(Duration::ZERO, |s| self.now.saturating_sub(s))
    }

    pub fn left(&self) -> Left {
        let spent = self.spent();
        Left {
            wall: self.budget.wall.map(|w| w.saturating_sub(Duration::from_millis(spent.wall_ms))),
            evaluations: self.budget.evaluations.map(|e| e.saturating_sub(spent.evaluations)),
        }
    }

    /// Whether another evaluation may start: something is left, and at least half of a usual evaluation's time.
    pub fn allows_another(&self) -> bool {
        let left = self.left();
        let usual = self.here() / u32::try_from(self.evaluations.max(1)).unwrap_or(u32::MAX);
        let need = if self.evaluations > 0 { usual / 2 } else { Duration::ZERO };
        left.evaluations != Some(0) && left.wall.is_none_or(|w| !w.is_zero() && w >= need)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_limits_hold_over_processes() {
        let budget = Budget { wall: Some(Duration::from_secs(10)), evaluations: Some(5) };
        let mut meter = Meter::new(budget, Spent { wall_ms: 4000, evaluations: 3 });
        meter.tick(Duration::from_secs(100));
        assert!(meter.allows_another());
        meter.evaluated();
        meter.tick(Duration::from_secs(102));
        assert_eq!(meter.left(), Left { wall: Some(Duration::from_secs(4)), evaluations: Some(1) });
        meter.evaluated();
        assert!(!meter.allows_another(), "evaluations are used up");
        let mut meter = Meter::new(Budget { evaluations: None, ..budget }, Spent::default());
        meter.tick(Duration::ZERO);
        meter.evaluated();
        meter.tick(Duration::from_secs(6));
        assert!(meter.allows_another());
        meter.tick(Duration::from_secs(8));
        assert!(!meter.allows_another(), "a usual evaluation takes 8 s, 2 s are left");
        let mut free = Meter::new(Budget::default(), Spent::default());
        free.tick(Duration::from_secs(1_000_000));
        assert!(free.allows_another());
    }
}
