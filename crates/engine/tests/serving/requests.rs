//! The life of requests: stops, limits, cancellation, a full queue, draining.

use crate::executor::{executor, options, text};
use crate::invariance::{events, start, tokens};
use engine::*;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

fn end(events: &[Event]) -> (FinishReason, Usage) {
    match events.last() {
        Some(Event::Finished { reason, usage }) => (reason.clone(), *usage),
        other => panic!("no end but {other:?}"),
    }
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < Duration::from_secs(20), "{what} took too long");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn stops_lengths_and_usage() {
    let engine = start(options());
    let run = |request: Request| events(&engine.submit_channel(request).expect("accepted"));
    let plain = run(Request::new(1, text(20, 5), 12));
    assert_eq!(plain[0], Event::Started { prompt_tokens: 20, cached_tokens: 0 });
    let all = tokens(&plain);
    let (reason, usage) = end(&plain);
    assert_eq!((reason, usage.completion_tokens, usage.prompt_tokens), (FinishReason::Length, 12, 20));
    // The first token that did not occur before the fifth place, so that the stop is not met earlier.
    let place = (4..12).find(|i| !all[..*i].contains(&all[*i])).expect("some variety");
    let stop = all[place];

    let mut request = Request::new(2, text(20, 5), 12);
    request.stop_tokens = vec![stop];
    let stopped = run(request.clone());
    assert_eq!(tokens(&stopped), &all[..place], "the stop token is not sent");
    let (reason, usage) = end(&stopped);
    assert_eq!((reason, usage.completion_tokens as usize), (FinishReason::Stop { token: stop }, place + 1));
    assert_eq!(usage.cached_tokens, 16, "a full page was kept");

    request.id = RequestId(3);
    request.eos_tokens = std::mem::take(&mut request.stop_tokens);
    assert_eq!(tokens(&run(request.clone())), &all[..place]);
    request.ignore_eos = true;
    assert_eq!(tokens(&run(request.clone())), all);
    request.ignore_eos = false;
    request.min_tokens = 12;
    let long = run(request);
    assert_eq!(tokens(&long).len(), 12);
    assert!(!tokens(&long).contains(&stop), "stop tokens are banned before min_tokens");

    let context = run(Request::new(4, text(90, 5), 1000));
    assert_eq!(end(&context).0, FinishReason::Length);
    assert_eq!(tokens(&context).len(), 6, "the context of 96 tokens is full");
    engine.shutdown();
}

#[test]
fn prompt_log_probabilities() {
    let engine = start(options());
    let prompt = text(30, 6);
    let mut rows = Vec::new();
    executor(&options())
        .logits_for(plan::Phase::Prefill, &prompt, 0, 24, &mut |_, row| rows.push(row.to_vec()))
        .expect("fits");
    for (id, max_tokens) in [(1, 0), (2, 0), (3, 2)] {
        let mut request = Request::new(id, prompt.clone(), max_tokens);
        request.prompt_logprobs = Some(2);
        let events = events(&engine.submit_channel(request).expect("accepted"));
        assert_eq!(events[0], Event::Started { prompt_tokens: 30, cached_tokens: 0 });
        for (place, token) in prompt.iter().enumerate() {
            let Event::PromptToken { index, id, logprobs } = &events[1 + place] else {
                panic!("no prompt token but {:?}", events[1 + place])
            };
            assert_eq!((*index as usize, id), (place, token));
            let Some(logprobs) = logprobs else {
                assert_eq!(place, 0, "only the first has none");
                continue;
            };
            let row = &rows[place - 1];
            let total: f64 = row.iter().map(|l| f64::from(*l).exp()).sum();
            let want = f64::from(row[*token as usize]) - total.ln();
            assert!((f64::from(logprobs.logprob) - want).abs() < 1e-4);
            assert_eq!(logprobs.top.len(), 2);
        }
        assert_eq!(events.len(), 1 + 30 + max_tokens as usize + 1);
        assert_eq!(end(&events).0, FinishReason::Length);
    }
    let only_prompt = events(&engine.submit_channel(Request::new(9, prompt, 0)).expect("accepted"));
    assert_eq!(only_prompt.len(), 2, "started and finished");
}

