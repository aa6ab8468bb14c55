//! The inference engine (layer 3): bundles, the executor of plans, paged KV cache, scheduler, sampler, and the
//! thread that ties them together. Knows nothing of the factory, of HTTP or of tokenizers.

pub mod batch;
pub mod bundle;
mod check;
mod driver;
pub mod error;
pub mod executor;
pub mod handle;
mod memory;
pub mod options;
pub mod pages;
mod program;
pub mod replay;
pub mod request;
pub mod sampler;
pub mod scheduler;
pub mod sizes;
pub mod stats;

pub use batch::Batch;
pub use bundle::Bundle;
pub use driver::Engine;
pub use error::EngineError;
pub use executor::{Executor, Profiling};
pub use handle::EngineHandle;
pub use options::{EngineOptions, Inspector, Pinning, PlanChoice, PrefixCache, Verification, WeightMemory};
pub use program::StepProfile;
pub use replay::Replay;
pub use request::{
    Closed, Event, EventSink, FinishReason, Request, RequestId, SamplingParams, TokenLogprobs, Usage,
};
pub use sizes::Sizes;
pub use stats::{EngineStats, Histogram};
