//! A paired test that may look after every pair, and the error budget that all candidates of a task share.
//!
//! The test bets on the sign of each pair. Under "the challenger is not better", and with the order within a pair
//! balanced or drawn, a pair favours the challenger with a chance of at most one half whatever the noise: heavy
//! tails, bursts and slow drift touch both sides of a pair alike. The wealth of a gambler who mixes over all win
//! rates above one half is then a supermartingale, and exceeds `1 / alpha` at any time with a chance of at most
//! `alpha` (Ville's inequality; Robbins 1970, Waudby-Smith and Ramdas 2024). So stopping early is free of bias.

use crate::paired::Pairs;
use crate::sample::median;
use serde::{Deserialize, Serialize};

/// Error that a task may spend over all its candidates, however many come.
///
/// The k-th candidate that reaches the test (k from 1) is granted `alpha / (S k (1 + ln k)^2)`; the grants sum to at
/// most `alpha`, so the chance that *any* promotion of the task is false is at most `alpha`. A pure function of k: the
/// ledger's fold rebuilds it by counting.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ErrorBudget {
    pub alpha: f64,
}

impl ErrorBudget {
    /// Upper bound of the sum of `1 / (k (1 + ln k)^2)` over all k.
    const SERIES: f64 = 1.70;

    /// A budget of `alpha`, clamped into (0, 0.5].
    pub fn new(alpha: f64) -> Self {
        Self { alpha: if alpha.is_finite() { alpha.clamp(1e-12, 0.5) } else { 1e-12 } }
    }

    /// The error rate of the candidate after `tested` others were tested.
    pub fn grant(&self, tested: u64) -> f64 {
        let k = tested as f64 + 1.0;
        self.alpha / (Self::SERIES * k * (1.0 + k.ln()).powi(2))
    }
}

impl Default for ErrorBudget {
    fn default() -> Self {
        Self::new(0.05)
    }
}

/// Constants of one sequential test.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SequentialPlan {
    /// Chance of calling a challenger better that is not; from [`ErrorBudget::grant`].
    pub alpha: f64,
    /// Chance of giving up on a challenger that is better by the least effect.
    pub beta: f64,
    /// Least relative improvement that counts, for example 0.01.
    pub least_effect: f64,
    /// No verdict before this many pairs.
    pub least_pairs: u32,
    /// Undecided after this many.
    pub most_pairs: u32,
}

impl SequentialPlan {
    /// Sensible constants for an `alpha` and a least effect: beta 0.1, 6 to 200 pairs.
    pub fn new(alpha: f64, least_effect: f64) -> Self {
        Self { alpha, beta: 0.1, least_effect, least_pairs: 6, most_pairs: 200 }
    }
}

/// What the pairs so far show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Give it more pairs.
    More,
    /// Better than the champion, by the least effect or more in the median.
    Better,
    /// Not better by the least effect.
    NotBetter,
    /// The pairs ran out: the champion stays.
    Undecided,
}

/// Which side runs first in the next pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairOrder {
    ChampionFirst,
    ChallengerFirst,
}

/// The test in progress. A verdict is final: further pairs do not change it.
#[derive(Clone, Debug)]
pub struct Sequential {
    plan: SequentialPlan,
    logs: Vec<f64>,
    /// Pairs in which the challenger was better at all.
    wins: u64,
    /// Pairs in which it fell short of the least effect.
    shortfalls: u64,
    status: Status,
}

impl Sequential {
    pub fn new(plan: SequentialPlan) -> Self {
        Self { plan, logs: Vec::new(), wins: 0, shortfalls: 0, status: Status::More }
    }

    /// Runs the test over pairs in their order; stops at the first verdict.
    pub fn replay(plan: SequentialPlan, pairs: &Pairs) -> Self {
        let mut test = Self::new(plan);
        for log in pairs.logs() {
            if test.push_log(*log) != Status::More {
                break;
            }
        }
        test
    }

    /// Adds one pair by its ratio (above 1: challenger better). A ratio that is not positive counts as a loss.
    pub fn push(&mut self, ratio: f64) -> Status {
        self.push_log(if ratio > 0.0 { ratio.ln() } else { f64::MIN })
    }

    fn push_log(&mut self, log: f64) -> Status {
        if self.status != Status::More {
            return self.status;
        }
        self.logs.push(log);
        self.wins += u64::from(log > 0.0);
        self.shortfalls += u64::from(log < (1.0 + self.plan.least_effect).ln());
        self.status = self.judge();
        self.status
    }

    fn judge(&self) -> Status {
        let n = self.logs.len() as u64;
        if n < u64::from(self.plan.least_pairs) {
            return Status::More;
        }
        let enough = self.ratio() >= 1.0 + self.plan.least_effect;
        if enough && log_wealth(self.wins, n) >= -self.plan.alpha.ln() {
            Status::Better
        } else if log_wealth(self.shortfalls, n) >= -self.plan.beta.ln() {
            Status::NotBetter
        } else if n >= u64::from(self.plan.most_pairs) {
            Status::Undecided
        } else {
            Status::More
        }
    }

    /// The verdict so far.
    pub fn status(&self) -> Status {
        self.status
    }

