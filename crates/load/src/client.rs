//! One request over HTTP/1.1 on a connection of its own.

use crate::error::LoadError;
use crate::event_stream::{Chunk, EventStream};
use crate::sample::{Failure, Outcome, Sample};
use crate::workload::{Timeouts, Workload};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Where and how to send: the parts shared by all requests of a run.
#[derive(Debug)]
pub(crate) struct Destination {
    address: String,
    authority: String,
    path: String,
    api_key: Option<String>,
    timeouts: Timeouts,
}

impl Destination {
    pub(crate) fn of(workload: &Workload) -> Result<Self, LoadError> {
        let fail = |reason: &str| LoadError::Url { url: workload.url.clone(), reason: reason.into() };
        let uri: hyper::Uri =
            workload.url.parse().map_err(|e: hyper::http::uri::InvalidUri| fail(&e.to_string()))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some(other) => return Err(fail(&format!("scheme {other} is not supported"))),
            None => return Err(fail("no scheme")),
        }
        let authority = uri.authority().ok_or_else(|| fail("no host"))?;
        let host = authority.host();
        let port = authority.port_u16().unwrap_or(80);
        if let Some(key) = &workload.api_key
            && hyper::header::HeaderValue::from_str(&format!("Bearer {key}")).is_err()
        {
            return Err(LoadError::Workload(
                "the API key holds characters that a header cannot carry".into(),
            ));
        }
        Ok(Self {
            address: format!("{host}:{port}"),
            authority: authority.to_string(),
            path: format!(
                "{}{}",
                uri.path().trim_end_matches('/').trim_end_matches("/v1"),
                workload.endpoint.path()
            ),
            api_key: workload.api_key.clone(),
            timeouts: workload.timeouts,
        })
    }
}

/// When this request hangs up, if it does.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HangUp {
    /// After this many content chunks; at 0 after `wait`, chunk or not
    pub chunks: u32,
    pub wait: Duration,
}

/// Ends the connection's task with the request, whatever happened.
struct Connection(tokio::task::JoinHandle<()>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Sends one request and reads its stream to the end. `epoch` is the start of the run. Never fails: see the outcome.
pub(crate) async fn send(
    to: &Destination,
    index: usize,
    body: Vec<u8>,
    hang_up: Option<HangUp>,
    epoch: Instant,
) -> Sample {
    let start = Instant::now();
    let mut reading = Reading::new(index, epoch, start);
    let outcome = match (hang_up, timeout(to.timeouts.total, exchange(to, body, hang_up, &mut reading))) {
        (Some(HangUp { chunks: 0, wait }), exchange) => match timeout(wait, exchange).await {
            Err(_) => Ok(Outcome::Abandoned),
            Ok(Err(_)) => Err(Failure::Timeout { which: "total".into() }),
            Ok(Ok(result)) => result,
        },
        (_, exchange) => match exchange.await {
            Err(_) => Err(Failure::Timeout { which: "total".into() }),
            Ok(result) => result,
        },
    };
    reading.finish(outcome)
}

async fn exchange(
    to: &Destination,
    body: Vec<u8>,
    hang_up: Option<HangUp>,
    reading: &mut Reading,
) -> Result<Outcome, Failure> {
    let connect = |reason: String| Failure::Connect { reason };
    let stream = timeout(to.timeouts.connect, TcpStream::connect(&to.address))
        .await
        .map_err(|_| Failure::Timeout { which: "connect".into() })?
        .map_err(|e| connect(e.to_string()))?;
    stream.set_nodelay(true).map_err(|e| connect(e.to_string()))?;
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|e| connect(e.to_string()))?;
    let _connection = Connection(tokio::spawn(async move {
        // A broken connection shows as an error of the request or body; here it would be said twice.
        let _ = connection.await;
    }));
    let mut request = hyper::Request::post(&to.path)
        .header("host", &to.authority)
        .header("content-type", "application/json")
        .header("accept", "text/event-stream")
        .header("connection", "close");
    if let Some(key) = &to.api_key {
        request = request.header("authorization", format!("Bearer {key}"));
    }
    let request = request
        .body(Full::new(Bytes::from(body)))
        .map_err(|e| Failure::Protocol { reason: e.to_string() })?;
    let response = idle(to, sender.send_request(request)).await?.map_err(truncated)?;
    let status = response.status().as_u16();
    if status != 200 {
        return Err(Failure::Status { status, body: first_bytes(to, response.into_body()).await });
    }
    read_stream(to, response.into_body(), hang_up, reading).await
}

