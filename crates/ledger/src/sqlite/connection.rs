//! One SQLite connection on a thread of its own, so that callers need no runtime and may have one.

use super::schema;
use super::{Access, Options};
use crate::error::LedgerError;
use crate::location::Location;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection as _};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::runtime::Runtime;

/// The connection and what its errors need to say.
pub(super) struct Handle {
    pub sqlite: SqliteConnection,
    pub path: PathBuf,
    pub read_only: bool,
    busy_timeout: Duration,
}

impl Handle {
    /// Turns errors of SQLite into ours.
    pub fn wrapper(&self) -> impl Fn(sqlx::Error) -> LedgerError + use<> {
        let (path, wait) = (self.path.clone(), self.busy_timeout);
        move |e| classify(&path, wait, e)
    }

    pub fn not_a_ledger(&self, what: &str) -> LedgerError {
        LedgerError::NotALedger { path: self.path.clone(), what: what.to_owned() }
    }

    pub fn damaged(&self, position: u64, what: String) -> LedgerError {
        LedgerError::Damaged { path: self.path.clone(), position, what }
    }
}

/// Primary result codes of SQLite (sqlite.org/rescode.html).
fn classify(path: &Path, wait: Duration, source: sqlx::Error) -> LedgerError {
    let path = path.to_owned();
    let code = match &source {
        sqlx::Error::Database(e) => e.code().and_then(|c| c.parse::<u32>().ok()).map(|c| c & 0xff),
        _ => None,
    };
    match code {
        Some(5 | 6) => LedgerError::Locked { path, waited_ms: wait.as_millis() },
        Some(8) => LedgerError::ReadOnly { path },
        Some(11) => LedgerError::Damaged { path, position: 0, what: source.to_string() },
        Some(13) => LedgerError::Full { path },
        Some(14) => LedgerError::CannotOpen { path, source },
        Some(26) => LedgerError::NotALedger { path, what: "no SQLite database".to_owned() },
        _ => LedgerError::Storage { path, source },
    }
}

type Job = Box<dyn FnOnce(&Runtime, &mut Handle) + Send>;

/// Sends work to the thread and waits for the answer, for a bounded time.
pub(super) struct Connection {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    path: PathBuf,
    call_timeout: Duration,
}

impl Connection {
    pub fn open(location: &Location, options: Options) -> Result<Self, LedgerError> {
        let path = location.file.clone();
        if options.access == Access::ReadOnly && !path.exists() {
            return Err(LedgerError::Missing { path });
        }
        if options.access == Access::ReadWrite {
            std::fs::create_dir_all(location.folder()).map_err(|source| LedgerError::File {
                path: location.folder().to_owned(),
                doing: "the ledger's folder cannot be made",
                source,
            })?;
        }
        Self::start(path, Place::File, options)
    }

    /// A database that goes with the connection.
    pub fn in_memory() -> Result<Self, LedgerError> {
        Self::start(PathBuf::from(":memory:"), Place::Memory, Options::read_write())
    }

    fn start(path: PathBuf, place: Place, options: Options) -> Result<Self, LedgerError> {
        let (jobs, queue) = channel::<Job>();
        let (ready, opened) = sync_channel(1);
        let thread_path = path.clone();
        let thread = thread::Builder::new()
            .name("ledger".to_owned())
            .spawn(move || serve(thread_path, place, options, &ready, &queue))
            .map_err(|source| LedgerError::File {
                path: path.clone(),
                doing: "the ledger's thread cannot start",
                source,
            })?;
        let wait = options.call_timeout + options.busy_timeout;
        match opened.recv_timeout(wait) {
            Ok(Ok(())) => {
                Ok(Self { jobs: Some(jobs), thread: Some(thread), path, call_timeout: options.call_timeout })
            }
            Ok(Err(e)) => Err(e),
            Err(RecvTimeoutError::Timeout) => {
                Err(LedgerError::Unresponsive { path, waited_ms: wait.as_millis() })
            }
            Err(RecvTimeoutError::Disconnected) => Err(LedgerError::Gone { path }),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs `work` on the connection's thread.
    pub fn call<T, F>(&self, work: F) -> Result<T, LedgerError>
    where
        T: Send + 'static,
        F: AsyncFnOnce(&mut Handle) -> Result<T, LedgerError> + Send + 'static,
    {
        let gone = || LedgerError::Gone { path: self.path.clone() };
        let (answer, answered) = sync_channel(1);
        let job: Job = Box::new(move |runtime, handle| {
            // Nobody listens any more after a timeout; the work was still done whole.
            let _ = answer.send(runtime.block_on(work(handle)));
        });
        self.jobs.as_ref().ok_or_else(gone)?.send(job).map_err(|_| gone())?;
        match answered.recv_timeout(self.call_timeout) {
            Ok(result) => result,
            Err(RecvTimeoutError::Timeout) => Err(LedgerError::Unresponsive {
                path: self.path.clone(),
                waited_ms: self.call_timeout.as_millis(),
            }),
            Err(RecvTimeoutError::Disconnected) => Err(gone()),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            // Ends after the work in hand; a panic there was reported as `Gone` already.
            let _ = thread.join();
        }
    }
}

/// Where the database lies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    File,
    Memory,
}

fn serve(
    path: PathBuf,
    place: Place,
    options: Options,
    ready: &SyncSender<Result<(), LedgerError>>,
    queue: &Receiver<Job>,
) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(source) => {
            let doing = "the ledger's runtime cannot start";
            let _ = ready.send(Err(LedgerError::File { path, doing, source }));
            return;
        }
    };
    let mut handle = match runtime.block_on(connect(&path, place, &options)) {
        Ok(handle) => handle,
        Err(e) => {
            let _ = ready.send(Err(e));
            return;
        }
    };
    if ready.send(Ok(())).is_err() {
        return;
    }
    while let Ok(job) = queue.recv() {
        job(&runtime, &mut handle);
    }
    // Checkpoints the log; what fails here is done by the next process that opens the file.
    let _ = runtime.block_on(handle.sqlite.close());
}

async fn connect(path: &Path, place: Place, options: &Options) -> Result<Handle, LedgerError> {
    let base = SqliteConnectOptions::new().filename(path).busy_timeout(options.busy_timeout);
    let read_only = options.access == Access::ReadOnly;
    let settings = if place == Place::Memory {
        base.in_memory(true)
    } else if read_only {
        base.read_only(true).immutable(needs_immutable(path))
    } else {
        base.create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(true)
    };
    let settings = match options.size_limit {
        Some(bytes) if !read_only => settings.pragma("max_page_count", (bytes / 4096).max(1).to_string()),
        _ => settings,
    };
    let sqlite = settings
        .disable_statement_logging()
        .connect()
        .await
        .map_err(|e| classify(path, options.busy_timeout, e))?;
    let mut handle = Handle { sqlite, path: path.to_owned(), read_only, busy_timeout: options.busy_timeout };
    schema::prepare(&mut handle).await?;
    Ok(handle)
}

/// A WAL database on a read-only medium, cleanly closed, can only be read as immutable: SQLite would otherwise have to
/// make the shared-memory file beside it.
fn needs_immutable(path: &Path) -> bool {
    let mut log: OsString = path.as_os_str().to_owned();
    log.push("-wal");
    let folder_read_only = path
        .parent()
        .map(|p| if p.as_os_str().is_empty() { Path::new(".") } else { p })
        .and_then(|p| std::fs::metadata(p).ok())
        .is_some_and(|m| m.permissions().readonly());
    folder_read_only && !Path::new(&log).exists()
}
