//! How an engine is started.

use plan::{Feature, KernelEntry, Plan};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

/// Which plan of a bundle runs.
#[derive(Clone, Debug, Default)]
pub enum PlanChoice {
    /// `plan.json`: needs the instruction sets that it was made for.
    #[default]
    Champion,
    /// `plan-portable.json`: runs on any machine of the architecture.
    Portable,
    /// A plan from elsewhere (a trial of the factory) on the bundle's weights and kernels.
    Given(Box<Plan>),
}

/// Where the packed weights lie while they are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WeightMemory {
    /// Huge pages where the system gives them on request and twice the memory is free, else mapped. Streaming weights
    /// from huge pages is faster by 5 to 10 % on machines whose memory bounds decoding.
    #[default]
    Auto,
    /// Memory mapped from the bundle, shared with the page cache.
    Mapped,
    /// Copied to private memory for which huge pages are asked.
    HugePages,
}

/// Which digests are compared when a bundle is opened. Those of kernel binaries always are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verification {
    #[default]
    Kernels,
    /// The weights file and every tensor too (reads the whole file).
    Everything,
}

/// Looks at a kernel binary before it is loaded and may refuse it, in words.
pub type Inspector = Arc<dyn Fn(&KernelEntry, &[u8]) -> Result<(), String> + Send + Sync>;

/// How compute threads are placed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pinning {
    /// Thread i stays on the i-th processor that the process may use.
    #[default]
    Pinned,
    Free,
}

/// Options of [`crate::Bundle::open`], [`crate::Executor::new`] and [`crate::Engine::start`].
#[derive(Clone, Default)]
pub struct EngineOptions {
    pub plan: PlanChoice,
    /// Most requests that wait; further ones get [`crate::EngineError::QueueFull`]. `None`: 1024.
    pub max_queue: Option<usize>,
    /// Compute threads; `None`: as the plan says.
    pub threads: Option<u32>,
    pub pinning: Pinning,
    /// Tokens of the KV cache; `None`: as the plan says.
    pub kv_tokens: Option<u32>,
    /// Longest prompt plus output; `None`: the model's context, or the KV cache where that is smaller.
    pub max_context: Option<u32>,
    /// Most sequences that run together; `None`: as the plan says.
    pub max_sequences: Option<u32>,
    /// Most rows of one pass whose logits are computed; `None`: `max_sequences`.
    pub logit_rows: Option<u32>,
    /// Whether finished pages are kept for prompts that begin alike.
    pub prefix_cache: PrefixCache,
    pub weights: WeightMemory,
    pub verify: Verification,
    /// Instruction sets to assume; `None`: what this machine has.
    pub features: Option<BTreeSet<Feature>>,
    /// Asked about every kernel binary before it is loaded.
    pub inspector: Option<Inspector>,
}

/// Whether prompts that begin alike share computed pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PrefixCache {
    #[default]
    On,
    Off,
}

impl fmt::Debug for EngineOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineOptions")
            .field("max_queue", &self.max_queue)
            .field("threads", &self.threads)
            .field("pinning", &self.pinning)
            .field("kv_tokens", &self.kv_tokens)
            .field("max_context", &self.max_context)
            .field("max_sequences", &self.max_sequences)
            .field("logit_rows", &self.logit_rows)
            .field("prefix_cache", &self.prefix_cache)
            .field("weights", &self.weights)
            .field("verify", &self.verify)
            .field("features", &self.features)
            .finish_non_exhaustive()
    }
}
