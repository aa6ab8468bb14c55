//! One JSON line per request, when its response has been sent or given up.

use crate::generation::{Counts, lock};
use crate::metrics::Outcome;
use crate::wire::json::{number, string, text};
use axum::body::{Body, Bytes};
use hyper::body::{Frame, SizeHint};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Instant;

/// What handlers add to a request's log line. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Record(Arc<Mutex<Notes>>);

#[derive(Debug, Default)]
struct Notes {
    counts: Option<(Counts, Outcome)>,
    ttft_s: Option<f64>,
}

impl Record {
    pub(crate) fn first_token(&self, seconds: f64) {
        lock(&self.0).ttft_s.get_or_insert(seconds);
    }

    pub(crate) fn generation(&self, counts: Counts, outcome: Outcome) {
        lock(&self.0).counts = Some((counts, outcome));
    }
}

/// A log line in the making; written when dropped. Without a status the client went away before the response began.
#[derive(Debug)]
pub(crate) struct Line {
    pub method: String,
    pub path: String,
    pub id: String,
    pub start: Instant,
    pub status: Option<u16>,
    pub record: Record,
}

impl Drop for Line {
    fn drop(&mut self) {
        let mut out = Vec::with_capacity(256);
        let mut field = |name: &str, value: &str| {
            out.extend_from_slice(if out.is_empty() { b"{\"" } else { b",\"" });
            text(&mut out, name);
            text(&mut out, "\":");
            string(&mut out, value);
        };
        field("request_id", &self.id);
        field("method", &self.method);
        field("path", &self.path);
        let notes = lock(&self.record.0);
        if let Some((_, outcome)) = &notes.counts {
            field("outcome", outcome.word());
        }
        text(&mut out, ",\"status\":");
        // 499: nginx's word for a client that closed its request.
        number(&mut out, self.status.unwrap_or(499));
        text(&mut out, &format!(",\"duration_ms\":{:.3}", self.start.elapsed().as_secs_f64() * 1e3));
        if let Some(ttft) = notes.ttft_s {
            text(&mut out, &format!(",\"ttft_ms\":{:.3}", ttft * 1e3));
        }
        if let Some((counts, _)) = &notes.counts {
            for (name, value) in [
                (",\"prompt_tokens\":", counts.prompt),
                (",\"cached_tokens\":", counts.cached),
                (",\"completion_tokens\":", counts.completion),
            ] {
                text(&mut out, name);
                number(&mut out, value);
            }
        }
        text(&mut out, "}");
        tracing::info!(target: "server::access", "{}", String::from_utf8_lossy(&out));
    }
}

/// A response body that carries its log line, so that the line is written when the body ends or is dropped.
pub(crate) struct Logged {
    pub body: Body,
    pub _line: Line,
}

impl hyper::body::Body for Logged {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
