//! Streams: order and shape of chunks, UTF-8, stop strings, errors (bugs 1, 2, 17).

use crate::harness::{options, saying, start, start_with, streamed};
use crate::scripted::{
    Behaviour, Bytes, DROP, EURO, FAIL, HELLO, OP, SMILE_1, SMILE_2, ST, STOP_AND_GO, WORLD,
};
use serde_json::{Value, json};
use std::time::Duration;

fn hi() -> Value {
    json!([{ "role": "user", "content": "hi" }])
}

#[test]
fn chat_chunks_come_in_the_documented_order_and_shape() {
    let server = saying(&[HELLO, WORLD]);
    let body = json!({ "model": "m", "messages": hi(), "stream": true, "stream_options": { "include_usage": true } });
    let answer = server.chat(body);
    let (events, done) = answer.events();
    assert!(done);
    assert_eq!(events.len(), 5, "{events:#?}");
    let first = &events[0];
    for event in &events {
        assert_eq!(
            (&event["id"], &event["created"], &event["model"]),
            (&first["id"], &first["created"], &first["model"])
        );
        assert_eq!(event["object"], "chat.completion.chunk");
        assert!(event.get("usage").is_some());
    }
    assert_eq!(first["choices"][0]["delta"], json!({ "role": "assistant", "content": "" }));
    for (event, text) in events[1..3].iter().zip(["hello", " world"]) {
        let choice = &event["choices"][0];
        assert_eq!(choice["delta"], json!({ "content": text }));
        assert_eq!(choice.get("finish_reason"), Some(&Value::Null));
        assert_eq!(choice.get("logprobs"), Some(&Value::Null));
        assert_eq!(event["usage"], Value::Null);
    }
    assert_eq!(events[3]["choices"][0]["delta"], json!({}));
    assert_eq!(events[3]["choices"][0]["finish_reason"], "stop");
    assert_eq!(events[4]["choices"], json!([]));
    // "[user]hi[assistant]" and the end-of-text token.
    let usage = &events[4]["usage"];
    assert_eq!(
        (
            usage["prompt_tokens"].as_u64(),
            usage["completion_tokens"].as_u64(),
            usage["total_tokens"].as_u64()
        ),
        (Some(19), Some(3), Some(22))
    );
}

#[test]
fn without_stream_options_there_is_no_usage_at_all() {
    let server = saying(&[HELLO]);
    for body in [
        json!({}),
        json!({ "stream_options": null }),
        json!({ "stream_options": { "include_usage": false } }),
    ] {
        let mut all = json!({ "prompt": "x", "stream": true });
        all.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
        let (events, done) = server.complete(all).events();
        assert!(done && events.iter().all(|e| e.get("usage").is_none()), "{events:#?}");
        assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "stop");
        assert!(events.iter().all(|e| e["object"] == "text_completion"));
    }
}

#[test]
fn split_and_invalid_utf8_never_breaks_a_response() {
    let cases: [(&[u32], &str); 7] = [
        (&[SMILE_1, SMILE_2], "\u{1f600}"),
        (&[0xe2, 0x82, 0xac, EURO], "\u{20ac}\u{20ac}"),
        (&[SMILE_1], "\u{fffd}"),
        (&[0xff, HELLO], "\u{fffd}hello"),
        (&[0xc0, 0x80], "\u{fffd}\u{fffd}"),
        (&[0xed, 0xa0, 0x80], "\u{fffd}\u{fffd}\u{fffd}"),
        (&[SMILE_1, HELLO, 0xf4, 0x90, 0x80, 0x80], "\u{fffd}hello\u{fffd}\u{fffd}\u{fffd}\u{fffd}"),
    ];
    for (script, want) in cases {
        let server = saying(script);
        let whole = server.complete(json!({ "prompt": "x" })).ok();
        assert_eq!(whole["choices"][0]["text"], want);
        let (events, done) = server.complete(json!({ "prompt": "x", "stream": true })).events();
        assert_eq!((streamed(&events, 0).as_str(), done), (want, true));
        let halves = events
            .iter()
            .filter(|e| e["choices"][0]["text"].as_str().is_some_and(|t| t.contains('\u{fffd}')));
        assert!(want.contains('\u{fffd}') || halves.count() == 0);
    }
    let server = saying(&[SMILE_1, SMILE_2]);
    let chat = server.chat(json!({ "messages": hi(), "logprobs": true })).ok();
    let content = chat["choices"][0]["logprobs"]["content"].as_array().unwrap();
    let bytes: Vec<u8> = content
        .iter()
        .flat_map(|t| t["bytes"].as_array().unwrap())
        .map(|b| b.as_u64().unwrap() as u8)
        .collect();
    assert_eq!(bytes, "\u{1f600}".as_bytes());
}

