//! Disconnects, full queues, shutdown, metrics, load (bugs 3, 4, 19, 20).

use crate::harness::{JSON, Running, open, options, read, saying, start, start_with, streamed, wait};
use crate::scripted::{Behaviour, Bytes, HELLO, WORLD};
use serde_json::json;
use server::{Backend, MetricsNames};
use std::io::Read;
use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

fn endless(slots: usize) -> Behaviour {
    let script = Box::new(|_: &engine::Request| vec![HELLO; 100_000]);
    Behaviour {
        step: Duration::from_millis(2),
        slots,
        max_context: 1_000_000,
        script,
        ..Behaviour::default()
    }
}

fn begin(server: &Running, stream: bool) -> TcpStream {
    let body = json!({ "prompt": "x", "stream": stream, "max_tokens": 100_000 }).to_string();
    open(server.address, "POST", "/v1/completions", JSON, body.as_bytes())
}

fn counter(server: &Running, name: &str) -> f64 {
    let page = server.get("/metrics");
    let line = page.text().lines().find(|l| l.starts_with(name)).unwrap_or_else(|| panic!("no {name}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn a_disconnect_frees_the_slot_at_every_stage() {
    for stream in [true, false] {
        let server = start(endless(1));
        let mut running = begin(&server, stream);
        wait("it runs", || server.engine.stats().generated_tokens > 2);
        let queued = begin(&server, stream);
        wait("one waits", || server.engine.stats().waiting == 1);
        drop(queued);
        wait("the queued one is gone", || server.engine.stats().waiting == 0);
        assert_eq!(server.engine.stats().running, 1, "the running one goes on");
        if stream {
            running.read_exact(&mut [0; 10]).unwrap();
        }
        drop(running);
        server.wait_idle();
        assert_eq!(server.engine.stats().finished_cancelled, 2);
        wait("both are counted", || {
            counter(&server, "wright_requests_finished_total{model_name=\"m\",reason=\"canceled\"}") == 2.0
        });
        assert_eq!(counter(&server, "wright_requests_in_flight"), 0.0);
    }
}

#[test]
fn a_disconnect_during_prefill_is_seen() {
    let server = start(endless(4));
    server.engine.stuck.store(true, Ordering::Relaxed);
    let (whole, streamed) = (begin(&server, false), begin(&server, true));
    wait("both prefill", || server.engine.stats().running == 2);
    drop(whole);
    drop(streamed);
    server.wait_idle();
    assert_eq!(server.engine.stats().generated_tokens, 0);
}

#[test]
fn a_full_queue_is_429_with_retry_after() {
    let server = start(Behaviour { max_queue: 1, ..endless(1) });
    let _running = begin(&server, true);
    wait("it runs", || server.engine.stats().running == 1);
    let _waiting = begin(&server, true);
    wait("one waits", || server.engine.stats().waiting == 1);
    let refused = server.complete(json!({ "prompt": "x" }));
    assert_eq!(refused.error(429)["code"], "queue_full");
    assert_eq!(refused.header("retry-after"), Some("1"));
    // Two choices, of which the queue would take none: neither stays.
    server.complete(json!({ "prompt": "x", "n": 2 })).error(429);
    assert_eq!(server.engine.stats().waiting, 1);
    let mut options = options();
    options.max_in_flight = 1;
    let server = start_with(endless(4), options, Bytes::new());
    let first = begin(&server, true);
    wait("it runs", || server.engine.stats().running == 1);
    server.complete(json!({ "prompt": "x" })).error(429);
    drop(first);
    server.wait_idle();
    wait("there is room again", || server.complete(json!({ "prompt": "x", "max_tokens": 1 })).status == 200);
}

#[test]
fn choices_before_a_refused_one_are_cancelled() {
    let server = start(Behaviour { max_queue: 2, ..endless(1) });
    server.engine.stuck.store(true, Ordering::Relaxed);
    let _running = begin(&server, true);
    wait("it runs", || server.engine.stats().running == 1);
    server.complete(json!({ "prompt": "x", "n": 3 })).error(429);
    wait("nothing waits", || server.engine.stats().waiting == 0);
    assert_eq!(server.engine.stats().running, 1);
}

#[test]
fn shutdown_drains_then_refuses_then_ends() {
    let behaviour = Behaviour {
        step: Duration::from_millis(20),
        script: Box::new(|_| vec![HELLO; 20]),
        ..Behaviour::default()
    };
    let mut server = start(behaviour);
    let body = json!({ "prompt": "x", "stream": true, "max_tokens": 20 }).to_string();
    let stream = open(server.address, "POST", "/v1/completions", JSON, body.as_bytes());
    wait("it runs", || server.engine.stats().generated_tokens > 0);
    server.ask_to_end();
    wait("not ready", || server.get("/ready").status == 503);
    let refused = server.complete(json!({ "prompt": "x" }));
    assert_eq!(refused.error(503)["code"], "shutting_down");
    assert!(refused.header("retry-after").is_some());
    assert_eq!(server.get("/health").status, 200, "alive while draining");
    let (events, done) = read(stream).events();
    assert!(done);
    assert_eq!(streamed(&events, 0), "hello".repeat(20));
    server.end().unwrap();
    assert!(TcpStream::connect(server.address).is_err());
}

#[test]
fn a_drain_that_takes_too_long_ends_streams_with_an_error() {
    let mut short = options();
    short.drain_timeout = Duration::from_millis(100);
    let mut server = start_with(endless(4), short, Bytes::new());
    let (streaming, whole) = (begin(&server, true), begin(&server, false));
    wait("both run", || server.engine.stats().running == 2);
    let begun = Instant::now();
    server.end().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(3));
    let (events, done) = read(streaming).events();
    assert!(!done);
    assert_eq!(events.last().unwrap()["error"]["code"], "shutting_down");
    read(whole).error(503);
    server.wait_idle();
}

#[test]
fn a_stopped_engine_is_503() {
    let server = saying(&[HELLO]);
    server.engine.end();
    assert_eq!(server.complete(json!({ "prompt": "x" })).error(503)["code"], "engine_stopped");
    server.get("/ready").error(503);
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn a_request_timeout_ends_what_is_stuck() {
    let mut options = options();
    options.request_timeout = Some(Duration::from_millis(100));
    let server = start_with(endless(4), options, Bytes::new());
    let (events, done) = read(begin(&server, true)).events();
    assert!(!done);
    assert_eq!(events.last().unwrap()["error"]["code"], "request_timeout");
    read(begin(&server, false)).error(504);
    server.engine.stuck.store(true, Ordering::Relaxed);
    read(begin(&server, true)).error(504);
    server.wait_idle();
}

#[test]
fn sigterm_ends_serve_with_success() {
    let engine = crate::scripted::Scripted::start(Behaviour::default());
    let (ready, listening) = std::sync::mpsc::channel();
    let serving = std::thread::spawn(move || {
        let text = std::sync::Arc::new(Bytes::new());
        server::serve(options(), engine, text, |address| ready.send(address).unwrap())
    });
    let address = listening.recv_timeout(Duration::from_secs(5)).unwrap();
    assert_eq!(read(open(address, "GET", "/ready", "", b"")).status, 200);
    // The handler is in place: this ends that server only, not the test.
    let pid = std::process::id().to_string();
    assert!(std::process::Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    serving.join().unwrap().unwrap();
    assert!(TcpStream::connect(address).is_err());
}

/// The rules that promtool checks, as far as our page can break them.
fn lint(page: &str) {
    let mut families: Vec<(String, String)> = Vec::new();
    let mut buckets: Option<(f64, f64)> = None;
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap();
            assert!(!help.is_empty() && families.iter().all(|f| f.0 != name), "{name} twice");
            families.push((name.to_owned(), String::new()));
            buckets = None;
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            let family = families.last_mut().unwrap();
            assert_eq!(family.0, name);
            // vLLM itself calls this histogram a total.
            let total = name.ends_with("_total") && name != "vllm:iteration_tokens_total";
            assert_eq!(kind == "counter", total, "{name}");
            family.1 = kind.to_owned();
        } else {
            let (name, rest) = line.split_once('{').unwrap();
            let (labels, value) = rest.rsplit_once("} ").unwrap();
            let value: f64 = value.parse().unwrap();
            let (family, kind) = families.last().unwrap();
            if kind == "histogram" {
                assert!(
                    [format!("{family}_bucket"), format!("{family}_sum"), format!("{family}_count")]
                        .contains(&name.to_owned()),
                    "{line}"
                );
                if let Some((_, le)) = labels.split_once("le=\"") {
                    let le: f64 = le.trim_end_matches('"').replace("+Inf", "inf").parse().unwrap();
                    let (last_le, last) = buckets.unwrap_or((-1.0, 0.0));
                    assert!(le > last_le && value >= last, "{line}");
                    buckets = Some((le, value));
                } else if name.ends_with("_count") {
                    assert_eq!(buckets, Some((f64::INFINITY, value)), "{line}");
                }
            } else {
                assert_eq!(name, family, "{line}");
            }
            assert!(value.is_finite() && value >= 0.0, "{line}");
        }
    }
}

#[test]
fn metrics_are_well_formed_and_count() {
    let mut both = options();
    both.metrics = MetricsNames::OwnAndVllm;
    both.model_names = vec!["a\"b\\c".into()];
    let behaviour = Behaviour { step: Duration::from_millis(2), ..Behaviour::default() };
    let server = start_with(behaviour, both, Bytes::new());
    lint(server.get("/metrics").text());
    for _ in 0..3 {
        server.complete(json!({ "prompt": "abc", "stream": true }));
    }
    server.complete(json!({ "prompt": "abc", "max_tokens": 1 }));
    server.complete(json!({ "prompt": "abc", "max_tokens": -1 })).error(400);
    let page = server.get("/metrics");
    assert_eq!(page.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    lint(page.text());
    let value = |name: &str| {
        let line = page.text().lines().find(|l| l.starts_with(name)).unwrap_or_else(|| panic!("no {name}"));
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    for prefix in ["wright_", "vllm:"] {
        assert_eq!(value(&format!("{prefix}time_to_first_token_seconds_count")), 4.0);
        assert_eq!(value(&format!("{prefix}e2e_request_latency_seconds_count")), 4.0);
        assert_eq!(value(&format!("{prefix}request_queue_time_seconds_count")), 4.0);
        assert_eq!(value(&format!("{prefix}inter_token_latency_seconds_count")), 3.0);
        assert!(value(&format!("{prefix}inter_token_latency_seconds_sum")) >= 0.006);
        assert_eq!(value(&format!("{prefix}prompt_tokens_total")), 12.0);
        assert_eq!(value(&format!("{prefix}generation_tokens_total")), 10.0);
    }
    assert_eq!(value("wright_requests_refused_total"), 1.0);
    assert!(
        page.text()
            .contains("vllm:request_success_total{model_name=\"a\\\"b\\\\c\",finished_reason=\"stop\"} 3"),
        "{}",
        page.text()
    );
}

#[test]
fn the_load_client_agrees_with_the_server() {
    use load::{Abandon, Endpoint, Item, Prompt, Workload, run};
    let behaviour = Behaviour { script: Box::new(|_| vec![HELLO, WORLD, HELLO]), ..Behaviour::default() };
    let server = start(behaviour);
    let items = |n: u32, tokens| {
        (0..n)
            .map(|i| Item { prompt: Prompt::Ids(vec![97 + i % 20, 98, 99]), output_tokens: tokens })
            .collect::<Vec<_>>()
    };
    let url = format!("http://{}", server.address);
    let summary = run(&Workload::closed(&url, "m", 8, items(64, 12))).unwrap().summary(None);
    assert_eq!(
        (summary.completed, summary.output_tokens, summary.prompt_tokens),
        (64, 64 * 12, 64 * 3),
        "{summary:?}"
    );
    assert!(summary.warnings.iter().all(|w| !w.contains("tokens")), "{:?}", summary.warnings);
    let mut chat =
        Workload::closed(&url, "m", 4, vec![Item { prompt: Prompt::Text("hi".into()), output_tokens: 5 }; 8]);
    chat.endpoint = Endpoint::Chat;
    assert_eq!(run(&chat).unwrap().summary(None).output_tokens, 40);
    let mut soak = Workload::closed(&url, "m", 16, items(200, 40));
    soak.abandon = Some(Abandon { fraction: 0.33, max_chunks: 10, early_ms: 4, seed: 9 });
    let done = run(&soak).unwrap();
    let summary = done.summary(None);
    assert!(summary.abandoned > 30 && summary.failed == 0, "{summary:?}");
    let want = format!("hello worldhello{}", "hello".repeat(37));
    assert!(
        done.samples
            .iter()
            .filter(|s| s.completed())
            .all(|s| s.text == want && s.completion_tokens == Some(40))
    );
    server.wait_idle();
    wait("nothing leaks", || counter(&server, "wright_requests_in_flight") == 0.0);
}
