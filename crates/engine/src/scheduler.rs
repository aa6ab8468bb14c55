//! Which rows run in the next pass: continuous batching with chunked prefill, as a state machine without clock,
//! threads or kernels.
//!
//! First come, first served. All running sequences decode in every pass; what room is left goes to prefill, oldest
//! first. A sequence gets pages for all its known tokens when it is admitted and one more whenever it grows; when
//! none is left, the youngest running sequence gives its pages up and is computed again later. So everything that
//! waits is younger than everything that runs, and the oldest always advances.
//!
//! Where prompts have passes of their own (see [`plan::Phase`]), the two kinds take turns while there are rows of both: a
//! pass of at most `prefill_chunk` prompt rows, then one row of every sequence that generates. Only pages of prompt tokens
//! are findable then: a token has other bits as part of a prompt than generated.

use crate::batch::Batch;
use crate::options::PrefixCache;
use crate::pages::{PageKey, PagePool, ROOT};
use crate::request::{FinishReason, Request, RequestId};
use plan::Phase;
use std::collections::{HashMap, VecDeque};

/// Bounds of a pass and of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// At most `max_rows` and `logit_rows`.
    pub max_sequences: u32,
    pub max_rows: u32,
    /// Whether prompts have passes of their own.
    pub separate: bool,
    /// Most prefill rows of a pass that also decodes (or that comes before one).
    pub prefill_chunk: u32,
    /// Most rows of a pass whose logits are computed.
    pub logit_rows: u32,
    /// At most `pages * block_tokens`.
    pub max_context: u32,
    pub block_tokens: u32,
    pub pages: u32,
    pub prefix_cache: PrefixCache,
}

#[derive(Debug)]
struct Sequence {
    /// Prompt and output.
    tokens: Vec<u32>,
    prompt: usize,
    /// Tokens whose keys and values lie in the cache.
    computed: usize,
    pages: Vec<u32>,
    /// Full pages that were made findable, and the key of the last.
    published: usize,
    chain: PageKey,
    max_tokens: usize,
    stops: Vec<u32>,
    /// Prompt places whose logits are still wanted, from here to the prompt's end; `None` if none are.
    prompt_logits_from: Option<usize>,
    admitted_before: bool,
}

impl Sequence {
    fn pending(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// What its next row is.
    fn phase(&self) -> Phase {
        if self.computed < self.prompt { Phase::Prefill } else { Phase::Decode }
    }

    fn wants_token(&self) -> bool {
        self.max_tokens > 0
    }
}

/// What the logits of a row are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To choose the sequence's next token.
    Next,
    /// To tell the log probability of prompt token `index`.
    Prompt { index: u32 },
}

/// A row of logits of the pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogitRow {
    pub id: RequestId,
    pub purpose: Purpose,
}

/// A sequence that left the queue in this pass for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admitted {
    pub id: RequestId,
    pub prompt_tokens: u32,
    pub cached_tokens: u32,
}

/// The last scheduled pass.
#[derive(Debug, Default)]
pub struct Pass {
    pub admitted: Vec<Admitted>,
    pub preempted: Vec<RequestId>,
    /// In the order of the batch's logit rows.
    pub logits: Vec<LogitRow>,
    /// Sequences with the number of their rows.
    chunks: Vec<(RequestId, usize)>,
}

/// Counters of the prefix cache, tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixCounters {
    pub queried: u64,
    pub hits: u64,
}

/// The scheduler's state.
#[derive(Debug)]
pub struct Scheduler {
    limits: Limits,
    pool: PagePool,
    sequences: HashMap<RequestId, Sequence>,
    /// Oldest first.
    waiting: VecDeque<RequestId>,
    /// Oldest first.
    running: Vec<RequestId>,
    pass: Pass,
    /// Phase of the last pass.
    last: Phase,
    prefix: PrefixCounters,
}

