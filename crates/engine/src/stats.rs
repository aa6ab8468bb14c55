//! What the engine counts: gauges, counters and histograms, ready for a metrics page.

use std::time::Duration;

/// Upper bounds of the buckets of time histograms, seconds (the last bucket is open).
pub const SECONDS_BOUNDS: [f64; 16] =
    [0.0005, 0.001, 0.002, 0.004, 0.008, 0.015, 0.03, 0.06, 0.12, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0];
/// Upper bounds of the buckets of row histograms.
pub const ROWS_BOUNDS: [f64; 16] =
    [1.0, 2.0, 4.0, 8.0, 16.0, 24.0, 32.0, 48.0, 64.0, 96.0, 128.0, 192.0, 256.0, 384.0, 512.0, 1024.0];

/// A histogram with fixed bounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Histogram {
    pub bounds: &'static [f64; 16],
    /// Observations at most `bounds[i]` and above the bound before; the last is above all bounds.
    pub counts: [u64; 17],
    pub sum: f64,
}

impl Histogram {
    /// An empty histogram.
    pub const fn new(bounds: &'static [f64; 16]) -> Self {
        Self { bounds, counts: [0; 17], sum: 0.0 }
    }

    /// Counts one observation.
    pub fn observe(&mut self, value: f64) {
        let bucket = self.bounds.iter().position(|b| value <= *b).unwrap_or(self.bounds.len());
        self.counts[bucket] += 1;
        self.sum += value;
    }

    /// Observations in all.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// A snapshot of the engine's state and counters since its start.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineStats {
    /// Requests with rows in the passes.
    pub running: u32,
    /// Requests in the queue, preempted ones among them.
    pub waiting: u32,
    pub kv_pages: u32,
    /// Pages that running requests refer to.
    pub kv_pages_used: u32,
    /// Pages kept for prefixes, without a running request.
    pub kv_pages_cached: u32,
    /// Tokens of prompts that were looked up in the prefix cache, and those found.
    pub prefix_queried_tokens: u64,
    pub prefix_hit_tokens: u64,
    pub prompt_tokens: u64,
    pub generated_tokens: u64,
    pub submitted: u64,
    pub refused: u64,
    pub finished_stop: u64,
    pub finished_length: u64,
    pub finished_cancelled: u64,
    pub finished_error: u64,
    pub preemptions: u64,
    /// Forward passes.
    pub steps: u64,
    /// Time in forward passes, and in all other work of the loop while there were requests.
    pub forward: Duration,
    pub overhead: Duration,
    pub step_seconds: Histogram,
    pub step_rows: Histogram,
    pub queue_seconds: Histogram,
    pub first_token_seconds: Histogram,
    pub inter_token_seconds: Histogram,
}

impl Default for EngineStats {
    fn default() -> Self {
        let seconds = Histogram::new(&SECONDS_BOUNDS);
        Self {
            running: 0,
            waiting: 0,
            kv_pages: 0,
            kv_pages_used: 0,
            kv_pages_cached: 0,
            prefix_queried_tokens: 0,
            prefix_hit_tokens: 0,
            prompt_tokens: 0,
            generated_tokens: 0,
            submitted: 0,
            refused: 0,
            finished_stop: 0,
            finished_length: 0,
            finished_cancelled: 0,
            finished_error: 0,
            preemptions: 0,
            steps: 0,
            forward: Duration::ZERO,
            overhead: Duration::ZERO,
            step_seconds: seconds,
            step_rows: Histogram::new(&ROWS_BOUNDS),
            queue_seconds: seconds,
            first_token_seconds: seconds,
            inter_token_seconds: seconds,
        }
    }
}