#[test]
fn stop_strings_never_leak() {
    let stop = |script: &[u32], stop: Value| {
        let server = saying(script);
        let whole = server.complete(json!({ "prompt": "x", "stop": stop })).ok();
        let (events, done) = server.complete(json!({ "prompt": "x", "stop": stop, "stream": true })).events();
        let choice = &whole["choices"][0];
        assert!(done);
        assert_eq!(streamed(&events, 0), choice["text"].as_str().unwrap(), "stream and whole differ");
        assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], choice["finish_reason"]);
        server.wait_idle();
        (choice["text"].as_str().unwrap().to_owned(), choice["finish_reason"].as_str().unwrap().to_owned())
    };
    let is = |text: &str, reason: &str| (text.to_owned(), reason.to_owned());
    assert_eq!(stop(&[HELLO, ST, OP, WORLD], json!("STOP")), is("hello", "stop"));
    assert_eq!(stop(&[HELLO, ST, OP, WORLD], json!(["never", "STOP"])), is("hello", "stop"));
    assert_eq!(stop(&[HELLO, STOP_AND_GO, WORLD], json!("STOP")), is("hello", "stop"));
    assert_eq!(stop(&[HELLO, ST, WORLD], json!("STOP")), is("helloST world", "stop"));
    assert_eq!(stop(&[HELLO, ST], json!("STOP")), is("helloST", "stop"));
    assert_eq!(stop(&[ST, ST, OP], json!("STOP")), is("ST", "stop"));
    // The end flushes an unfinished code point, which may complete a stop.
    assert_eq!(stop(&[HELLO, SMILE_1], json!("\u{fffd}")), is("hello", "stop"));
    let server = saying(&[HELLO, ST, OP, WORLD]);
    let kept =
        server.complete(json!({ "prompt": "x", "stop": "STOP", "include_stop_str_in_output": true })).ok();
    assert_eq!(kept["choices"][0]["text"], "helloSTOP");
    assert_eq!(kept["usage"]["completion_tokens"], 3);
    let tokens = server.complete(json!({ "prompt": "x", "stop_token_ids": [OP] })).ok();
    assert_eq!(tokens["choices"][0]["text"], "helloST");
}

#[test]
fn text_before_a_possible_stop_is_not_delayed() {
    // "ST" is held back, "hello" is not.
    let server = saying(&[HELLO, ST, WORLD]);
    let (events, _) = server.complete(json!({ "prompt": "x", "stop": "STOP", "stream": true })).events();
    let texts: Vec<_> = events.iter().filter_map(|e| e["choices"][0]["text"].as_str()).collect();
    assert_eq!(texts, ["hello", "ST world", ""]);
}

#[test]
fn an_early_error_has_a_status_and_a_late_one_a_frame() {
    let server = saying(&[FAIL]);
    let early = server.complete(json!({ "prompt": "x", "stream": true }));
    assert_eq!(early.error(500)["message"], "scripted failure");
    assert_eq!(server.complete(json!({ "prompt": "x" })).error(500)["type"], "server_error");
    for script in [[HELLO, FAIL], [HELLO, DROP]] {
        let server = saying(&script);
        let (events, done) = server.chat(json!({ "messages": hi(), "stream": true })).events();
        assert!(!done);
        assert!(events.last().unwrap()["error"]["message"].is_string(), "{events:#?}");
        server.complete(json!({ "prompt": "x" })).error(500);
    }
}

#[test]
fn silence_is_filled_with_comments_only() {
    let mut options = options();
    options.keep_alive = Duration::from_millis(30);
    let behaviour = Behaviour { step: Duration::from_millis(100), ..Behaviour::default() };
    let server = start_with(behaviour, options, Bytes::new());
    let answer = server.chat(json!({ "messages": hi(), "stream": true }));
    assert!(answer.text().contains(": keep-alive\n\n"), "{}", answer.text());
    let (events, done) = answer.events();
    assert!(done);
    assert_eq!(streamed(&events, 0), "hello world");
}

#[test]
fn n_choices_interleave_by_index_and_differ_by_choice() {
    let server = start(Behaviour {
        script: Box::new(|r| vec![HELLO; 1 + r.params.choice as usize]),
        ..Behaviour::default()
    });
    let (events, done) = server.chat(json!({ "messages": hi(), "n": 3, "seed": 7, "stream": true })).events();
    assert!(done);
    for i in 0..3u64 {
        assert_eq!(streamed(&events, i), "hello".repeat(i as usize + 1));
        let mine: Vec<_> = events
            .iter()
            .flat_map(|e| e["choices"].as_array().unwrap())
            .filter(|c| c["index"] == i)
            .collect();
        assert_eq!(mine[0]["delta"]["role"], "assistant");
        assert_eq!(mine.iter().filter(|c| c["finish_reason"] == "stop").count(), 1);
        assert_eq!(mine.iter().filter(|c| c["delta"].get("role").is_some()).count(), 1);
    }
    let whole = server.chat(json!({ "messages": hi(), "n": 3, "seed": 7 })).ok();
    assert_eq!(whole["choices"].as_array().unwrap().len(), 3);
    assert_eq!(whole["usage"]["completion_tokens"], 1 + 2 + 3 + 3);
    let seen = server.engine.seen();
    assert!(seen.iter().all(|r| r.params.seed == 7));
    assert_eq!(seen[..3].iter().map(|r| r.params.choice).collect::<Vec<_>>(), [0, 1, 2]);
    let unseeded = saying(&[HELLO]);
    unseeded.complete(json!({ "prompt": "x" }));
    unseeded.complete(json!({ "prompt": "x" }));
    let seen = unseeded.engine.seen();
    assert_ne!(seen[0].params.seed, seen[1].params.seed, "without a seed, every request gets its own");
}
