//! How far a candidate's predictions are from the reference's, streamed row by row.

use crate::error::{Error, Result};

/// Divergence of a candidate from the reference over rows of logits. All sums are f64.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Divergence {
    kl: Vec<f64>,
    agreeing: usize,
    targets: usize,
    reference_loss: f64,
    candidate_loss: f64,
}

/// What one row contributes.
struct Row {
    kl: f64,
    agrees: bool,
    losses: Option<(f64, f64)>,
}

impl Divergence {
    /// Nothing measured yet.
    pub fn new() -> Divergence {
        Divergence::default()
    }

    /// Adds one row: logits of the reference and of the candidate at one position, and the token that really follows, where
    /// there is one.
    ///
    /// # Errors
    /// [`Error::Argument`] if the rows differ in length or hold a value that is not finite, or `next` is outside.
    pub fn push(&mut self, reference: &[f32], candidate: &[f32], next: Option<u32>) -> Result<()> {
        let row = compare(reference, candidate, next)?;
        self.add(row);
        Ok(())
    }

    /// Adds rows of `vocab` logits, in parallel; `next` gives each row's following token.
    ///
    /// # Errors
    /// As [`Divergence::push`].
    pub fn push_rows(
        &mut self,
        reference: &[f32],
        candidate: &[f32],
        vocab: usize,
        next: &[Option<u32>],
    ) -> Result<()> {
        if vocab == 0 || reference.len() != candidate.len() || reference.len() != vocab * next.len() {
            let lens = (reference.len(), candidate.len(), next.len());
            return Err(Error::Argument(format!("logits {lens:?} are not equal numbers of rows of {vocab}")));
        }
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let share = next.len().div_ceil(threads).max(1);
        let rows = std::thread::scope(|scope| -> Result<Vec<Row>> {
            let handles: Vec<_> = reference
                .chunks(share * vocab)
                .zip(candidate.chunks(share * vocab))
                .zip(next.chunks(share))
                .map(|((reference, candidate), next)| {
                    scope.spawn(move || {
                        let pairs =
                            reference.chunks_exact(vocab).zip(candidate.chunks_exact(vocab)).zip(next);
                        pairs.map(|((r, c), next)| compare(r, c, *next)).collect::<Result<Vec<Row>>>()
                    })
                })
                .collect();
            let mut rows = Vec::new();
            for handle in handles {
                rows.extend(handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
            }
            Ok(rows)
        })?;
        rows.into_iter().for_each(|row| self.add(row));
        Ok(())
    }

    fn add(&mut self, row: Row) {
        self.kl.push(row.kl);
        self.agreeing += usize::from(row.agrees);
        if let Some((reference, candidate)) = row.losses {
            self.targets += 1;
            self.reference_loss += reference;
            self.candidate_loss += candidate;
        }
    }

    /// Rows measured.
    pub fn rows(&self) -> usize {
        self.kl.len()
    }

    /// Mean of KL(reference || candidate) in nats; `None` before the first row.
    pub fn mean_kl(&self) -> Option<f64> {
        (!self.kl.is_empty()).then(|| self.kl.iter().sum::<f64>() / self.kl.len() as f64)
    }

    /// KL of every row, in order, in nats: for intervals and quantiles.
    pub fn kl(&self) -> &[f64] {
        &self.kl
    }

    /// Share of rows whose likeliest token is the same (ties: the lowest id); `None` before the first row.
    pub fn top1_agreement(&self) -> Option<f64> {
        (!self.kl.is_empty()).then(|| self.agreeing as f64 / self.kl.len() as f64)
    }

    /// Perplexity of the reference on the text; `None` without following tokens.
    pub fn reference_perplexity(&self) -> Option<f64> {
        (self.targets > 0).then(|| (self.reference_loss / self.targets as f64).exp())
    }

    /// Perplexity of the candidate on the text; `None` without following tokens.
    pub fn candidate_perplexity(&self) -> Option<f64> {
        (self.targets > 0).then(|| (self.candidate_loss / self.targets as f64).exp())
    }
}

fn compare(reference: &[f32], candidate: &[f32], next: Option<u32>) -> Result<Row> {
    if reference.is_empty() || reference.len() != candidate.len() {
        return Err(Error::Argument(format!(
            "{} reference logits, {} of the candidate",
            reference.len(),
            candidate.len()
        )));
    }
    let (reference_top, reference_total) = normaliser(reference, "reference")?;
    let (candidate_top, candidate_total) = normaliser(candidate, "candidate")?;
    let mut kl = 0.0;
    for (r, c) in reference.iter().zip(candidate) {
        let reference_log = f64::from(*r) - reference_total;
        let p = reference_log.exp();
        if p > 0.0 {
            kl += p * (reference_log - (f64::from(*c) - candidate_total));
        }
    }
    let losses = match next {
        None => None,
        Some(next) => {
            let at = next as usize;
            let (r, c) = reference.get(at).zip(candidate.get(at)).ok_or_else(|| {
                Error::Argument(format!("token {next} is outside {} logits", reference.len()))
            })?;
            Some((reference_total - f64::from(*r), candidate_total - f64::from(*c)))
        }
    };
    // Rounding can leave a tiny negative sum where both are equal; KL is never negative.
    Ok(Row { kl: kl.max(0.0), agrees: reference_top == candidate_top, losses })
}

/// Index of the largest logit, and the logarithm of the sum of all exponentials.
fn normaliser(logits: &[f32], whose: &str) -> Result<(usize, f64)> {
    let mut top = 0;
    for (i, &logit) in logits.iter().enumerate() {
        if !logit.is_finite() {
            return Err(Error::Argument(format!("logit {i} of the {whose} is {logit}")));
        }
        if logit > logits[top] {
            top = i;
        }
    }
    let most = f64::from(logits[top]);
    let sum: f64 = logits.iter().map(|&l| (f64::from(l) - most).exp()).sum();
    Ok((top, most + sum.ln()))
}

/// The `count` likeliest tokens with their probabilities (f64 softmax), likeliest first; ties: the lowest id.
pub fn top_tokens(logits: &[f32], count: usize) -> Vec<(u32, f64)> {
    let most = logits.iter().fold(f32::NEG_INFINITY, |m, &l| m.max(l));
    let sum: f64 = logits.iter().map(|&l| f64::from(l - most).exp()).sum();
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    let by_logit = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
    let count = count.min(order.len());
    if count > 0 && count < order.len() {
        order.select_nth_unstable_by(count - 1, by_logit);
    }
    order.truncate(count);
    order.sort_by(by_logit);
    order.into_iter().map(|id| (id, f64::from(logits[id as usize] - most).exp() / sum)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_divergence() {
        let mut d = Divergence::new();
        // p = (1/2, 1/2), q = (1/4, 3/4): KL = ln 2 - (ln 3) / 2.
        d.push(&[0.0, 0.0], &[0.0, 3.0_f32.ln()], Some(1)).unwrap();
        assert!((d.mean_kl().unwrap() - (2.0_f64.ln() - 3.0_f64.ln() / 2.0)).abs() < 1e-7);
        assert_eq!(d.top1_agreement(), Some(0.0));
        assert!((d.reference_perplexity().unwrap() - 2.0).abs() < 1e-9);
        assert!((d.candidate_perplexity().unwrap() - 4.0 / 3.0).abs() < 1e-6);
    }

    #[test]
    fn itself_diverges_by_nothing_and_rows_in_parallel_are_the_same() {
        let logits: Vec<f32> = (0..5_000).map(|i| ((i * 7_919) % 1_000) as f32 / 90.0).collect();
        let other: Vec<f32> = logits.iter().map(|l| l * 0.9 + 0.1).collect();
        let (mut one, mut all) = (Divergence::new(), Divergence::new());
        for row in 0..5 {
            one.push(&logits[row * 1_000..][..1_000], &other[row * 1_000..][..1_000], Some(row as u32))
                .unwrap();
        }
        let next: Vec<Option<u32>> = (0..5).map(Some).collect();
        all.push_rows(&logits, &other, 1_000, &next).unwrap();
        assert_eq!(one, all);
        let mut same = Divergence::new();
        same.push(&logits, &logits, None).unwrap();
        assert!(same.mean_kl().unwrap() < 1e-12 && same.top1_agreement() == Some(1.0));
        assert_eq!(same.reference_perplexity(), None);
    }

    #[test]
    fn values_that_are_not_finite_are_refused() {
        let e = Divergence::new().push(&[0.0, 1.0], &[0.0, f32::NAN], None).unwrap_err();
        assert!(e.to_string().contains("logit 1 of the candidate"), "{e}");
        assert!(Divergence::new().push(&[0.0], &[0.0, 1.0], None).is_err());
        assert!(Divergence::new().push(&[0.0], &[0.0], Some(1)).is_err());
    }

    #[test]
    fn top_tokens_break_ties_by_id() {
        let top = top_tokens(&[1.0, 3.0, 3.0, 0.0], 3);
        assert_eq!(top.iter().map(|t| t.0).collect::<Vec<_>>(), [1, 2, 0]);
        assert!((top_tokens(&[0.0; 4], 4).iter().map(|t| t.1).sum::<f64>() - 1.0).abs() < 1e-12);
    }
}
