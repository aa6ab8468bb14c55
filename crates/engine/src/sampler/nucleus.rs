//! Top-k, top-p and min-p by selection, without sorting the vocabulary.
//!
//! Candidates are ordered by weight, descending, then by index. Each filter keeps a prefix of that order, found as a
//! threshold element; the kept ones stay in order of index, so the draw does not depend on how the selection went.

use super::vector;
use std::cmp::Ordering;

#[derive(Clone, Copy, Debug, PartialEq)]
struct Candidate {
    weight: f32,
    index: u32,
}

fn order(a: &Candidate, b: &Candidate) -> Ordering {
    b.weight.total_cmp(&a.weight).then(a.index.cmp(&b.index))
}

fn mass(candidates: &[Candidate]) -> f64 {
    candidates.iter().map(|c| f64::from(c.weight)).sum()
}

/// Scratch of the filters.
#[derive(Debug, Default)]
pub struct Candidates {
    /// Kept candidates in order of index.
    kept: Vec<Candidate>,
    selection: Vec<Candidate>,
}

impl Candidates {
    /// Draws an index from `weights` (relative to the largest, which is 1; `all` is their sum) after the filters;
    /// `top_k` is at least 1.
    pub fn draw(
        &mut self,
        weights: &[f32],
        all: f64,
        min_p: f32,
        top_k: usize,
        top_p: f32,
        uniform: f64,
    ) -> u32 {
        // Nearly all mass lies in few candidates. Gather those above a cut and lower it only while a filter might
        // reach below.
        for cut in [1e-3f32, 1e-6, 0.0] {
            let floor = cut.max(min_p);
            let whole = floor <= min_p;
            self.kept.clear();
            // Weight 0 is no candidate.
            let floor = floor.max(f32::MIN_POSITIVE);
            let kept = &mut self.kept;
            vector::visit_from(weights, floor, |index, weight| {
                kept.push(Candidate { weight, index });
                floor
            });
            if self.kept.len() > top_k {
                self.keep_first(top_k);
            } else if !whole && top_k < weights.len() && self.kept.len() < top_k {
                continue;
            }
            // All that survive min_p and top_k: what top_p is a fraction of.
            let total = if whole || self.kept.len() >= top_k {
                mass(&self.kept)
            } else if min_p <= 0.0 {
                all
            } else {
                weights.iter().filter(|w| **w >= min_p).map(|w| f64::from(*w)).sum()
            };
            let need = f64::from(top_p) * total;
            if !whole && self.kept.len() < top_k && mass(&self.kept) < need {
                continue;
            }
            if top_p < 1.0 {
                self.keep_mass(need);
            }
            break;
        }
        let target = uniform * mass(&self.kept);
        let mut sum = 0.0;
        for candidate in &self.kept {
            sum += f64::from(candidate.weight);
            if sum > target {
                return candidate.index;
            }
        }
        // Rounding at the very end; `kept` holds at least the most probable.
        self.kept.last().map_or(0, |c| c.index)
    }

    /// Keeps the first `count` in order, at least 1.
    fn keep_first(&mut self, count: usize) {
        self.selection.clone_from(&self.kept);
        let (_, threshold, _) = self.selection.select_nth_unstable_by(count - 1, order);
        let threshold = *threshold;
        self.kept.retain(|c| order(c, &threshold) != Ordering::Greater);
    }

    /// Keeps the shortest prefix of the order whose mass reaches `need`.
    fn keep_mass(&mut self, mut need: f64) {
        self.selection.clone_from(&self.kept);
        let mut rest = &mut self.selection[..];
        while rest.len() > 1 {
            let half = rest.len() / 2;
            rest.select_nth_unstable_by(half - 1, order);
            let (first, second) = rest.split_at_mut(half);
            let first_mass = mass(first);
            if first_mass >= need {
                rest = first;
            } else {
                need -= first_mass;
                rest = second;
            }
        }
        if let Some(threshold) = rest.first().copied() {
            self.kept.retain(|c| order(c, &threshold) != Ordering::Greater);
        }
    }
}
