//! Bad and odd requests (bugs 6, 7, 14, 15, 16): each gets an error that names what is wrong, and harms nobody else.

use crate::harness::{JSON, options, read, saying, start, start_with};
use crate::scripted::{Behaviour, Bytes, EOS, HELLO};
use model::GenerationDefaults;
use serde_json::{Value, json};
use server::{Server, ServerError};
use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;

fn merged(base: &Value, extra: &Value) -> Value {
    let mut all = base.clone();
    all.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    all
}

#[test]
fn every_bad_field_is_named() {
    let server = saying(&[HELLO]);
    let base = json!({ "prompt": "x" });
    let cases = [
        json!({ "temperature": -0.1 }),
        json!({ "temperature": "hot" }),
        json!({ "top_p": 1.1 }),
        json!({ "top_p": -1 }),
        json!({ "top_k": 0.01 }),
        json!({ "top_k": -2 }),
        json!({ "top_k": "5" }),
        json!({ "min_p": 2 }),
        json!({ "presence_penalty": 2.1 }),
        json!({ "frequency_penalty": -3 }),
        json!({ "repetition_penalty": 0 }),
        json!({ "logit_bias": { "abc": 1 } }),
        json!({ "logit_bias": { "100000": 1 } }),
        json!({ "logit_bias": { "1": 101 } }),
        json!({ "logit_bias": [1] }),
        json!({ "seed": 1.5 }),
        json!({ "n": 0 }),
        json!({ "n": 1000000 }),
        json!({ "n": -1 }),
        json!({ "stop": 1 }),
        json!({ "stop": [1] }),
        json!({ "stop": "" }),
        json!({ "max_tokens": -1 }),
        json!({ "max_tokens": 1.5 }),
        json!({ "max_tokens": 1e30 }),
        json!({ "max_tokens": 0 }),
        json!({ "max_tokens": "9" }),
        json!({ "max_completion_tokens": -5 }),
        json!({ "ignore_eos": 1 }),
        json!({ "stream": "yes" }),
        json!({ "stream_options": { "include_usage": true } }),
        json!({ "logprobs": -1 }),
        json!({ "logprobs": 21 }),
        json!({ "logprobs": true }),
        json!({ "echo": "x" }),
        json!({ "model": 5 }),
        json!({ "stop_token_ids": [99999] }),
        json!({ "stop_token_ids": 3 }),
        json!({ "tools": [{ "type": "function" }] }),
        json!({ "tool_choice": "required" }),
        json!({ "response_format": { "type": "json_object" } }),
        json!({ "response_format": "json" }),
        json!({ "suffix": "abc" }),
        json!({ "best_of": 2 }),
        json!({ "guided_json": {"a": 1} }),
        json!({ "grammar": "root" }),
        json!({ "repeat_penalty": 1.1 }),
        json!({ "prompt": [] }),
        json!({ "prompt": 5 }),
        json!({ "prompt": [1, "a"] }),
        json!({ "prompt": [99999] }),
        json!({ "prompt": "" }),
    ];
    for case in cases {
        let error = server.complete(merged(&base, &case)).error(400);
        let name = case.as_object().unwrap().keys().next().unwrap();
        assert_eq!(
            (error["param"].as_str(), error["type"].as_str()),
            (Some(name.as_str()), Some("invalid_request_error")),
            "{error}"
        );
        assert!(error["message"].as_str().unwrap().contains(name.as_str()), "{error}");
    }
    assert!(server.engine.seen().is_empty(), "nothing of that reached the engine");
    assert_eq!(server.complete(base).ok()["choices"][0]["text"], "hello");
}

#[test]
fn harmless_values_pass_and_reach_the_engine() {
    let defaults = GenerationDefaults {
        temperature: Some(0.6),
        top_k: Some(20),
        top_p: Some(0.95),
        min_p: None,
        repetition_penalty: Some(1.1),
    };
    let server = start_with(Behaviour::default(), options(), Bytes { defaults, ..Bytes::new() });
    let harmless = json!({
        "prompt": "x", "model": "alias", "user": "u", "tools": [], "tool_choice": "auto", "response_format": { "type": "text" }, "suffix": null,
        "best_of": 1, "stop": [], "logit_bias": {}, "unheard_of": { "x": 1 }, "cache_prompt": false, "store": true, "n": null,
    });
    assert_eq!(server.complete(harmless).ok()["model"], "alias");
    let set = json!({
        "prompt": "x", "temperature": 0, "top_k": 1000000, "top_p": 0, "min_p": 0.1, "presence_penalty": 1, "frequency_penalty": -1,
        "repetition_penalty": 1.5, "logit_bias": { "7": -100 }, "seed": -1, "max_tokens": 5, "ignore_eos": true, "min_tokens": 3,
    });
    assert_eq!(server.complete(set).ok()["usage"]["completion_tokens"], 5);
    server.complete(json!({ "prompt": "x", "top_k": -1 })).ok();
    let seen = server.engine.seen();
    let p = &seen[0].params;
    assert_eq!((p.temperature, p.top_k, p.top_p, p.repetition_penalty), (0.6, 20, 0.95, 1.1));
    assert_eq!((seen[0].max_tokens, &seen[0].eos_tokens[..]), (16, &[EOS][..]));
    let p = &seen[1].params;
    assert_eq!(
        (p.temperature, p.top_k, p.min_p, p.presence_penalty, p.frequency_penalty),
        (0.0, 266, 0.1, 1.0, -1.0)
    );
    assert!(p.top_p > 0.0 && p.top_p < 1e-30);
    assert_eq!(
        (&p.logit_bias[..], p.seed, seen[1].ignore_eos, seen[1].min_tokens),
        (&[(7, -100.0)][..], u64::MAX, true, 3)
    );
    assert_eq!(seen[2].params.top_k, 0);
}

