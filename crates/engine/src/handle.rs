//! The public front of a running engine: submit, cancel, look, stop. Cheap to clone, usable from any thread.

use crate::error::EngineError;
use crate::request::{Event, EventSink, Request, RequestId};
use crate::stats::EngineStats;
use plan::Plan;
use std::collections::HashSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Locks a mutex whose data stays valid even if a holder panicked (plain values, replaced whole).
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A request on its way to the engine's thread.
pub(crate) struct Submission {
    pub request: Request,
    pub sink: Box<dyn EventSink>,
    pub at: Instant,
}

/// What callers ask of the engine's thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    #[default]
    Serving,
    /// No new requests; the accepted ones finish.
    Draining,
    /// Cancel everything and end.
    Stopping,
    /// The thread has ended.
    Ended,
}

#[derive(Default)]
pub(crate) struct Inbox {
    pub submissions: Vec<Submission>,
    pub cancels: Vec<RequestId>,
    pub phase: Phase,
    /// Requests that wait in the inbox or in the scheduler's queue and were never admitted.
    pub queued: usize,
    /// Requests that have not finished.
    pub live: HashSet<RequestId>,
    /// Why the thread ended, if it failed.
    pub failure: Option<String>,
    pub submitted: u64,
    pub refused: u64,
}

pub(crate) struct Shared {
    pub inbox: Mutex<Inbox>,
    /// Wakes the engine's thread (new work) and those who wait for its end.
    pub changed: Condvar,
    pub stats: Mutex<EngineStats>,
    pub plan: Plan,
    pub max_queue: usize,
    pub max_context: u32,
    pub thread: Mutex<Option<JoinHandle<()>>>,
}

/// Stops the engine when the last handle is gone.
struct Guard(Arc<Shared>);

impl Drop for Guard {
    fn drop(&mut self) {
        advance(&self.0, Phase::Stopping);
    }
}

fn advance(shared: &Shared, phase: Phase) {
    let mut inbox = lock(&shared.inbox);
    inbox.phase = inbox.phase.max(phase);
    drop(inbox);
    shared.changed.notify_all();
}

/// A running engine. When the last clone is dropped, open requests are cancelled and the engine ends.
#[derive(Clone)]
pub struct EngineHandle {
    shared: Arc<Shared>,
    _guard: Arc<Guard>,
}

impl EngineHandle {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let guard = Arc::new(Guard(shared.clone()));
        Self { shared, _guard: guard }
    }

    /// The plan that runs.
    pub fn plan(&self) -> &Plan {
        &self.shared.plan
    }

    /// Longest prompt plus output, tokens.
    pub fn max_context(&self) -> u32 {
        self.shared.max_context
    }

    /// Queues a request; its events go to `sink`, from a compute thread.
    ///
    /// # Errors
    /// `Invalid` or `TooLong` for a request that can never run, `QueueFull`, `Draining`, or `Stopped`. The sink
    /// gets no event then.
    pub fn submit(&self, request: Request, sink: Box<dyn EventSink>) -> Result<(), EngineError> {
        check(&request, &self.shared.plan, self.shared.max_context)?;
        let mut inbox = lock(&self.shared.inbox);
        let outcome = admit(&mut inbox, &request, self.shared.max_queue);
        if let Err(error) = outcome {
            inbox.refused += 1;
            return Err(error);
        }
        inbox.live.insert(request.id);
        inbox.queued += 1;
        inbox.submitted += 1;
        inbox.submissions.push(Submission { request, sink, at: Instant::now() });
        drop(inbox);
        self.shared.changed.notify_all();
        Ok(())
    }

    /// [`Self::submit`] with a standard channel; dropping the receiver cancels the request.
    ///
    /// # Errors
    /// As `submit`.
    pub fn submit_channel(&self, request: Request) -> Result<mpsc::Receiver<Event>, EngineError> {
        let (sender, receiver) = mpsc::channel();
        self.submit(request, Box::new(sender))?;
        Ok(receiver)
    }

    /// Cancels a request before the next pass; it gets `Finished` with `Cancelled`. Unknown and finished ids are
    /// no error: cancellation races with the end by nature.
    pub fn cancel(&self, id: RequestId) {
        let mut inbox = lock(&self.shared.inbox);
        if inbox.live.contains(&id) {
            inbox.cancels.push(id);
            drop(inbox);
            self.shared.changed.notify_all();
        }
    }

    /// Counters and gauges, as of the last pass.
    pub fn stats(&self) -> EngineStats {
        let mut stats = lock(&self.shared.stats).clone();
        let inbox = lock(&self.shared.inbox);
        stats.submitted = inbox.submitted;
        stats.refused = inbox.refused;
        stats.waiting += inbox.submissions.len() as u32;
        stats
    }

    /// Whether the engine takes requests.
    pub fn is_serving(&self) -> bool {
        lock(&self.shared.inbox).phase == Phase::Serving
    }

    /// Takes no more requests and waits until the accepted ones have finished or `timeout` has passed.
    /// True if all have finished.
    pub fn drain(&self, timeout: Duration) -> bool {
        advance(&self.shared, Phase::Draining);
        let inbox = lock(&self.shared.inbox);
        let (inbox, _) = self
            .shared
            .changed
            .wait_timeout_while(inbox, timeout, |i| !i.live.is_empty() && i.phase != Phase::Ended)
            .unwrap_or_else(PoisonError::into_inner);
        inbox.live.is_empty()
    }

    /// Cancels what is left, ends the engine's threads and waits for them. Not to be called from a sink.
    pub fn shutdown(&self) {
        advance(&self.shared, Phase::Stopping);
        let thread = lock(&self.shared.thread).take();
        if let Some(thread) = thread {
            // A panic of the thread was already reported to all requests and lies in `failure`.
            let _ = thread.join();
        }
    }
}

