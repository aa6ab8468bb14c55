//! Which operator next: discounted UCB. Deterministic, and a function of the rewards in their order, so that the
//! ledger's fold rebuilds it.

use std::collections::BTreeMap;

/// One choice of the bandit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Arm {
    /// Discounted number of rewards.
    pub count: f64,
    /// Discounted sum of rewards.
    pub reward: f64,
}

/// Discounted upper confidence bounds (Garivier and Moulines 2011): old rewards fade, since what helps at the start
/// of a search does not help at its end.
#[derive(Clone, Debug)]
pub struct Bandit<K: Ord + Copy> {
    arms: BTreeMap<K, Arm>,
    discount: f64,
    exploration: f64,
}

impl<K: Ord + Copy> Bandit<K> {
    /// `discount` in (0, 1] per reward, `exploration` scales the bonus of rare arms.
    pub fn new(discount: f64, exploration: f64) -> Self {
        Self { arms: BTreeMap::new(), discount: discount.clamp(0.01, 1.0), exploration }
    }

    /// Adds a reward in `[0, 1]` for an arm.
    pub fn reward(&mut self, arm: K, reward: f64) {
        for a in self.arms.values_mut() {
            a.count *= self.discount;
            a.reward *= self.discount;
        }
        let a = self.arms.entry(arm).or_default();
        a.count += 1.0;
        a.reward += if reward.is_finite() { reward.clamp(0.0, 1.0) } else { 0.0 };
    }

    /// The arms of `available`, best first. Arms without rewards come first, in the order given; each of `pending`
    /// (handed out, no reward yet) counts as a try without reward, so that a batch spreads.
    pub fn rank(&self, available: &[K], pending: &[K]) -> Vec<K> {
        let waiting = |k: &K| pending.iter().filter(|p| *p == k).count() as f64;
        let total: f64 = self.arms.values().map(|a| a.count).sum::<f64>() + pending.len() as f64;
        let bound = |k: &K| {
            let arm = self.arms.get(k).copied().unwrap_or_default();
            let count = arm.count + waiting(k);
            if count < 1e-3 {
                return f64::INFINITY;
            }
            arm.reward / count + self.exploration * ((1.0 + total).ln() / count).sqrt()
        };
        let mut ranked: Vec<(f64, K)> = available.iter().map(|k| (bound(k), *k)).collect();
        // Stable: ties keep the given order.
        ranked.sort_by(|a, b| b.0.total_cmp(&a.0));
        ranked.into_iter().map(|(_, k)| k).collect()
    }

    /// What is known about an arm.
    pub fn arm(&self, arm: K) -> Arm {
        self.arms.get(&arm).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_arms_are_chosen_more_and_changes_are_followed() {
        let mut bandit = Bandit::new(0.95, 0.3);
        let mut picks = [[0; 2]; 2];
        for t in 0..400 {
            let arm = bandit.rank(&[0usize, 1], &[])[0];
            let good = usize::from(t >= 200);
            picks[usize::from(t >= 200)][arm] += 1;
            bandit.reward(arm, if arm == good { 0.6 } else { 0.1 });
        }
        assert!(picks[0][0] > 140 && picks[1][1] > 120, "{picks:?}");
    }

    #[test]
    fn pending_arms_wait() {
        let bandit: Bandit<u8> = Bandit::new(0.9, 0.5);
        assert_eq!(bandit.rank(&[3, 1, 2], &[])[0], 3);
        assert_eq!(bandit.rank(&[3, 1, 2], &[3])[0], 1);
        assert_eq!(bandit.rank(&[3, 1, 2], &[3, 1])[0], 2);
    }
}
