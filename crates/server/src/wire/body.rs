//! The body of a streamed response.

use super::writer::Events;
use crate::api::error::ApiError;
use crate::generation::{Delta, Generation};
use crate::metrics::Outcome;
use axum::body::Bytes;
use hyper::body::{Body, Frame};
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep};

/// Server-sent events of one response. Dropping it cancels the generations. All events that are there when the
/// connection can take more go out as one frame: one allocation and one write per engine pass and stream, however many
/// tokens a pass gave.
pub(crate) struct EventBody {
    generation: Option<Generation>,
    events: Events,
    /// Chat: choices whose role went out
    opened: Vec<bool>,
    buffer: Vec<u8>,
    keep_alive: Duration,
    silence: Pin<Box<Sleep>>,
    deadline: Option<Pin<Box<Sleep>>>,
}

impl EventBody {
    pub(crate) fn new(
        generation: Generation,
        events: Events,
        keep_alive: Duration,
        deadline: Option<Instant>,
    ) -> Self {
        Self {
            opened: vec![false; generation.choices.len()],
            generation: Some(generation),
            events,
            buffer: Vec::new(),
            keep_alive,
            silence: Box::pin(tokio::time::sleep(keep_alive)),
            deadline: deadline.map(|at| Box::pin(tokio::time::sleep_until(at))),
        }
    }

    /// Waits until there is something to send, at most for the keep-alive time: an error that comes first gets a real
    /// HTTP status, and headers leave together with the first token.
    ///
    /// # Errors
    /// What ended the request before its first byte.
    pub(crate) async fn start(&mut self) -> Result<(), ApiError> {
        let patience = self.keep_alive;
        let first = std::future::poll_fn(|cx| self.advance(cx));
        match tokio::time::timeout(patience, first).await {
            Ok(result) => result,
            Err(_) => Ok(()),
        }
    }

    /// Ready when the buffer holds something or the response has ended.
    fn advance(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ApiError>> {
        let (events, opened, buffer) = (&self.events, &mut self.opened, &mut self.buffer);
        let Some(generation) = &mut self.generation else {
            return Poll::Ready(Ok(()));
        };
        if let Some(deadline) = &mut self.deadline
            && deadline.as_mut().poll(cx).is_ready()
        {
            generation.outcome = Outcome::Error;
            return Poll::Ready(Err(ApiError::timed_out()));
        }
        loop {
            let write = |delta: &Delta| {
                if !std::mem::replace(&mut opened[delta.slot], true) {
                    events.role(buffer, delta.slot);
                }
                events.delta(buffer, delta);
            };
            match generation.poll(cx, write) {
                Poll::Pending if buffer.is_empty() => return Poll::Pending,
                Poll::Pending => return Poll::Ready(Ok(())),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Ready(Ok(false)) => {}
                Poll::Ready(Ok(true)) => {
                    events.done(buffer, generation.counts);
                    self.generation = None;
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }

    fn send(&mut self, cx: &mut Context<'_>) -> Frame<Bytes> {
        let next = Instant::now() + self.keep_alive;
        self.silence.as_mut().reset(next);
        // Registers the new time; it cannot have come yet.
        let _ = self.silence.as_mut().poll(cx);
        let capacity = self.buffer.len();
        let full = std::mem::replace(&mut self.buffer, Vec::with_capacity(capacity));
        Frame::data(Bytes::from(full))
    }
}

impl Body for EventBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = &mut *self;
        match this.advance(cx) {
            Poll::Ready(Ok(())) if this.buffer.is_empty() => Poll::Ready(None),
            Poll::Ready(Ok(())) => Poll::Ready(Some(Ok(this.send(cx)))),
            Poll::Ready(Err(error)) => {
                Events::error(&mut this.buffer, &error);
                this.generation = None;
                Poll::Ready(Some(Ok(this.send(cx))))
            }
            Poll::Pending => match this.silence.as_mut().poll(cx) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(()) => {
                    this.buffer.extend_from_slice(b": keep-alive\n\n");
                    Poll::Ready(Some(Ok(this.send(cx))))
                }
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        self.generation.is_none() && self.buffer.is_empty()
    }
}
