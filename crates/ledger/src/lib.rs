//! The ledger (layer 2): an append-only record of the four entries, artifacts by digest beside it, and the folds that
//! everything else is.
//!
//! * [`Ledger`] is the interface; [`SqliteLedger`] keeps it on one machine. PostgreSQL will be another.
//! * [`Artifacts`] are files named by the digest of their content.
//! * [`Fold`] is the state after all entries: champions, candidates, evidence, lessons, statistics.
//!
//! Every call is synchronous and bounded in time, and may be made from inside an asynchronous program.

#![forbid(unsafe_code)]

pub mod artifacts;
pub mod build;
pub mod error;
pub mod export;
pub mod fold;
pub mod location;
pub mod record;
pub mod sqlite;

pub use artifacts::Artifacts;
pub use build::{Build, BuildEvent, BuildHeader, BuildId, Spent};
pub use error::LedgerError;
pub use export::export;
pub use fold::{Champions, Fold, Reign, Seen, TaskStatistics};
pub use location::Location;
pub use record::{Appended, Check, Head, Position, Record};
pub use sqlite::{Access, Options, SqliteLedger};

use evidence::{Candidate, Decision, Digest, Entry, Id, Task};

/// An append-only record of [`Entry`], and the journals of builds.
///
/// Killing a process at any moment leaves either one entry or none.
pub trait Ledger: Send {
    /// Appends an entry, under the write lock.
    ///
    /// A task, a candidate, or evidence with a final outcome that is already there is not appended again; its position
    /// is returned. What an entry refers to must be there before it. A decision that promotes or revokes is appended
    /// by compare-and-swap, see [`Ledger::append_decision`].
    fn append(&mut self, entry: &Entry) -> Result<Appended, LedgerError>;

    /// Appends a decision. `Promote` and `Revoke` are void ([`LedgerError::ChampionMoved`]) unless
    /// `decision.champion` is the champion of the task now; `Promote` must also read measured confirmation of the
    /// challenger (any measured evidence for the first champion of a task).
    fn append_decision(&mut self, decision: &Decision) -> Result<Appended, LedgerError> {
        self.append(&Entry::Decided(decision.clone()))
    }

    /// Up to `limit` entries after `after`, in order of position, each verified against its digests.
    fn entries(&self, after: Position, limit: u32) -> Result<Vec<Record>, LedgerError>;

    /// The first entry with this content.
    fn get(&self, content: Digest) -> Result<Option<Record>, LedgerError>;

    /// The entry whose content digest begins with `prefix` (4 to 64 hex digits).
    fn find(&self, prefix: &str) -> Result<Record, LedgerError>;

    /// The last position and its chain digest.
    fn head(&self) -> Result<Head, LedgerError>;

    /// Chain digest at a position, to check a head that was signed earlier.
    fn head_at(&self, position: Position) -> Result<Option<Head>, LedgerError>;

    /// The champion of a task now.
    fn champion(&self, task: Id<Task>) -> Result<Option<Id<Candidate>>, LedgerError>;

    /// Computes the whole chain again and says which position is damaged first, if any.
    fn check(&self) -> Result<Check, LedgerError>;

    /// Opens the build with this header, or resumes it where it exists.
    fn open_build(&mut self, header: &BuildHeader) -> Result<Build, LedgerError>;

    /// Appends to the journal of a build.
    fn record_build(&mut self, build: &BuildId, event: &BuildEvent) -> Result<(), LedgerError>;

    /// All builds, oldest first.
    fn builds(&self) -> Result<Vec<Build>, LedgerError>;

    /// The files beside the ledger.
    fn artifacts(&self) -> &Artifacts;
}

/// Opens the ledger at `url`: `sqlite:PATH`, a plain path, or `None` for the user's data folder.
pub fn open(url: Option<&str>, options: Options) -> Result<Box<dyn Ledger>, LedgerError> {
    let location = match url {
        Some(url) => Location::parse(url)?,
        None => Location::in_data_folder()?,
    };
    Ok(Box::new(SqliteLedger::open(&location, options)?))
}
