//! Prometheus metrics, text format 0.0.4.
//!
//! Latencies are measured from the time at which the engine reported an event, so keep-alive comments and slow clients do
//! not enter them.

use crate::generation::{Finish, lock};
use crate::options::MetricsNames;
use engine::EngineStats;
use std::fmt::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// What became of a generation request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Running,
    Done,
    Canceled,
    Error,
}

impl Outcome {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Done => "done",
            Self::Canceled => "canceled",
            Self::Error => "error",
        }
    }
}

/// Fixed-bucket histogram of seconds.
#[derive(Debug)]
pub(crate) struct Seconds {
    bounds: &'static [f64],
    state: Mutex<(Vec<u64>, f64)>,
}

impl Seconds {
    fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, state: Mutex::new((vec![0; bounds.len() + 1], 0.0)) }
    }

    pub(crate) fn observe(&self, seconds: f64) {
        let bucket = self.bounds.partition_point(|b| *b < seconds);
        let mut state = lock(&self.state);
        state.0[bucket] += 1;
        state.1 += seconds;
    }
}

// vLLM's edges, with finer ones below for small models.
const FIRST: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0, 160.0, 640.0, 2560.0,
];
const BETWEEN: &[f64] = &[
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
    5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
];
const WHOLE: &[f64] = &[
    0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0,
    240.0, 480.0, 960.0, 1920.0, 7680.0,
];