#[test]
fn refusals() {
    let engine = start(EngineOptions { max_queue: Some(0), ..options() });
    let refuse = |request: Request| engine.submit_channel(request).expect_err("to be refused");
    assert!(matches!(refuse(Request::new(1, vec![1], 5)), EngineError::QueueFull { .. }));
    assert!(matches!(refuse(Request::new(1, vec![], 5)), EngineError::Invalid { .. }));
    assert!(matches!(refuse(Request::new(1, vec![64], 5)), EngineError::Invalid { .. }));
    assert!(matches!(refuse(Request::new(1, text(96, 0), 1)), EngineError::TooLong { context: 96, .. }));
    for params in [
        SamplingParams { temperature: f32::NAN, ..SamplingParams::default() },
        SamplingParams { temperature: -1.0, ..SamplingParams::default() },
        SamplingParams { top_p: 0.0, ..SamplingParams::default() },
        SamplingParams { min_p: 1.5, ..SamplingParams::default() },
        SamplingParams { repetition_penalty: 0.0, ..SamplingParams::default() },
        SamplingParams { presence_penalty: 3.0, ..SamplingParams::default() },
        SamplingParams { logit_bias: vec![(64, 1.0)], ..SamplingParams::default() },
    ] {
        let request = Request { params, ..Request::new(1, vec![1], 5) };
        assert!(matches!(refuse(request), EngineError::Invalid { .. }));
    }
    assert_eq!(engine.stats().refused, 1, "what the queue refused");
}

