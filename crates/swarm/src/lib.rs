//! The swarm (layer 3): who proposes what next, within which budget, and what is learned. It judges nothing.
//!
//! [`Swarm`] is a fold over the ledger's entries: its state changes only by [`Swarm::catch_up`], and what it proposes
//! is a function of that state and the seed. So a killed run resumes where it was, and the same seed on the same
//! evidence gives the same trajectory.
//!
//! [`run()`] drives it with an [`Evaluator`] that the caller supplies (the judge). [`plans`] searches engine plans
//! the same way; [`audit`] leaves out one part at a time.

#![forbid(unsafe_code)]

pub mod audit;
pub mod budget;
pub mod error;
pub mod hypothesis;
pub mod lesson;
pub mod library;
pub mod plans;
pub mod run;
pub mod scheduler;
mod state;
pub mod task;

pub use audit::{Audit, AuditLine, Pays, leave_one_out};
pub use budget::{Budget, Left, Meter};
pub use error::{EvaluatorError, SwarmError};
pub use library::{Library, Memory, TaskKey};
pub use plans::{PlanSearch, PlanTrials, Ranked, rank, run_plans, try_plan};
pub use run::{Ended, Evaluation, Evaluator, Progress, Standing, run};
pub use scheduler::{Proposal, Settings, Swarm};
pub use task::{Bound, Closed, Recipe, TaskSpec, TaskView};
