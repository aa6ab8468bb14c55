//! The ledger in one SQLite file: WAL, `synchronous=FULL`, writers under `BEGIN IMMEDIATE`.

mod append;
mod connection;
mod read;
mod schema;

use crate::Ledger;
use crate::artifacts::Artifacts;
use crate::build::{Build, BuildEvent, BuildHeader, BuildId};
use crate::error::LedgerError;
use crate::location::Location;
use crate::record::{Appended, Check, Head, Position, Record};
use connection::Connection;
use evidence::{Candidate, Digest, Entry, Id, Task};
use std::path::Path;
use std::time::Duration;

/// What a process may do with a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Makes the file if need be.
    ReadWrite,
    /// Never changes the file; it must exist. A newer process may write meanwhile.
    ReadOnly,
}

/// How a ledger is opened.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub access: Access,
    /// Longest wait for another writer.
    pub busy_timeout: Duration,
    /// Longest wait for any single call.
    pub call_timeout: Duration,
    /// Most bytes of the main file; beyond them appends fail as on a full disk.
    pub size_limit: Option<u64>,
}

impl Options {
    pub fn read_write() -> Self {
        Self {
            access: Access::ReadWrite,
            busy_timeout: Duration::from_secs(10),
            call_timeout: Duration::from_secs(60),
            size_limit: None,
        }
    }

    pub fn read_only() -> Self {
        Self { access: Access::ReadOnly, ..Self::read_write() }
    }
}

/// [`Ledger`] in a SQLite file. One connection on a thread of its own.
pub struct SqliteLedger {
    connection: Connection,
    artifacts: Artifacts,
}

impl SqliteLedger {
    /// Opens the file, makes it where `options` allow, and migrates an older schema.
    pub fn open(location: &Location, options: Options) -> Result<Self, LedgerError> {
        let connection = Connection::open(location, options)?;
        Ok(Self { connection, artifacts: Artifacts::at(location.artifacts()) })
    }

    /// A ledger that goes with the value: for simulations and dry runs. Artifacts, if any, lie in `artifacts`.
    pub fn in_memory(artifacts: &Path) -> Result<Self, LedgerError> {
        let connection = Connection::in_memory()?;
        Ok(Self { connection, artifacts: Artifacts::at(artifacts) })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        self.connection.path()
    }
}

impl Ledger for SqliteLedger {
    fn append(&mut self, entry: &Entry) -> Result<Appended, LedgerError> {
        let entry = append::Prepared::new(entry)?;
        self.connection.call(async move |c| append::append(c, entry).await)
    }

    fn entries(&self, after: Position, limit: u32) -> Result<Vec<Record>, LedgerError> {
        self.connection.call(async move |c| read::entries(c, after, limit).await)
    }

    fn get(&self, content: Digest) -> Result<Option<Record>, LedgerError> {
        self.connection.call(async move |c| read::get(c, content).await)
    }

    fn find(&self, prefix: &str) -> Result<Record, LedgerError> {
        let prefix = read::checked_prefix(prefix)?;
        self.connection.call(async move |c| read::find(c, prefix).await)
    }

    fn head(&self) -> Result<Head, LedgerError> {
        self.connection.call(async move |c| read::head(c).await)
    }

    fn head_at(&self, position: Position) -> Result<Option<Head>, LedgerError> {
        if position == Position::START {
            return Ok(Some(Head::EMPTY));
        }
        self.connection.call(async move |c| read::head_at(c, position).await)
    }

    fn champion(&self, task: Id<Task>) -> Result<Option<Id<Candidate>>, LedgerError> {
        self.connection.call(async move |c| read::champion(c, task).await)
    }

    fn check(&self) -> Result<Check, LedgerError> {
        if let Some(what) = self.connection.call(async move |c| read::integrity(c).await)? {
            return Ok(Check { intact: 0, head: Head::EMPTY, damage: Some((Position(0), what)) });
        }
        let mut intact = Head::EMPTY;
        loop {
            let (next, damage) = self.connection.call(async move |c| read::check_page(c, intact).await)?;
            let moved = next != intact;
            intact = next;
            if damage.is_some() || !moved {
                return Ok(Check { intact: intact.position.0, head: intact, damage });
            }
        }
    }

    fn open_build(&mut self, header: &BuildHeader) -> Result<Build, LedgerError> {
        let header = header.clone();
        self.connection.call(async move |c| append::open_build(c, header).await)
    }

    fn record_build(&mut self, build: &BuildId, event: &BuildEvent) -> Result<(), LedgerError> {
        let (build, event) = (build.clone(), event.clone());
        self.connection.call(async move |c| append::record_build(c, build, event).await)
    }

    fn builds(&self) -> Result<Vec<Build>, LedgerError> {
        self.connection.call(async move |c| read::builds(c).await)
    }

    fn artifacts(&self) -> &Artifacts {
        &self.artifacts
    }
}
