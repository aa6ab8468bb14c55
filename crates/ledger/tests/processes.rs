//! Many processes, and kill -9 at any moment. The test binary starts itself again as the writer.

mod fixtures;

use evidence::*;
use fixtures::*;
use ledger::*;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const FOLDER: &str = "LEDGER_TEST_FOLDER";
const WRITER: &str = "LEDGER_TEST_WRITER";

/// In a child: appends candidates, with artifacts and evidence, until it is killed or done.
fn write_if_child(most: u32) -> bool {
    let (Some(folder), Ok(writer)) = (std::env::var_os(FOLDER), std::env::var(WRITER)) else {
        return false;
    };
    let folder = PathBuf::from(folder);
    let writer: u32 = writer.parse().unwrap();
    let mut ledger = ledger_in(&folder);
    let task = task("toy");
    ledger.append(&Entry::Posed(task.clone())).unwrap();
    for n in 0..most {
        let c = candidate(&task, writer * 1_000_000 + n);
        let artifact = ledger.artifacts().put(format!("{writer} {n}").repeat(500).as_bytes()).unwrap();
        ledger.append(&Entry::Proposed(c.clone())).unwrap();
        let mut e = evidence(&c, Phase::Confirm, f64::from(n + 1));
        if let Outcome::Measured(m) = &mut e.outcome {
            m.artifact = artifact;
        }
        ledger.append(&Entry::Observed(e)).unwrap();
    }
    true
}

fn start(test: &str, folder: &std::path::Path, writer: u32) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--test-threads=1"])
        .env(FOLDER, folder)
        .env(WRITER, writer.to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn kill_9_at_any_moment_leaves_one_entry_or_none() {
    if write_if_child(u32::MAX) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let started = Instant::now();
    let (mut last, mut grew) = (0, 0);
    for round in 0..25u32 {
        let mut child = start("kill_9_at_any_moment_leaves_one_entry_or_none", folder.path(), round);
        std::thread::sleep(Duration::from_millis(25 + u64::from(round) * 7));
        child.kill().unwrap();
        child.wait().unwrap();
        let ledger = ledger_in(folder.path());
        let check = ledger.check().unwrap();
        assert_eq!(check.damage, None, "round {round}");
        assert!(check.intact >= last, "round {round}: entries went");
        grew += u32::from(check.intact > last);
        last = check.intact;
        // What evidence mentions is there, whole.
        for seen in Fold::read(&ledger).unwrap().evidence.values().flatten() {
            if let Outcome::Measured(m) = &seen.evidence.outcome {
                ledger.artifacts().get(m.artifact).unwrap();
            }
        }
        if started.elapsed() > Duration::from_secs(30) && grew >= 5 {
            break;
        }
    }
    assert!(grew >= 5, "the writers hardly wrote: {grew} rounds, {last} entries");
}

#[test]
fn several_processes_write_one_chain() {
    if write_if_child(25) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let children: Vec<Child> =
        (0..3).map(|w| start("several_processes_write_one_chain", folder.path(), w)).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let check = ledger_in(folder.path()).check().unwrap();
    assert_eq!((check.intact, check.damage), (1 + 3 * 25 * 2, None));
}
