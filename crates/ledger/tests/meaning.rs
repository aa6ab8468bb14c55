//! What the ledger promises: order, deduplication, references, compare-and-swap, folds.

mod fixtures;

use evidence::*;
use fixtures::*;
use ledger::*;
use proptest::prelude::*;

#[test]
fn entries_come_back_as_they_were_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let mut ledger = ledger_in(folder.path());
    assert_eq!(ledger.head().unwrap(), Head::EMPTY);
    let (task, first) = with_champion(&mut ledger);
    let records = ledger.entries(Position::START, 100).unwrap();
    assert_eq!(records.len(), 4);
    assert_eq!(records[0].entry, Entry::Posed(task.clone()));
    assert_eq!(records[3].previous, records[2].chain);
    assert_eq!(ledger.head().unwrap(), Head { position: Position(4), chain: records[3].chain });
    assert_eq!(ledger.head_at(Position(3)).unwrap().unwrap().chain, records[2].chain);
    assert_eq!(ledger.head_at(Position(9)).unwrap(), None);
    assert_eq!(ledger.entries(Position(3), 100).unwrap(), records[3..]);
    assert_eq!(ledger.get(first.id().digest()).unwrap().unwrap().entry, Entry::Proposed(first.clone()));
    assert_eq!(ledger.champion(task.id()).unwrap(), Some(first.id()));
    let check = ledger.check().unwrap();
    assert_eq!((check.intact, check.damage), (4, None));
    drop(ledger);
    assert_eq!(ledger_in(folder.path()).entries(Position::START, 100).unwrap(), records);
}

#[test]
fn equal_contents_are_recorded_once_but_faults_each_time() {
    let folder = tempfile::tempdir().unwrap();
    let mut ledger = ledger_in(folder.path());
    let (task, first) = with_champion(&mut ledger);
    assert_eq!(ledger.append(&Entry::Posed(task)).unwrap(), Appended::Known(Position(1)));
    assert_eq!(ledger.append(&Entry::Proposed(first.clone())).unwrap(), Appended::Known(Position(2)));
    let seen = evidence(&first, Phase::Screen, 100.0);
    assert_eq!(ledger.append(&Entry::Observed(seen)).unwrap(), Appended::Known(Position(3)));
    let fault = Stop::Inconclusive { fault: Fault::Disturbed, detail: String::new() };
    let fault = Entry::Observed(stopped(&first, Phase::Screen, Outcome::Stopped(fault)));
    assert_eq!(ledger.append(&fault).unwrap(), Appended::New(Position(5)));
    assert_eq!(ledger.append(&fault).unwrap(), Appended::New(Position(6)));
}

#[test]
fn a_promotion_is_void_if_the_champion_has_moved() {
    let folder = tempfile::tempdir().unwrap();
    let mut ledger = ledger_in(folder.path());
    let (task, first) = with_champion(&mut ledger);
    let (a, b) = (candidate(&task, 1), candidate(&task, 2));
    let [ea, eb] = [&a, &b].map(|c| {
        ledger.append(&Entry::Proposed(c.clone())).unwrap();
        let e = evidence(c, Phase::Confirm, 50.0);
        ledger.append(&Entry::Observed(e.clone())).unwrap();
        e
    });
    ledger.append_decision(&promote(Some(&first), &a, &ea)).unwrap();
    let head = ledger.head().unwrap();
    for stale in [promote(Some(&first), &b, &eb), promote(None, &b, &eb)] {
        assert!(matches!(
            ledger.append_decision(&stale),
            Err(LedgerError::ChampionMoved { found: Some(f), .. }) if f == a.id()
        ));
    }
    assert_eq!(ledger.head().unwrap(), head, "nothing was recorded");
    ledger.append_decision(&promote(Some(&a), &b, &eb)).unwrap();
    // A revocation falls back, by the same rule.
    let revoke = Decision { verdict: Verdict::Revoke, ..promote(Some(&b), &first, &eb) };
    ledger.append_decision(&revoke).unwrap();
    assert!(matches!(ledger.append_decision(&revoke), Err(LedgerError::ChampionMoved { .. })));
    assert_eq!(ledger.champion(task.id()).unwrap(), Some(first.id()));
    let fold = Fold::read(&ledger).unwrap();
    assert_eq!(fold.champions.get(task.id()), Some(first.id()));
    let reigns: Vec<_> = fold.champions.history(task.id()).iter().map(|r| r.champion).collect();
    assert_eq!(reigns, [first.id(), a.id(), b.id(), first.id()]);
    assert_eq!(fold.statistics[&task.id()].promoted, 3);
    assert_eq!(fold.statistics[&task.id()].revoked, 1);
}

#[test]
fn only_measured_confirmation_promotes_and_references_must_exist() {
    let folder = tempfile::tempdir().unwrap();
    let mut ledger = ledger_in(folder.path());
    let (task, first) = with_champion(&mut ledger);
    let a = candidate(&task, 1);
    let screen = evidence(&a, Phase::Screen, 1.0);
    assert!(matches!(
        ledger.append(&Entry::Observed(screen.clone())),
        Err(LedgerError::Dangling { what: "candidate", .. })
    ));
    ledger.append(&Entry::Proposed(a.clone())).unwrap();
    ledger.append(&Entry::Observed(screen.clone())).unwrap();
    assert!(matches!(
        ledger.append_decision(&promote(Some(&first), &a, &screen)),
        Err(LedgerError::Unconfirmed { .. })
    ));
    let rejection = Rejection { reason: Reason::Wrong, detail: "x".to_owned() };
    let stop = Outcome::Stopped(Stop::Rejected(rejection));
    let rejected = stopped(&a, Phase::Confirm, stop);
    ledger.append(&Entry::Observed(rejected.clone())).unwrap();
    assert!(matches!(
        ledger.append_decision(&promote(Some(&first), &a, &rejected)),
        Err(LedgerError::Unconfirmed { .. })
    ));
    let others = evidence(&first, Phase::Confirm, 1.0);
    ledger.append(&Entry::Observed(others.clone())).unwrap();
    assert!(matches!(
        ledger.append_decision(&promote(Some(&first), &a, &others)),
        Err(LedgerError::Unconfirmed { .. })
    ));
    let unseen = evidence(&a, Phase::Confirm, 2.0);
    assert!(matches!(
        ledger.append_decision(&promote(Some(&first), &a, &unseen)),
        Err(LedgerError::Dangling { what: "evidence", .. })
    ));
    assert_eq!(Fold::read(&ledger).unwrap().statistics[&task.id()].refused[&Reason::Wrong], 1);
}

