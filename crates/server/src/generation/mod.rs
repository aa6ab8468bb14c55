//! One HTTP request's generations, from events to deltas.

mod choice;
mod feed;
mod stop;

pub(crate) use choice::{Choice, Delta, Finish, Placed, TextRules};
pub(crate) use feed::{Dispatcher, Feed, FeedSink, lock};
pub(crate) use stop::StopSet;

use crate::access_log::Record;
use crate::api::error::ApiError;
use crate::backend::Backend;
use crate::metrics::{Metrics, Outcome};
use crate::state::Flight;
use crate::text::Text;
use engine::{Event, FinishReason, RequestId};
use feed::Arrived;
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

/// Cancels in the engine what has not finished when it is dropped: at whatever stage, for whatever reason.
pub(crate) struct Ticket {
    backend: Arc<dyn Backend>,
    feed: Arc<Feed>,
    /// By slot; none once finished
    open: Vec<Option<RequestId>>,
}

impl Ticket {
    pub(crate) fn new(backend: Arc<dyn Backend>, feed: Arc<Feed>) -> Self {
        Self { backend, feed, open: Vec::new() }
    }

    /// The next slot was submitted.
    pub(crate) fn submitted(&mut self, id: RequestId) {
        self.open.push(Some(id));
    }

    fn finished(&mut self, slot: usize) {
        self.open[slot] = None;
    }

    fn cancel(&mut self, slot: usize) {
        if let Some(id) = self.open[slot].take() {
            self.backend.cancel(id);
        }
    }

    fn all_finished(&self) -> bool {
        self.open.iter().all(Option::is_none)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.feed.close();
        for slot in 0..self.open.len() {
            self.cancel(slot);
        }
    }
}

/// Token counts of a response.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub prompt: u64,
    pub cached: u64,
    pub completion: u64,
}

/// Everything that a response under way needs.
pub(crate) struct Generation {
    pub ticket: Ticket,
    pub feed: Arc<Feed>,
    pub text: Arc<dyn Text>,
    pub metrics: Arc<Metrics>,
    pub choices: Vec<Choice>,
    pub counts: Counts,
    /// Choices of one prompt lie side by side; only the first one's cached tokens count
    pub choices_per_prompt: usize,
    /// Arrival of the HTTP request
    pub arrived: Instant,
    pub submitted: Instant,
    pub record: Record,
    /// Held for its drop
    pub _flight: Flight,
    pub batch: VecDeque<Arrived>,
    pub delta: Delta,
    pub outcome: Outcome,
}

impl Generation {
    /// Handles all events that are there, giving each non-empty delta to `on`. Ready with true when all choices have
    /// finished, with false when there was something, pending when there was nothing.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        mut on: impl FnMut(&Delta),
    ) -> Poll<Result<bool, ApiError>> {
        if self.feed.is_aborted() {
            self.outcome = Outcome::Error;
            return Poll::Ready(Err(ApiError::draining(1)));
        }
        self.feed.take(cx.waker(), &mut self.batch);
        if self.batch.is_empty() {
            return if self.ticket.all_finished() { Poll::Ready(Ok(true)) } else { Poll::Pending };
        }
        while let Some(arrived) = self.batch.pop_front() {
            let mut delta = std::mem::take(&mut self.delta);
            delta.clear();
            let result = self.handle(arrived, &mut delta);
            if result.is_ok() && !delta.is_empty() {
                on(&delta);
            }
            self.delta = delta;
            if let Err(error) = result {
                self.outcome = Outcome::Error;
                return Poll::Ready(Err(error));
            }
        }
        if self.ticket.all_finished() {
            self.outcome = Outcome::Done;
        }
        Poll::Ready(Ok(self.ticket.all_finished()))
    }

    fn handle(&mut self, Arrived { slot, at, event }: Arrived, out: &mut Delta) -> Result<(), ApiError> {
        out.slot = slot;
        let text = Arc::clone(&self.text);
        let choice = &mut self.choices[slot];
        if choice.finished.is_some() {
            // A stop string ended it; the engine's own end of it says nothing new.
            return Ok(());
        }
        match event {
            Event::Started { cached_tokens, .. } => {
                choice.started_at = Some(at);
                self.metrics.queue.observe((at - self.submitted).as_secs_f64());
                if slot.is_multiple_of(self.choices_per_prompt) {
                    self.counts.cached += u64::from(cached_tokens);
                }
            }
            Event::PromptToken { id, logprobs, .. } => choice.prompt_token(&*text, id, logprobs, out),
            Event::Token { id, logprobs, .. } => {
                self.counts.completion += 1;
                if choice.first_at.is_none() {
                    let ttft = (at - self.arrived).as_secs_f64();
                    self.metrics.ttft.observe(ttft);
                    self.record.first_token(ttft);
                }
                if let Some(last) = choice.last_at {
                    self.metrics.itl.observe((at - last).as_secs_f64());
                }
                choice.first_at = choice.first_at.or(Some(at));
                choice.last_at = Some(at);
                if choice.token(&*text, id, logprobs, out) {
                    self.ticket.cancel(slot);
                    self.choice_done(slot, at, Finish::Stop);
                }
            }
            Event::Finished { reason, usage } => {
                let finish = match reason {
                    FinishReason::Stop { .. } => Finish::Stop,
                    FinishReason::Length => Finish::Length,
                    FinishReason::Cancelled => return Err(ApiError::draining(1)),
                    FinishReason::Error(message) => return Err(ApiError::internal(message)),
                };
                // The engine counts the token that ended the request, which it does not send.
                let unsent = u64::from(usage.completion_tokens.saturating_sub(choice.tokens));
                self.counts.completion += unsent;
                choice.end(finish, out);
                let finish = choice.finished.unwrap_or(finish);
                self.ticket.finished(slot);
                self.choice_done(slot, at, finish);
            }
        }
        Ok(())
    }

    fn choice_done(&mut self, slot: usize, at: Instant, finish: Finish) {
        let choice = &self.choices[slot];
        let metrics = &self.metrics;
        if let (Some(started), Some(first)) = (choice.started_at, choice.first_at) {
            metrics.prefill.observe((first - started).as_secs_f64());
            metrics.decode.observe((at - first).as_secs_f64());
            if choice.tokens > 1 {
                let last = choice.last_at.unwrap_or(at);
                metrics.tpot.observe((last - first).as_secs_f64() / f64::from(choice.tokens - 1));
            }
        }
        metrics.e2e.observe((at - self.arrived).as_secs_f64());
        metrics.finished(finish);
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.metrics.tokens(self.counts.prompt, self.counts.completion);
        // Still `Running` only if the response was dropped: the client went away.
        if self.outcome == Outcome::Running {
            self.outcome = Outcome::Canceled;
        }
        self.metrics.ended(self.outcome);
        self.record.generation(self.counts, self.outcome);
    }
}
