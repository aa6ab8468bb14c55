//! The manifest of an engine bundle: a folder that can be copied.
//!
//! ```text
//! manifest.json        this file's Manifest
//! plan.json            the champion Plan
//! plan-portable.json   the portable Plan, on the same packed weights
//! weights.bin          packed tensors, each at a 4096-aligned offset, memory mapped
//! kernels/NAME.rs      sources        kernels/NAME.so   binaries
//! tokenizer/           tokenizer.json or tokenizer.gguf (vocabulary only), chat template, generation defaults
//! evidence.jsonl       ledger entries that the claims rest on, with the head digest
//! build.json           what a build found and measured, for the report (built bundles only)
//! NOTICE               licence notes
//! ```

use crate::abi::Launch;
use crate::operation::Operation;
use crate::target::Target;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of plans and bundles.
pub const PLAN_VERSION: u32 = 1;

/// A kernel of the bundle.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelEntry {
    /// Paths within the bundle.
    pub source: String,
    pub binary: String,
    /// BLAKE3 of source and binary, hex.
    pub source_digest: String,
    pub binary_digest: String,
    pub operation: Operation,
    pub target: Target,
    pub launch: Launch,
    /// Candidate id and promoting decision in the ledger, where the kernel comes from a search.
    pub candidate: Option<String>,
    pub decision: Option<String>,
}

/// A tensor of `weights.bin`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorEntry {
    /// Offset in bytes, a multiple of 4096.
    pub offset: u64,
    pub bytes: u64,
    /// Layout key for people and checks, for example `u4g32mb16 n1728 k576` or `f32 576`.
    pub layout: String,
    /// BLAKE3 of the bytes, hex.
    pub digest: String,
}

/// What the bundle holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`PLAN_VERSION`].
    pub version: u32,
    pub abi: u32,
    pub model_name: String,
    pub model_digest: String,
    /// Creation time, seconds since the epoch.
    pub created_s: u64,
    /// Digest and words of the machine on which the claims were measured.
    pub machine: BTreeMap<String, String>,
    pub toolchain: String,
    pub kernels: BTreeMap<String, KernelEntry>,
    pub tensors: BTreeMap<String, TensorEntry>,
    /// Length and BLAKE3 of `weights.bin`.
    pub weights_bytes: u64,
    pub weights_digest: String,
    /// BLAKE3 of plans, tokenizer, template, `NOTICE` and, in a built bundle, `build.json`, by their paths in the folder.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
    /// Head of the ledger when the bundle was written: position and digest.
    pub ledger_head: Option<(u64, String)>,
    /// Claims, each with the evidence ids that it rests on.
    pub claims: Vec<Claim>,
}

/// A number that the bundle claims.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Claim {
    pub id: String,
    /// In words, for example `output tokens/s at concurrency 16`.
    pub what: String,
    pub value: f64,
    pub unit: String,
    /// Interval (low, high) where one was measured.
    pub interval: Option<(f64, f64)>,
    pub evidence: Vec<String>,
    /// Lengths of the requests that a speed was measured with. Bundles of older versions do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<RequestLengths>,
}

/// Tokens of each request of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestLengths {
    pub prompt_tokens: u32,
    pub output_tokens: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_of_older_bundles_name_no_workload() {
        let old =
            r#"{"id":"speed.c1","what":"","value":1.5,"unit":"tokens/s","interval":null,"evidence":[]}"#;
        let mut claim: Claim = serde_json::from_str(old).unwrap();
        assert_eq!(claim.workload, None);
        assert_eq!(serde_json::to_string(&claim).unwrap(), old);
        claim.workload = Some(RequestLengths { prompt_tokens: 512, output_tokens: 64 });
        let text = serde_json::to_string(&claim).unwrap();
        assert_eq!(serde_json::from_str::<Claim>(&text).unwrap(), claim);
    }
}
