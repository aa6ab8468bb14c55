//! Load client for OpenAI-compatible servers.
//!
//! A [`Workload`] says what to send; [`run`] sends it and returns a [`Run`] of raw [`Sample`]s; [`Run::summary`] folds
//! them into TTFT, TPOT, ITL, E2EL, throughput and goodput as `vllm bench serve` and SGLang's `bench_serving` define
//! them (the definitions stand at [`Summary`]). [`compare`] interleaves two servers round by round and says whether
//! the difference is more than noise. A failed request is data ([`Failure`]), never a number.
//!
//! The client runs on one thread of its own (single-threaded runtime), opens one connection per request, and reports
//! its own share of a CPU and the host's steal time, so that a reader can see when the client was the bottleneck.

mod client;
mod compare;
mod error;
mod event_stream;
mod host;
mod prompt;
mod run;
mod sample;
mod seeded;
mod summary;
mod workload;

pub use compare::{Comparison, MIN_ROUNDS, MetricRatio, Round, Side, Verdict, compare, ratio};
pub use error::LoadError;
pub use host::HostUse;
pub use prompt::{GeneratedPrompt, PromptSpec, prompts};
pub use run::{Run, run};
pub use sample::{Failure, Outcome, Sample};
pub use summary::{Distribution, Goodput, Slo, Summary};
pub use workload::{Abandon, Arrival, Ending, Endpoint, Item, Prompt, Timeouts, Workload};
