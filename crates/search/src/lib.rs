//! Search over finite design spaces (layer 1): variation operators, a bandit that chooses among them, an additive
//! surrogate. Pure: a suggestion is a function of the space, the history, the knowledge and the seed.
//!
//! A *gain* is the natural logarithm of a speed-up over a fixed reference of the task; higher is better. A rejected
//! point has no gain.

#![forbid(unsafe_code)]

pub mod bandit;
pub mod history;
pub mod knowledge;
pub mod operators;
pub mod surrogate;
pub mod trajectory;

pub use bandit::{Arm, Bandit};
pub use history::{History, Outcome, Trial};
pub use knowledge::{AxisEffect, AxisEffects, Knowledge};
pub use operators::{AxisChange, Operator, Suggestion, changes, propose, unseen};
pub use surrogate::Additive;
pub use trajectory::Search;
