//! Writing: one transaction an entry, begun with the write lock.

use super::connection::Handle;
use super::read;
use crate::build::{Build, BuildEvent, BuildHeader, BuildId};
use crate::error::LedgerError;
use crate::record::{Appended, Position, chain};
use evidence::{Candidate, Content, Decision, Digest, Entry, Evidence, Id, Outcome, Phase, Stop, Verdict};
use sqlx::Connection as _;
use sqlx::sqlite::SqliteConnection;
use std::time::{SystemTime, UNIX_EPOCH};

/// An entry with its canonical bytes, proved to read back equal.
pub(super) struct Prepared {
    entry: Entry,
    body: String,
    content: Digest,
}

impl Prepared {
    pub fn new(entry: &Entry) -> Result<Self, LedgerError> {
        let broken = || LedgerError::NotEncodable { kind: entry.kind() };
        let body = String::from_utf8(entry.canonical()).map_err(|_| broken())?;
        let back: Entry = serde_json::from_str(&body).map_err(|_| broken())?;
        if back != *entry || back.canonical() != body.as_bytes() {
            return Err(broken());
        }
        Ok(Self { entry: entry.clone(), content: entry.content(), body })
    }
}

/// Columns for look-ups.
#[derive(Default)]
pub(super) struct Columns {
    pub task: Option<String>,
    pub candidate: Option<String>,
    pub champion: Option<String>,
}

impl Columns {
    pub fn of(entry: &Entry) -> Self {
        match entry {
            Entry::Posed(_) => Self::default(),
            Entry::Proposed(c) => Self { task: Some(c.task.to_string()), ..Self::default() },
            Entry::Observed(e) => Self { candidate: Some(e.candidate.to_string()), ..Self::default() },
            Entry::Decided(d) => Self {
                task: Some(d.task.to_string()),
                candidate: Some(d.challenger.to_string()),
                champion: moves_champion(d).then(|| d.challenger.to_string()),
            },
        }
    }
}

fn moves_champion(decision: &Decision) -> bool {
    matches!(decision.verdict, Verdict::Promote(_) | Verdict::Revoke)
}

pub(super) async fn append(handle: &mut Handle, new: Prepared) -> Result<Appended, LedgerError> {
    let wrap = handle.wrapper();
    if handle.read_only {
        return Err(LedgerError::ReadOnly { path: handle.path.clone() });
    }
    let path = handle.path.clone();
    let mut tx = handle.sqlite.begin_with("BEGIN IMMEDIATE").await.map_err(&wrap)?;
    let db = Writer { db: &mut tx, wrap: &wrap };
    let result = db.append(&path, new).await;
    match result {
        Ok(appended) => {
            tx.commit().await.map_err(&wrap)?;
            Ok(appended)
        }
        Err(e) => {
            // The error in hand matters more than one of the rollback; dropping rolls back too.
            let _ = tx.rollback().await;
            Err(e)
        }
    }
}

struct Writer<'a, W> {
    db: &'a mut SqliteConnection,
    wrap: &'a W,
}

