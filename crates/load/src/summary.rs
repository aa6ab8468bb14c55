//! From samples to the figures that engines are compared by.

use crate::host::HostUse;
use crate::run::Run;
use crate::sample::{Outcome, Sample};
use crate::workload::Arrival;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// p95 is given from this many requests on.
const P95_REQUESTS: usize = 100;
/// p99 is given from this many requests on.
const P99_REQUESTS: usize = 1000;

/// One quantity, milliseconds. A tail is absent where too few requests stand behind it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Distribution {
    /// Values
    pub count: usize,
    /// Mean, ms
    pub mean_ms: f64,
    /// Median, ms
    pub median_ms: f64,
    /// 95th percentile, ms; only from 100 requests on
    pub p95_ms: Option<f64>,
    /// 99th percentile, ms; only from 1,000 requests on
    pub p99_ms: Option<f64>,
}

impl Distribution {
    /// Of values in ns from this many requests; none if there are no values.
    pub fn of(mut values_ns: Vec<f64>, requests: usize) -> Option<Self> {
        if values_ns.is_empty() {
            return None;
        }
        values_ns.sort_by(f64::total_cmp);
        let quantile = |q| quantile(&values_ns, q) / 1e6;
        Some(Self {
            count: values_ns.len(),
            mean_ms: values_ns.iter().sum::<f64>() / values_ns.len() as f64 / 1e6,
            median_ms: quantile(0.5),
            p95_ms: (requests >= P95_REQUESTS).then(|| quantile(0.95)),
            p99_ms: (requests >= P99_REQUESTS).then(|| quantile(0.99)),
        })
    }
}

/// Linear interpolation between order statistics (numpy's default). `sorted` is not empty.
pub(crate) fn quantile(sorted: &[f64], q: f64) -> f64 {
    let rank = q * (sorted.len() - 1) as f64;
    let (low, high) = (rank.floor() as usize, rank.ceil() as usize);
    sorted[low] + (sorted[high] - sorted[low]) * (rank - low as f64)
}

/// Bounds that a request must keep to count as good, milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Slo {
    /// Time to first token
    pub ttft_ms: Option<f64>,
    /// Time per output token (0 for a request of one token, as in vLLM)
    pub tpot_ms: Option<f64>,
    /// End-to-end latency
    pub e2el_ms: Option<f64>,
}

/// Requests that kept every bound.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Goodput {
    /// The bounds
    pub slo: Slo,
    /// Good requests per second
    pub requests_per_s: f64,
    /// Good requests / all requests that were not abandoned on purpose (failures are in the denominator)
    pub fraction: f64,
}

/// A run in figures.
///
/// * TTFT: first chunk with text - start of the request (connection included)
/// * TPOT: (E2EL - TTFT) / (n - 1); requests of one token are left out
/// * ITL: gaps between consecutive chunks with text, pooled over requests
/// * token ITL: (last chunk - first chunk) / (n - 1) per request, which differs where a chunk holds several tokens
/// * E2EL: last byte - start
/// * n: the server's `usage.completion_tokens`, else the number of chunks
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Requests in the workload
    pub requests: usize,
    /// Read to `[DONE]`
    pub completed: usize,
    /// Hung up on purpose
    pub abandoned: usize,
    /// Failed
    pub failed: usize,
    /// Failures by kind
    pub failures: BTreeMap<String, usize>,
    /// Open or closed loop
    pub arrival: Arrival,
    /// First start to last end, s
    pub wall_s: f64,
    /// Prompt tokens of completed requests (by `usage`)
    pub prompt_tokens: u64,
    /// Output tokens of completed requests
    pub output_tokens: u64,
    /// Output tokens / wall time
    pub output_tokens_per_s: f64,
    /// (Prompt + output tokens) / wall time
    pub total_tokens_per_s: f64,
    /// Completed requests / wall time
    pub requests_per_s: f64,
    /// Sum of latencies / wall time
    pub concurrency_mean: f64,
    /// Time to first token
    pub ttft: Option<Distribution>,
    /// Time per output token
    pub tpot: Option<Distribution>,
    /// Inter-token latency by chunk
    pub itl: Option<Distribution>,
    /// Inter-token latency by token
    pub token_itl: Option<Distribution>,
    /// End-to-end latency
    pub e2el: Option<Distribution>,
    /// Under service-level objectives, where asked for
    pub goodput: Option<Goodput>,
    /// What the client cost and what the host took
    pub host: HostUse,
    /// What a reader must know before using the figures
    pub warnings: Vec<String>,
}

