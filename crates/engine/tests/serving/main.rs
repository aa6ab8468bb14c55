//! The engine on a tiny model with real kernels: results, invariance, the life of requests, damaged bundles.

mod bundles;
mod executor;
mod invariance;
mod requests;
mod tiny;
