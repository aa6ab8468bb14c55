//! Entries as stored: position, chain, content.

use evidence::{Content, Digest, Entry};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Position of an entry, from 1; 0 is before the first. Given under the write lock, without gaps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Position(pub u64);

impl Position {
    /// Before the first entry.
    pub const START: Position = Position(0);
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The last entry's position and chain digest: signs everything before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    pub position: Position,
    pub chain: Digest,
}

impl Head {
    /// The head of an empty ledger.
    pub const EMPTY: Head = Head { position: Position::START, chain: Digest::ZERO };
}

/// One stored entry.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    pub position: Position,
    /// Wall-clock time of the append, milliseconds since 1970; for people, outside the chain.
    pub recorded_ms: u64,
    /// Chain digest of the entry before.
    pub previous: Digest,
    /// `BLAKE3(previous chain digest || canonical bytes)`.
    pub chain: Digest,
    /// Digest of the value inside (task, candidate, evidence or decision).
    pub content: Digest,
    pub entry: Entry,
}

/// Result of an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Appended {
    New(Position),
    /// It was there before.
    Known(Position),
}

impl Appended {
    pub fn position(self) -> Position {
        match self {
            Appended::New(p) | Appended::Known(p) => p,
        }
    }
}

/// Result of a full check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Entries that were found intact, from the first.
    pub intact: u64,
    /// Head of the intact part.
    pub head: Head,
    /// The first damaged position and what is wrong there.
    pub damage: Option<(Position, String)>,
}

/// The chain digest of an entry with canonical bytes `body`.
pub(crate) fn chain(previous: Digest, body: &[u8]) -> Digest {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&previous.0);
    hasher.update(body);
    Digest(*hasher.finalize().as_bytes())
}

/// Columns of a row, before they are believed.
pub(crate) struct Stored {
    pub position: u64,
    pub recorded_ms: u64,
    pub kind: String,
    pub content: String,
    pub previous: String,
    pub chain: String,
    pub body: String,
}

impl Stored {
    /// Verifies every digest of the row; the text says what is wrong.
    pub fn verify(self) -> Result<Record, String> {
        let digest =
            |name: &str, text: &str| text.parse::<Digest>().map_err(|e| format!("column {name}: {e}"));
        let previous = digest("previous", &self.previous)?;
        let stored_chain = digest("chain", &self.chain)?;
        let content = digest("content", &self.content)?;
        if chain(previous, self.body.as_bytes()) != stored_chain {
            return Err("the chain digest does not belong to the entry".to_owned());
        }
        let entry: Entry =
            serde_json::from_str(&self.body).map_err(|e| format!("the entry cannot be read: {e}"))?;
        if entry.canonical() != self.body.as_bytes() {
            return Err("the entry is not in canonical form".to_owned());
        }
        if entry.kind() != self.kind {
            return Err(format!("column kind says {}, the entry is {}", self.kind, entry.kind()));
        }
        if entry.content() != content {
            return Err("the content digest does not belong to the entry".to_owned());
        }
        Ok(Record {
            position: Position(self.position),
            recorded_ms: self.recorded_ms,
            previous,
            chain: stored_chain,
            content,
            entry,
        })
    }
}
