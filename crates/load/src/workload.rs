//! What to send, how fast, and how long to wait for it.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Which route of the server is driven.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Endpoint {
    /// `POST /v1/completions`
    Completions,
    /// `POST /v1/chat/completions`; a text prompt becomes one user message, token ids are refused
    Chat,
}

impl Endpoint {
    /// Path below the base URL.
    pub fn path(self) -> &'static str {
        match self {
            Self::Completions => "/v1/completions",
            Self::Chat => "/v1/chat/completions",
        }
    }
}

/// A prompt in the form in which it is sent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Prompt {
    /// Token ids: the same work on every server with this vocabulary
    Ids(Vec<u32>),
    /// Text
    Text(String),
}

/// One request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Item {
    /// Prompt
    pub prompt: Prompt,
    /// `max_tokens`
    pub output_tokens: u32,
}

/// When requests start.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Arrival {
    /// Closed loop: this many clients, each sending its next request when the last one ended
    Closed {
        /// Clients
        concurrency: usize,
    },
    /// Open loop: Poisson arrivals
    Poisson {
        /// Mean rate, requests per second
        per_second: f64,
        /// Seed of the arrival times
        seed: u64,
        /// Requests in flight beyond this are not sent and count as failed (keeps the client bounded)
        max_in_flight: usize,
    },
}

/// May the model end early?
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// End of sequence ends a request
    Natural,
    /// `ignore_eos: true`, so that each request yields exactly its output tokens
    IgnoreEos,
}

/// Clients that hang up, for soak tests.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Abandon {
    /// Share of requests that hang up, 0 to 1
    pub fraction: f64,
    /// A request that hangs up does so after a random number of content chunks from 0 to this; at 0 it hangs up
    /// before the first chunk, after a random wait of up to `early_ms`, so that queued and prefilling ones are hit too
    pub max_chunks: u32,
    /// See above, milliseconds
    pub early_ms: u64,
    /// Seed of who hangs up and when
    pub seed: u64,
}

/// Bounds on every wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timeouts {
    /// TCP connect
    pub connect: Duration,
    /// Longest silence while a response is awaited or read
    pub idle: Duration,
    /// Whole request
    pub total: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            idle: Duration::from_secs(120),
            total: Duration::from_secs(600),
        }
    }
}

/// A whole load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Workload {
    /// Base URL, `http://HOST:PORT`, without `/v1`
    pub url: String,
    /// Route
    pub endpoint: Endpoint,
    /// `model` field
    pub model: String,
    /// When requests start
    pub arrival: Arrival,
    /// Requests, in order
    pub items: Vec<Item>,
    /// Sent before the clock starts, with the same arrival, and not reported
    pub warm_up: Vec<Item>,
    /// `temperature` field
    pub temperature: f64,
    /// May the model end early?
    pub ending: Ending,
    /// Further body fields, such as `cache_prompt: false`; they win over the built-in ones
    pub extra: serde_json::Map<String, serde_json::Value>,
    /// Bearer token
    pub api_key: Option<String>,
    /// Bounds on every wait
    pub timeouts: Timeouts,
    /// Clients that hang up
    pub abandon: Option<Abandon>,
}

impl Workload {
    /// A closed loop at temperature 0 on `/v1/completions` with `ignore_eos`, default timeouts, no warm-up.
    pub fn closed(
        url: impl Into<String>,
        model: impl Into<String>,
        concurrency: usize,
        items: Vec<Item>,
    ) -> Self {
        Self {
            url: url.into(),
            endpoint: Endpoint::Completions,
            model: model.into(),
            arrival: Arrival::Closed { concurrency },
            items,
            warm_up: Vec::new(),
            temperature: 0.0,
            ending: Ending::IgnoreEos,
            extra: serde_json::Map::new(),
            api_key: None,
            timeouts: Timeouts::default(),
            abandon: None,
        }
    }

    /// The JSON body of one request.
    pub(crate) fn body(&self, item: &Item) -> Vec<u8> {
        use serde_json::{Value, json};
        let mut body = serde_json::Map::new();
        body.insert("model".into(), json!(self.model));
        match (self.endpoint, &item.prompt) {
            (Endpoint::Completions, prompt) => body.insert("prompt".into(), json!(prompt)),
            (Endpoint::Chat, Prompt::Text(text)) => {
                body.insert("messages".into(), json!([{ "role": "user", "content": text }]))
            }
            // Refused by `run` before anything is sent.
            (Endpoint::Chat, Prompt::Ids(_)) => body.insert("messages".into(), json!([])),
        };
        body.insert("max_tokens".into(), json!(item.output_tokens));
        body.insert("temperature".into(), json!(self.temperature));
        body.insert("stream".into(), Value::Bool(true));
        body.insert("stream_options".into(), json!({ "include_usage": true }));
        if self.ending == Ending::IgnoreEos {
            body.insert("ignore_eos".into(), Value::Bool(true));
        }
        for (key, value) in &self.extra {
            body.insert(key.clone(), value.clone());
        }
        Value::Object(body).to_string().into_bytes()
    }
}
