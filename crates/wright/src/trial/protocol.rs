//! What crosses the pipes between the judge's side and the sandboxed engine: one JSON value a line.

use plan::Phase;
use serde::{Deserialize, Serialize};

/// Judge to engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// Prepare a fixed step: `rows` rows of a pass at `context` tokens of context (decode: one row of each of `rows`
    /// sequences; prefill: `rows` rows of one sequence). Answered by `Armed`.
    Arm {
        kind: ReplayKind,
        rows: u32,
        context: u32,
        passes: u32,
    },
    /// Run what was armed. Answered by `Done`.
    Go,
    /// Time the steps of a fixed pass, by the engine's own clock: for reports, never for verdicts. Answered by `Steps`.
    Profile {
        kind: ReplayKind,
        rows: u32,
        context: u32,
        passes: u32,
    },
    /// Logits of a window's positions from `from` on, all of it as tokens of this phase. Answered by `Logits`, with the values
    /// in the shared file.
    Logits {
        phase: Phase,
        tokens: Vec<u32>,
        from: usize,
    },
    /// Generate greedily, to the full length.
    Submit {
        id: u64,
        prompt: Vec<u32>,
        output_tokens: u32,
    },
    Quit,
}

/// Which fixed step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReplayKind {
    Decode,
    Prefill,
}

/// All steps of one operation in a pass, on thread 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepTime {
    pub operation: String,
    /// Without the waiting.
    pub ns: f64,
    /// At barriers.
    pub waiting_ns: f64,
}

/// Engine to judge.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// Loaded and confined; resident memory in bytes, sandbox layers that stand.
    Ready {
        /// Phases whose arithmetic differs.
        phases: Vec<Phase>,
        resident: u64,
        layers: Vec<String>,
        vocab: u32,
    },
    Armed,
    Done,
    /// Mean time of a pass and of its steps, ns.
    Steps {
        pass: f64,
        steps: Vec<StepTime>,
    },
    /// Rows of logits in the shared file.
    Logits {
        rows: u32,
    },
    Token {
        id: u64,
        token: u32,
    },
    Finished {
        id: u64,
        completion_tokens: u32,
        reason: String,
    },
    Failed {
        what: String,
    },
}
