//! Full disks, locks, damage, foreign files, read-only files: clear errors, bounded in time, nothing half done.

mod fixtures;

use evidence::*;
use fixtures::*;
use ledger::*;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{Connection, Executor};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

fn tamper(path: &Path, sql: &'static str) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let options = SqliteConnectOptions::new().filename(path);
        let mut c = SqliteConnection::connect_with(&options).await.unwrap();
        let result = c.execute(sqlx::raw_sql(sql)).await.map(|_| ()).map_err(|e| e.to_string());
        c.close().await.unwrap();
        result
    })
}

#[test]
fn sql_cannot_change_what_was_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let mut ledger = ledger_in(folder.path());
    with_champion(&mut ledger);
    let path = ledger.path().to_owned();
    for sql in [
        "UPDATE entries SET body = 'x' WHERE position = 2",
        "DELETE FROM entries WHERE position = 4",
        "INSERT OR REPLACE INTO entries SELECT * FROM entries WHERE position = 2",
        "INSERT INTO entries SELECT 9, kind, content, task, candidate, champion, previous, chain, body, 0
         FROM entries WHERE position = 2",
        "INSERT INTO entries SELECT 5, kind, content, task, candidate, champion, previous, chain, body, 0
         FROM entries WHERE position = 2",
        "DELETE FROM builds; INSERT INTO builds VALUES (1, 'a', 'b', 0); UPDATE builds SET header = 'x'",
    ] {
        let error = tamper(&path, sql).expect_err(sql);
        assert!(error.contains("append-only"), "{error}");
    }
    assert_eq!(ledger.check().unwrap().damage, None);
}

#[test]
fn every_kind_of_tampering_is_found_at_its_position() {
    let cases: [(&'static str, u64, &str); 6] = [
        ("UPDATE entries SET body = replace(body, 'because', 'becausf') WHERE position = 2", 2, "chain"),
        ("DELETE FROM entries WHERE position = 3", 3, "missing"),
        ("UPDATE entries SET champion = NULL WHERE position = 4", 4, "look-up"),
        (
            "UPDATE entries SET content = replace(content, substr(content, 1, 4), 'ffff') WHERE position = 1",
            1,
            "content",
        ),
        ("UPDATE entries SET kind = 'posed' WHERE position = 2", 2, "kind"),
        (
            "UPDATE entries SET previous = (SELECT chain FROM entries WHERE position = 1) WHERE position = 3",
            3,
            "chain",
        ),
    ];
    for (sql, position, word) in cases {
        let folder = tempfile::tempdir().unwrap();
        let mut ledger = ledger_in(folder.path());
        with_champion(&mut ledger);
        let path = ledger.path().to_owned();
        tamper(&path, "DROP TRIGGER entries_never_change; DROP TRIGGER entries_never_go;").unwrap();
        tamper(&path, sql).unwrap();
        let check = ledger.check().unwrap();
        let (at, what) = check.damage.expect(sql);
        assert_eq!(at.0, position, "{sql}: {what}");
        assert!(what.contains(word), "{sql}: {what}");
        assert_eq!(check.intact, position - 1);
        // The row that carries wrong digests is not handed out either.
        if !["missing", "look-up"].contains(&word) {
            let read = ledger.entries(Position(position - 1), 1);
            assert!(matches!(read, Err(LedgerError::Damaged { position: p, .. }) if p == position));
        }
    }
}

#[test]
fn a_full_disk_is_said_and_leaves_the_ledger_whole() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { size_limit: Some(128 * 1024), ..Options::read_write() };
    let mut ledger = SqliteLedger::open(&Location::at(folder.path()), options).unwrap();
    let (task, _) = with_champion(&mut ledger);
    let error = (1..10_000)
        .map(|n| ledger.append(&Entry::Proposed(candidate(&task, n))))
        .find_map(Result::err)
        .expect("the limit must be met");
    assert!(matches!(error, LedgerError::Full { .. }), "{error}");
    let check = ledger.check().unwrap();
    assert_eq!((check.damage, check.intact), (None, ledger.head().unwrap().position.0));
    drop(ledger);
    // With space again the next process goes on.
    let mut ledger = ledger_in(folder.path());
    ledger.append(&Entry::Proposed(candidate(&task, 99_999))).unwrap();
}

