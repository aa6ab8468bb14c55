//! The client against a hand-written server: what is sent, what is measured, what is called a failure.

use load::{
    Abandon, Arrival, Endpoint, Failure, Item, LoadError, Outcome, Prompt, Timeouts, Workload, compare, run,
};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Reads one request; its body.
fn request(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let n = stream.read(&mut buffer).unwrap_or(0);
        bytes.extend_from_slice(&buffer[..n]);
        let text = String::from_utf8_lossy(&bytes);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head
                .lines()
                .find_map(|l| l.to_lowercase().strip_prefix("content-length: ").map(str::to_owned));
            if body.len() >= length.and_then(|l| l.parse().ok()).unwrap_or(0) {
                return text.into_owned();
            }
        }
        if n == 0 {
            return text.into_owned();
        }
    }
}

/// Serves each connection with `answer` on its own thread; the URL and the requests seen.
fn serve(answer: impl Fn(&str, &mut TcpStream) + Send + Sync + 'static) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (log, answer) = (Arc::clone(&seen), Arc::new(answer));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (log, answer) = (Arc::clone(&log), Arc::clone(&answer));
            std::thread::spawn(move || {
                let Ok(mut stream) = stream else { return };
                let got = request(&mut stream);
                log.lock().unwrap().push(got.clone());
                answer(&got, &mut stream);
            });
        }
    });
    (url, seen)
}

const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";

fn say(stream: &mut TcpStream, text: &str) -> bool {
    stream.write_all(text.as_bytes()).and_then(|()| stream.flush()).is_ok()
}

fn token(text: &str) -> String {
    format!("data: {{\"choices\":[{{\"text\":\"{text}\",\"finish_reason\":null}}],\"usage\":null}}\n\n")
}

fn tokens_every_10ms(_: &str, stream: &mut TcpStream) {
    say(stream, HEAD);
    for _ in 0..4 {
        std::thread::sleep(Duration::from_millis(10));
        say(stream, &token("x"));
    }
    say(stream, "data: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"length\"}]}\n\n");
    say(
        stream,
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":4}}\n\ndata: [DONE]\n\n",
    );
}

fn items(n: usize) -> Vec<Item> {
    (0..n as u32).map(|i| Item { prompt: Prompt::Ids(vec![1, 2, i]), output_tokens: 4 }).collect()
}

#[test]
fn sends_and_measures_a_stream() {
    let (url, seen) = serve(tokens_every_10ms);
    let mut workload = Workload::closed(&url, "m", 2, items(6));
    workload.warm_up = items(1);
    workload.extra.insert("cache_prompt".into(), false.into());
    workload.api_key = Some("k".into());
    let run = run(&workload).unwrap();
    let summary = run.summary(None);
    assert_eq!((summary.completed, summary.output_tokens, summary.prompt_tokens), (6, 24, 18));
    for sample in &run.samples {
        assert_eq!(
            (sample.chunks, sample.gaps_ns.len(), sample.finish_reason.as_deref()),
            (4, 3, Some("length"))
        );
        assert!(sample.ttft_ns.unwrap() >= 10_000_000 && sample.e2el_ns() >= 40_000_000);
        assert_eq!(sample.text, "xxxx");
    }
    assert!(summary.itl.unwrap().median_ms >= 5.0, "{summary:?}");
    assert!(summary.concurrency_mean > 1.0 && summary.concurrency_mean <= 2.01, "{summary:?}");
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 7);
    let (head, body) = seen[0].split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("POST /v1/completions HTTP/1.1") && head.contains("authorization: Bearer k"));
    let body: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!(body["prompt"], serde_json::json!([1, 2, 0]));
    assert_eq!((body["ignore_eos"].as_bool(), body["cache_prompt"].as_bool()), (Some(true), Some(false)));
    assert_eq!(
        (body["max_tokens"].as_u64(), body["stream_options"]["include_usage"].as_bool()),
        (Some(4), Some(true))
    );
}