impl Run {
    /// Folds the samples. `slo` asks for goodput.
    pub fn summary(&self, slo: Option<Slo>) -> Summary {
        let done: Vec<&Sample> = self.samples.iter().filter(|s| s.completed()).collect();
        let abandoned = self.samples.iter().filter(|s| s.outcome == Outcome::Abandoned).count();
        let mut failures = BTreeMap::new();
        for sample in &self.samples {
            if let Outcome::Failed(failure) = &sample.outcome {
                *failures.entry(failure.label()).or_insert(0) += 1;
            }
        }
        let wall_s = self.wall_ns as f64 / 1e9;
        let per_s = |x: f64| if wall_s > 0.0 { x / wall_s } else { 0.0 };
        let output_tokens = done.iter().map(|s| s.output_tokens()).sum::<u64>();
        let prompt_tokens = done.iter().filter_map(|s| s.prompt_tokens).sum::<u64>();
        let over = |f: &dyn Fn(&Sample) -> Option<f64>| {
            Distribution::of(done.iter().filter_map(|s| f(s)).collect(), done.len())
        };
        let gaps = done.iter().flat_map(|s| s.gaps_ns.iter().map(|&g| g as f64)).collect();
        Summary {
            requests: self.samples.len(),
            completed: done.len(),
            abandoned,
            failed: self.samples.len() - done.len() - abandoned,
            failures,
            arrival: self.arrival,
            wall_s,
            prompt_tokens,
            output_tokens,
            output_tokens_per_s: per_s(output_tokens as f64),
            total_tokens_per_s: per_s((output_tokens + prompt_tokens) as f64),
            requests_per_s: per_s(done.len() as f64),
            concurrency_mean: per_s(done.iter().map(|s| s.e2el_ns() as f64 / 1e9).sum()),
            ttft: over(&|s| s.ttft_ns.map(|t| t as f64)),
            tpot: over(&Sample::tpot_ns),
            itl: Distribution::of(gaps, done.len()),
            token_itl: over(&Sample::token_itl_ns),
            e2el: over(&|s| Some(s.e2el_ns() as f64)),
            goodput: slo.map(|slo| goodput(&done, self.samples.len() - abandoned, slo, wall_s)),
            host: self.host,
            warnings: warnings(&done, self),
        }
    }

    /// Requests whose text, tokenised again, differs from the server's count by more than one token in ten: a server
    /// that miscounts its tokens would look faster than it is. `count` tokenises without special tokens.
    pub fn miscounted(&self, count: impl Fn(&str) -> usize) -> usize {
        let off = |s: &&Sample| {
            let (claimed, seen) = (s.output_tokens() as f64, count(&s.text) as f64);
            s.completed() && (claimed - seen).abs() > (0.1 * claimed.max(seen)).max(2.0)
        };
        self.samples.iter().filter(off).count()
    }
}

fn goodput(done: &[&Sample], asked: usize, slo: Slo, wall_s: f64) -> Goodput {
    let within = |bound: Option<f64>, value_ns: f64| bound.is_none_or(|b| value_ns / 1e6 <= b);
    let good = done.iter().filter(|s| {
        within(slo.ttft_ms, s.ttft_ns.map_or(f64::INFINITY, |t| t as f64))
            && within(slo.tpot_ms, s.tpot_ns().unwrap_or(0.0))
            && within(slo.e2el_ms, s.e2el_ns() as f64)
    });
    let good = good.count() as f64;
    Goodput {
        slo,
        requests_per_s: if wall_s > 0.0 { good / wall_s } else { 0.0 },
        fraction: if asked > 0 { good / asked as f64 } else { 0.0 },
    }
}

fn warnings(done: &[&Sample], run: &Run) -> Vec<String> {
    let mut out = Vec::new();
    let unreported = done.iter().filter(|s| s.completion_tokens.is_none()).count();
    if unreported > 0 {
        out.push(format!("{unreported} responses had no usage: their tokens are counted by chunks"));
    }
    let inflated = done.iter().filter(|s| s.completion_tokens.is_some_and(|n| n < s.chunks)).count();
    if inflated > 0 {
        out.push(format!("{inflated} responses had more chunks with text than the tokens they claim"));
    }
    if run.host.client_cpu_share.is_some_and(|share| share > 0.5) {
        out.push("the client used more than half a CPU: it may be the bottleneck".into());
    }
    if run.host.steal_share.is_some_and(|share| share > 0.02) {
        out.push("the hypervisor stole more than 2 % of the CPU time: compare interleaved runs only".into());
    }
    if matches!(run.arrival, Arrival::Poisson { .. }) && oversaturated(done) {
        out.push("over-saturated: TTFT kept growing over the run, so its figures describe the queue".into());
    }
    out
}

