//! The schema, its versions, and how older files are brought up to date.

use super::connection::Handle;
use crate::error::LedgerError;
use sqlx::Connection as _;

/// `EWLG`: tells a ledger from other SQLite files.
pub(super) const APPLICATION: i64 = 0x4557_4c47;

/// Step n brings version n to n + 1. Steps never change once released.
const MIGRATIONS: &[&str] = &[ENTRIES, BUILDS];

/// The version that this program writes.
pub(super) const VERSION: i64 = MIGRATIONS.len() as i64;

/// `body` is the canonical JSON; `content`, `kind`, `task`, `candidate` and `champion` are copies out of it for
/// look-ups (`champion`: who stands for the task after this decision). The insert trigger makes `INSERT OR REPLACE`
/// as impossible as the others make updates and deletions.
const ENTRIES: &str = "
CREATE TABLE entries (
    position INTEGER PRIMARY KEY,
    kind TEXT NOT NULL CHECK (kind IN ('posed', 'proposed', 'observed', 'decided')),
    content TEXT NOT NULL CHECK (length(content) = 64),
    task TEXT,
    candidate TEXT,
    champion TEXT,
    previous TEXT NOT NULL CHECK (length(previous) = 64),
    chain TEXT NOT NULL CHECK (length(chain) = 64),
    body TEXT NOT NULL,
    recorded_ms INTEGER NOT NULL
) STRICT;
CREATE INDEX entries_by_content ON entries (content);
CREATE INDEX entries_by_champion ON entries (task, position) WHERE champion IS NOT NULL;
CREATE TRIGGER entries_in_order BEFORE INSERT ON entries
WHEN NEW.position IS NOT (SELECT coalesce(max(position), 0) + 1 FROM entries)
BEGIN SELECT raise(ABORT, 'the ledger is append-only: positions follow each other'); END;
CREATE TRIGGER entries_chained BEFORE INSERT ON entries
WHEN NEW.previous IS NOT coalesce(
    (SELECT chain FROM entries ORDER BY position DESC LIMIT 1),
    '0000000000000000000000000000000000000000000000000000000000000000')
BEGIN SELECT raise(ABORT, 'the ledger is append-only: an entry follows the chain'); END;
CREATE TRIGGER entries_never_change BEFORE UPDATE ON entries
BEGIN SELECT raise(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER entries_never_go BEFORE DELETE ON entries
BEGIN SELECT raise(ABORT, 'the ledger is append-only'); END;
";

const BUILDS: &str = "
CREATE TABLE builds (
    serial INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    header TEXT NOT NULL,
    recorded_ms INTEGER NOT NULL
) STRICT;
CREATE TABLE journal (
    serial INTEGER PRIMARY KEY,
    build TEXT NOT NULL REFERENCES builds (id),
    event TEXT NOT NULL,
    recorded_ms INTEGER NOT NULL
) STRICT;
CREATE INDEX journal_by_build ON journal (build, serial);
CREATE TRIGGER builds_never_change BEFORE UPDATE ON builds
BEGIN SELECT raise(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER builds_never_go BEFORE DELETE ON builds
BEGIN SELECT raise(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER journal_never_changes BEFORE UPDATE ON journal
BEGIN SELECT raise(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER journal_never_goes BEFORE DELETE ON journal
BEGIN SELECT raise(ABORT, 'the ledger is append-only'); END;
";

/// Checks that the file is a ledger of a version we know; migrates an older one if we may write.
pub(super) async fn prepare(handle: &mut Handle) -> Result<(), LedgerError> {
    if version(handle).await? == VERSION {
        return Ok(());
    }
    if handle.read_only {
        return Err(handle.not_a_ledger("its schema is older and it is opened for reading only"));
    }
    // Under the write lock: of two processes that start together one migrates.
    let path = handle.path.clone();
    let wrap = handle.wrapper();
    let mut tx = handle.sqlite.begin_with("BEGIN IMMEDIATE").await.map_err(&wrap)?;
    let found: i64 = sqlx::query_scalar("PRAGMA user_version").fetch_one(&mut *tx).await.map_err(&wrap)?;
    let from = usize::try_from(found)
        .map_err(|_| LedgerError::NotALedger { path, what: format!("schema version {found}") })?;
    for step in MIGRATIONS.iter().skip(from) {
        sqlx::raw_sql(*step).execute(&mut *tx).await.map_err(&wrap)?;
    }
    sqlx::raw_sql(PRAGMAS).execute(&mut *tx).await.map_err(&wrap)?;
    tx.commit().await.map_err(&wrap)
}

/// Pragmas take no parameters; a test keeps these numbers and the constants together.
const PRAGMAS: &str = "PRAGMA application_id = 1163349063; PRAGMA user_version = 2;";

/// The schema version: 0 for an empty file. Errors for other people's databases and newer versions.
async fn version(handle: &mut Handle) -> Result<i64, LedgerError> {
    let wrap = handle.wrapper();
    let application: i64 =
        sqlx::query_scalar("PRAGMA application_id").fetch_one(&mut handle.sqlite).await.map_err(&wrap)?;
    let version: i64 =
        sqlx::query_scalar("PRAGMA user_version").fetch_one(&mut handle.sqlite).await.map_err(&wrap)?;
    let tables: i64 = sqlx::query_scalar("SELECT count(*) FROM sqlite_schema")
        .fetch_one(&mut handle.sqlite)
        .await
        .map_err(&wrap)?;
    if application != APPLICATION && (application != 0 || version != 0 || tables != 0) {
        return Err(handle.not_a_ledger("a database of another program"));
    }
    if version > VERSION {
        return Err(LedgerError::Newer { path: handle.path.clone(), found: version, supported: VERSION });
    }
    Ok(version)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Ledger;
    use crate::location::Location;
    use crate::sqlite::{Options, SqliteLedger};
    use sqlx::SqliteConnection;

    #[test]
    fn the_pragmas_say_what_the_constants_say() {
        assert_eq!(
            PRAGMAS,
            format!("PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {VERSION};")
        );
    }

    #[test]
    fn an_older_schema_is_migrated_and_a_newer_one_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("old.sqlite");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let run = |sql: &'static str| {
            runtime.block_on(async {
                let url = format!("sqlite:{}?mode=rwc", file.display());
                let mut c = SqliteConnection::connect(&url).await.unwrap();
                sqlx::raw_sql(sql).execute(&mut c).await.unwrap();
                c.close().await.unwrap();
            });
        };
        run(ENTRIES);
        run("PRAGMA application_id = 1163349063; PRAGMA user_version = 1;");
        let location = Location::at(&file);
        let ledger = SqliteLedger::open(&location, Options::read_write()).unwrap();
        assert_eq!(ledger.builds().unwrap(), vec![]);
        drop(ledger);
        run("PRAGMA user_version = 3;");
        for options in [Options::read_write(), Options::read_only()] {
            assert!(matches!(
                SqliteLedger::open(&location, options).map(|_| ()),
                Err(LedgerError::Newer { found: 3, supported: 2, .. })
            ));
        }
    }
}