async fn read_stream(
    to: &Destination,
    mut body: Incoming,
    hang_up: Option<HangUp>,
    reading: &mut Reading,
) -> Result<Outcome, Failure> {
    let mut events = EventStream::default();
    loop {
        let Some(frame) = idle(to, body.frame()).await? else {
            return Err(Failure::Truncated { reason: "the stream ended without [DONE]".into() });
        };
        let frame = frame.map_err(truncated)?;
        let now = Instant::now();
        let Some(data) = frame.data_ref() else { continue };
        if !events.push(data) {
            return Err(Failure::Protocol { reason: "an event without end".into() });
        }
        while let Some(data) = events.next_data() {
            if data == b"[DONE]" {
                return Ok(Outcome::Completed);
            }
            reading.chunk(data, now)?;
            if hang_up.is_some_and(|h| h.chunks > 0 && reading.sample.chunks >= u64::from(h.chunks)) {
                return Ok(Outcome::Abandoned);
            }
        }
    }
}

async fn idle<T>(to: &Destination, future: impl Future<Output = T>) -> Result<T, Failure> {
    timeout(to.timeouts.idle, future).await.map_err(|_| Failure::Timeout { which: "idle".into() })
}

fn truncated(error: hyper::Error) -> Failure {
    Failure::Truncated { reason: error.to_string() }
}

/// As much of an error body as fits in a report.
async fn first_bytes(to: &Destination, mut body: Incoming) -> String {
    let mut out = Vec::new();
    while out.len() < 512 {
        match idle(to, body.frame()).await {
            Ok(Some(Ok(frame))) => out.extend_from_slice(frame.data_ref().map_or(&[][..], |d| d)),
            _ => break,
        }
    }
    clip(&out)
}

fn clip(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(512)]).into_owned()
}

/// A sample in the making.
struct Reading {
    sample: Sample,
    epoch: Instant,
    start: Instant,
    last_chunk: Option<Instant>,
}

impl Reading {
    fn new(index: usize, epoch: Instant, start: Instant) -> Self {
        let sample = Sample {
            index,
            start_ns: (start - epoch).as_nanos() as u64,
            ttft_ns: None,
            gaps_ns: Vec::new(),
            end_ns: 0,
            chunks: 0,
            prompt_tokens: None,
            completion_tokens: None,
            finish_reason: None,
            text: String::new(),
            outcome: Outcome::Completed,
        };
        Self { sample, epoch, start, last_chunk: None }
    }

    fn chunk(&mut self, data: &[u8], now: Instant) -> Result<(), Failure> {
        let chunk: Chunk = serde_json::from_slice(data)
            .map_err(|e| Failure::Protocol { reason: format!("{e} in {}", clip(data)) })?;
        if chunk.error.is_some() {
            return Err(Failure::ErrorFrame { data: clip(data) });
        }
        if let Some(choice) = chunk.choices.first() {
            let content = choice.content();
            if !content.is_empty() {
                match self.last_chunk {
                    None => self.sample.ttft_ns = Some((now - self.start).as_nanos() as u64),
                    Some(last) => self.sample.gaps_ns.push((now - last).as_nanos() as u64),
                }
                self.last_chunk = Some(now);
                self.sample.chunks += 1;
                self.sample.text.push_str(content);
            }
            if let Some(reason) = &choice.finish_reason {
                self.sample.finish_reason = Some(reason.clone());
            }
        }
        if let Some(usage) = chunk.usage {
            self.sample.prompt_tokens = usage.prompt_tokens.or(self.sample.prompt_tokens);
            self.sample.completion_tokens = usage.completion_tokens.or(self.sample.completion_tokens);
        }
        Ok(())
    }

    fn finish(mut self, outcome: Result<Outcome, Failure>) -> Sample {
        self.sample.end_ns = self.epoch.elapsed().as_nanos() as u64;
        self.sample.outcome = match outcome {
            Ok(Outcome::Completed) if self.sample.chunks == 0 => Outcome::Failed(Failure::Empty),
            Ok(outcome) => outcome,
            Err(failure) => Outcome::Failed(failure),
        };
        self.sample
    }
}