#[test]
fn context_overflow_is_400_at_once_and_max_tokens_is_clamped() {
    let server =
        start(Behaviour { max_context: 32, script: Box::new(|_| vec![HELLO; 100]), ..Behaviour::default() });
    for n in [32, 33, 5000] {
        for stream in [false, true] {
            let error = server.complete(json!({ "prompt": "x".repeat(n), "stream": stream })).error(400);
            assert_eq!(error["code"], "context_length_exceeded");
            assert_eq!(
                (error["n_prompt_tokens"].as_u64(), error["n_ctx"].as_u64()),
                (Some(n as u64), Some(32))
            );
            let message = error["message"].as_str().unwrap();
            assert!(message.contains(&n.to_string()) && message.contains("32"), "{message}");
        }
    }
    for max_tokens in [json!(23), json!(u64::MAX), json!(i64::MAX)] {
        let answer = server.complete(json!({ "prompt": "x".repeat(10), "max_tokens": max_tokens })).ok();
        assert_eq!(
            (&answer["choices"][0]["finish_reason"], &answer["usage"]["completion_tokens"]),
            (&json!("length"), &json!(22))
        );
    }
    let chat = server.chat(json!({ "messages": [{ "role": "user", "content": "y" }] })).ok();
    assert_eq!(chat["usage"]["total_tokens"], 32);
    let chat = server.chat(json!({ "messages": [{ "role": "user", "content": "y".repeat(30) }] }));
    assert_eq!(chat.error(400)["code"], "context_length_exceeded");
}

#[test]
fn messages_and_templates() {
    let server = saying(&[HELLO]);
    let say = |messages: Value| server.chat(json!({ "messages": messages }));
    let raised = say(json!([{ "role": "function", "content": "x" }])).error(400);
    assert!(raised["message"].as_str().unwrap().contains("Conversation roles must alternate"), "{raised}");
    for (messages, place) in [
        (json!([]), "messages"),
        (json!("hi"), "messages"),
        (json!(null), "messages"),
        (json!([5]), "messages[0]"),
        (json!([{ "content": "x" }]), "messages[0].role"),
        (json!([{ "role": "emperor", "content": "x" }]), "messages[0].role"),
        (json!([{ "role": "user" }]), "messages[0].content"),
        (json!([{ "role": "user", "content": 5 }]), "messages[0].content"),
        (
            json!([{ "role": "user", "content": [{ "type": "image_url", "image_url": {} }] }]),
            "messages[0].content[0]",
        ),
        (
            json!([{ "role": "user", "content": "a" }, { "role": "assistant", "tool_calls": [{}] }]),
            "messages[1].tool_calls",
        ),
    ] {
        assert_eq!(say(messages).error(400)["param"], place);
    }
    let parts = json!([{ "role": "developer", "content": [{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }] }]);
    say(parts).ok();
    say(json!([{ "role": "assistant", "content": null }, { "role": "user", "content": "q" }])).ok();
    let prompts: Vec<String> =
        server.engine.seen().iter().map(|r| r.prompt.iter().map(|&b| b as u8 as char).collect()).collect();
    assert_eq!(prompts, ["[system]a\nb[assistant]", "[assistant][user]q[assistant]"]);
    let bare = start_with(Behaviour::default(), options(), Bytes::without_template());
    assert_eq!(
        bare.chat(json!({ "messages": [{ "role": "user", "content": "x" }] })).error(400)["param"],
        "messages"
    );
}