impl Scheduler {
    /// A scheduler with nothing to do. Bounds that contradict each other are tightened.
    pub fn new(mut limits: Limits) -> Self {
        limits.max_rows = limits.max_rows.max(1);
        limits.logit_rows = limits.logit_rows.clamp(1, limits.max_rows);
        limits.max_sequences = limits.max_sequences.clamp(1, limits.logit_rows);
        limits.prefill_chunk = limits.prefill_chunk.max(1);
        let tokens = u64::from(limits.pages) * u64::from(limits.block_tokens);
        limits.max_context = u64::from(limits.max_context).min(tokens) as u32;
        Self {
            limits,
            pool: PagePool::new(limits.pages, limits.block_tokens, limits.prefix_cache),
            sequences: HashMap::new(),
            waiting: VecDeque::new(),
            running: Vec::new(),
            pass: Pass::default(),
            last: Phase::default(),
            prefix: PrefixCounters::default(),
        }
    }

    /// The bounds in force.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The page book-keeping.
    pub fn pool(&self) -> &PagePool {
        &self.pool
    }

    /// Prefix counters since the start.
    pub fn prefix(&self) -> PrefixCounters {
        self.prefix
    }

    /// Sequences with rows in the passes.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Sequences in the queue.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether no sequence is left.
    pub fn is_idle(&self) -> bool {
        self.sequences.is_empty()
    }

    /// The pass of the last [`Self::schedule`].
    pub fn pass(&self) -> &Pass {
        &self.pass
    }

    /// Queues a request.
    ///
    /// # Errors
    /// Why it can never run: the prompt is empty or beyond the context, or the id is in use.
    pub fn submit(&mut self, request: &Request) -> Result<(), String> {
        let room = request.prompt.len() + usize::from(request.max_tokens > 0);
        if request.prompt.is_empty() {
            return Err("the prompt is empty".into());
        }
        if room > self.limits.max_context as usize {
            let context = self.limits.max_context;
            return Err(format!("{room} tokens exceed the context of {context}"));
        }
        if self.sequences.contains_key(&request.id) {
            return Err("its id is in use".into());
        }
        let longest =
            (request.prompt.len() + request.max_tokens as usize).min(self.limits.max_context as usize);
        // Once, so that the decode path does not allocate.
        let mut tokens = Vec::with_capacity(longest);
        tokens.extend_from_slice(&request.prompt);
        let mut stops = request.stop_tokens.clone();
        if !request.ignore_eos {
            stops.extend_from_slice(&request.eos_tokens);
        }
        self.sequences.insert(
            request.id,
            Sequence {
                prompt: tokens.len(),
                tokens,
                computed: 0,
                pages: Vec::with_capacity(longest.div_ceil(self.pool.block_tokens())),
                published: 0,
                chain: ROOT,
                max_tokens: request.max_tokens as usize,
                stops,
                prompt_logits_from: request.prompt_logprobs.map(|_| 0),
                admitted_before: false,
            },
        );
        self.waiting.push_back(request.id);
        Ok(())
    }

    /// Drops a sequence at once. False if there is none of this id.
    pub fn cancel(&mut self, id: RequestId) -> bool {
        let known = self.sequences.contains_key(&id);
        if known {
            self.remove(id);
        }
        known
    }