/// TTFT of the last third at least twice that of the first third, over 30 requests or more.
fn oversaturated(done: &[&Sample]) -> bool {
    let mut by_start: Vec<(u64, f64)> =
        done.iter().filter_map(|s| s.ttft_ns.map(|t| (s.start_ns, t as f64))).collect();
    if by_start.len() < 30 {
        return false;
    }
    by_start.sort_by_key(|(start, _)| *start);
    let third = by_start.len() / 3;
    let median = |part: &[(u64, f64)]| {
        let mut values: Vec<f64> = part.iter().map(|p| p.1).collect();
        values.sort_by(f64::total_cmp);
        quantile(&values, 0.5)
    };
    let (first, middle) = (median(&by_start[..third]), median(&by_start[third..2 * third]));
    let last = median(&by_start[2 * third..]);
    last > 2.0 * first && last > middle && middle > first
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Failure;

    fn sample(index: usize, ttft_ms: u64, gaps_ms: &[u64], tail_ms: u64, tokens: Option<u64>) -> Sample {
        let ms = 1_000_000;
        let end = ttft_ms + gaps_ms.iter().sum::<u64>() + tail_ms;
        Sample {
            index,
            start_ns: 5 * ms,
            ttft_ns: Some(ttft_ms * ms),
            gaps_ns: gaps_ms.iter().map(|g| g * ms).collect(),
            end_ns: (5 + end) * ms,
            chunks: gaps_ms.len() as u64 + 1,
            prompt_tokens: Some(10),
            completion_tokens: tokens,
            finish_reason: Some("length".into()),
            text: "a b c".into(),
            outcome: Outcome::Completed,
        }
    }

    fn run_of(samples: Vec<Sample>) -> Run {
        Run {
            samples,
            wall_ns: 1_000_000_000,
            host: HostUse::default(),
            arrival: Arrival::Closed { concurrency: 1 },
        }
    }

    #[test]
    fn figures_follow_the_definitions() {
        let mut failed = sample(2, 1, &[], 0, None);
        failed.outcome = Outcome::Failed(Failure::Status { status: 429, body: String::new() });
        // 3 chunks hold 5 tokens: TPOT over tokens, ITL over chunks. The second has a single token.
        let run =
            run_of(vec![sample(0, 100, &[10, 30], 20, Some(5)), sample(1, 50, &[], 0, Some(1)), failed]);
        let slo = Slo { ttft_ms: Some(60.0), tpot_ms: Some(1.0), e2el_ms: None };
        let s = run.summary(Some(slo));
        assert_eq!((s.requests, s.completed, s.failed, s.output_tokens, s.prompt_tokens), (3, 2, 1, 6, 20));
        assert_eq!(s.failures.get("status 429"), Some(&1));
        assert_eq!(s.ttft.unwrap().median_ms, 75.0);
        assert_eq!((s.tpot.unwrap().count, s.tpot.unwrap().median_ms), (1, 15.0));
        assert_eq!((s.itl.unwrap().count, s.itl.unwrap().median_ms), (2, 20.0));
        assert_eq!(s.token_itl.unwrap().median_ms, 10.0);
        assert_eq!(s.e2el.unwrap().median_ms, (160.0 + 50.0) / 2.0);
        assert!((s.concurrency_mean - 0.21).abs() < 1e-9);
        assert_eq!(s.output_tokens_per_s, 6.0);
        // Only the one-token request keeps both bounds (TPOT 0); the failure is in the denominator.
        assert!((s.goodput.unwrap().fraction - 1.0 / 3.0).abs() < 1e-9);
        assert_eq!(s.ttft.unwrap().p95_ms, None);
    }

    #[test]
    fn tails_need_requests() {
        let many = |n| run_of((0..n).map(|i| sample(i, i as u64, &[1], 0, Some(2))).collect()).summary(None);
        assert_eq!(many(99).ttft.unwrap().p95_ms, None);
        assert!((many(100).ttft.unwrap().p95_ms.unwrap() - 94.05).abs() < 1e-6);
        assert_eq!(many(999).ttft.unwrap().p99_ms, None);
        assert!(many(1000).ttft.unwrap().p99_ms.is_some());
    }

    #[test]
    fn suspicious_counts_are_named() {
        let run = run_of(vec![sample(0, 1, &[1, 1], 0, Some(2)), sample(1, 1, &[1], 0, None)]);
        let warnings = run.summary(None).warnings;
        assert!(
            warnings.iter().any(|w| w.contains("no usage"))
                && warnings.iter().any(|w| w.contains("more chunks"))
        );
        let liar = run_of(vec![sample(0, 1, &[1, 1], 0, Some(300)), sample(1, 1, &[1, 1], 0, Some(3))]);
        assert_eq!(liar.miscounted(|text| text.split(' ').count()), 1);
    }

    #[test]
    fn nothing_completed_is_not_zero_latency() {
        let mut s = sample(0, 1, &[], 0, None);
        s.outcome = Outcome::Failed(Failure::Empty);
        let summary = run_of(vec![s]).summary(Some(Slo::default()));
        assert_eq!((summary.ttft, summary.e2el, summary.completed), (None, None, 0));
    }
}
