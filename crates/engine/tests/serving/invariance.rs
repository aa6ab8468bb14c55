//! Same prompt, parameters and seed give the same tokens, whatever shares the batch.

use crate::executor::{options, separate, text};
use crate::tiny;
use engine::*;
use std::sync::mpsc::Receiver;
use std::time::Duration;

pub fn start(options: EngineOptions) -> EngineHandle {
    Engine::start(tiny::bundle(), options).expect("a sound bundle")
}

/// All events of a request up to its end.
pub fn events(receiver: &Receiver<Event>) -> Vec<Event> {
    let mut all = Vec::new();
    loop {
        let event = receiver.recv_timeout(Duration::from_secs(30)).expect("an event in time");
        let last = matches!(event, Event::Finished { .. });
        all.push(event);
        if last {
            return all;
        }
    }
}

pub fn tokens(events: &[Event]) -> Vec<u32> {
    let ids = events.iter().filter_map(|e| match e {
        Event::Token { id, .. } => Some(*id),
        _ => None,
    });
    ids.collect()
}

fn requests() -> Vec<Request> {
    (0..14u64)
        .map(|i| {
            // Pairs share their beginnings: 40 tokens are two full pages.
            let mut prompt = text(40, i as u32 / 2);
            prompt.extend(text(1 + i as usize * 2, 9));
            let mut request = Request::new(i, prompt, 28 - i as u32);
            request.params.seed = i;
            match i % 4 {
                0 => {}
                1 => request.params.temperature = 1.0,
                2 => {
                    request.params.temperature = 1.5;
                    request.params.top_p = 0.9;
                    request.params.logprobs = Some(3);
                }
                _ => {
                    request.params.temperature = 0.8;
                    request.params.top_k = 20;
                    request.params.frequency_penalty = 0.5;
                    request.params.repetition_penalty = 1.2;
                }
            }
            request
        })
        .collect()
}

/// Tokens with their log probabilities: bits count.
fn outcome(events: &[Event]) -> Vec<(u32, Option<TokenLogprobs>)> {
    let parts = events.iter().filter_map(|e| match e {
        Event::Token { id, logprobs, .. } => Some((*id, logprobs.clone())),
        _ => None,
    });
    parts.collect()
}

#[test]
fn company_chunks_pages_and_prefixes_do_not_matter() {
    check_invariance(&options);
}

#[test]
fn nor_do_they_where_prompts_have_an_arithmetic_of_their_own() {
    check_invariance(&separate);
}

fn check_invariance(options: &dyn Fn() -> EngineOptions) {
    let alone = start(EngineOptions { prefix_cache: PrefixCache::Off, threads: Some(1), ..options() });
    let want: Vec<_> = requests()
        .into_iter()
        .map(|r| outcome(&events(&alone.submit_channel(r).expect("accepted"))))
        .collect();
    for (request, tokens) in requests().iter().zip(&want) {
        assert_eq!(tokens.len(), request.max_tokens as usize);
    }
    alone.shutdown();

    // Together; again, with all prefixes known; with few pages, so that the youngest yield; with three threads.
    let small = EngineOptions { kv_tokens: Some(112), max_context: Some(96), ..options() };
    let three = EngineOptions { threads: Some(3), max_sequences: Some(3), ..options() };
    for (name, options) in [("together", options()), ("few pages", small), ("three threads", three)] {
        let engine = start(options);
        for round in 0..2 {
            let receivers: Vec<_> =
                requests().into_iter().map(|r| engine.submit_channel(r).expect("accepted")).collect();
            for (id, (receiver, want)) in receivers.iter().zip(&want).enumerate() {
                let events = events(receiver);
                assert_eq!(&outcome(&events), want, "{name}, round {round}, request {id}");
            }
        }
        let stats = engine.stats();
        assert_eq!((stats.running, stats.waiting, stats.kv_pages_used), (0, 0, 0), "{name}");
        assert_eq!((stats.finished_length, stats.finished_error), (28, 0), "{name}");
        assert!(stats.prefix_hit_tokens > 0, "{name}: prefixes were shared");
        assert_eq!(stats.preemptions > 0, name == "few pages", "{name}: {} preemptions", stats.preemptions);
        engine.shutdown();
    }
}

#[test]
fn greedy_follows_the_reference() {
    let engine = start(options());
    let prompt = text(20, 4);
    let got = tokens(&events(&engine.submit_channel(Request::new(1, prompt.clone(), 15)).expect("accepted")));
    let mut sequence = prompt;
    for token in got {
        let logits = tiny::reference(&sequence).pop().expect("a row");
        let best = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        // Within rounding of the best: a tie may fall either way.
        assert!(best - logits[token as usize] < 1e-3);
        sequence.push(token);
    }
    assert_eq!(sequence.len(), 35);
}
