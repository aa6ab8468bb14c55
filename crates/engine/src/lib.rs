//! The inference engine (layer 3): bundles, the executor of plans, paged KV cache, scheduler, sampler, and the
//! thread that ties them together. Knows nothing of the factory, of HTTP or of tokenizers.

pub mod error;
pub mod handle;
pub mod options;
pub mod request;
pub mod stats;

use std::path::Path;

pub use error::EngineError;
pub use handle::EngineHandle;
pub use options::{EngineOptions, Inspector, Pinning, PlanChoice, PrefixCache, Verification, WeightMemory};
pub use request::{
    Closed, Event, EventSink, FinishReason, Request, RequestId, SamplingParams, TokenLogprobs, Usage,
};
pub use stats::{EngineStats, Histogram};

/// Starts engines.
pub struct Engine;

impl Engine {
    /// Opens a bundle, starts the compute threads and serves requests until the handle is dropped.
    ///
    /// # Errors
    /// A bundle or option that does not fit, with what and where.
    pub fn start(_bundle: &Path, _options: EngineOptions) -> Result<EngineHandle, EngineError> {
        todo!("lands with the executor")
    }
}
