//! The words of the factory (layer 0): tasks, candidates, evidence, decisions, digests, spaces.
//!
//! Values only: no I/O, no clock, no unsafe.

#![forbid(unsafe_code)]

pub mod space;

pub use space::{Axis, Point, Space};