#[test]
fn a_held_lock_is_waited_for_and_then_reported() {
    let folder = tempfile::tempdir().unwrap();
    let mut first = ledger_in(folder.path());
    with_champion(&mut first);
    let path = first.path().to_owned();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let options = SqliteConnectOptions::new().filename(&path);
    let mut holder = runtime.block_on(SqliteConnection::connect_with(&options)).unwrap();
    runtime.block_on(holder.execute("BEGIN IMMEDIATE")).unwrap();
    let short = Options { busy_timeout: Duration::from_millis(200), ..Options::read_write() };
    let mut second = SqliteLedger::open(&Location::at(&path), short).unwrap();
    let started = Instant::now();
    let error = second.append(&Entry::Posed(task("other"))).unwrap_err();
    assert!(matches!(error, LedgerError::Locked { waited_ms: 200, .. }), "{error}");
    assert!(started.elapsed() < Duration::from_secs(10));
    // Readers are not held up.
    assert_eq!(second.head().unwrap().position, Position(4));
    runtime.block_on(holder.execute("ROLLBACK")).unwrap();
    second.append(&Entry::Posed(task("other"))).unwrap();
}

#[test]
fn reading_only_never_writes() {
    let folder = tempfile::tempdir().unwrap();
    let location = Location::at(folder.path());
    assert!(matches!(
        SqliteLedger::open(&location, Options::read_only()).map(|_| ()),
        Err(LedgerError::Missing { .. })
    ));
    let mut writer = ledger_in(folder.path());
    let (task, _) = with_champion(&mut writer);
    let mut reader = SqliteLedger::open(&location, Options::read_only()).unwrap();
    assert!(matches!(reader.append(&Entry::Posed(task.clone())), Err(LedgerError::ReadOnly { .. })));
    let header = BuildHeader {
        model: Digest::ZERO,
        goal: Digest::ZERO,
        target: String::new(),
        seed: 0,
        out: String::new(),
    };
    assert!(matches!(reader.open_build(&header), Err(LedgerError::NoBuild { .. })));
    // It sees what is appended meanwhile.
    writer.append(&Entry::Proposed(candidate(&task, 1))).unwrap();
    assert_eq!(reader.head().unwrap().position, Position(5));
}

#[test]
fn foreign_and_damaged_files_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let opened = |path: &Path| SqliteLedger::open(&Location::at(path), Options::read_write()).map(|_| ());
    let text = folder.path().join("text");
    fs::write(
        &text,
        "not a database, but longer than the header of one would be, which is a hundred bytes or so....",
    )
    .unwrap();
    assert!(matches!(opened(&text), Err(LedgerError::NotALedger { .. })));
    let foreign = folder.path().join("foreign");
    fs::write(&foreign, b"").unwrap();
    tamper(&foreign, "CREATE TABLE t (x)").unwrap();
    assert!(matches!(opened(&foreign), Err(LedgerError::NotALedger { .. })));
    assert!(matches!(opened(&text.join("below/a/file")), Err(LedgerError::File { .. })));
}

#[test]
fn damaged_pages_never_read_as_whole() {
    let folder = tempfile::tempdir().unwrap();
    let mut ledger = ledger_in(folder.path());
    let (task, _) = with_champion(&mut ledger);
    for n in 1..300 {
        ledger.append(&Entry::Proposed(candidate(&task, n))).unwrap();
    }
    let path = ledger.path().to_owned();
    drop(ledger);
    let good = fs::read(&path).unwrap();
    let mut seen = 0;
    for (i, at) in (0..good.len()).step_by(good.len() / 40).enumerate() {
        let mut bad = good.clone();
        bad[at] ^= 1 << (i % 8);
        fs::write(&path, &bad).unwrap();
        // Either it does not open, or reading or the check says so, or the flip hit unused space and all is intact.
        let Ok(ledger) = SqliteLedger::open(&Location::at(&path), Options::read_only()) else {
            seen += 1;
            continue;
        };
        match (Fold::read(&ledger), ledger.check()) {
            (Ok(fold), Ok(Check { damage: None, intact: 303, .. })) => {
                assert_eq!(fold.position, Position(303));
            }
            _ => seen += 1,
        }
    }
    assert!(seen >= 20, "only {seen} of 40 flips were seen");
    // Truncation.
    fs::write(&path, &good[..good.len() / 2]).unwrap();
    let whole = SqliteLedger::open(&Location::at(&path), Options::read_only())
        .and_then(|l| l.check())
        .is_ok_and(|c| c.damage.is_none());
    assert!(!whole);
}
