//! Exact one-sided tests on paired log ratios: sign and Wilcoxon signed rank.

/// `P(Binomial(trials, 1/2) >= wins)`, exact up to f64 rounding.
pub fn binomial_tail(wins: usize, trials: usize) -> f64 {
    if wins == 0 {
        return 1.0;
    }
    if wins > trials {
        return 0.0;
    }
    // Sum from the largest k down in logarithms: no overflow, and small terms first.
    let mut log_term = -(trials as f64) * std::f64::consts::LN_2;
    let mut total = log_term.exp();
    for k in (wins..trials).rev() {
        log_term += ((k + 1) as f64 / (trials - k) as f64).ln();
        total += log_term.exp();
    }
    total.min(1.0)
}

/// One-sided sign test of "the median of `differences` is above 0". A zero counts against it, so that quantised
/// clocks make the test conservative. 1 for an empty input.
pub fn sign_test(differences: &[f64]) -> f64 {
    let wins = differences.iter().filter(|d| **d > 0.0).count();
    binomial_tail(wins, differences.len())
}

/// Differences above this count use the normal limit of the Wilcoxon statistic.
const EXACT_LIMIT: usize = 120;

/// One-sided Wilcoxon signed-rank test of "`differences` tend to be above 0". Exact (conditional on ties, by counting)
/// up to 120 non-zero differences, then the normal limit with continuity correction. Assumes that under the null a
/// difference is as likely as its negative, which a balanced order within pairs provides. 1 for an empty input.
pub fn wilcoxon(differences: &[f64]) -> f64 {
    let mut d: Vec<f64> = differences.iter().copied().filter(|d| *d != 0.0).collect();
    d.sort_by(|a, b| a.abs().total_cmp(&b.abs()));
    let n = d.len();
    if n == 0 {
        return 1.0;
    }
    let ranks = doubled_ranks(&d);
    let plus: usize = d.iter().zip(&ranks).filter(|(d, _)| **d > 0.0).map(|(_, r)| r).sum();
    if n <= EXACT_LIMIT { exact_upper(&ranks, plus) } else { normal_upper(&ranks, plus) }
}

/// Mid-ranks times two, so that ties stay integers. Input sorted by magnitude.
fn doubled_ranks(sorted: &[f64]) -> Vec<usize> {
    let mut ranks = vec![0; sorted.len()];
    let mut start = 0;
    while start < sorted.len() {
        let size = sorted[start..].iter().take_while(|v| v.abs() == sorted[start].abs()).count();
        // Ranks start+1 ..= start+size: twice their mean.
        ranks[start..start + size].fill(2 * start + size + 1);
        start += size;
    }
    ranks
}

/// `P(sum of ranks with fair signs >= plus)` by counting subsets.
fn exact_upper(ranks: &[usize], plus: usize) -> f64 {
    let total: usize = ranks.iter().sum();
    let mut share = vec![0.0f64; total + 1];
    share[0] = 1.0;
    let mut reach = 0;
    for &r in ranks {
        reach += r;
        for s in (0..=reach).rev() {
            let without = share[s];
            let with = if s >= r { share[s - r] } else { 0.0 };
            share[s] = 0.5 * (without + with);
        }
    }
    share[plus.min(total)..].iter().sum::<f64>().min(1.0)
}

fn normal_upper(ranks: &[usize], plus: usize) -> f64 {
    let mean = ranks.iter().sum::<usize>() as f64 / 2.0;
    let variance = ranks.iter().map(|r| (*r as f64).powi(2)).sum::<f64>() / 4.0;
    normal_tail((plus as f64 - 1.0 - mean) / variance.sqrt())
}

/// Upper tail of the standard normal: Abramowitz and Stegun 7.1.26 for erfc, |error| < 1.5e-7; floored there, so that
/// the approximation never claims more evidence than it can resolve.
pub(crate) fn normal_tail(z: f64) -> f64 {
    let x = z.abs() / std::f64::consts::SQRT_2;
    let t = 1.0 / (1.0 + 0.3275911 * x);
    let poly =
        t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
    let erfc = poly * (-x * x).exp();
    let upper = (erfc / 2.0 + 1.5e-7).min(1.0);
    if z >= 0.0 { upper } else { 1.0 - upper }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn binomial_tails_against_known_values() {
        assert!((binomial_tail(5, 5) - 1.0 / 32.0).abs() < 1e-15);
        assert!((binomial_tail(8, 10) - 56.0 / 1024.0).abs() < 1e-14);
        assert_eq!(binomial_tail(0, 7), 1.0);
        assert_eq!(binomial_tail(8, 7), 0.0);
        assert!((binomial_tail(2000, 4000) - 0.506307).abs() < 1e-4);
    }

    #[test]
    fn wilcoxon_against_tables() {
        // n = 5, all positive: 1/32. n = 8, W+ = 31 (critical one-sided 5 % region): 0.0391.
        assert!((wilcoxon(&[1.0, 2.0, 3.0, 4.0, 5.0]) - 1.0 / 32.0).abs() < 1e-12);
        let d = [1.0, 2.0, 3.0, 4.0, -5.0, 6.0, 7.0, 8.0];
        assert!((wilcoxon(&d) - 0.0390625).abs() < 1e-9, "{}", wilcoxon(&d));
        assert_eq!(wilcoxon(&[]), 1.0);
        assert_eq!(wilcoxon(&[0.0, 0.0]), 1.0);
    }

    proptest! {
        #[test]
        fn wilcoxon_equals_enumeration(values in prop::collection::vec(-4i32..=4, 1..11)) {
            let d: Vec<f64> = values.iter().map(|v| f64::from(*v)).collect();
            let mut kept: Vec<f64> = d.iter().copied().filter(|v| *v != 0.0).collect();
            kept.sort_by(|a, b| a.abs().total_cmp(&b.abs()));
            let ranks = doubled_ranks(&kept);
            let plus: usize = kept.iter().zip(&ranks).filter(|(v, _)| **v > 0.0).map(|(_, r)| r).sum();
            let n = kept.len();
            let hits = (0..1u32 << n)
                .filter(|m| (0..n).filter(|i| m >> i & 1 == 1).map(|i| ranks[i]).sum::<usize>() >= plus)
                .count();
            let expected = if n == 0 { 1.0 } else { hits as f64 / f64::from(1u32 << n) };
            prop_assert!((wilcoxon(&d) - expected).abs() < 1e-12);
        }

        #[test]
        fn the_normal_limit_joins_the_exact_count(seed in 0u64..50) {
            let d: Vec<f64> = (0..120u64)
                .map(|i| ((i * 7919 + seed * 104729) % 1000) as f64 / 500.0 - 0.9)
                .filter(|v| *v != 0.0)
                .collect();
            let mut sorted = d.clone();
            sorted.sort_by(|a, b| a.abs().total_cmp(&b.abs()));
            let ranks = doubled_ranks(&sorted);
            let plus: usize =
                sorted.iter().zip(&ranks).filter(|(v, _)| **v > 0.0).map(|(_, r)| r).sum();
            prop_assert!((exact_upper(&ranks, plus) - normal_upper(&ranks, plus)).abs() < 5e-3);
        }
    }
}
