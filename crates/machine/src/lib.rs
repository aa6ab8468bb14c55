//! One host exactly (layer 3): its fingerprint and its measured ceilings.

#![forbid(unsafe_code)]

pub mod ceilings;
pub mod fingerprint;
