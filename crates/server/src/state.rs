//! What all handlers share.

use crate::backend::Backend;
use crate::generation::{Dispatcher, Feed, lock};
use crate::metrics::Metrics;
use crate::options::ServerOptions;
use crate::text::Text;
use engine::RequestId;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{SystemTime, UNIX_EPOCH};

pub(crate) struct State {
    pub options: ServerOptions,
    pub backend: Arc<dyn Backend>,
    pub text: Arc<dyn Text>,
    pub metrics: Arc<Metrics>,
    pub dispatcher: Arc<Dispatcher>,
    /// Unix seconds at which the server started
    pub created: u64,
    next_id: AtomicU64,
    draining: AtomicBool,
    in_flight: AtomicUsize,
    /// Feeds of responses under way, to end them when draining takes too long
    live: Mutex<HashMap<u64, Weak<Feed>>>,
    random: RandomState,
}

impl State {
    pub(crate) fn new(options: ServerOptions, backend: Arc<dyn Backend>, text: Arc<dyn Text>) -> Self {
        Self {
            options,
            backend,
            text,
            metrics: Arc::new(Metrics::new()),
            dispatcher: Arc::default(),
            created: unix_seconds(),
            next_id: AtomicU64::new(1),
            draining: AtomicBool::new(false),
            in_flight: AtomicUsize::new(0),
            live: Mutex::default(),
            random: RandomState::new(),
        }
    }

    /// A number that no other call of this process gives.
    pub(crate) fn unique(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn request_id(&self) -> RequestId {
        RequestId(self.unique())
    }

    /// Not foreseeable from outside, and different in every process: the standard library seeds its hasher from the
    /// system's random numbers.
    pub(crate) fn random(&self) -> u64 {
        self.random.hash_one(self.unique())
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Acquire)
    }

    /// A place for one generation request; none when all are taken.
    pub(crate) fn enter(self: &Arc<Self>) -> Option<Flight> {
        let before = self.in_flight.fetch_add(1, Ordering::AcqRel);
        // Made first, so that its drop gives the place back in either case.
        let flight = Flight { state: Arc::clone(self), feed: None };
        (before < self.options.max_in_flight).then_some(flight)
    }

    /// Ends all responses under way with an error.
    pub(crate) fn abort_all(&self) {
        let feeds: Vec<_> = lock(&self.live).values().filter_map(Weak::upgrade).collect();
        for feed in feeds {
            feed.abort();
        }
    }
}

/// The place of one generation request, given back when dropped.
pub(crate) struct Flight {
    state: Arc<State>,
    feed: Option<u64>,
}

impl Flight {
    /// From now on [`State::abort_all`] reaches this request.
    pub(crate) fn follow(&mut self, feed: &Arc<Feed>) {
        let id = self.state.unique();
        lock(&self.state.live).insert(id, Arc::downgrade(feed));
        self.feed = Some(id);
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if let Some(id) = self.feed {
            lock(&self.state.live).remove(&id);
        }
        self.state.in_flight.fetch_sub(1, Ordering::AcqRel);
    }
}

pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}
