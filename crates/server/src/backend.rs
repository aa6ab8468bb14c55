//! What the server needs of an engine.

use engine::{EngineError, EngineHandle, EngineStats, EventSink, Request, RequestId};

/// An engine as the server sees it. [`EngineHandle`] is one; tests bring a scripted one.
///
/// All methods are called from async code and must return at once.
pub trait Backend: Send + Sync + 'static {
    /// Queues a request; its events go to `sink`.
    ///
    /// # Errors
    /// As [`EngineHandle::submit`]: the sink gets no event then.
    fn submit(&self, request: Request, sink: Box<dyn EventSink>) -> Result<(), EngineError>;
    /// Cancels a request before the next pass. Finished and unknown ids are no error.
    fn cancel(&self, id: RequestId);
    /// Counters and gauges.
    fn stats(&self) -> EngineStats;
    /// Longest prompt plus output, tokens.
    fn max_context(&self) -> u32;
    /// Whether it takes requests.
    fn is_serving(&self) -> bool;
}

impl Backend for EngineHandle {
    fn submit(&self, request: Request, sink: Box<dyn EventSink>) -> Result<(), EngineError> {
        EngineHandle::submit(self, request, sink)
    }

    fn cancel(&self, id: RequestId) {
        EngineHandle::cancel(self, id);
    }

    fn stats(&self) -> EngineStats {
        EngineHandle::stats(self)
    }

    fn max_context(&self) -> u32 {
        EngineHandle::max_context(self)
    }

    fn is_serving(&self) -> bool {
        EngineHandle::is_serving(self)
    }
}
