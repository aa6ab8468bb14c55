//! Log probabilities and echo (bugs 10, 12).

use crate::harness::{options, saying, start_with};
use crate::scripted::{BOS, Behaviour, Bytes, EURO, HELLO, OP, ST, WORLD};
use serde_json::{Value, json};

#[test]
fn chat_logprobs_without_top() {
    let server = saying(&[HELLO, EURO]);
    let messages = json!([{ "role": "user", "content": "hi" }]);
    for top in [json!(null), json!(0)] {
        let answer = server.chat(json!({ "messages": messages, "logprobs": true, "top_logprobs": top })).ok();
        let content = answer["choices"][0]["logprobs"]["content"].as_array().unwrap().clone();
        assert_eq!(content.len(), 2);
        assert_eq!(content[0]["token"], "hello");
        assert_eq!(content[0]["top_logprobs"], json!([]));
        assert!((content[0]["logprob"].as_f64().unwrap() + 0.5).abs() < 1e-6);
        assert_eq!(content[1]["bytes"], json!([0xe2, 0x82, 0xac]));
    }
    let top = server
        .chat(json!({ "messages": messages, "logprobs": true, "top_logprobs": 3, "stream": true }))
        .events()
        .0;
    assert_eq!(top[1]["choices"][0]["logprobs"]["content"][0]["top_logprobs"].as_array().unwrap().len(), 3);
    let none = server.chat(json!({ "messages": messages })).ok();
    assert_eq!(none["choices"][0].get("logprobs"), Some(&Value::Null));
    assert_eq!(
        server.chat(json!({ "messages": messages, "top_logprobs": 2 })).error(400)["param"],
        "top_logprobs"
    );
    assert_eq!(
        server.chat(json!({ "messages": messages, "logprobs": true, "top_logprobs": 21 })).error(400)["param"],
        "top_logprobs"
    );
}

#[test]
fn completion_logprobs_zero_is_not_none() {
    let server = saying(&[HELLO, WORLD]);
    let zero = server.complete(json!({ "prompt": "x", "logprobs": 0 })).ok();
    let lp = &zero["choices"][0]["logprobs"];
    assert_eq!((&lp["tokens"], &lp["text_offset"]), (&json!(["hello", " world"]), &json!([0, 5])));
    assert_eq!(lp["token_logprobs"].as_array().unwrap().len(), 2);
    assert_eq!(lp["top_logprobs"], Value::Null);
    let two = server.complete(json!({ "prompt": "x", "logprobs": 2 })).ok();
    let top = two["choices"][0]["logprobs"]["top_logprobs"].as_array().unwrap().clone();
    assert!(top.iter().all(|t| t.as_object().unwrap().len() == 2) && top[0].get("hello").is_some());
}

#[test]
fn echo_with_logprobs_scores_the_prompt() {
    let server = saying(&[HELLO, WORLD]);
    let ids: Vec<u32> = "caf\u{e9} ".bytes().map(u32::from).collect();
    let body = json!({ "prompt": ids, "echo": true, "logprobs": 1, "max_tokens": 1 });
    let answer = server.complete(body.clone()).ok();
    let choice = &answer["choices"][0];
    assert_eq!(choice["text"], "caf\u{e9} hello");
    let lp = &choice["logprobs"];
    let tokens = lp["tokens"].as_array().unwrap();
    assert_eq!(tokens.len(), ids.len() + 1);
    assert_eq!((&lp["token_logprobs"][0], &lp["top_logprobs"][0]), (&Value::Null, &Value::Null));
    assert!(lp["token_logprobs"].as_array().unwrap()[1..].iter().all(Value::is_number));
    // The two bytes of one code point share its place; offsets count code points.
    assert_eq!(lp["text_offset"], json!([0, 1, 2, 3, 3, 4, 5]));
    assert_eq!(tokens[3], "bytes:\\xc3");
    // lm-eval compares the likeliest key with the token.
    for (token, top) in tokens.iter().zip(lp["top_logprobs"].as_array().unwrap()).skip(1) {
        let best = top
            .as_object()
            .unwrap()
            .iter()
            .max_by(|a, b| a.1.as_f64().unwrap().total_cmp(&b.1.as_f64().unwrap()));
        assert_eq!(best.unwrap().0, token.as_str().unwrap());
    }
    let mut stream = body;
    stream["stream"] = json!(true);
    let (events, _) = server.complete(stream).events();
    let streamed: Vec<Value> = events
        .iter()
        .filter_map(|e| e["choices"][0]["logprobs"]["tokens"].as_array())
        .flatten()
        .cloned()
        .collect();
    assert_eq!(&streamed, tokens);
}

#[test]
fn echo_without_tokens_is_legal() {
    let server = saying(&[HELLO]);
    for extra in [json!({}), json!({ "logprobs": 1 })] {
        let mut body = json!({ "prompt": "abc", "echo": true, "max_tokens": 0 });
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let answer = server.complete(body).ok();
        assert_eq!(answer["choices"][0]["text"], "abc");
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
        assert_eq!(answer["usage"]["completion_tokens"], 0);
    }
    assert_eq!(
        server.complete(json!({ "prompt": "abc", "max_tokens": 0 })).error(400)["param"],
        "max_tokens"
    );
    // The server still works.
    assert_eq!(server.complete(json!({ "prompt": "abc" })).ok()["choices"][0]["text"], "hello");
}

#[test]
fn many_prompts_and_bos() {
    let text = Bytes { bos: Some(BOS), ..Bytes::new() };
    let server = start_with(Behaviour::default(), options(), text);
    let answer =
        server.complete(json!({ "prompt": ["a", "bc"], "n": 2, "echo": true, "max_tokens": 1 })).ok();
    let texts: Vec<_> = answer["choices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["text"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(texts, ["ahello", "ahello", "bchello", "bchello"]);
    // BOS + 1 and BOS + 2; prompts count once, not per choice.
    assert_eq!(answer["usage"]["prompt_tokens"], 5);
    let lists = server.complete(json!({ "prompt": [[97, 98], [99]], "echo": true })).ok();
    assert_eq!(lists["choices"][1]["text"], "chello world");
    assert_eq!(server.complete(json!({ "prompt": "" })).ok()["usage"]["prompt_tokens"], 1);
}

#[test]
fn tokens_of_a_held_back_stop_are_not_reported() {
    let server = saying(&[HELLO, ST, OP, WORLD]);
    let answer = server.complete(json!({ "prompt": "x", "stop": "STOP", "logprobs": 0 })).ok();
    assert_eq!(answer["choices"][0]["logprobs"]["tokens"], json!(["hello"]));
}
