//! Fixed passes for the factory: timing a decode or prefill step, and logits of whole texts for quality checks.

use crate::error::EngineError;
use crate::executor::Executor;
use plan::Phase;
use std::time::{Duration, Instant};

/// A pass with made-up tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replay {
    /// One row for each of `sequences` sequences, each at position `context - 1`.
    Decode { sequences: u32, context: u32 },
    /// `rows` rows of one sequence from position `start` on, logits of the last.
    Prefill { rows: u32, start: u32 },
}

impl Executor {
    /// Runs a made-up pass `passes` times and returns the time of each. The cache holds what earlier passes left.
    ///
    /// # Errors
    /// `Batch` if the pass does not fit the executor's sizes.
    pub fn replay(&mut self, replay: Replay, passes: u32) -> Result<Vec<Duration>, EngineError> {
        let sizes = *self.sizes();
        let vocab = self.plan().model.vocab;
        // Spread over the vocabulary (a multiplier without common factor with usual sizes).
        let token = |index: u32| index.wrapping_mul(7919).wrapping_add(17) % vocab;
        let mut batch = self.new_batch();
        let mut next_page = 0u32;
        let mut begin = |batch: &mut crate::Batch, tokens: u32| {
            let pages: Vec<u32> =
                (next_page..next_page.saturating_add(tokens.div_ceil(sizes.block_tokens))).collect();
            next_page += pages.len() as u32;
            batch.begin_sequence(&pages);
        };
        match replay {
            Replay::Decode { sequences, context } => {
                if context == 0 || context > sizes.max_context {
                    return Err(EngineError::Batch(format!("a context of {context} tokens")));
                }
                batch.begin(Phase::Decode);
                for sequence in 0..sequences.min(sizes.max_rows + 1) {
                    begin(&mut batch, context);
                    let row = batch.push(token(sequence), context - 1);
                    batch.want_logits(row);
                }
            }
            Replay::Prefill { rows, start } => {
                let end = start.saturating_add(rows);
                if rows == 0 || end > sizes.max_context {
                    return Err(EngineError::Batch(format!("positions {start} to {end}")));
                }
                batch.begin(Phase::Prefill);
                begin(&mut batch, end);
                for position in start..end {
                    batch.push(token(position), position);
                }
                batch.want_logits(rows - 1);
            }
        }
        let mut times = Vec::with_capacity(passes as usize);
        for _ in 0..passes {
            let begin = Instant::now();
            self.forward(&batch)?;
            times.push(begin.elapsed());
        }
        Ok(times)
    }

    /// Evaluates a text from its start, all of it as tokens of this phase, and hands `(position, logits)` of the tokens from
    /// position `from` on to `visit`, in order. Passes with logits have at most `chunk` rows. Overwrites the cache.
    ///
    /// # Errors
    /// `Batch` if the text is empty, longer than the context, or has a token beyond the vocabulary.
    pub fn logits_for(
        &mut self,
        phase: Phase,
        tokens: &[u32],
        from: usize,
        chunk: u32,
        visit: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), EngineError> {
        let sizes = *self.sizes();
        if tokens.is_empty() || tokens.len() > sizes.max_context as usize {
            let problem = format!("a text of {} tokens, not 1 to {}", tokens.len(), sizes.max_context);
            return Err(EngineError::Batch(problem));
        }
        let vocab = self.plan().model.vocab as usize;
        let most = sizes.rows_of(phase);
        let chunk = chunk.clamp(1, most.min(sizes.logit_rows)) as usize;
        let pages: Vec<u32> = (0..sizes.max_blocks).collect();
        let mut batch = self.new_batch();
        let (before, scored) = tokens.split_at(from.min(tokens.len()));
        let silent = before.chunks(most as usize).map(|part| (part, false));
        let mut start = 0;
        for (part, wanted) in silent.chain(scored.chunks(chunk).map(|part| (part, true))) {
            batch.begin(phase);
            batch.begin_sequence(&pages);
            for (offset, token) in part.iter().enumerate() {
                let row = batch.push(*token, (start + offset) as u32);
                if wanted {
                    batch.want_logits(row);
                }
            }
            let logits = self.forward(&batch)?;
            for (offset, row) in logits.chunks_exact(vocab).enumerate() {
                visit(start + offset, row);
            }
            start += part.len();
        }
        Ok(())
    }
}