    /// Median ratio so far (1 before the first pair).
    pub fn ratio(&self) -> f64 {
        median(&self.logs).map_or(1.0, f64::exp)
    }

    /// Pairs so far.
    pub fn pairs(&self) -> u32 {
        u32::try_from(self.logs.len()).unwrap_or(u32::MAX)
    }

    /// An upper bound of the chance of this much evidence, at any time, without an improvement.
    pub fn p_value(&self) -> f64 {
        (-log_wealth(self.wins, self.logs.len() as u64)).exp().min(1.0)
    }

    /// Order of the next pair: balanced within four pairs (ABBA), so that linear drift cancels.
    pub fn next_order(&self) -> PairOrder {
        match self.logs.len() % 4 {
            0 | 3 => PairOrder::ChampionFirst,
            _ => PairOrder::ChallengerFirst,
        }
    }
}

/// Log wealth after `wins` of `n` fair bets for a gambler who believes in a win rate uniform on `[1/2, 1]`:
/// `ln( 2^n * 2 * integral over [1/2, 1] of p^wins (1 - p)^(n - wins) dp )`.
///
/// With `B(a, b) I_{1/2}(b, a)` for the integral and the binomial identity of the incomplete beta function:
/// `2^(n+1) / ((n + 1) C(n, wins)) * P(Bin(n + 1, 1/2) <= wins)`.
fn log_wealth(wins: u64, n: u64) -> f64 {
    if n == 0 {
        return 0.0;
    }
    let (w, m) = (wins as f64, n as f64);
    let log_choose = log_factorial(m) - log_factorial(w) - log_factorial(m - w);
    // P(Bin(n+1) <= wins) = P(Bin(n+1) >= n + 1 - wins) by symmetry.
    let below = crate::exact::binomial_tail((n + 1 - wins) as usize, n as usize + 1);
    (m + 1.0) * std::f64::consts::LN_2 - (m + 1.0).ln() - log_choose + below.max(f64::MIN_POSITIVE).ln()
}

/// `ln(n!)` by Stirling's series, exact by product for small n.
fn log_factorial(n: f64) -> f64 {
    if n < 20.0 {
        return (2..=n as u32).map(|k| f64::from(k).ln()).sum();
    }
    let inverse = 1.0 / n;
    (n + 0.5) * n.ln() - n + 0.5 * (2.0 * std::f64::consts::PI).ln() + inverse / 12.0
        - inverse.powi(3) / 360.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_sum_to_less_than_alpha() {
        let budget = ErrorBudget::new(0.05);
        let sum: f64 = (0..200_000).map(|k| budget.grant(k)).sum();
        // The rest of the series is at most the integral: alpha / (S (1 + ln K)).
        let rest = 0.05 / (ErrorBudget::SERIES * (1.0 + 200_000f64.ln()));
        assert!(sum + rest <= 0.05, "{}", sum + rest);
        assert!(budget.grant(0) > 0.025, "most of the budget must not lie in the tail");
    }

    #[test]
    fn wealth_equals_numerical_integration() {
        for (wins, n) in [(0u64, 1u64), (1, 1), (5, 5), (3, 10), (9, 10), (40, 60)] {
            let steps = 200_000;
            let integral: f64 = (0..steps)
                .map(|i| {
                    let p = 0.5 + (f64::from(i) + 0.5) / f64::from(steps) / 2.0;
                    (2.0 * p).powi(wins as i32) * (2.0 * (1.0 - p)).powi((n - wins) as i32)
                })
                .sum::<f64>()
                / f64::from(steps);
            assert!((log_wealth(wins, n) - integral.ln()).abs() < 1e-6, "{wins} of {n}");
        }
    }

    #[test]
    fn wealth_is_fair_under_the_null() {
        // Expectation of the wealth after n fair bets is exactly 1.
        for n in [1u64, 7, 30] {
            let mean: f64 = (0..=n)
                .map(|w| {
                    let log_p = log_factorial(n as f64)
                        - log_factorial(w as f64)
                        - log_factorial((n - w) as f64)
                        - n as f64 * std::f64::consts::LN_2;
                    (log_wealth(w, n) + log_p).exp()
                })
                .sum();
            assert!((mean - 1.0).abs() < 1e-6, "{n}: {mean}");
        }
    }

    #[test]
    fn a_verdict_is_final_and_orders_balance() {
        let mut test = Sequential::new(SequentialPlan::new(0.01, 0.01));
        let mut first = 0;
        while test.push(1.2) == Status::More {
            first += i32::from(test.next_order() == PairOrder::ChampionFirst);
        }
        assert_eq!(test.status(), Status::Better);
        assert!(test.pairs() <= 14 && first > 0, "{}", test.pairs());
        assert_eq!(test.push(0.1), Status::Better);
    }

    #[test]
    fn equal_ones_are_dropped_early() {
        let mut test = Sequential::new(SequentialPlan::new(0.01, 0.02));
        let noise = [1.003, 0.998, 1.001, 0.996, 1.002, 0.999];
        let status = (0..200).map(|i| test.push(noise[i % 6])).find(|s| *s != Status::More);
        assert_eq!(status, Some(Status::NotBetter));
        assert!(test.pairs() <= 12, "{}", test.pairs());
    }
}
