//! The engine's thread: takes requests in, schedules, runs passes, samples, and sends events.

use crate::batch::Batch;
use crate::bundle::Bundle;
use crate::error::EngineError;
use crate::executor::Executor;
use crate::handle::{EngineHandle, Inbox, Phase, Shared, Submission, lock};
use crate::options::EngineOptions;
use crate::request::{
    Closed, Event, EventSink, FinishReason, RequestId, SamplingParams, TokenLogprobs, Usage,
};
use crate::sampler::{Draw, History, NoCandidate, Sampled, Sampler};
use crate::scheduler::{LogitRow, Purpose, Scheduler};
use crate::stats::EngineStats;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

const DEFAULT_QUEUE: usize = 1024;

/// Starts engines.
pub struct Engine;

impl Engine {
    /// Opens a bundle, starts the compute threads and serves requests until the last handle is dropped.
    ///
    /// # Errors
    /// A bundle or option that does not fit, with what and where.
    pub fn start(bundle: &Path, options: EngineOptions) -> Result<EngineHandle, EngineError> {
        let dir = bundle.to_owned();
        let (ready, started) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("engine".into())
            .spawn(move || {
                // On this thread, since it becomes compute thread 0.
                let opened = Bundle::open(&dir, &options).and_then(|bundle| Driver::new(bundle, &options));
                match opened {
                    Ok(driver) => {
                        let sent = ready.send(Ok(driver.shared.clone()));
                        if sent.is_ok() {
                            driver.run_to_end();
                        }
                    }
                    Err(error) => {
                        // Nobody listens only if the starter is gone, and then nobody needs it.
                        let _ = ready.send(Err(error));
                    }
                }
            })
            .map_err(|source| kernel_abi::KernelAbiError::System {
                what: "start the engine's thread".into(),
                source,
            })?;
        let shared = started
            .recv()
            .map_err(|_| EngineError::Stopped("its thread ended while it started".into()))??;
        *lock(&shared.thread) = Some(thread);
        Ok(EngineHandle::new(shared))
    }
}

/// What the passes need of a request; shared by the sampling threads.
struct Sampling {
    params: SamplingParams,
    history: History,
    stops: Vec<u32>,
    min_tokens: u32,
    generated: u32,
    prompt_logprobs: Option<u32>,
}

/// The rest of an accepted request.
struct Live {
    sink: Box<dyn EventSink>,
    submitted: Instant,
    started: Option<Instant>,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
    usage: Usage,
}

/// Result of one logit row.
enum Outcome {
    Token(Result<Sampled, NoCandidate>),
    Prompt { token: u32, logprobs: Option<TokenLogprobs> },
}

struct Driver {
    executor: Executor,
    scheduler: Scheduler,
    batch: Batch,
    sampling: HashMap<RequestId, Sampling>,
    live: HashMap<RequestId, Live>,
    samplers: Vec<Mutex<Sampler>>,
    /// One place for each logit row, filled by the sampling threads.
    outcomes: Vec<Mutex<Option<Outcome>>>,
    rows: Vec<LogitRow>,
    ended: Vec<RequestId>,
    stats: EngineStats,
    shared: Arc<Shared>,
}

impl Driver {
    fn new(bundle: Bundle, options: &EngineOptions) -> Result<Self, EngineError> {
        let executor = Executor::new(bundle, options)?;
        let sizes = *executor.sizes();
        let scheduler = Scheduler::new(sizes.limits(options.prefix_cache));
        let shared = Arc::new(Shared {
            inbox: Mutex::new(Inbox::default()),
            changed: Condvar::new(),
            stats: Mutex::new(EngineStats { kv_pages: sizes.pages, ..EngineStats::default() }),
            plan: executor.plan().clone(),
            max_queue: options.max_queue.unwrap_or(DEFAULT_QUEUE),
            max_context: sizes.max_context,
            thread: Mutex::new(None),
        });
        Ok(Self {
            batch: executor.new_batch(),
            scheduler,
            sampling: HashMap::new(),
            live: HashMap::new(),
            samplers: (0..sizes.threads).map(|_| Mutex::default()).collect(),
            outcomes: (0..sizes.logit_rows).map(|_| Mutex::new(None)).collect(),
            rows: Vec::new(),
            ended: Vec::new(),
            stats: EngineStats { kv_pages: sizes.pages, ..EngineStats::default() },
            executor,
            shared,
        })
    }