    /// Fills `batch` with the rows of the next pass; returns whether there are any. [`Self::commit`] follows when
    /// the pass has run.
    pub fn schedule(&mut self, batch: &mut Batch) -> bool {
        self.pass.admitted.clear();
        self.pass.preempted.clear();
        self.pass.logits.clear();
        self.pass.chunks.clear();
        // One logit row is kept for each sequence that this pass may hold; prompt logits take the others.
        let together = (self.running.len() + self.waiting.len()).min(self.limits.max_sequences as usize);
        let mut spare_logits = self.limits.logit_rows as usize - together;
        if !self.limits.separate {
            batch.begin(Phase::Decode);
            self.add_decode_rows(batch);
            let decode_rows = batch.rows();
            let mut budget = self.limits.max_rows as usize - decode_rows;
            if decode_rows > 0 {
                budget = budget.min(self.limits.prefill_chunk as usize);
            }
            self.add_pending(None, &mut budget, &mut spare_logits, batch);
            self.admit(budget, &mut spare_logits, batch);
            return batch.rows() > 0;
        }
        let generates = |s: &Sequence| s.phase() == Phase::Decode;
        let decodes = self.running.iter().any(|id| self.sequences.get(id).is_some_and(generates));
        // Turns are taken; where one kind has no rows (those that generate may all have lost their pages), the other runs.
        let turn = if decodes && self.last == Phase::Prefill { Phase::Decode } else { Phase::Prefill };
        let other = if turn == Phase::Decode { Phase::Prefill } else { Phase::Decode };
        for phase in [turn, other] {
            batch.begin(phase);
            if phase == Phase::Prefill {
                let most = if decodes { self.limits.prefill_chunk } else { self.limits.max_rows };
                let mut budget = most.min(self.limits.max_rows) as usize;
                self.add_pending(Some(phase), &mut budget, &mut spare_logits, batch);
                self.admit(budget, &mut spare_logits, batch);
            } else {
                self.add_decode_rows(batch);
                // Generated tokens of sequences that lost their pages are computed again as what they are.
                let mut budget = self.limits.max_sequences as usize - batch.rows();
                self.add_pending(Some(phase), &mut budget, &mut spare_logits, batch);
            }
            if batch.rows() > 0 {
                self.last = phase;
                return true;
            }
        }
        false
    }

    /// Rows of running sequences that lack more than their last token (or, where a phase is named, of those in it: all rows of
    /// prompts, and generated tokens but for the last), oldest first.
    fn add_pending(
        &mut self,
        phase: Option<Phase>,
        budget: &mut usize,
        spare_logits: &mut usize,
        batch: &mut Batch,
    ) {
        for place in 0..self.running.len() {
            let id = self.running[place];
            let lacks = |s: &Sequence| match phase {
                None | Some(Phase::Decode) => s.pending() > 1 && phase.is_none_or(|p| p == s.phase()),
                Some(Phase::Prefill) => s.phase() == Phase::Prefill,
            };
            if *budget > 0 && self.sequences.get(&id).is_some_and(lacks) {
                *budget -= self.add_rows(id, *budget, spare_logits, batch);
            }
        }
    }

    /// Admits waiting sequences, oldest first, while there is room for their rows.
    fn admit(&mut self, mut budget: usize, spare_logits: &mut usize, batch: &mut Batch) {
        while budget > 0
            && self.pass.preempted.is_empty()
            && self.running.len() < self.limits.max_sequences as usize
        {
            let Some(id) = self.admit_next() else { break };
            // All of its prompt may be cached, if it was admitted before.
            let ready = self.sequences.get(&id).is_some_and(|s| s.phase() == Phase::Decode);
            if !(self.limits.separate && ready) {
                budget -= self.add_rows(id, budget, spare_logits, batch);
            }
        }
    }

    /// One row for each sequence that only lacks its last token, oldest first.
    fn add_decode_rows(&mut self, batch: &mut Batch) {
        let mut none_spare = 0;
        let mut place = 0;
        while place < self.running.len() {
            let id = self.running[place];
            let separate = self.limits.separate;
            let last = |s: &Sequence| s.pending() == 1 && !(separate && s.phase() == Phase::Prefill);
            if !self.sequences.get(&id).is_some_and(last) {
                place += 1;
                continue;
            }
            if self.grow(id) {
                self.add_rows(id, 1, &mut none_spare, batch);
                place += 1;
            }
            // Else `id` itself was the youngest and is gone from `running`.
        }
    }

