//! `build.json`: what a build found and measured, for the report and for programs.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The whole summary.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Summary {
    pub model: String,
    pub machine: BTreeMap<String, String>,
    pub ceilings: BTreeMap<String, f64>,
    pub target: String,
    pub seed: u64,
    /// Wall time of the search, seconds, all processes of the build together.
    pub search_s: f64,
    pub evaluations: u64,
    pub counts: BTreeMap<String, u64>,
    pub table: Vec<Row>,
    pub quality: QualityRow,
    pub operations: Vec<OperationRow>,
    pub profile: Vec<StepRow>,
    pub audit: Vec<AuditRow>,
    pub plan: BTreeMap<String, String>,
    pub plan_trials: Vec<PlanRow>,
}

/// One engine at one concurrency.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Row {
    /// `reference`, `portable` or `champion`.
    pub engine: String,
    pub concurrency: u32,
    pub prompt_tokens: u32,
    pub output_tokens: u32,
    pub requests: u32,
    pub tokens_per_s: f64,
    pub ttft_ms: Vec<f64>,
    pub itl_ms: Vec<f64>,
    pub memory_bytes: u64,
    pub evidence: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct QualityRow {
    pub kl: f64,
    pub top1: f64,
    pub perplexity: f64,
    pub reference_perplexity: f64,
    pub tokens: u64,
    pub bound_kl: f64,
    pub evidence: String,
}

/// An operation's champion in one bucket.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OperationRow {
    pub name: String,
    pub rows: String,
    pub kernel: String,
    pub point: String,
    pub ns: f64,
    pub floor_ns: Option<f64>,
    pub baseline_ns: f64,
    pub calls_per_pass: u32,
    pub candidate: String,
    pub decision: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StepRow {
    pub rows: u32,
    pub context: u32,
    pub step: String,
    pub ns: f64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AuditRow {
    pub part: String,
    pub verdict: String,
    pub ratio: f64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PlanRow {
    pub choices: String,
    pub verdict: String,
}
