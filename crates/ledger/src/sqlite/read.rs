//! Reading: every row is verified against its digests before anybody believes it.

use super::connection::Handle;
use crate::build::{Build, BuildEvent, BuildHeader, BuildId};
use crate::error::LedgerError;
use crate::record::{Head, Position, Record, Stored};
use evidence::{Candidate, Digest, Id, Task};
use sqlx::Row;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

/// Rows that a check reads at once.
const CHECK_PAGE: i64 = 500;

fn stored(row: &SqliteRow) -> Result<Stored, sqlx::Error> {
    Ok(Stored {
        position: row.try_get::<i64, _>("position")? as u64,
        recorded_ms: row.try_get::<i64, _>("recorded_ms")? as u64,
        kind: row.try_get("kind")?,
        content: row.try_get("content")?,
        previous: row.try_get("previous")?,
        chain: row.try_get("chain")?,
        body: row.try_get("body")?,
    })
}

fn verified(handle: &Handle, row: &SqliteRow) -> Result<Record, LedgerError> {
    let stored = stored(row).map_err(handle.wrapper())?;
    let position = stored.position;
    stored.verify().map_err(|what| handle.damaged(position, what))
}

pub(super) async fn entries(
    handle: &mut Handle,
    after: Position,
    limit: u32,
) -> Result<Vec<Record>, LedgerError> {
    let rows = sqlx::query("SELECT * FROM entries WHERE position > $1 ORDER BY position LIMIT $2")
        .bind(i64::try_from(after.0).unwrap_or(i64::MAX))
        .bind(i64::from(limit))
        .fetch_all(&mut handle.sqlite)
        .await
        .map_err(handle.wrapper())?;
    rows.iter().map(|row| verified(handle, row)).collect()
}

pub(super) async fn get(handle: &mut Handle, content: Digest) -> Result<Option<Record>, LedgerError> {
    let row = sqlx::query("SELECT * FROM entries WHERE content = $1 ORDER BY position LIMIT 1")
        .bind(content.to_string())
        .fetch_optional(&mut handle.sqlite)
        .await
        .map_err(handle.wrapper())?;
    row.map(|row| verified(handle, &row)).transpose()
}

/// 4 to 64 hex digits in lower case.
pub(super) fn checked_prefix(prefix: &str) -> Result<String, LedgerError> {
    let text = prefix.trim().to_ascii_lowercase();
    if (4..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Ok(text);
    }
    Err(LedgerError::BadPrefix { prefix: prefix.to_owned() })
}

pub(super) async fn find(handle: &mut Handle, prefix: String) -> Result<Record, LedgerError> {
    // 'g' is above every hex digit.
    let contents: Vec<String> = sqlx::query_scalar(
        "SELECT DISTINCT content FROM entries WHERE content >= $1 AND content < $1 || 'g' ORDER BY content LIMIT 4",
    )
    .bind(&prefix)
    .fetch_all(&mut handle.sqlite)
    .await
    .map_err(handle.wrapper())?;
    match contents.as_slice() {
        [] => Err(LedgerError::Unknown { prefix }),
        [one] => {
            let digest = one.parse().map_err(|_| handle.damaged(0, format!("content '{one}'")))?;
            get(handle, digest).await?.ok_or(LedgerError::Unknown { prefix })
        }
        many => {
            let matches = many.iter().map(|c| c.chars().take(12).collect()).collect();
            Err(LedgerError::Ambiguous { prefix, matches })
        }
    }
}

pub(super) async fn head(handle: &mut Handle) -> Result<Head, LedgerError> {
    let row: Option<(i64, String)> =
        sqlx::query_as("SELECT position, chain FROM entries ORDER BY position DESC LIMIT 1")
            .fetch_optional(&mut handle.sqlite)
            .await
            .map_err(handle.wrapper())?;
    row.map_or(Ok(Head::EMPTY), |row| head_of(handle, row))
}

pub(super) async fn head_at(handle: &mut Handle, position: Position) -> Result<Option<Head>, LedgerError> {
    let row: Option<(i64, String)> =
        sqlx::query_as("SELECT position, chain FROM entries WHERE position = $1")
            .bind(i64::try_from(position.0).unwrap_or(i64::MAX))
            .fetch_optional(&mut handle.sqlite)
            .await
            .map_err(handle.wrapper())?;
    row.map(|row| head_of(handle, row)).transpose()
}

fn head_of(handle: &Handle, (position, chain): (i64, String)) -> Result<Head, LedgerError> {
    let position = position as u64;
    let chain = chain.parse().map_err(|e| handle.damaged(position, format!("column chain: {e}")))?;
    Ok(Head { position: Position(position), chain })
}