    /// Serves until told to stop or until something fails; either way no request is left without an end.
    fn run_to_end(mut self) {
        let result = catch_unwind(AssertUnwindSafe(|| self.serve()));
        let failure = match result {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some("its thread panicked".to_owned()),
        };
        let mut inbox = lock(&self.shared.inbox);
        inbox.phase = Phase::Ended;
        inbox.failure.clone_from(&failure);
        let submissions = std::mem::take(&mut inbox.submissions);
        drop(inbox);
        let reason = failure.map_or(FinishReason::Cancelled, FinishReason::Error);
        for submission in submissions {
            let usage = Usage::default();
            // A closed sink needs no farewell.
            let _ = submission.sink.send(Event::Finished { reason: reason.clone(), usage });
        }
        let open: Vec<RequestId> = self.live.keys().copied().collect();
        for id in open {
            self.finish(id, reason.clone());
        }
        let mut inbox = lock(&self.shared.inbox);
        inbox.live.clear();
        inbox.queued = 0;
        drop(inbox);
        self.publish_stats();
        self.shared.changed.notify_all();
    }

    fn serve(&mut self) -> Result<(), EngineError> {
        loop {
            let Some(begin) = self.take_orders() else { return Ok(()) };
            self.drop_closed();
            if self.scheduler.is_idle() {
                self.publish_stats();
                continue;
            }
            if !self.scheduler.schedule(&mut self.batch) {
                // Cannot be: with nothing running the oldest waiting request always fits.
                return Err(EngineError::Stopped("the scheduler found no row to run".into()));
            }
            self.begin_admitted(begin);
            let before = Instant::now();
            self.executor.forward(&self.batch)?;
            let forward = before.elapsed();
            self.sample()?;
            self.deliver();
            self.stats.steps += 1;
            self.stats.forward += forward;
            self.stats.step_seconds.observe(forward.as_secs_f64());
            self.stats.step_rows.observe(self.batch.rows() as f64);
            self.publish_stats();
            self.stats.overhead += begin.elapsed().saturating_sub(forward);
        }
    }

    /// Waits for work if there is none and takes in what callers asked for. Says when the waiting ended; `None` when it is
    /// time to end.
    fn take_orders(&mut self) -> Option<Instant> {
        let shared = self.shared.clone();
        let mut inbox = lock(&shared.inbox);
        while self.scheduler.is_idle() && inbox.submissions.is_empty() && inbox.phase < Phase::Stopping {
            inbox.cancels.clear();
            inbox = shared.changed.wait(inbox).unwrap_or_else(PoisonError::into_inner);
        }
        let begin = Instant::now();
        if inbox.phase >= Phase::Stopping {
            return None;
        }
        if inbox.submissions.is_empty() && inbox.cancels.is_empty() {
            return Some(begin);
        }
        let submissions = std::mem::take(&mut inbox.submissions);
        let cancels = std::mem::take(&mut inbox.cancels);
        drop(inbox);
        for submission in submissions {
            self.accept(submission);
        }
        for id in cancels {
            if self.scheduler.cancel(id) {
                self.finish(id, FinishReason::Cancelled);
            }
        }
        Some(begin)
    }

    fn accept(&mut self, submission: Submission) {
        let Submission { request, sink, at } = submission;
        let id = request.id;
        let outcome = self.scheduler.submit(&request);
        let mut stops = request.stop_tokens;
        if !request.ignore_eos {
            stops.extend_from_slice(&request.eos_tokens);
        }
        self.sampling.insert(
            id,
            Sampling {
                history: History::new(&request.params, &request.prompt),
                params: request.params,
                stops,
                min_tokens: request.min_tokens,
                generated: 0,
                prompt_logprobs: request.prompt_logprobs,
            },
        );
        let usage = Usage { prompt_tokens: request.prompt.len() as u32, ..Usage::default() };
        let live = Live { sink, submitted: at, started: None, first_token: None, last_token: None, usage };
        self.live.insert(id, live);
        if let Err(problem) = outcome {
            self.finish(id, FinishReason::Error(problem));
        }
    }

