//! Statistics of timings (layer 1): order statistics, paired comparisons, a sequential paired test with an error
//! budget over all candidates of a task, drift and noise. Pure and seeded: the same samples give the same answer.
//!
//! A *ratio* is always oriented so that above 1 means that the challenger is better.

#![forbid(unsafe_code)]

pub mod drift;
pub mod error;
pub mod exact;
pub mod noise;
pub mod paired;
pub mod sample;
pub mod sequential;

pub use drift::{Disturbance, Drift, DriftLimits, disturbance};
pub use error::StatisticsError;
pub use exact::{binomial_tail, sign_test, wilcoxon};
pub use noise::{Noise, NoiseLevel};
pub use paired::{Comparison, Finding, Pairs, compare};
pub use sample::{Sample, Tail, median};
pub use sequential::{ErrorBudget, PairOrder, Sequential, SequentialPlan, Status};