#[test]
fn the_queue_is_bounded_and_ids_are_unique() {
    let engine = start(EngineOptions { max_queue: Some(2), max_sequences: Some(1), ..options() });
    let long = |id| Request::new(id, text(10, 1), 80);
    let first = engine.submit_channel(long(1)).expect("accepted");
    assert!(matches!(first.recv_timeout(Duration::from_secs(20)), Ok(Event::Started { .. })));
    let mut receivers = Vec::new();
    let mut full = false;
    // The engine works meanwhile: at some point the queue of two is full.
    for id in 2..200 {
        match engine.submit_channel(long(id)) {
            Ok(receiver) => receivers.push(receiver),
            Err(EngineError::QueueFull { waiting }) => {
                assert_eq!(waiting, 2);
                full = true;
                let twice = engine.submit_channel(long(1));
                // Either still open or finished by now (then the queue refuses or takes it).
                assert!(!matches!(twice, Err(EngineError::TooLong { .. })));
                break;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(full);
    for receiver in &receivers {
        assert_eq!(tokens(&events(receiver)).len(), 80);
    }
}

#[test]
fn cancellation_waiting_running_and_by_silence() {
    let engine = start(EngineOptions { max_sequences: Some(2), ..options() });
    let long = |id| Request::new(id, text(10, id as u32), 85);
    let running = engine.submit_channel(long(1)).expect("accepted");
    let other = engine.submit_channel(long(2)).expect("accepted");
    let waiting = engine.submit_channel(long(3)).expect("accepted");
    let waiting_silent = engine.submit_channel(long(4)).expect("accepted");
    engine.cancel(RequestId(3));
    engine.cancel(RequestId(77));
    let cancelled = events(&waiting);
    // Cancelled before it began, unless the engine was very quick.
    assert!(matches!(end(&cancelled).0, FinishReason::Cancelled | FinishReason::Length));
    engine.cancel(RequestId(1));
    let (reason, _) = end(&events(&running));
    assert!(matches!(reason, FinishReason::Cancelled | FinishReason::Length));
    drop(waiting_silent);
    assert_eq!(tokens(&events(&other)).len(), 85, "company's end does not matter");
    wait_until("all ends", || {
        let s = engine.stats();
        s.finished_cancelled + s.finished_length == 4
    });
    let stats = engine.stats();
    assert_eq!((stats.running, stats.waiting, stats.kv_pages_used), (0, 0, 0));
    assert_eq!(stats.finished_error, 0);
    // Ids may be used again.
    assert_eq!(tokens(&events(&engine.submit_channel(long(1)).expect("accepted"))).len(), 85);
}

/// A sink that says it is closed while its request still waits behind another.
#[test]
fn a_waiting_request_without_listener_goes_at_once() {
    struct Gone;
    impl EventSink for Gone {
        fn send(&self, _: Event) -> Result<(), Closed> {
            Err(Closed)
        }
        fn is_closed(&self) -> bool {
            true
        }
    }
    let engine = start(EngineOptions { max_sequences: Some(1), ..options() });
    let first = engine.submit_channel(Request::new(1, text(10, 1), 80)).expect("accepted");
    engine.submit(Request::new(2, text(10, 2), 80), Box::new(Gone)).expect("accepted");
    assert_eq!(tokens(&events(&first)).len(), 80);
    wait_until("the end", || engine.stats().finished_cancelled == 1);
    assert_eq!(engine.stats().generated_tokens, 80, "nothing was computed for the other");
}

#[test]
fn many_clients_a_third_of_them_leaves() {
    let engine = start(EngineOptions { kv_tokens: Some(256), ..options() });
    let alone = start(EngineOptions { threads: Some(1), prefix_cache: PrefixCache::Off, ..options() });
    let request = |i: u64| {
        let mut r = Request::new(i, text(5 + (i as usize * 13) % 60, i as u32 % 5), 3 + (i as u32 * 7) % 25);
        r.params.temperature = (i % 3) as f32 * 0.7;
        r.params.seed = i;
        r
    };
    std::thread::scope(|scope| {
        for client in 0..8u64 {
            let (engine, alone) = (&engine, &alone);
            scope.spawn(move || {
                for i in (client * 25)..(client * 25 + 25) {
                    let receiver = engine.submit_channel(request(i)).expect("accepted");
                    if i % 3 == 0 {
                        for _ in 0..i % 7 {
                            match receiver.recv_timeout(Duration::from_secs(30)) {
                                Ok(_) => {}
                                Err(RecvTimeoutError::Disconnected) => break,
                                Err(RecvTimeoutError::Timeout) => panic!("no event in time"),
                            }
                        }
                        continue;
                    }
                    let got = tokens(&events(&receiver));
                    if i % 10 == 1 {
                        let want = events(&alone.submit_channel(request(i)).expect("accepted"));
                        assert_eq!(got, tokens(&want), "request {i}");
                    }
                }
            });
        }
    });
    wait_until("all ends", || {
        let s = engine.stats();
        s.finished_cancelled + s.finished_length == 200 && s.running == 0
    });
    let stats = engine.stats();
    assert_eq!((stats.submitted, stats.waiting, stats.kv_pages_used), (200, 0, 0));
    assert_eq!(stats.step_seconds.count(), stats.steps);
}

#[test]
fn draining_finishes_and_shutdown_cancels() {
    let engine = start(options());
    let open: Vec<_> =
        (0..9).map(|i| engine.submit_channel(Request::new(i, text(10, 1), 40)).expect("accepted")).collect();
    assert!(engine.drain(Duration::from_secs(30)));
    assert!(matches!(engine.submit_channel(Request::new(1, vec![1], 1)), Err(EngineError::Draining)));
    for receiver in &open {
        assert_eq!(tokens(&events(receiver)).len(), 40);
    }
    engine.shutdown();
    engine.shutdown();
    assert!(matches!(engine.submit_channel(Request::new(1, vec![1], 1)), Err(EngineError::Stopped(_))));

    let engine = start(options());
    let receiver = engine.submit_channel(Request::new(1, text(10, 1), 85)).expect("accepted");
    drop(engine);
    assert!(matches!(end(&events(&receiver)).0, FinishReason::Cancelled | FinishReason::Length));
}

/// A sink that panics takes the engine down, but every request hears of it and later ones are refused.
#[test]
fn a_failing_thread_leaves_nobody_waiting() {
    struct Bomb;
    impl EventSink for Bomb {
        fn send(&self, event: Event) -> Result<(), Closed> {
            assert!(!matches!(event, Event::Token { .. }), "on purpose");
            Ok(())
        }
    }
    let engine = start(options());
    let receiver = engine.submit_channel(Request::new(1, text(10, 1), 85)).expect("accepted");
    engine.submit(Request::new(2, text(10, 2), 85), Box::new(Bomb)).expect("accepted");
    let reason = end(&events(&receiver)).0;
    assert!(matches!(reason, FinishReason::Error(_) | FinishReason::Length), "{reason:?}");
    wait_until("the end", || !engine.is_serving());
    let error = engine.submit_channel(Request::new(3, vec![1], 1)).expect_err("it has stopped");
    assert!(error.to_string().contains("panicked"), "{error}");
}
