//! The rows of one forward pass. Filled anew for every pass, without allocating once it has grown.

use plan::Phase;

/// Rows (tokens) of one pass with the block tables of their sequences.
///
/// Rows of one sequence are adjacent and ascending in position.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    pub(crate) tokens: Vec<u32>,
    pub(crate) positions: Vec<u32>,
    pub(crate) slots: Vec<u32>,
    pub(crate) sequence_of_row: Vec<u32>,
    /// `[sequences][max_blocks]`, unused entries 0.
    pub(crate) tables: Vec<u32>,
    pub(crate) logit_rows: Vec<u32>,
    phase: Phase,
    max_blocks: usize,
    block_tokens: u32,
}

impl Batch {
    /// An empty batch whose block tables have `max_blocks` entries of `block_tokens` tokens.
    pub fn new(max_blocks: u32, block_tokens: u32) -> Self {
        Self { max_blocks: max_blocks as usize, block_tokens: block_tokens.max(1), ..Self::default() }
    }

    /// Forgets all rows and sequences; the next ones are of this phase.
    pub fn begin(&mut self, phase: Phase) {
        self.phase = phase;
        self.tokens.clear();
        self.positions.clear();
        self.slots.clear();
        self.sequence_of_row.clear();
        self.tables.clear();
        self.logit_rows.clear();
    }

    /// Begins a sequence whose tokens lie in `pages`; the following rows belong to it. Pages beyond the table's
    /// length are left out (no row can lie there: the executor checks positions).
    pub fn begin_sequence(&mut self, pages: &[u32]) {
        let start = self.tables.len();
        self.tables.resize(start + self.max_blocks, 0);
        let used = pages.len().min(self.max_blocks);
        self.tables[start..start + used].copy_from_slice(&pages[..used]);
    }

    /// Adds a row to the current sequence and returns its index. Its slot follows from the sequence's pages.
    pub fn push(&mut self, token: u32, position: u32) -> u32 {
        let row = self.tokens.len() as u32;
        let sequence = self.sequences().saturating_sub(1);
        let block = (position / self.block_tokens) as usize;
        let page = self.tables.get(sequence * self.max_blocks + block).copied().unwrap_or(u32::MAX);
        self.tokens.push(token);
        self.positions.push(position);
        // An impossible slot for a position without a page: the executor refuses it.
        let slot = u64::from(page) * u64::from(self.block_tokens) + u64::from(position % self.block_tokens);
        self.slots.push(u32::try_from(slot).unwrap_or(u32::MAX));
        self.sequence_of_row.push(sequence as u32);
        row
    }

    /// Asks for the logits of a row; rows are asked for in ascending order.
    pub fn want_logits(&mut self, row: u32) {
        self.logit_rows.push(row);
    }

    /// What its rows are, for plans that tell prompts apart.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Rows so far.
    pub fn rows(&self) -> usize {
        self.tokens.len()
    }

    /// Rows whose logits are wanted.
    pub fn logit_rows(&self) -> &[u32] {
        &self.logit_rows
    }

    /// Sequences so far.
    pub fn sequences(&self) -> usize {
        self.tables.len().checked_div(self.max_blocks).unwrap_or(0)
    }

    /// Entries of each block table.
    pub fn max_blocks(&self) -> usize {
        self.max_blocks
    }
}
