//! Ragged batches over a paged cache: which rows belong to which sequence, where their tokens lie.

use super::pattern::Draw;
use std::collections::BTreeSet;

/// Which rows share a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Batch {
    /// Every row is the newest token of its own sequence; lengths differ, up to `context` tokens, page edges included.
    Decode { context: u32 },
    /// Every row is the newest token of its own sequence of exactly `context` tokens.
    DecodeAt { context: u32 },
    /// All rows are consecutive tokens of one sequence that has `past` tokens already.
    Prefill { past: u32 },
    /// Decode rows and prefill chunks of several sequences, up to `context` tokens each.
    Mixed { context: u32 },
}

impl Batch {
    /// A context of no tokens is one of one token: the row itself.
    fn at_least_one_token(self) -> Self {
        match self {
            Batch::Decode { context } => Batch::Decode { context: context.max(1) },
            Batch::DecodeAt { context } => Batch::DecodeAt { context: context.max(1) },
            Batch::Mixed { context } => Batch::Mixed { context: context.max(1) },
            Batch::Prefill { .. } => self,
        }
    }
}

/// One call's rows and tables.
pub(super) struct Sequences {
    /// By row.
    pub positions: Vec<u32>,
    /// By row: row of the block tables.
    pub row_sequence: Vec<u32>,
    /// By row: where its key and value are stored.
    pub slots: Vec<u32>,
    /// `[sequences][max_blocks]`.
    pub tables: Vec<u32>,
    pub max_blocks: u32,
    pub pages: u32,
    /// Slots of all tokens that some row may see, new ones included.
    pub live: Vec<u32>,
}

/// Rows of one sequence in the call.
struct Part {
    past: u32,
    rows: u32,
}

/// Draws the sequences of `rows` rows.
pub(super) fn sequences(draw: &mut Draw, batch: Batch, rows: u32, block_tokens: u32) -> Sequences {
    let parts = parts(draw, batch.at_least_one_token(), rows, block_tokens);
    let longest = parts.iter().map(|p| p.past + p.rows).max().unwrap_or(1);
    let max_blocks = longest.div_ceil(block_tokens) + draw.below(3) as u32;
    let needed: u32 = parts.iter().map(|p| (p.past + p.rows).div_ceil(block_tokens)).sum();
    let pages = needed + 1 + draw.below(3) as u32;
    let mut free: Vec<u32> = (0..pages).collect();
    draw.shuffle(&mut free);
    // Some tables have no rows in this call.
    let count = parts.len() + draw.below(3);
    let mut names: Vec<u32> = (0..count as u32).collect();
    draw.shuffle(&mut names);
    // Entries past the end of a sequence mean nothing: stale pages or no page at all.
    let stale = draw.coin();
    let mut tables: Vec<u32> = (0..count as u32 * max_blocks)
        .map(|_| if stale { draw.below(pages as usize) as u32 } else { u32::MAX })
        .collect();
    let mut out = Sequences {
        positions: vec![],
        row_sequence: vec![],
        slots: vec![],
        tables: vec![],
        max_blocks,
        pages,
        live: vec![],
    };
    for (part, name) in parts.iter().zip(&names) {
        let end = part.past + part.rows;
        let blocks = end.div_ceil(block_tokens) as usize;
        let table = &mut tables[(name * max_blocks) as usize..][..blocks];
        table.iter_mut().for_each(|entry| *entry = free.pop().unwrap_or(0));
        let slot = |t: u32| table[(t / block_tokens) as usize] * block_tokens + t % block_tokens;
        out.live.extend((0..end).map(slot));
        for t in part.past..end {
            out.positions.push(t);
            out.row_sequence.push(*name);
            out.slots.push(slot(t));
        }
    }
    out.tables = tables;
    out
}

fn parts(draw: &mut Draw, batch: Batch, rows: u32, block_tokens: u32) -> Vec<Part> {
    match batch {
        Batch::DecodeAt { context } => (0..rows).map(|_| Part { past: context - 1, rows: 1 }).collect(),
        Batch::Prefill { past } => vec![Part { past, rows }],
        Batch::Decode { context } => {
            let mut edges = edges(context, block_tokens);
            draw.shuffle(&mut edges);
            let mut past = |i: u32| {
                edges.get(i as usize).copied().unwrap_or_else(|| draw.below(context as usize) as u32)
            };
            (0..rows).map(|i| Part { past: past(i), rows: 1 }).collect()
        }
        Batch::Mixed { context } => {
            let mut parts = Vec::new();
            let mut left = rows;
            let edges = edges(context, block_tokens);
            while left > 0 {
                let chunk = if draw.coin() { 1 } else { 1 + draw.below(left.min(context) as usize) as u32 };
                let room = context.saturating_sub(chunk);
                let edge = edges[draw.below(edges.len())];
                let past = if draw.coin() { edge.min(room) } else { draw.below(room as usize + 1) as u32 };
                parts.push(Part { past, rows: chunk });
                left -= chunk;
            }
            parts
        }
    }
}

/// Positions at the edges: the first token, both sides of page boundaries, the end of the context.
fn edges(context: u32, block_tokens: u32) -> Vec<u32> {
    let last_page = (context / block_tokens) * block_tokens;
    let all = [
        0,
        1,
        block_tokens - 1,
        block_tokens,
        block_tokens + 1,
        2 * block_tokens - 1,
        last_page.saturating_sub(1),
        last_page,
        context.saturating_sub(1),
    ];
    all.into_iter().filter(|p| *p < context).collect::<BTreeSet<u32>>().into_iter().collect()
}
