//! What the plan and the options make of each other: threads, rows, pages.

use crate::error::EngineError;
use crate::options::{EngineOptions, PrefixCache};
use crate::scheduler::Limits;
use plan::{Phase, Plan};

/// Sizes of a running executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    pub threads: u32,
    /// Most rows of a pass.
    pub max_rows: u32,
    /// Whether prompts have passes of their own; then passes over generated tokens have at most `max_sequences` rows.
    pub separate: bool,
    pub max_sequences: u32,
    /// Most rows of a pass whose logits are computed.
    pub logit_rows: u32,
    pub block_tokens: u32,
    pub pages: u32,
    /// Longest prompt plus output; at most `pages * block_tokens`.
    pub max_context: u32,
    /// Entries of a block table.
    pub max_blocks: u32,
    pub prefill_chunk: u32,
}

impl Sizes {
    /// Sizes for a plan under options.
    ///
    /// # Errors
    /// `Plan` or `Option` where a bound is 0 or cannot be.
    pub fn new(plan: &Plan, options: &EngineOptions) -> Result<Self, EngineError> {
        let batching = &plan.batching;
        let positive = |value: u32, place: &str| {
            if value > 0 {
                return Ok(value);
            }
            Err(EngineError::Plan { plan: plan.name.clone(), place: place.into(), problem: "is 0".into() })
        };
        let option = |value: Option<u32>, name: &'static str, planned: u32| match value {
            Some(0) => Err(EngineError::Option { option: name, problem: "is 0".into() }),
            Some(value) => Ok(value),
            None => Ok(planned),
        };
        let threads = option(options.threads, "threads", plan.target.threads)?;
        let max_rows = positive(batching.max_rows, "batching.max_rows")?;
        let max_sequences = option(options.max_sequences, "max_sequences", batching.max_sequences)?;
        let max_sequences = positive(max_sequences, "batching.max_sequences")?.min(max_rows);
        let logit_rows = option(options.logit_rows, "logit_rows", max_sequences)?.min(max_rows);
        let block_tokens = positive(plan.kv.block_tokens, "kv.block_tokens")?;
        let kv_tokens = option(options.kv_tokens, "kv_tokens", batching.kv_tokens)?;
        let pages = kv_tokens / block_tokens;
        if pages == 0 {
            return Err(EngineError::Option {
                option: "kv_tokens",
                problem: format!("{kv_tokens} tokens are less than a page of {block_tokens}"),
            });
        }
        // Slots are u32.
        if u64::from(pages) * u64::from(block_tokens) > u64::from(u32::MAX) {
            return Err(EngineError::Option {
                option: "kv_tokens",
                problem: format!("{kv_tokens} tokens do not fit 32-bit slots"),
            });
        }
        let possible = plan.model.context.min(pages * block_tokens);
        let max_context = option(options.max_context, "max_context", possible)?;
        let max_context = positive(max_context, "model.context")?;
        if max_context > possible {
            return Err(EngineError::Option {
                option: "max_context",
                problem: format!(
                    "{max_context} tokens exceed the model's context of {} or the KV cache of {} tokens",
                    plan.model.context,
                    pages * block_tokens
                ),
            });
        }
        Ok(Self {
            threads: positive(threads, "target.threads")?,
            max_rows,
            separate: plan.separates_prefill(),
            max_sequences: max_sequences.min(logit_rows),
            logit_rows,
            block_tokens,
            pages,
            max_context,
            max_blocks: max_context.div_ceil(block_tokens),
            prefill_chunk: batching.prefill_chunk.max(1),
        })
    }

    /// Most rows of a pass of this phase.
    pub fn rows_of(&self, phase: Phase) -> u32 {
        if self.separate && phase == Phase::Decode { self.max_sequences } else { self.max_rows }
    }

    /// The scheduler's bounds.
    pub fn limits(&self, prefix_cache: PrefixCache) -> Limits {
        Limits {
            max_sequences: self.max_sequences,
            max_rows: self.max_rows,
            separate: self.separate,
            prefill_chunk: self.prefill_chunk,
            logit_rows: self.logit_rows,
            max_context: self.max_context,
            block_tokens: self.block_tokens,
            pages: self.pages,
            prefix_cache,
        }
    }
}
