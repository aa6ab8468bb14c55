//! Operations declared once (layer 1): f64 oracles, input generators, tolerances, dispatch keys, cost, packing, and
//! the generators of kernel source. Pure: no I/O, no unsafe.

#![forbid(unsafe_code)]

pub mod contract;
pub mod cost;
pub mod dispatch;
pub mod emulate;
pub mod error;
pub mod generator;
pub mod generators;
pub mod inputs;
pub mod numerics;
pub mod oracle;
pub mod pack;
mod parallel;
pub mod quantise;
pub mod tolerance;

pub use error::KernelError;
pub use generator::{Generated, Generator};
pub use generators::{generator, generators};