    /// Gives `id` a page for its next token if it needs one, at the cost of younger sequences. False if it was itself
    /// the youngest and had to go.
    fn grow(&mut self, id: RequestId) -> bool {
        let block_tokens = self.pool.block_tokens();
        loop {
            let Some(sequence) = self.sequences.get_mut(&id) else { return false };
            if sequence.computed < sequence.pages.len() * block_tokens {
                return true;
            }
            if let Some(page) = self.pool.allocate() {
                sequence.pages.push(page);
                return true;
            }
            // The youngest runs last, so it has no rows in this pass yet.
            let Some(youngest) = self.running.pop() else { return false };
            self.release_pages(youngest);
            self.waiting.push_front(youngest);
            self.pass.preempted.push(youngest);
            if youngest == id {
                return false;
            }
        }
    }

    /// Moves the oldest waiting sequence to the running ones if its pages can be had.
    fn admit_next(&mut self) -> Option<RequestId> {
        let id = *self.waiting.front()?;
        let block_tokens = self.pool.block_tokens();
        let sequence = self.sequences.get_mut(&id)?;
        let whole = sequence.tokens.len().div_ceil(block_tokens);
        if sequence.prompt_logits_from.is_none() {
            // At least one row must run, to give logits.
            let mut findable = &sequence.tokens[..sequence.tokens.len() - 1];
            if self.limits.separate {
                findable = &findable[..findable.len().min(sequence.prompt)];
            }
            sequence.chain = self.pool.acquire_prefix(findable, &mut sequence.pages);
            sequence.published = sequence.pages.len();
            sequence.computed = sequence.pages.len() * block_tokens;
        }
        // A page in reserve for each running sequence, so that admission does not cause preemption at once.
        let reserve = self.running.len();
        if self.pool.available() < whole - sequence.pages.len() + reserve {
            self.release_pages(id);
            return None;
        }
        while sequence.pages.len() < whole {
            sequence.pages.push(self.pool.allocate()?);
        }
        if !sequence.admitted_before {
            sequence.admitted_before = true;
            self.prefix.queried += sequence.tokens.len() as u64;
            self.prefix.hits += sequence.computed as u64;
            self.pass.admitted.push(Admitted {
                id,
                prompt_tokens: sequence.prompt as u32,
                cached_tokens: sequence.computed as u32,
            });
        }
        self.waiting.pop_front();
        self.running.push(id);
        Some(id)
    }

    /// Adds up to `budget` pending rows of a running sequence; returns how many.
    fn add_rows(
        &mut self,
        id: RequestId,
        budget: usize,
        spare_logits: &mut usize,
        batch: &mut Batch,
    ) -> usize {
        let Some(sequence) = self.sequences.get(&id) else { return 0 };
        let start = sequence.computed;
        let mut rows = sequence.pending().min(budget);
        if self.limits.separate && sequence.phase() == Phase::Prefill {
            rows = rows.min(sequence.prompt - start);
        }
        // Every sequence has one logit row of its own; prompt logits beyond it come from the spare ones.
        let prompt_from = sequence.prompt_logits_from.filter(|from| *from < sequence.prompt);
        if let Some(from) = prompt_from {
            let silent = from.saturating_sub(start);
            let wanted = rows.saturating_sub(silent);
            let granted = wanted.min(1 + *spare_logits);
            rows = silent.min(rows) + granted;
            *spare_logits -= granted.saturating_sub(1);
        }
        batch.begin_sequence(&sequence.pages);
        for position in start..start + rows {
            let row = batch.push(sequence.tokens[position], position as u32);
            let purpose = if position + 1 == sequence.tokens.len() {
                sequence.wants_token().then_some(Purpose::Next)
            } else if position + 1 < sequence.prompt && prompt_from.is_some_and(|f| position >= f) {
                Some(Purpose::Prompt { index: position as u32 + 1 })
            } else {
                None
            };
            if let Some(purpose) = purpose {
                batch.want_logits(row);
                self.pass.logits.push(LogitRow { id, purpose });
            }
        }
        self.pass.chunks.push((id, rows));
        rows
    }