impl<W: Fn(sqlx::Error) -> LedgerError> Writer<'_, W> {
    async fn append(mut self, path: &std::path::Path, new: Prepared) -> Result<Appended, LedgerError> {
        if deduplicated(&new.entry)
            && let Some(position) = self.position_of(new.content).await?
        {
            return Ok(Appended::Known(position));
        }
        self.refers(&new.entry).await?;
        let (last, previous) = match self.head().await? {
            None => (0, Digest::ZERO),
            Some((position, text)) => {
                let chain = text.parse().map_err(|e| LedgerError::Damaged {
                    path: path.to_owned(),
                    position,
                    what: format!("column chain: {e}"),
                })?;
                (position, chain)
            }
        };
        let position = last + 1;
        let columns = Columns::of(&new.entry);
        sqlx::query(
            "INSERT INTO entries
             (position, kind, content, task, candidate, champion, previous, chain, body, recorded_ms)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
        )
        .bind(position as i64)
        .bind(new.entry.kind())
        .bind(new.content.to_string())
        .bind(columns.task)
        .bind(columns.candidate)
        .bind(columns.champion)
        .bind(previous.to_string())
        .bind(chain(previous, new.body.as_bytes()).to_string())
        .bind(new.body)
        .bind(now_ms())
        .execute(&mut *self.db)
        .await
        .map_err(self.wrap)?;
        Ok(Appended::New(Position(position)))
    }

    async fn head(&mut self) -> Result<Option<(u64, String)>, LedgerError> {
        let row: Option<(i64, String)> =
            sqlx::query_as("SELECT position, chain FROM entries ORDER BY position DESC LIMIT 1")
                .fetch_optional(&mut *self.db)
                .await
                .map_err(self.wrap)?;
        Ok(row.map(|(p, c)| (p as u64, c)))
    }

    async fn position_of(&mut self, content: Digest) -> Result<Option<Position>, LedgerError> {
        let position: Option<i64> =
            sqlx::query_scalar("SELECT position FROM entries WHERE content = $1 ORDER BY position LIMIT 1")
                .bind(content.to_string())
                .fetch_optional(&mut *self.db)
                .await
                .map_err(self.wrap)?;
        Ok(position.map(|p| Position(p as u64)))
    }

    /// Whatever an entry names must be there, and a promotion must be earned.
    async fn refers(&mut self, entry: &Entry) -> Result<(), LedgerError> {
        let kind = entry.kind();
        match entry {
            Entry::Posed(_) => Ok(()),
            Entry::Proposed(c) => {
                self.there(kind, "task", c.task.digest()).await?;
                for parent in &c.parents {
                    self.there(kind, "parent", parent.digest()).await?;
                }
                Ok(())
            }
            Entry::Observed(e) => {
                self.there(kind, "candidate", e.candidate.digest()).await?;
                match e.against {
                    Some(against) => self.there(kind, "candidate", against.digest()).await,
                    None => Ok(()),
                }
            }
            Entry::Decided(d) => {
                self.there(kind, "task", d.task.digest()).await?;
                self.there(kind, "challenger", d.challenger.digest()).await?;
                for read in &d.read {
                    self.there(kind, "evidence", read.digest()).await?;
                }
                if moves_champion(d) {
                    self.compare(d).await?;
                }
                if let Verdict::Promote(_) = d.verdict {
                    self.earned(d).await?;
                }
                Ok(())
            }
        }
    }

    async fn there(
        &mut self,
        kind: &'static str,
        what: &'static str,
        digest: Digest,
    ) -> Result<(), LedgerError> {
        match self.position_of(digest).await? {
            Some(_) => Ok(()),
            None => Err(LedgerError::Dangling { kind, what, digest }),
        }
    }

    /// The compare of compare-and-swap.
    async fn compare(&mut self, decision: &Decision) -> Result<(), LedgerError> {
        let found = read::champion_in(&mut *self.db, decision.task).await.map_err(self.wrap)?;
        let found = found.and_then(|c| c.parse().ok()).map(Id::<Candidate>::from_digest);
        if found == decision.champion {
            return Ok(());
        }
        Err(LedgerError::ChampionMoved { task: decision.task, expected: decision.champion, found })
    }

    /// Only confirmation promotes; the first champion of a task stands alone and needs any passed measurement.
    async fn earned(&mut self, decision: &Decision) -> Result<(), LedgerError> {
        for id in &decision.read {
            if let Some(evidence) = self.evidence(*id).await? {
                let measured = matches!(evidence.outcome, Outcome::Measured(_));
                let confirmed = evidence.phase == Phase::Confirm || decision.champion.is_none();
                if measured && confirmed && evidence.candidate == decision.challenger {
                    return Ok(());
                }
            }
        }
        Err(LedgerError::Unconfirmed { challenger: decision.challenger })
    }

    async fn evidence(&mut self, id: Id<Evidence>) -> Result<Option<Evidence>, LedgerError> {
        let body: Option<String> = sqlx::query_scalar(
            "SELECT body FROM entries WHERE content = $1 AND kind = 'observed' ORDER BY position LIMIT 1",
        )
        .bind(id.to_string())
        .fetch_optional(&mut *self.db)
        .await
        .map_err(self.wrap)?;
        Ok(body.and_then(|b| match serde_json::from_str(&b) {
            Ok(Entry::Observed(e)) => Some(e),
            _ => None,
        }))
    }
}

/// Tasks and candidates are values. Evidence with a final outcome and equal raw samples is one evaluation, reported
/// twice; two equal faults are two faults, and two equal decisions are two decisions.
fn deduplicated(entry: &Entry) -> bool {
    match entry {
        Entry::Posed(_) | Entry::Proposed(_) => true,
        Entry::Observed(e) => !matches!(e.outcome, Outcome::Stopped(Stop::Inconclusive { .. })),
        Entry::Decided(_) => false,
    }
}

pub(super) async fn open_build(handle: &mut Handle, header: BuildHeader) -> Result<Build, LedgerError> {
    let wrap = handle.wrapper();
    let id = BuildId::of(&header);
    if !handle.read_only {
        // One statement is one transaction: the build is there once, whoever comes first.
        sqlx::query(
            "INSERT INTO builds (id, header, recorded_ms) VALUES ($1, $2, $3) ON CONFLICT (id) DO NOTHING",
        )
        .bind(id.as_str())
        .bind(serde_json::to_string(&header).map_err(|_| LedgerError::NotEncodable { kind: "build" })?)
        .bind(now_ms())
        .execute(&mut handle.sqlite)
        .await
        .map_err(&wrap)?;
    }
    read::build(handle, &id).await?.ok_or(LedgerError::NoBuild { id: id.to_string() })
}

pub(super) async fn record_build(
    handle: &mut Handle,
    build: BuildId,
    event: BuildEvent,
) -> Result<(), LedgerError> {
    if handle.read_only {
        return Err(LedgerError::ReadOnly { path: handle.path.clone() });
    }
    if read::build(handle, &build).await?.is_none() {
        return Err(LedgerError::NoBuild { id: build.to_string() });
    }
    let wrap = handle.wrapper();
    sqlx::query("INSERT INTO journal (build, event, recorded_ms) VALUES ($1, $2, $3)")
        .bind(build.as_str())
        .bind(serde_json::to_string(&event).map_err(|_| LedgerError::NotEncodable { kind: "build event" })?)
        .bind(now_ms())
        .execute(&mut handle.sqlite)
        .await
        .map_err(&wrap)?;
    Ok(())
}

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
