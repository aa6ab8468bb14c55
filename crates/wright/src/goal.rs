//! The goal: what to optimise, for which workload, within which bounds. TOML; every field has a default.

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// A goal file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Goal {
    pub model: ModelGoal,
    pub target: TargetGoal,
    pub workload: Workload,
    pub metric: MetricGoal,
    pub constraints: Constraints,
    /// Plan axes that are fixed: name to value (see `docs/plan-space.md`).
    pub space: BTreeMap<String, String>,
    pub budget: BudgetGoal,
    pub agents: Agents,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelGoal {
    /// For people; the command line names the model.
    pub name: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TargetGoal {
    /// Features left out though the machine has them, for example `["amxint8"]`.
    pub mask: Vec<String>,
    /// Compute threads; 0 takes all cores.
    pub threads: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Workload {
    pub prompt_tokens: u32,
    pub output_tokens: u32,
    /// Closed loop: the metric is the geometric mean over these.
    pub concurrency: Vec<u32>,
}

impl Default for Workload {
    fn default() -> Self {
        Self { prompt_tokens: 128, output_tokens: 128, concurrency: vec![1, 4, 16] }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MetricGoal {
    /// Only `output_tokens_per_s` (maximised) in this version.
    pub maximise: String,
}

impl Default for MetricGoal {
    fn default() -> Self {
        Self { maximise: "output_tokens_per_s".to_owned() }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Constraints {
    /// Largest KL divergence to the f32 reference on the held-out text, nats per token.
    pub max_kl: f64,
    /// Smallest share of positions whose most probable token agrees.
    pub min_top1: f64,
    pub ttft_ms: Option<f64>,
    pub itl_ms: Option<f64>,
    pub memory_mb: Option<f64>,
    /// `batch-invariant` (the only one in this version).
    pub determinism: String,
}

impl Default for Constraints {
    fn default() -> Self {
        Self {
            max_kl: 0.004,
            min_top1: 0.94,
            ttft_ms: None,
            itl_ms: None,
            memory_mb: None,
            determinism: "batch-invariant".to_owned(),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BudgetGoal {
    /// For example `10m`.
    pub wall: Option<String>,
    pub evaluations: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Agents {
    /// Built-in operators that are switched off, for example `["crossover"]`.
    pub without: Vec<String>,
}

impl Goal {
    /// Reads and checks a goal file; no file is the default goal.
    pub fn load(path: Option<&Path>) -> Result<Self> {
        let Some(path) = path else { return Ok(Self::default()) };
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("goal {}: cannot be read", path.display()))?;
        let goal: Self =
            toml::from_str(&text).with_context(|| format!("goal {}: not a valid goal", path.display()))?;
        goal.check().with_context(|| format!("goal {}", path.display()))?;
        Ok(goal)
    }

    fn check(&self) -> Result<()> {
        let w = &self.workload;
        if w.prompt_tokens == 0 || w.output_tokens == 0 {
            bail!("[workload] prompt_tokens and output_tokens must be at least 1");
        }
        if w.concurrency.is_empty() || w.concurrency.iter().any(|c| *c == 0 || *c > 256) {
            bail!("[workload] concurrency must list numbers from 1 to 256");
        }
        if self.metric.maximise != "output_tokens_per_s" {
            bail!(
                "[metric] maximise = '{}' is not known; this version knows output_tokens_per_s",
                self.metric.maximise
            );
        }
        let c = &self.constraints;
        if !(c.max_kl.is_finite() && c.max_kl > 0.0) {
            bail!("[constraints] max_kl must be a positive number");
        }
        if !(0.0..=1.0).contains(&c.min_top1) {
            bail!("[constraints] min_top1 must lie between 0 and 1");
        }
        if c.determinism != "batch-invariant" {
            bail!(
                "[constraints] determinism = '{}' is not known; this version knows batch-invariant",
                c.determinism
            );
        }
        // Accepting a bound that nothing enforces would be a promise that is not kept.
        let unenforced = [("ttft_ms", c.ttft_ms), ("itl_ms", c.itl_ms), ("memory_mb", c.memory_mb)];
        if let Some((name, _)) = unenforced.iter().find(|(_, bound)| bound.is_some()) {
            bail!(
                "[constraints] {name} is not enforced in this version; leave it out and read the final table"
            );
        }
        if !self.agents.without.is_empty() {
            bail!("[agents] without is not in this version: all built-in operators take part");
        }
        for name in &self.target.mask {
            if !plan::Feature::ALL.iter().any(|f| f.name() == name) {
                let known: Vec<_> = plan::Feature::ALL.iter().map(|f| f.name()).collect();
                bail!("[target] mask names '{name}'; known features: {}", known.join(", "));
            }
        }
        if let Some(wall) = &self.budget.wall {
            crate::cli::duration(wall).map_err(anyhow::Error::msg).context("[budget] wall")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Goal> {
        let goal: Goal = toml::from_str(text)?;
        goal.check()?;
        Ok(goal)
    }

    #[test]
    fn the_empty_goal_is_the_default() {
        assert_eq!(parse("").unwrap(), Goal::default());
    }

    #[test]
    fn bad_goals_say_what_is_wrong() {
        for (text, part) in [
            ("[metric]\nmaximise = 'fun'", "fun"),
            ("[workload]\nconcurrency = []", "concurrency"),
            ("[constraints]\nmax_kl = -1.0", "max_kl"),
            ("[constraints]\nttft_ms = 50.0", "ttft_ms"),
            ("[agents]\nwithout = ['crossover']", "without"),
            ("[target]\nmask = ['sse9']", "sse9"),
            ("[wheels]\n", "wheels"),
            ("[budget]\nwall = 'soon'", "soon"),
        ] {
            let error = format!("{:#}", parse(text).unwrap_err());
            assert!(error.contains(part), "{error}");
        }
    }
}