    /// Cancels requests whose callers are gone, waiting ones too.
    fn drop_closed(&mut self) {
        self.ended.clear();
        let closed = self.live.iter().filter(|(_, live)| live.sink.is_closed());
        self.ended.extend(closed.map(|(id, _)| *id));
        for index in 0..self.ended.len() {
            let id = self.ended[index];
            self.scheduler.cancel(id);
            self.finish(id, FinishReason::Cancelled);
        }
    }

    fn begin_admitted(&mut self, now: Instant) {
        let admitted = self.scheduler.pass().admitted.len();
        if admitted > 0 {
            let mut inbox = lock(&self.shared.inbox);
            inbox.queued = inbox.queued.saturating_sub(admitted);
        }
        for index in 0..admitted {
            let admitted = self.scheduler.pass().admitted[index];
            let Some(live) = self.live.get_mut(&admitted.id) else { continue };
            live.started = Some(now);
            live.usage.cached_tokens = admitted.cached_tokens;
            live.usage.queued = now.saturating_duration_since(live.submitted);
            self.stats.queue_seconds.observe(live.usage.queued.as_secs_f64());
            self.stats.prompt_tokens += u64::from(admitted.prompt_tokens);
            // A send that fails shows again at the first token, or in `is_closed`.
            let _ = live.sink.send(Event::Started {
                prompt_tokens: admitted.prompt_tokens,
                cached_tokens: admitted.cached_tokens,
            });
            let wants_prompt = self.sampling.get(&admitted.id).is_some_and(|s| s.prompt_logprobs.is_some());
            if wants_prompt && let Some(id) = self.scheduler.token(admitted.id, 0) {
                let _ = live.sink.send(Event::PromptToken { index: 0, id, logprobs: None });
            }
        }
        for id in &self.scheduler.pass().preempted {
            self.stats.preemptions += 1;
            if let Some(live) = self.live.get_mut(id) {
                live.usage.preemptions += 1;
            }
        }
    }

    /// Answers every logit row of the pass, on all compute threads.
    fn sample(&mut self) -> Result<(), EngineError> {
        self.rows.clear();
        self.rows.extend_from_slice(&self.scheduler.pass().logits);
        let (rows, scheduler, sampling) = (&self.rows, &self.scheduler, &self.sampling);
        let (samplers, outcomes) = (&self.samplers, &self.outcomes);
        self.executor.visit_logits(&|thread, row, logits| {
            let (Some(question), Some(sampler)) = (rows.get(row), samplers.get(thread)) else {
                return;
            };
            let Some(state) = sampling.get(&question.id) else { return };
            let mut sampler = lock(sampler);
            let outcome = match question.purpose {
                Purpose::Next => {
                    let early = state.generated < state.min_tokens;
                    Outcome::Token(sampler.sample(
                        logits,
                        &Draw {
                            params: &state.params,
                            history: &state.history,
                            banned: if early { &state.stops } else { &[] },
                            position: scheduler.length(question.id) as u32,
                        },
                    ))
                }
                Purpose::Prompt { index } => {
                    let token = scheduler.token(question.id, index as usize).unwrap_or(u32::MAX);
                    let top = state.prompt_logprobs.unwrap_or(0);
                    Outcome::Prompt { token, logprobs: sampler.logprobs(logits, token, top) }
                }
            };
            *lock(&outcomes[row]) = Some(outcome);
        })
    }

    /// Takes the answers to their sequences and to their callers.
    fn deliver(&mut self) {
        self.ended.clear();
        let mut evaluated = std::mem::take(&mut self.ended);
        self.scheduler.commit(&mut evaluated);
        let now = Instant::now();
        for row in 0..self.rows.len() {
            let LogitRow { id, purpose } = self.rows[row];
            let outcome = lock(&self.outcomes[row]).take();
            match (purpose, outcome) {
                (Purpose::Next, Some(Outcome::Token(Ok(sampled)))) => self.add_token(id, sampled, now),
                (Purpose::Prompt { index }, Some(Outcome::Prompt { token, logprobs })) => {
                    self.send_or_cancel(id, Event::PromptToken { index, id: token, logprobs });
                }
                (_, Some(Outcome::Token(Err(NoCandidate)))) => {
                    self.scheduler.cancel(id);
                    let words = "the model gave no usable logit (all NaN, infinite or banned)";
                    self.finish(id, FinishReason::Error(words.into()));
                }
                // The request ended earlier in this pass.
                _ => {}
            }
        }
        for id in evaluated.drain(..) {
            self.finish(id, FinishReason::Length);
        }
        self.ended = evaluated;
    }