    /// Takes note that the scheduled pass has run. Sequences that only wanted their prompt evaluated are finished:
    /// their ids are appended to `finished`.
    pub fn commit(&mut self, finished: &mut Vec<RequestId>) {
        let chunks = std::mem::take(&mut self.pass.chunks);
        for (id, rows) in &chunks {
            let Some(sequence) = self.sequences.get_mut(id) else { continue };
            sequence.computed += rows;
            if let Some(from) = &mut sequence.prompt_logits_from {
                *from = (*from).max(sequence.computed);
            }
            let block_tokens = self.pool.block_tokens();
            let findable =
                if self.limits.separate { sequence.computed.min(sequence.prompt) } else { sequence.computed };
            while (sequence.published + 1) * block_tokens <= findable {
                let start = sequence.published * block_tokens;
                let tokens = &sequence.tokens[start..start + block_tokens];
                let page = sequence.pages[sequence.published];
                sequence.chain = self.pool.publish(page, &sequence.chain, tokens);
                sequence.published += 1;
            }
            if sequence.pending() == 0 && !sequence.wants_token() {
                finished.push(*id);
                self.remove(*id);
            }
        }
        self.pass.chunks = chunks;
    }

    /// Appends the chosen token to a sequence; `Some` if that ended it (its pages are free then).
    pub fn append(&mut self, id: RequestId, token: u32) -> Option<FinishReason> {
        let sequence = self.sequences.get_mut(&id)?;
        sequence.tokens.push(token);
        let generated = sequence.tokens.len() - sequence.prompt;
        let reason = if sequence.stops.contains(&token) {
            FinishReason::Stop { token }
        } else if generated >= sequence.max_tokens
            || sequence.tokens.len() >= self.limits.max_context as usize
        {
            FinishReason::Length
        } else {
            return None;
        };
        self.remove(id);
        Some(reason)
    }

    /// Length of a sequence, prompt and output; 0 for an unknown one.
    pub fn length(&self, id: RequestId) -> usize {
        self.sequences.get(&id).map_or(0, |s| s.tokens.len())
    }

    /// Token `index` of a sequence.
    pub fn token(&self, id: RequestId, index: usize) -> Option<u32> {
        self.sequences.get(&id)?.tokens.get(index).copied()
    }

    fn remove(&mut self, id: RequestId) {
        self.release_pages(id);
        self.sequences.remove(&id);
        self.running.retain(|r| *r != id);
        self.waiting.retain(|w| *w != id);
    }

    fn release_pages(&mut self, id: RequestId) {
        if let Some(sequence) = self.sequences.get_mut(&id) {
            while let Some(page) = sequence.pages.pop() {
                self.pool.release(page);
            }
            sequence.computed = 0;
            sequence.published = 0;
            sequence.chain = ROOT;
        }
    }

    /// Checks the invariants of queues and pages. For tests.
    ///
    /// # Errors
    /// The first that does not hold, in words.
    pub fn check(&self) -> Result<(), String> {
        let mut users = Vec::new();
        for (id, sequence) in &self.sequences {
            users.extend_from_slice(&sequence.pages);
            let (waits, runs) = (self.waiting.contains(id), self.running.contains(id));
            if waits == runs {
                return Err(format!("request {id} waits: {waits}, runs: {runs}"));
            }
            if waits && !sequence.pages.is_empty() {
                return Err(format!("request {id} waits with pages"));
            }
            if sequence.computed > sequence.pages.len() * self.pool.block_tokens() {
                return Err(format!("request {id} has more tokens than pages"));
            }
        }
        if self.waiting.len() + self.running.len() != self.sequences.len() {
            return Err("a queue names a request twice or one that is gone".into());
        }
        self.pool.check(&users)
    }
}
