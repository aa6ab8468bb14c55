//! The plan: the ordered steps of one forward pass over a ragged batch of rows, their kernels by row bucket,
//! buffers and batching policy. Prefill and decode rows share a pass, unless prompts have steps of their own.

use crate::layout::KvLayout;
use crate::operation::{Operation, RowBucket};
use crate::target::Target;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Dimensions of a decoder-only model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelShape {
    /// Family name, for example `llama` or `qwen3`.
    pub architecture: String,
    pub layers: u32,
    pub hidden: u32,
    pub heads: u32,
    pub kv_heads: u32,
    pub head_dim: u32,
    pub ffn: u32,
    pub vocab: u32,
    /// Longest context in tokens.
    pub context: u32,
    pub rms_eps: f32,
    pub qkv_bias: bool,
    pub qk_norm: bool,
    pub tied_embeddings: bool,
    pub sliding_window: Option<u32>,
}

/// A working buffer of the executor: f32 `[max rows][width]`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Buffer {
    pub name: String,
    pub width: u32,
    /// Which rows it holds.
    pub rows: RowSet,
}

/// Rows that a step works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RowSet {
    /// All rows of the pass.
    All,
    /// The rows whose logits are wanted.
    Logits,
}

/// Where the memory of a slot comes from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    Buffer(String),
    /// A tensor of the bundle's weights file.
    Weight(String),
    KeyCache(u32),
    ValueCache(u32),
    Positions,
    Slots,
    RowSequence,
    BlockTables,
    Tokens,
}

/// One slot of a step.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Binding {
    /// See [`crate::operation::slot`].
    pub slot: u32,
    pub source: Source,
}

/// One step of the pass.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Run `operation` (a key of [`Plan::operations`]) on `rows`.
    Run {
        operation: String,
        rows: RowSet,
        bindings: Vec<Binding>,
        /// Whether all threads meet after the step (barriers stand only where data demands them).
        barrier: bool,
    },
    /// Copy the rows whose logits are wanted from one buffer (all rows) to another (logits rows).
    GatherLogitRows { from: String, to: String },
}

/// What the rows of a pass are, where a plan tells them apart.
///
/// A row's phase follows from its place in the request alone, never from what else runs: so a result does not depend on the
/// batch even if the two phases have different arithmetic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Generated tokens (and all rows of plans that do not tell them apart).
    #[default]
    Decode,
    /// Tokens of a prompt.
    Prefill,
}

/// The kernel for a range of rows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketKernel {
    pub rows: RowBucket,
    /// A key of the manifest's kernels.
    pub kernel: String,
}

/// An operation of the plan with its kernels. The buckets cover 1..=max rows without gap or overlap.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlannedOperation {
    pub operation: Operation,
    pub kernels: Vec<BucketKernel>,
}

impl PlannedOperation {
    /// The kernel for `rows` rows.
    pub fn kernel_for(&self, rows: u32) -> Option<&str> {
        self.kernels.iter().find(|k| k.rows.contains(rows)).map(|k| k.kernel.as_str())
    }
}

/// Batching policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batching {
    /// Most sequences that decode together.
    pub max_sequences: u32,
    /// Most rows of one pass (decode rows and prefill rows together).
    pub max_rows: u32,
    /// Most prefill rows that join a pass which also decodes (or, with steps of their own, that come before the next such
    /// pass).
    pub prefill_chunk: u32,
    /// Pages of the KV cache are `kv_tokens / block_tokens`.
    pub kv_tokens: u32,
}

/// The engine as data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// [`crate::PLAN_VERSION`].
    pub version: u32,
    /// [`crate::ABI_VERSION`].
    pub abi: u32,
    /// `champion` or `portable`, or a name of the search.
    pub name: String,
    pub model: ModelShape,
    pub target: Target,
    pub kv: KvLayout,
    pub operations: BTreeMap<String, PlannedOperation>,
    pub buffers: Vec<Buffer>,
    pub steps: Vec<Step>,
    /// Steps of passes over prompt tokens, where prompts have an arithmetic of their own; empty where `steps` serve every pass.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prefill_steps: Vec<Step>,
    /// Buffer that holds the logits after the pass: `[logit rows][vocab]`.
    pub logits: String,
    pub batching: Batching,
    /// Rounds a thread spins at a barrier before it parks in the kernel.
    pub spin: u32,
}

impl Plan {
    /// Whether prompts have steps of their own.
    pub fn separates_prefill(&self) -> bool {
        !self.prefill_steps.is_empty()
    }

    /// The steps of a pass of this phase.
    pub fn steps_of(&self, phase: Phase) -> &[Step] {
        if phase == Phase::Prefill && self.separates_prefill() { &self.prefill_steps } else { &self.steps }
    }

    /// The phases whose steps differ.
    pub fn phases(&self) -> &'static [Phase] {
        if self.separates_prefill() { &[Phase::Decode, Phase::Prefill] } else { &[Phase::Decode] }
    }
}
