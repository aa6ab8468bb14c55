//! Events from the engine's threads to the tasks that write responses.
//!
//! The engine hands over the tokens of one pass within microseconds. Waking a task from a foreign thread costs a system
//! call, so a pass must not cost one per stream: a sink queues its event, puts its feed on one shared list and wakes the
//! single dispatcher only if that list was empty; the dispatcher then wakes the streams from within the runtime.

use engine::{Closed, Event, EventSink, FinishReason, Usage};
use futures::task::AtomicWaker;
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Instant;
use tokio::sync::Notify;

/// The data behind our mutexes is valid after any panic: plain queues.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One event of choice `slot`, with the time at which the engine reported it.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub slot: usize,
    pub at: Instant,
    pub event: Event,
}

/// The events of one HTTP request, all its choices together.
#[derive(Debug, Default)]
pub(crate) struct Feed {
    events: Mutex<VecDeque<Arrived>>,
    reader: AtomicWaker,
    /// On the dispatcher's list
    posted: AtomicBool,
    /// The reader is gone
    closed: AtomicBool,
    /// The server ends: the reader must finish with an error
    aborted: AtomicBool,
}

impl Feed {
    /// Registers the reader for the next event, then moves all present ones to `into`.
    pub(crate) fn take(&self, reader: &Waker, into: &mut VecDeque<Arrived>) {
        self.reader.register(reader);
        let mut events = lock(&self.events);
        if into.is_empty() {
            std::mem::swap(&mut *events, into);
        } else {
            into.append(&mut events);
        }
    }

    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Ends the response with an error.
    pub(crate) fn abort(&self) {
        self.aborted.store(true, Ordering::Release);
        self.reader.wake();
    }

    pub(crate) fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::Acquire)
    }
}

/// The shared list of feeds with news.
#[derive(Debug, Default)]
pub(crate) struct Dispatcher {
    pending: Mutex<Vec<Arc<Feed>>>,
    news: Notify,
}

impl Dispatcher {
    /// Runs as one task until dropped.
    pub(crate) async fn run(&self) {
        let mut feeds = Vec::new();
        loop {
            self.news.notified().await;
            std::mem::swap(&mut *lock(&self.pending), &mut feeds);
            for feed in feeds.drain(..) {
                // Before waking: an event that comes now posts the feed again.
                feed.posted.store(false, Ordering::Release);
                feed.reader.wake();
            }
        }
    }

    fn post(&self, feed: &Arc<Feed>) {
        if feed.posted.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut pending = lock(&self.pending);
        let first = pending.is_empty();
        pending.push(Arc::clone(feed));
        drop(pending);
        if first {
            self.news.notify_one();
        }
    }
}

/// Where the engine puts the events of one choice.
pub(crate) struct FeedSink {
    feed: Arc<Feed>,
    dispatcher: Arc<Dispatcher>,
    slot: usize,
    finished: Cell<bool>,
}

impl FeedSink {
    pub(crate) fn new(feed: Arc<Feed>, dispatcher: Arc<Dispatcher>, slot: usize) -> Self {
        Self { feed, dispatcher, slot, finished: Cell::new(false) }
    }
}

impl EventSink for FeedSink {
    fn send(&self, event: Event) -> Result<(), Closed> {
        if self.is_closed() {
            return Err(Closed);
        }
        if matches!(event, Event::Finished { .. }) {
            self.finished.set(true);
        }
        let arrived = Arrived { slot: self.slot, at: Instant::now(), event };
        lock(&self.feed.events).push_back(arrived);
        self.dispatcher.post(&self.feed);
        Ok(())
    }

    fn is_closed(&self) -> bool {
        self.feed.closed.load(Ordering::Acquire)
    }
}

impl Drop for FeedSink {
    /// An engine that drops a request without a word must not leave a client waiting.
    fn drop(&mut self) {
        if !self.finished.get() && !self.is_closed() {
            let reason = FinishReason::Error("the engine dropped the request".into());
            // Cannot fail: just seen to be open, and a feed that closes meanwhile has no reader to disappoint.
            let _ = self.send(Event::Finished { reason, usage: Usage::default() });
        }
    }
}
