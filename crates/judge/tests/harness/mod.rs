//! A judge for tests that share the machine with others.

use evidence::Digest;
use judge::{Effort, Judge, JudgeConfig, Lane, Secret};
use sandbox::{BuildLimits, Builder, Helper, WorkerConfig};
use std::collections::BTreeMap;
use std::time::Duration;

/// A judge with a fixed secret and its caches in `cache`.
pub fn judge(cache: &std::path::Path, effort: Effort) -> Judge {
    judge_with(cache, effort, BTreeMap::new())
}

/// The same with measured ceilings.
pub fn judge_with(cache: &std::path::Path, effort: Effort, ceilings: BTreeMap<String, f64>) -> Judge {
    let helper = Helper::program(env!("CARGO_BIN_EXE_judge-worker"));
    let builder = Builder::new(helper.clone(), cache, BuildLimits::default()).unwrap();
    let processors = kernel_abi::allowed_processors().unwrap();
    let workers = WorkerConfig::new(helper, processors);
    let mut config = JudgeConfig::new(builder, workers, Secret::new([7; 32]), Digest::ZERO, ceilings);
    config.lane = Lane::at(&cache.join("lane"));
    config.effort = effort;
    Judge::new(config)
}

/// Other tests share the machine: nothing here may depend on quiet.
pub fn small() -> Effort {
    let mut effort = Effort { working_set: 8 << 20, block: Duration::from_micros(300), ..Effort::default() };
    effort.drift.relative = 100.0;
    effort.drift.steal = 1.0;
    effort.foreign = 1.0;
    effort.confirm_pairs = 16;
    effort
}
