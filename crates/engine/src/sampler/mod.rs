//! Choosing the next token from a row of logits. A pure function of the row, the parameters, the sequence's history
//! and the position: nothing of the batch enters.

mod nucleus;
pub mod random;
pub mod vector;

use crate::request::{SamplingParams, TokenLogprobs};
use std::collections::{HashMap, HashSet};

/// Every logit is NaN or minus infinity: there is nothing to choose from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoCandidate;

/// A choice.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    pub token: u32,
    pub logprobs: Option<TokenLogprobs>,
}

/// What penalties need to know of a sequence. Empty while its parameters have none.
#[derive(Clone, Debug, Default)]
pub struct History {
    generated: HashMap<u32, u32>,
    prompt: HashSet<u32>,
    active: bool,
}

impl History {
    /// The history of a fresh sequence.
    pub fn new(params: &SamplingParams, prompt: &[u32]) -> Self {
        let repetition = params.repetition_penalty != 1.0;
        let active = repetition || params.presence_penalty != 0.0 || params.frequency_penalty != 0.0;
        let prompt = if repetition { prompt.iter().copied().collect() } else { HashSet::new() };
        Self { generated: HashMap::new(), prompt, active }
    }

    /// Counts a generated token.
    pub fn record(&mut self, token: u32) {
        if self.active {
            *self.generated.entry(token).or_insert(0) += 1;
        }
    }
}

/// One row's question.
#[derive(Clone, Copy, Debug)]
pub struct Draw<'a> {
    pub params: &'a SamplingParams,
    pub history: &'a History,
    /// Tokens that may not be chosen now (stop tokens before `min_tokens`).
    pub banned: &'a [u32],
    /// Index of the wanted token in its sequence, prompt included.
    pub position: u32,
}

/// Scratch for sampling, reused from row to row.
#[derive(Debug, Default)]
pub struct Sampler {
    adjusted: Vec<f32>,
    weights: Vec<f32>,
    candidates: nucleus::Candidates,
}

impl Sampler {
    /// Chooses a token for one row of raw logits `[vocab]`. NaN counts as minus infinity; among equals the lowest
    /// index wins.
    ///
    /// # Errors
    /// [`NoCandidate`] if no logit is left.
    pub fn sample(&mut self, logits: &[f32], draw: &Draw<'_>) -> Result<Sampled, NoCandidate> {
        let adjusted = self.adjust(logits, draw);
        let row = if adjusted { &self.adjusted[..] } else { logits };
        let token = if draw.params.temperature < GREEDY_BELOW {
            vector::argmax(row).ok_or(NoCandidate)?
        } else {
            let uniform = random::uniform(draw.params.seed, draw.params.choice, draw.position);
            choose(row, draw.params, uniform, &mut self.weights, &mut self.candidates)?
        };
        let logprobs = match draw.params.logprobs {
            Some(top) => self.logprobs(logits, token, top),
            None => None,
        };
        Ok(Sampled { token, logprobs })
    }

    /// Log probabilities of `token` and of the `top` most probable tokens under the raw logits; `None` if no logit
    /// is finite or the token is beyond the row.
    pub fn logprobs(&mut self, logits: &[f32], token: u32, top: u32) -> Option<TokenLogprobs> {
        let own = *logits.get(token as usize)?;
        let max = vector::max(logits);
        if !max.is_finite() {
            return None;
        }
        self.weights.resize(logits.len(), 0.0);
        let total = vector::exp_weights(logits, max, 1.0, &mut self.weights);
        // In f64: the difference of two nearly equal numbers decides how close to 0 a sure token comes.
        let normaliser = f64::from(max) + total.ln();
        let logprob = |logit: f32| (f64::from(logit) - normaliser) as f32;
        let rank = logits.iter().map(|l| u32::from(*l > own)).sum();
        let top = (top as usize).min(logits.len());
        let mut best: Vec<(u32, f32)> = Vec::with_capacity(top + 1);
        if top > 0 {
            vector::visit_from(logits, f32::NEG_INFINITY, |index, logit| {
                let place = best.partition_point(|(_, l)| *l >= logit);
                best.insert(place, (index, logit));
                best.truncate(top);
                if best.len() == top { best[top - 1].1 } else { f32::NEG_INFINITY }
            });
        }
        let own = if own.is_nan() { f32::NEG_INFINITY } else { own };
        Some(TokenLogprobs {
            logprob: logprob(own),
            rank,
            top: best.into_iter().map(|(index, logit)| (index, logprob(logit))).collect(),
        })
    }

    /// Writes biased and penalised logits to `adjusted`; false if the parameters change nothing.
    fn adjust(&mut self, logits: &[f32], draw: &Draw<'_>) -> bool {
        let Draw { params, history, banned, .. } = draw;
        if params.logit_bias.is_empty() && banned.is_empty() && !history.active {
            return false;
        }
        self.adjusted.clear();
        self.adjusted.extend_from_slice(logits);
        for (token, bias) in &params.logit_bias {
            if let Some(logit) = self.adjusted.get_mut(*token as usize) {
                *logit += bias;
            }
        }
        let repetition = params.repetition_penalty;
        if repetition != 1.0 {
            let repeated = history
                .prompt
                .iter()
                .chain(history.generated.keys().filter(|token| !history.prompt.contains(token)));
            for token in repeated {
                if let Some(logit) = self.adjusted.get_mut(*token as usize) {
                    *logit = if *logit > 0.0 { *logit / repetition } else { *logit * repetition };
                }
            }
        }
        if params.frequency_penalty != 0.0 || params.presence_penalty != 0.0 {
            for (token, count) in &history.generated {
                if let Some(logit) = self.adjusted.get_mut(*token as usize) {
                    *logit -= params.frequency_penalty * *count as f32 + params.presence_penalty;
                }
            }
        }
        for token in *banned {
            if let Some(logit) = self.adjusted.get_mut(*token as usize) {
                *logit = f32::NEG_INFINITY;
            }
        }
        true
    }
}

/// Temperatures below this are greedy: the quotients would overflow.
const GREEDY_BELOW: f32 = 1e-5;

fn choose(
    logits: &[f32],
    params: &SamplingParams,
    uniform: f64,
    weights: &mut Vec<f32>,
    candidates: &mut nucleus::Candidates,
) -> Result<u32, NoCandidate> {
    let max = vector::max(logits);
    if max == f32::NEG_INFINITY {
        return Err(NoCandidate);
    }
    if max == f32::INFINITY {
        // Infinitely sure: the first of them, whatever the temperature.
        return vector::argmax(logits).ok_or(NoCandidate);
    }
    weights.resize(logits.len(), 0.0);
    let total = vector::exp_weights(logits, max, 1.0 / params.temperature, weights);
    let top_k = if params.top_k == 0 { weights.len() } else { params.top_k as usize };
    if top_k >= weights.len() && params.top_p >= 1.0 && params.min_p <= 0.0 {
        return Ok(vector::inverse_cumulative(weights, total, uniform));
    }
    Ok(candidates.draw(weights, total, params.min_p, top_k, params.top_p, uniform))
}

#[cfg(test)]
mod tests;