#[test]
fn every_failure_has_its_name() {
    let failure = |answer: fn(&str, &mut TcpStream)| {
        let (url, _) = serve(answer);
        let mut workload = Workload::closed(&url, "m", 1, items(1));
        let short = Duration::from_millis(200);
        workload.timeouts = Timeouts { connect: short, idle: short, total: Duration::from_millis(600) };
        match run(&workload).unwrap().samples.remove(0).outcome {
            Outcome::Failed(failure) => failure,
            other => panic!("{other:?}"),
        }
    };
    let busy = failure(|_, s| {
        let _ = say(s, "HTTP/1.1 429 Too Many\r\ncontent-length: 4\r\n\r\nbusy");
    });
    assert_eq!(busy, Failure::Status { status: 429, body: "busy".into() });
    let cut = failure(|_, s| {
        let _ = say(s, HEAD) && say(s, &token("a"));
    });
    assert!(matches!(cut, Failure::Truncated { .. }), "{cut:?}");
    let error = failure(|_, s| {
        let _ = say(s, HEAD) && say(s, "data: {\"error\":{\"message\":\"x\"}}\n\n");
    });
    assert!(matches!(error, Failure::ErrorFrame { .. }), "{error:?}");
    let noise = failure(|_, s| {
        let _ = say(s, HEAD) && say(s, "data: {nonsense\n\n");
    });
    assert!(matches!(noise, Failure::Protocol { .. }), "{noise:?}");
    let empty = failure(|_, s| {
        let _ = say(s, HEAD) && say(s, "data: [DONE]\n\n");
    });
    assert_eq!(empty, Failure::Empty);
    let silent = failure(|_, _| std::thread::sleep(Duration::from_secs(2)));
    assert_eq!(silent, Failure::Timeout { which: "idle".into() });
    let trickle = failure(|_, s| {
        say(s, HEAD);
        while say(s, ": ping\n\n") {
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    assert_eq!(trickle, Failure::Timeout { which: "total".into() });
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let refused = run(&Workload::closed(format!("http://{nobody}"), "m", 1, items(1))).unwrap();
    assert!(matches!(refused.samples[0].outcome, Outcome::Failed(Failure::Connect { .. })));
}

#[test]
fn unusable_workloads_are_refused() {
    let bad = |change: fn(&mut Workload)| {
        let mut workload = Workload::closed("http://127.0.0.1:1", "m", 1, items(1));
        change(&mut workload);
        run(&workload).unwrap_err()
    };
    assert!(matches!(bad(|w| w.items.clear()), LoadError::Workload(_)));
    assert!(matches!(bad(|w| w.arrival = Arrival::Closed { concurrency: 0 }), LoadError::Workload(_)));
    assert!(matches!(bad(|w| w.endpoint = Endpoint::Chat), LoadError::Workload(_)));
    assert!(matches!(bad(|w| w.url = "https://a".into()), LoadError::Url { .. }));
    assert!(matches!(bad(|w| w.url = "127.0.0.1:1".into()), LoadError::Url { .. }));
}

#[test]
fn abandoning_clients_hang_up_and_the_rest_complete() {
    let (url, _) = serve(tokens_every_10ms);
    let mut workload = Workload::closed(&url, "m", 8, items(40));
    workload.abandon = Some(Abandon { fraction: 0.5, max_chunks: 2, early_ms: 5, seed: 1 });
    let done = run(&workload).unwrap();
    let summary = done.summary(None);
    assert_eq!((summary.failed, summary.abandoned + summary.completed), (0, 40));
    assert!((10..=30).contains(&summary.abandoned), "{}", summary.abandoned);
    let abandoned = done.samples.iter().filter(|s| s.outcome == Outcome::Abandoned);
    assert!(abandoned.clone().all(|s| s.chunks <= 2));
    assert!(abandoned.clone().any(|s| s.chunks == 0) && abandoned.clone().any(|s| s.chunks > 0));
}

#[test]
fn poisson_arrivals_keep_their_rate_and_bound() {
    let (url, _) = serve(tokens_every_10ms);
    let mut workload = Workload::closed(&url, "m", 1, items(50));
    workload.arrival = Arrival::Poisson { per_second: 200.0, seed: 5, max_in_flight: 1000 };
    let done = run(&workload).unwrap();
    assert_eq!(done.summary(None).completed, 50);
    let last = done.samples.iter().map(|s| s.start_ns).max().unwrap() as f64 / 1e9;
    assert!((0.1..2.0).contains(&last), "{last}");
    workload.arrival = Arrival::Poisson { per_second: 2000.0, seed: 5, max_in_flight: 2 };
    let bounded = run(&workload).unwrap().summary(None);
    assert!(bounded.failures.get("client limit").is_some_and(|&n| n > 0), "{bounded:?}");
}

#[test]
fn comparison_alternates_and_says_noise() {
    let slow = |_: &str, s: &mut TcpStream| {
        std::thread::sleep(Duration::from_millis(60));
        tokens_every_10ms("", s);
    };
    let ((fast, _), (slow, _)) = (serve(tokens_every_10ms), serve(slow));
    let ours = Workload::closed(&fast, "m", 4, vec![]);
    let theirs = Workload::closed(&slow, "m", 4, vec![]);
    let result = compare(&ours, &theirs, 6, None, |_| Ok(items(4))).unwrap();
    let throughput = result.ratios.iter().find(|r| r.metric == "output_tokens_per_s").unwrap();
    assert_eq!(throughput.verdict.word(), "higher", "{throughput:?}");
    let first: Vec<_> = result.rounds.iter().map(|r| r.first).collect();
    assert_eq!(first.iter().filter(|f| **f == first[0]).count(), 3);
    let dead = Workload::closed("http://127.0.0.1:9", "m", 1, vec![]);
    assert!(matches!(
        compare(&ours, &dead, 1, None, |_| Ok(items(1))),
        Err(LoadError::NothingCompleted { .. })
    ));
}