#[test]
fn numbers_that_are_not_finite_cannot_be_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let mut ledger = ledger_in(folder.path());
    let (_, first) = with_champion(&mut ledger);
    for bad in [f64::NAN, f64::INFINITY] {
        let e = Entry::Observed(evidence(&first, Phase::Screen, bad));
        assert!(matches!(ledger.append(&e), Err(LedgerError::NotEncodable { kind: "observed" })));
    }
}

#[test]
fn prefixes_find_one_entry_or_say_why_not() {
    let folder = tempfile::tempdir().unwrap();
    let mut ledger = ledger_in(folder.path());
    let (task, _) = with_champion(&mut ledger);
    let hex = task.id().to_string();
    assert_eq!(ledger.find(&hex[..8]).unwrap().entry, Entry::Posed(task.clone()));
    assert_eq!(ledger.find(&hex.to_uppercase()).unwrap().position, Position(1));
    for bad in ["", "abc", "xyzw", "12 4", "%%%%"] {
        assert!(matches!(ledger.find(bad), Err(LedgerError::BadPrefix { .. })), "{bad}");
    }
    assert!(matches!(ledger.find(&"0".repeat(64)), Err(LedgerError::Unknown { .. })));
    // Enough candidates that two share four hex digits.
    let mut seen = std::collections::BTreeMap::new();
    for n in 0..2000 {
        let c = candidate(&task, n);
        if let Some(other) = seen.insert(c.id().to_string()[..4].to_owned(), c.clone()) {
            ledger.append(&Entry::Proposed(other)).unwrap();
            ledger.append(&Entry::Proposed(c.clone())).unwrap();
            assert!(matches!(ledger.find(&c.id().to_string()[..4]), Err(LedgerError::Ambiguous { .. })));
            return;
        }
    }
    panic!("no two of 2000 candidates share four digits");
}

#[test]
fn a_fold_catches_up_like_one_read_from_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let mut ledger = ledger_in(folder.path());
    let mut fold = Fold::default();
    let (task, first) = with_champion(&mut ledger);
    assert_eq!(fold.catch_up(&ledger).unwrap().len(), 4);
    for n in 1..600 {
        ledger.append(&Entry::Proposed(candidate(&task, n))).unwrap();
    }
    assert_eq!(fold.catch_up(&ledger).unwrap().len(), 599);
    let whole = Fold::read(&ledger).unwrap();
    assert_eq!(fold.proposed, whole.proposed);
    assert_eq!(fold.position, Position(603));
    assert_eq!(fold.evidence_of(first.id()).len(), 1);
}

#[test]
fn builds_resume_by_their_header() {
    let folder = tempfile::tempdir().unwrap();
    let header = BuildHeader {
        model: Digest::of(b"m"),
        goal: Digest::of(b"g"),
        target: "x86_64/t2".to_owned(),
        seed: 1,
        out: "/tmp/out".to_owned(),
    };
    let mut ledger = ledger_in(folder.path());
    let build = ledger.open_build(&header).unwrap();
    assert!(!build.resumed());
    let spent = Spent { wall_ms: 5, evaluations: 2 };
    ledger.record_build(&build.id, &BuildEvent::RunStarted { secret_digest: Digest::of(b"s") }).unwrap();
    ledger.record_build(&build.id, &BuildEvent::Spent(Spent::default())).unwrap();
    ledger.record_build(&build.id, &BuildEvent::Spent(spent)).unwrap();
    drop(ledger);
    let mut ledger = ledger_in(folder.path());
    let again = ledger.open_build(&header).unwrap();
    assert!(again.resumed() && again.id == build.id);
    assert_eq!(again.spent(), spent);
    let other = ledger.open_build(&BuildHeader { seed: 2, ..header }).unwrap();
    assert!(!other.resumed());
    assert_eq!(ledger.builds().unwrap().len(), 2);
}

#[test]
fn exports_are_json_lines() {
    let folder = tempfile::tempdir().unwrap();
    let mut ledger = ledger_in(folder.path());
    with_champion(&mut ledger);
    let mut out = Vec::new();
    assert_eq!(export(&ledger, Position::START, &mut out).unwrap(), 4);
    let lines: Vec<serde_json::Value> =
        String::from_utf8(out).unwrap().lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(lines[2]["entry"], "observed");
    assert_eq!(lines[3]["position"], 4);
}

#[test]
fn calls_work_inside_an_asynchronous_program() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut ledger = ledger_in(folder.path());
        with_champion(&mut ledger);
        assert_eq!(ledger.head().unwrap().position, Position(4));
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn floats_survive(bits in any::<u64>()) {
        let value = f64::from_bits(bits);
        prop_assume!(value.is_finite());
        let c = candidate(&task("t"), 0);
        let e = Entry::Observed(evidence(&c, Phase::Screen, value));
        let back: Entry = serde_json::from_slice(&e.canonical()).unwrap();
        prop_assert_eq!(back.content(), e.content());
    }
}