/// Hex id of the champion, from the decision that moved it last.
pub(super) async fn champion_in(
    db: &mut SqliteConnection,
    task: Id<Task>,
) -> Result<Option<String>, sqlx::Error> {
    sqlx::query_scalar(
        "SELECT champion FROM entries WHERE task = $1 AND champion IS NOT NULL ORDER BY position DESC LIMIT 1",
    )
    .bind(task.to_string())
    .fetch_optional(db)
    .await
}

pub(super) async fn champion(
    handle: &mut Handle,
    task: Id<Task>,
) -> Result<Option<Id<Candidate>>, LedgerError> {
    let text = champion_in(&mut handle.sqlite, task).await.map_err(handle.wrapper())?;
    text.map(|t| t.parse().map(Id::from_digest).map_err(|_| handle.damaged(0, format!("champion '{t}'"))))
        .transpose()
}

/// SQLite's own check of the file's structure; what it says if it is not "ok".
pub(super) async fn integrity(handle: &mut Handle) -> Result<Option<String>, LedgerError> {
    let answer: Result<Vec<String>, _> =
        sqlx::query_scalar("PRAGMA quick_check(5)").fetch_all(&mut handle.sqlite).await;
    match answer.map_err(handle.wrapper()) {
        Ok(lines) if lines.len() == 1 && lines[0] == "ok" => Ok(None),
        Ok(lines) => Ok(Some(lines.join("; "))),
        Err(LedgerError::Damaged { what, .. }) => Ok(Some(what)),
        Err(e) => Err(e),
    }
}

/// Checks the rows after an intact head; returns the new intact head and the first damage.
pub(super) async fn check_page(
    handle: &mut Handle,
    intact: Head,
) -> Result<(Head, Option<(Position, String)>), LedgerError> {
    let rows = sqlx::query("SELECT * FROM entries WHERE position > $1 ORDER BY position LIMIT $2")
        .bind(i64::try_from(intact.position.0).unwrap_or(i64::MAX))
        .bind(CHECK_PAGE)
        .fetch_all(&mut handle.sqlite)
        .await
        .map_err(handle.wrapper())?;
    let mut head = intact;
    for row in &rows {
        let next = Position(head.position.0 + 1);
        match check_row(row, head, next) {
            Ok(after) => head = after,
            Err(what) => return Ok((head, Some((next, what)))),
        }
    }
    Ok((head, None))
}

fn check_row(row: &SqliteRow, head: Head, next: Position) -> Result<Head, String> {
    let stored = stored(row).map_err(|e| format!("the row cannot be read: {e}"))?;
    if stored.position != next.0 {
        return Err(format!("the entry is missing: position {} follows", stored.position));
    }
    let record = stored.verify()?;
    if record.previous != head.chain {
        return Err("it does not follow the entry before it".to_owned());
    }
    let column = |name: &str| row.try_get::<Option<String>, _>(name).map_err(|e| e.to_string());
    let expected = super::append::Columns::of(&record.entry);
    let found = (column("task")?, column("candidate")?, column("champion")?);
    if found != (expected.task, expected.candidate, expected.champion) {
        return Err("the look-up columns do not belong to the entry".to_owned());
    }
    Ok(Head { position: next, chain: record.chain })
}

pub(super) async fn build(handle: &mut Handle, id: &BuildId) -> Result<Option<Build>, LedgerError> {
    let header: Option<String> = sqlx::query_scalar("SELECT header FROM builds WHERE id = $1")
        .bind(id.as_str())
        .fetch_optional(&mut handle.sqlite)
        .await
        .map_err(handle.wrapper())?;
    let Some(header) = header else { return Ok(None) };
    let events: Vec<String> =
        sqlx::query_scalar("SELECT event FROM journal WHERE build = $1 ORDER BY serial")
            .bind(id.as_str())
            .fetch_all(&mut handle.sqlite)
            .await
            .map_err(handle.wrapper())?;
    let broken = |e: serde_json::Error| handle.damaged(0, format!("build {}: {e}", id.short()));
    let header: BuildHeader = serde_json::from_str(&header).map_err(broken)?;
    let journal = events
        .iter()
        .map(|e| serde_json::from_str::<BuildEvent>(e))
        .collect::<Result<_, _>>()
        .map_err(broken)?;
    Ok(Some(Build { id: id.clone(), header, journal }))
}

pub(super) async fn builds(handle: &mut Handle) -> Result<Vec<Build>, LedgerError> {
    let headers: Vec<String> = sqlx::query_scalar("SELECT header FROM builds ORDER BY serial")
        .fetch_all(&mut handle.sqlite)
        .await
        .map_err(handle.wrapper())?;
    let mut builds = Vec::new();
    for text in headers {
        let header: BuildHeader =
            serde_json::from_str(&text).map_err(|e| handle.damaged(0, format!("a build's header: {e}")))?;
        builds.extend(build(handle, &BuildId::of(&header)).await?);
    }
    Ok(builds)
}
