//! One host exactly, and its measured ceilings. Part of evidence, not of tasks.

use crate::digest::Content;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Full description of a host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// CPU model and stepping, microcode, caches, memory, kernel, hypervisor, toolchain: words by name.
    pub facts: BTreeMap<String, String>,
    pub features: Vec<String>,
    pub cores: u32,
    /// Measured rates by name, for example `stream_bytes_per_s_t2`, `vnni_macs_per_s_t1`.
    pub ceilings: BTreeMap<String, f64>,
}

impl Content for Machine {
    const KIND: &'static str = "machine/1";
}
