//! The words of the factory (layer 0): tasks, candidates, evidence, decisions, digests, spaces.
//!
//! Values only: no I/O, no clock, no unsafe.

#![forbid(unsafe_code)]

pub mod decision;
pub mod digest;
pub mod machine;
pub mod observation;
pub mod space;
pub mod task;

pub use decision::{Decision, Effect, Entry, Lesson, Verdict};
pub use digest::{Content, Digest, DigestError, Id};
pub use machine::Machine;
pub use observation::{
    CheckSummary, Evidence, Fault, Measured, Outcome, Phase, Protocol, Reason, Rejection, Samples, Stop,
};
pub use space::{Axis, Point, Space};
pub use task::{Candidate, Change, Contract, Direction, Metric, Proposer, Task, Workloads};
