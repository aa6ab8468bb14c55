//! `build.json`: what a build found and measured, written for the report, for people and for programs. Whoever reads it
//! finds everything optional: another version may have written it.

use anyhow::{Context, Result};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// The whole file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
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
    /// Evaluations of this engine's kernel tasks by what became of them.
    pub counts: BTreeMap<String, u64>,
    pub table: Vec<Row>,
    pub quality: Option<Quality>,
    pub operations: Vec<Operation>,
    pub profile: Vec<Step>,
    pub audit: Vec<Audit>,
    pub plan: BTreeMap<String, String>,
    pub plan_trials: Vec<PlanTrial>,
}

/// One engine under one load.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Row {
    /// `reference`, `portable` or `champion`.
    pub engine: String,
    pub concurrency: u32,
    pub prompt_tokens: u32,
    pub output_tokens: u32,
    #[serde(deserialize_with = "number")]
    pub tokens_per_s: f64,
    pub ttft_ms: Vec<f64>,
    pub itl_ms: Vec<f64>,
    pub requests: u32,
    /// Peak of the server's process; of the reference, which is no process of its own, its f32 weights.
    pub memory_bytes: u64,
    /// Output tokens per second over the portable plan's, both on the portable row's prompts and lengths.
    pub vs_portable: Option<f64>,
    /// Where the wall time of the measurement went; `None` where the server does not say.
    pub spent: Option<Spent>,
    pub evidence: Vec<String>,
}

impl Row {
    /// Whether `memory_bytes` counts weights only, and nothing was measured.
    pub fn weights_only(&self) -> bool {
        self.engine == "reference"
    }
}

/// Where a server's wall time went under a load.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Spent {
    pub wall_s: f64,
    /// In passes of the plan.
    pub passes_s: f64,
    /// In the rest of the engine's loop: scheduling, sampling, handing tokens over.
    pub engine_s: f64,
    /// Processor time of the load client, which shares the machine.
    pub client_s: Option<f64>,
}

/// The champion's quality on held-out text.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Quality {
    #[serde(deserialize_with = "number")]
    pub kl: f64,
    #[serde(deserialize_with = "number")]
    pub top1: f64,
    #[serde(deserialize_with = "number")]
    pub perplexity: f64,
    #[serde(deserialize_with = "number")]
    pub reference_perplexity: f64,
    pub tokens: u64,
    pub bound_kl: Option<f64>,
    pub evidence: String,
}

/// One operation of the champion plan at one bucket of rows.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Operation {
    pub name: String,
    pub rows: String,
    /// Name of the generator, or `source`.
    pub kernel: String,
    pub point: String,
    #[serde(deserialize_with = "number")]
    pub ns: f64,
    pub floor_ns: Option<f64>,
    #[serde(deserialize_with = "number")]
    pub baseline_ns: f64,
    pub calls_per_pass: u32,
    pub candidate: Option<String>,
    pub decision: Option<String>,
}

/// Time of all steps of one operation in a pass, without waiting; `barriers` and `dispatch` are steps of their own.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Step {
    pub rows: u32,
    /// Tokens that each row of a decode pass sees; 0 for a prefill pass, whose rows are one prompt.
    pub context: u32,
    pub step: String,
    #[serde(deserialize_with = "number")]
    pub ns: f64,
}

/// A part left out and measured again.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Audit {
    pub part: String,
    pub verdict: String,
    /// Engine with the part over engine without it.
    pub ratio: Option<f64>,
    pub evidence: String,
}

/// A plan that was tried.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PlanTrial {
    pub choices: String,
    pub verdict: String,
    /// Of its last evaluation.
    pub evidence: String,
}

impl Summary {
    /// Reads `build.json` of a bundle; `None` where there is none.
    ///
    /// # Errors
    /// A file that cannot be read or is no JSON of this shape.
    pub fn read(bundle: &Path) -> Result<Option<Self>> {
        let path = bundle.join("build.json");
        match std::fs::read(&path) {
            Ok(bytes) => Ok(Some(
                serde_json::from_slice(&bytes).with_context(|| format!("reading {}", path.display()))?,
            )),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e).with_context(|| format!("reading {}", path.display())),
        }
    }

    /// The row of an engine at a concurrency.
    pub fn row(&self, engine: &str, concurrency: u32) -> Option<&Row> {
        self.table.iter().find(|r| r.engine == engine && r.concurrency == concurrency)
    }
}

/// JSON has no NaN: what could not be measured is written as null.
fn number<'de, D: Deserializer<'de>>(d: D) -> Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(d)?.unwrap_or(f64::NAN))
}
