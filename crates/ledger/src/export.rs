//! The ledger as JSON lines.

use crate::Ledger;
use crate::error::LedgerError;
use crate::record::Position;
use serde::Serialize;
use std::io::Write;

/// Entries that are read at once.
pub(crate) const PAGE: u32 = 500;

#[derive(Serialize)]
struct Line<'a> {
    position: u64,
    recorded_ms: u64,
    content: evidence::Digest,
    chain: evidence::Digest,
    #[serde(flatten)]
    entry: &'a evidence::Entry,
}

/// Writes one JSON object a line for each entry after `after`, with its position and digests. Returns the count.
pub fn export(ledger: &dyn Ledger, after: Position, out: &mut dyn Write) -> Result<u64, LedgerError> {
    let (mut last, mut count) = (after, 0);
    loop {
        let page = ledger.entries(last, PAGE)?;
        let Some(end) = page.last() else { break };
        last = end.position;
        for r in &page {
            let line = Line {
                position: r.position.0,
                recorded_ms: r.recorded_ms,
                content: r.content,
                chain: r.chain,
                entry: &r.entry,
            };
            serde_json::to_writer(&mut *out, &line).map_err(|e| LedgerError::Export(e.into()))?;
            out.write_all(b"\n").map_err(LedgerError::Export)?;
            count += 1;
        }
    }
    out.flush().map_err(LedgerError::Export)?;
    Ok(count)
}