#[test]
fn http_errors_have_openai_bodies() {
    let mut options = options();
    options.max_body_bytes = 1000;
    let server = start_with(Behaviour::default(), options, Bytes::new());
    assert_eq!(
        server.complete(json!({ "prompt": "x", "model": "gpt-4" })).error(404)["code"],
        "model_not_found"
    );
    assert_eq!(server.get("/v1/nothing").error(404)["code"], "unknown_url");
    let get = server.get("/v1/completions");
    get.error(405);
    assert_eq!(get.header("allow"), Some("POST"));
    server.complete(json!({ "prompt": "x".repeat(2000) })).error(413);
    let mut chunked = TcpStream::connect(server.address).unwrap();
    let head =
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n";
    chunked.write_all(head.as_bytes()).unwrap();
    for _ in 0..3 {
        // Without a length in advance; the server may hang up once it has seen enough.
        let _ = chunked.write_all(format!("190\r\n{}\r\n", "x".repeat(400)).as_bytes());
    }
    let _ = chunked.write_all(b"0\r\n\r\n");
    read(chunked).error(413);
    // A body that no buffer between the two holds: the client can send it all, and then read why it was refused.
    let mut large = TcpStream::connect(server.address).unwrap();
    let body = vec![b'x'; 16 << 20];
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    large.write_all(head.as_bytes()).unwrap();
    large.write_all(&body).expect("the server reads on");
    read(large).error(413);
    server.send("POST", "/v1/completions", "content-type: text/plain\r\n", b"{}").error(415);
    for body in [&b""[..], b"[]", b"{\"prompt\":", b"\"x\"", b"\xff\xfe"] {
        server.send("POST", "/v1/completions", JSON, body).error(400);
    }
    assert_eq!(
        server
            .send(
                "POST",
                "/v1/completions",
                "content-type: application/json; charset=utf-8\r\n",
                b"{\"prompt\":\"x\"}"
            )
            .status,
        200
    );
    assert_eq!(server.send("POST", "/v1/completions", "", b"{\"prompt\":\"x\"}").status, 200);
    let deep = format!("{{\"prompt\":\"x\",\"a\":{}1{}}}", "[".repeat(400), "]".repeat(400));
    server.send("POST", "/v1/completions", JSON, deep.as_bytes()).error(400);
}

#[test]
fn models_tokens_ids_and_headers() {
    let server = saying(&[HELLO]);
    let list = server.get("/v1/models").ok();
    assert_eq!(
        (&list["object"], &list["data"][0]["id"], &list["data"][1]["id"]),
        (&json!("list"), &json!("m"), &json!("alias"))
    );
    assert_eq!(server.get("/v1/models/m").ok()["object"], "model");
    assert_eq!(server.get("/v1/models/org/other").error(404)["code"], "model_not_found");
    let tokens = server.post("/tokenize", &json!({ "prompt": "ab", "return_token_strs": true })).ok();
    assert_eq!(
        (&tokens["tokens"], &tokens["count"], &tokens["token_strs"]),
        (&json!([97, 98]), &json!(2), &json!(["a", "b"]))
    );
    let chat = server.post("/tokenize", &json!({ "messages": [{ "role": "user", "content": "x" }] })).ok();
    assert_eq!(chat["count"], "[user]x[assistant]".len());
    assert_eq!(server.post("/detokenize", &json!({ "tokens": [104, 105] })).ok()["prompt"], "hi");
    assert_eq!(server.post("/detokenize", &json!({ "tokens": [-1] })).error(400)["param"], "tokens");
    let named = server.send("GET", "/health", "x-request-id: abc-1\r\n", b"");
    assert_eq!((named.status, named.header("x-request-id")), (200, Some("abc-1")));
    assert!(server.get("/ready").header("x-request-id").is_some_and(|id| id.starts_with("req-")));
}

#[test]
fn keys_and_cors() {
    let mut locked = options();
    locked.api_keys = vec!["secret".into(), "other".into()];
    locked.cors = server::Cors::Origins(vec!["https://a.example".into()]);
    let server = start_with(Behaviour::default(), locked, Bytes::new());
    for header in [
        "",
        "authorization: Bearer wrong\r\n",
        "authorization: Bearer secre\r\n",
        "authorization: Basic secret\r\n",
        "authorization: Bearer \r\n",
    ] {
        let answer = server.send("GET", "/v1/models", header, b"");
        assert_eq!(answer.error(401)["code"], "invalid_api_key");
        assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
    }
    for header in ["authorization: Bearer secret\r\n", "authorization: bearer other\r\n"] {
        server.send("GET", "/v1/models", header, b"").ok();
    }
    for open in ["/health", "/ready", "/metrics"] {
        assert_eq!(server.get(open).status, 200);
    }
    let preflight = "origin: https://a.example\r\naccess-control-request-method: POST\r\n";
    let answer = server.send("OPTIONS", "/v1/completions", preflight, b"");
    assert_eq!(
        (answer.status, answer.header("access-control-allow-origin")),
        (200, Some("https://a.example"))
    );
    let stranger =
        server.send("OPTIONS", "/v1/completions", &preflight.replace("a.example", "b.example"), b"");
    assert_eq!(stranger.header("access-control-allow-origin"), None);
}

#[test]
fn a_port_in_use_is_said_clearly() {
    let server = saying(&[HELLO]);
    let mut taken = options();
    taken.port = server.address.port();
    let again = Server::bind(taken, server.engine.clone(), Arc::new(Bytes::new()));
    let error = again.unwrap_err();
    assert!(matches!(error, ServerError::PortInUse { .. }));
    assert!(error.to_string().contains(&server.address.port().to_string()), "{error}");
    let mut nameless = options();
    nameless.model_names.clear();
    assert!(matches!(
        Server::bind(nameless, server.engine.clone(), Arc::new(Bytes::new())),
        Err(ServerError::Option { .. })
    ));
}
