//! Why the ledger refused or failed.

use evidence::{Candidate, Digest, Id, Task};
use std::path::PathBuf;
use thiserror::Error;

/// Errors of the ledger. Unless the text says otherwise nothing was recorded.
#[derive(Debug, Error)]
pub enum LedgerError {
    #[error("the champion of task {} moved: the decision expected {}, it is {}", task.short(), name(expected), name(found))]
    ChampionMoved { task: Id<Task>, expected: Option<Id<Candidate>>, found: Option<Id<Candidate>> },
    #[error("a {kind} refers to {what} {}, which is not in the ledger: append it first", digest.short())]
    Dangling { kind: &'static str, what: &'static str, digest: Digest },
    #[error("promotion of {} reads no measured confirmation of it: only confirm evidence promotes", challenger.short())]
    Unconfirmed { challenger: Id<Candidate> },
    #[error("a {kind} does not survive its encoding (a number that is not finite?): it cannot be recorded")]
    NotEncodable { kind: &'static str },
    #[error("'{prefix}' is no digest prefix: 4 to 64 lower-case hex digits are expected")]
    BadPrefix { prefix: String },
    #[error("nothing in the ledger begins with '{prefix}'")]
    Unknown { prefix: String },
    #[error("'{prefix}' is ambiguous: {matches:?} and perhaps more begin with it")]
    Ambiguous { prefix: String, matches: Vec<String> },
    #[error(
        "{path}: damaged at position {position}: {what}; restore the file from a copy, or keep what `wright ledger export` still reads"
    )]
    Damaged { path: PathBuf, position: u64, what: String },
    #[error("{path}: not a ledger ({what}); name another path")]
    NotALedger { path: PathBuf, what: String },
    #[error("{path}: written by a newer version (schema {found}, this one knows {supported}): update wright")]
    Newer { path: PathBuf, found: i64, supported: i64 },
    #[error("{path}: another process holds the write lock for longer than {waited_ms} ms; try again")]
    Locked { path: PathBuf, waited_ms: u128 },
    #[error(
        "{path}: no answer within {waited_ms} ms; whether the last entry was recorded is unknown, read the head again"
    )]
    Unresponsive { path: PathBuf, waited_ms: u128 },
    #[error("{path}: the disk (or the size limit) is full; free space and run the same command again")]
    Full { path: PathBuf },
    #[error("{path}: opened for reading only, or the file or folder cannot be written")]
    ReadOnly { path: PathBuf },
    #[error("{path}: there is no ledger; `wright build` makes one")]
    Missing { path: PathBuf },
    #[error("{path}: cannot be opened: check that the folder exists and may be read and written")]
    CannotOpen {
        path: PathBuf,
        #[source]
        source: sqlx::Error,
    },
    #[error("{path}: input or output failed")]
    Storage {
        path: PathBuf,
        #[source]
        source: sqlx::Error,
    },
    #[error("{path}: {doing}")]
    File {
        path: PathBuf,
        doing: &'static str,
        #[source]
        source: std::io::Error,
    },
    #[error("{path}: artifact {} is not there", digest.short())]
    NoArtifact { path: PathBuf, digest: Digest },
    #[error("{path}: artifact is damaged: its content has digest {}", found.short())]
    DamagedArtifact { path: PathBuf, found: Digest },
    #[error("'{url}': {what}; use sqlite:PATH or a plain path")]
    Url { url: String, what: &'static str },
    #[error(
        "there is no data folder: neither XDG_DATA_HOME nor HOME is an absolute path; name a ledger with --ledger PATH"
    )]
    NoDataFolder,
    #[error("the thread of the ledger at {path} is gone; open it again")]
    Gone { path: PathBuf },
    #[error("build {id} is not in the ledger: open it first")]
    NoBuild { id: String },
    #[error("writing the export failed")]
    Export(#[source] std::io::Error),
}

fn name(candidate: &Option<Id<Candidate>>) -> String {
    candidate.map_or_else(|| "none".to_owned(), |c| c.short())
}