fn admit(inbox: &mut Inbox, request: &Request, max_queue: usize) -> Result<(), EngineError> {
    if let Some(failure) = &inbox.failure {
        return Err(EngineError::Stopped(failure.clone()));
    }
    match inbox.phase {
        Phase::Serving => {}
        Phase::Draining | Phase::Stopping => return Err(EngineError::Draining),
        Phase::Ended => return Err(EngineError::Stopped("it was shut down".into())),
    }
    if inbox.live.contains(&request.id) {
        return Err(EngineError::Invalid { id: request.id, problem: "its id is in use".into() });
    }
    if inbox.queued >= max_queue {
        return Err(EngineError::QueueFull { waiting: inbox.queued });
    }
    Ok(())
}

/// Refuses what can never run, so that the passes need no checks.
fn check(request: &Request, plan: &Plan, max_context: u32) -> Result<(), EngineError> {
    let id = request.id;
    let invalid = |problem: String| Err(EngineError::Invalid { id, problem });
    if request.prompt.is_empty() {
        return invalid("the prompt is empty".into());
    }
    let vocab = plan.model.vocab;
    if let Some(token) = request.prompt.iter().find(|t| **t >= vocab) {
        return invalid(format!("prompt token {token} is not below the vocabulary of {vocab}"));
    }
    if let Some((token, _)) = request.params.logit_bias.iter().find(|(t, _)| *t >= vocab) {
        return invalid(format!("logit_bias token {token} is not below the vocabulary of {vocab}"));
    }
    // One token of room for the output, unless none is wanted.
    let room = request.prompt.len() as u64 + u64::from(request.max_tokens > 0);
    if room > u64::from(max_context) {
        return Err(EngineError::TooLong { id, prompt: request.prompt.len(), context: max_context });
    }
    let p = &request.params;
    let range = |name: &str, value: f32, low: f32, high: f32| -> Result<(), EngineError> {
        if value >= low && value <= high {
            Ok(())
        } else {
            Err(EngineError::Invalid { id, problem: format!("{name} is {value}, not in {low} to {high}") })
        }
    };
    range("temperature", p.temperature, 0.0, 100.0)?;
    range("top_p", p.top_p, f32::MIN_POSITIVE, 1.0)?;
    range("min_p", p.min_p, 0.0, 1.0)?;
    range("presence_penalty", p.presence_penalty, -2.0, 2.0)?;
    range("frequency_penalty", p.frequency_penalty, -2.0, 2.0)?;
    range("repetition_penalty", p.repetition_penalty, f32::MIN_POSITIVE, 100.0)?;
    for (token, bias) in &p.logit_bias {
        range(&format!("logit_bias of token {token}"), *bias, -1000.0, 1000.0)?;
    }
    Ok(())
}
