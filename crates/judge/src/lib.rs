//! The trusted side of kernel evaluation (layer 3): checks, measures, decides. No candidate code runs in this process.
//!
//! * [`Judge::evaluate`] turns a [`Submission`] into one [`evidence::Evidence`]: built and inspected, checked against
//!   the f64 oracle and the numeric class, measured in interleaved pairs against the champion.
//! * [`rule()`] turns evidence into a decision. Pure.
//! * [`redteam::run`] turns the tables: dishonest candidates that the judge must refuse, honest ones that it must not.
//!
//! Engine-level trials (whole plans under a workload) are judged by the program that can start engines; they share
//! [`rule()`]'s place in the flow, not its code.

#![forbid(unsafe_code)]

pub mod cases;
pub mod check;
pub mod disturbance;
pub mod error;
mod judge;
mod lane;
mod layout;
mod measure;
pub mod redteam;
mod rig;
mod roofline;
mod rule;
mod seed;
pub mod stage;
mod stock;
mod task;
mod timing;

pub use error::JudgeError;
pub use judge::{Judge, JudgeConfig, Opponent, PROTOCOL, task_id};
pub use lane::{Lane, LaneGuard};
pub use roofline::MeasuredCeilings;
pub use rule::{RULE, Standing, rule, sequential};
pub use seed::{Secret, Seed};
pub use task::{KernelTask, Submission};
pub use timing::Effort;