    /// False if the caller is gone, and with it the request.
    fn send_or_cancel(&mut self, id: RequestId, event: Event) -> bool {
        let Some(live) = self.live.get(&id) else { return false };
        let heard = live.sink.send(event) != Err(Closed);
        if !heard {
            self.scheduler.cancel(id);
            self.finish(id, FinishReason::Cancelled);
        }
        heard
    }

    fn add_token(&mut self, id: RequestId, sampled: Sampled, now: Instant) {
        let (Some(live), Some(sampling)) = (self.live.get_mut(&id), self.sampling.get_mut(&id)) else {
            return;
        };
        let index = sampling.generated;
        sampling.generated += 1;
        sampling.history.record(sampled.token);
        live.usage.completion_tokens += 1;
        self.stats.generated_tokens += 1;
        match live.last_token {
            Some(last) => {
                let gap = now.saturating_duration_since(last);
                self.stats.inter_token_seconds.observe(gap.as_secs_f64());
            }
            None => {
                live.first_token = Some(now);
                let first = now.saturating_duration_since(live.submitted);
                self.stats.first_token_seconds.observe(first.as_secs_f64());
            }
        }
        live.last_token = Some(now);
        let end = self.scheduler.append(id, sampled.token);
        if !matches!(end, Some(FinishReason::Stop { .. })) {
            let event = Event::Token { index, id: sampled.token, logprobs: sampled.logprobs };
            if !self.send_or_cancel(id, event) {
                return;
            }
        }
        if let Some(reason) = end {
            self.finish(id, reason);
        }
    }

    /// Ends a request that is no longer in the scheduler.
    fn finish(&mut self, id: RequestId, reason: FinishReason) {
        self.sampling.remove(&id);
        let Some(mut live) = self.live.remove(&id) else { return };
        let now = Instant::now();
        if let Some(started) = live.started {
            let first = live.first_token.unwrap_or(now);
            live.usage.prefill = first.saturating_duration_since(started);
            live.usage.decode =
                live.last_token.map_or(Duration::ZERO, |l| l.saturating_duration_since(first));
        } else {
            live.usage.queued = now.saturating_duration_since(live.submitted);
        }
        *match &reason {
            FinishReason::Stop { .. } => &mut self.stats.finished_stop,
            FinishReason::Length => &mut self.stats.finished_length,
            FinishReason::Cancelled => &mut self.stats.finished_cancelled,
            FinishReason::Error(_) => &mut self.stats.finished_error,
        } += 1;
        let mut inbox = lock(&self.shared.inbox);
        if live.started.is_none() {
            inbox.queued = inbox.queued.saturating_sub(1);
        }
        inbox.live.remove(&id);
        let draining = inbox.phase != Phase::Serving;
        drop(inbox);
        // Before the event: who sees it sees the counters that include it.
        self.publish_stats();
        // A closed sink needs no farewell.
        let _ = live.sink.send(Event::Finished { reason, usage: live.usage });
        if draining {
            self.shared.changed.notify_all();
        }
    }

    fn publish_stats(&mut self) {
        let pool = self.scheduler.pool();
        self.stats.running = self.scheduler.running() as u32;
        self.stats.waiting = self.scheduler.waiting() as u32;
        self.stats.kv_pages_used = pool.used() as u32;
        self.stats.kv_pages_cached = pool.cached() as u32;
        let prefix = self.scheduler.prefix();
        self.stats.prefix_queried_tokens = prefix.queried;
        self.stats.prefix_hit_tokens = prefix.hits;
        lock(&self.shared.stats).clone_from(&self.stats);
    }
}