/// What the server counts itself; the engine's own figures are read when the page is asked for.
#[derive(Debug)]
pub(crate) struct Metrics {
    pub ttft: Seconds,
    pub itl: Seconds,
    pub tpot: Seconds,
    pub e2e: Seconds,
    pub queue: Seconds,
    pub prefill: Seconds,
    pub decode: Seconds,
    stop: AtomicU64,
    length: AtomicU64,
    canceled: AtomicU64,
    error: AtomicU64,
    refused: AtomicU64,
    prompt_tokens: AtomicU64,
    generation_tokens: AtomicU64,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        Self {
            ttft: Seconds::new(FIRST),
            itl: Seconds::new(BETWEEN),
            tpot: Seconds::new(BETWEEN),
            e2e: Seconds::new(WHOLE),
            queue: Seconds::new(WHOLE),
            prefill: Seconds::new(WHOLE),
            decode: Seconds::new(WHOLE),
            stop: AtomicU64::new(0),
            length: AtomicU64::new(0),
            canceled: AtomicU64::new(0),
            error: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            prompt_tokens: AtomicU64::new(0),
            generation_tokens: AtomicU64::new(0),
        }
    }

    pub(crate) fn finished(&self, finish: Finish) {
        match finish {
            Finish::Stop => &self.stop,
            Finish::Length => &self.length,
        }
        .fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn ended(&self, outcome: Outcome) {
        match outcome {
            Outcome::Canceled => self.canceled.fetch_add(1, Ordering::Relaxed),
            Outcome::Error => self.error.fetch_add(1, Ordering::Relaxed),
            Outcome::Running | Outcome::Done => 0,
        };
    }

    /// A generation request was answered with 4xx or 5xx before it started.
    pub(crate) fn refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn tokens(&self, prompt: u64, completion: u64) {
        self.prompt_tokens.fetch_add(prompt, Ordering::Relaxed);
        self.generation_tokens.fetch_add(completion, Ordering::Relaxed);
    }

    /// The page.
    pub(crate) fn render(
        &self,
        engine: &EngineStats,
        in_flight: usize,
        model: &str,
        names: MetricsNames,
    ) -> String {
        let mut page = Page { out: String::with_capacity(16 << 10), model: label(model) };
        let own =
            Names { prefix: "wright_", kv: "kv_cache_usage_ratio", finished: "requests_finished_total" };
        self.families(&mut page, engine, &own);
        page.value(
            "wright_requests_in_flight",
            "gauge",
            "Generation requests in the server",
            in_flight as f64,
        );
        page.value("wright_engine_steps_total", "counter", "Forward passes", engine.steps as f64);
        page.value(
            "wright_engine_forward_seconds_total",
            "counter",
            "Time in passes",
            engine.forward.as_secs_f64(),
        );
        page.value(
            "wright_engine_overhead_seconds_total",
            "counter",
            "Time between passes",
            engine.overhead.as_secs_f64(),
        );
        page.value("wright_kv_pages", "gauge", "Pages of the KV cache", f64::from(engine.kv_pages));
        page.value(
            "wright_kv_pages_cached",
            "gauge",
            "Pages kept for prefixes",
            f64::from(engine.kv_pages_cached),
        );
        let (time, rows) = (&engine.step_seconds, &engine.step_rows);
        page.histogram(
            "wright_engine_step_seconds",
            "Time of a forward pass",
            time.bounds,
            &time.counts,
            time.sum,
        );
        page.histogram(
            "wright_engine_step_rows",
            "Rows of a forward pass",
            rows.bounds,
            &rows.counts,
            rows.sum,
        );
        let refused = self.refused.load(Ordering::Relaxed) as f64;
        page.value(
            "wright_requests_refused_total",
            "counter",
            "Generation requests answered with an error status",
            refused,
        );
        if names == MetricsNames::OwnAndVllm {
            let vllm =
                Names { prefix: "vllm:", kv: "kv_cache_usage_perc", finished: "request_success_total" };
            self.families(&mut page, engine, &vllm);
            let help = "Rows of a forward pass";
            page.histogram("vllm:iteration_tokens_total", help, rows.bounds, &rows.counts, rows.sum);
        }
        page.out
    }

    /// The figures that both sets of names share.
    fn families(&self, page: &mut Page, engine: &EngineStats, names: &Names) {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
        let name = |rest: &str| format!("{}{rest}", names.prefix);
        let usage = if engine.kv_pages == 0 {
            0.0
        } else {
            f64::from(engine.kv_pages_used) / f64::from(engine.kv_pages)
        };
        page.value(
            &name("num_requests_running"),
            "gauge",
            "Requests in the batch",
            f64::from(engine.running),
        );
        page.value(
            &name("num_requests_waiting"),
            "gauge",
            "Requests in the queue",
            f64::from(engine.waiting),
        );
        page.value(&name(names.kv), "gauge", "Used share of the KV cache, 0 to 1", usage);
        let counters = [
            (
                "prefix_cache_queries_total",
                "Prompt tokens looked up in the prefix cache",
                engine.prefix_queried_tokens as f64,
            ),
            (
                "prefix_cache_hits_total",
                "Prompt tokens found in the prefix cache",
                engine.prefix_hit_tokens as f64,
            ),
            ("num_preemptions_total", "Requests that gave up their pages", engine.preemptions as f64),
            ("prompt_tokens_total", "Prompt tokens of ended requests", load(&self.prompt_tokens)),
            ("generation_tokens_total", "Generated tokens of ended requests", load(&self.generation_tokens)),
        ];
        for (rest, help, value) in counters {
            page.value(&name(rest), "counter", help, value);
        }
        let finished = name(names.finished);
        page.head(&finished, "counter", "Ended requests by reason");
        let reason = if names.prefix == "vllm:" { "finished_reason" } else { "reason" };
        let reasons = [
            ("stop", &self.stop),
            ("length", &self.length),
            ("canceled", &self.canceled),
            ("error", &self.error),
        ];
        for (word, counter) in reasons {
            // vLLM's word for a request that its client gave up.
            let word = if names.prefix == "vllm:" && word == "canceled" { "abort" } else { word };
            page.sample(&finished, &format!(",{reason}=\"{word}\""), load(counter));
        }
        let histograms = [
            ("time_to_first_token_seconds", "Arrival to first token", &self.ttft),
            ("inter_token_latency_seconds", "Gaps between tokens", &self.itl),
            ("request_time_per_output_token_seconds", "Mean gap of a request", &self.tpot),
            ("e2e_request_latency_seconds", "Arrival to end", &self.e2e),
            ("request_queue_time_seconds", "Submission to start", &self.queue),
            ("request_prefill_time_seconds", "Start to first token", &self.prefill),
            ("request_decode_time_seconds", "First token to end", &self.decode),
        ];
        for (rest, help, histogram) in histograms {
            let (counts, sum) = lock(&histogram.state).clone();
            page.histogram(&name(rest), help, histogram.bounds, &counts, sum);
        }
    }
}

struct Names {
    prefix: &'static str,
    kv: &'static str,
    finished: &'static str,
}

struct Page {
    out: String,
    model: String,
}

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.out, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &str, value: f64) {
        let _ = writeln!(self.out, "{name}{{model_name=\"{}\"{labels}}} {value}", self.model);
    }

    fn value(&mut self, name: &str, kind: &str, help: &str, value: f64) {
        self.head(name, kind, help);
        self.sample(name, "", value);
    }

    fn histogram(&mut self, name: &str, help: &str, bounds: &[f64], counts: &[u64], sum: f64) {
        self.head(name, "histogram", help);
        let bucket = format!("{name}_bucket");
        let mut cumulative = 0;
        for (i, count) in counts.iter().enumerate() {
            cumulative += count;
            let bound = bounds.get(i).map_or_else(|| "+Inf".to_owned(), f64::to_string);
            self.sample(&bucket, &format!(",le=\"{bound}\""), cumulative as f64);
        }
        self.sample(&format!("{name}_sum"), "", sum);
        self.sample(&format!("{name}_count"), "", cumulative as f64);
    }
}

fn label(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
