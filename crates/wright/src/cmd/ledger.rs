//! `wright ledger list|show|export|check`.

mod seeds;

use crate::cli::{Ledger as Args, LedgerArgs};
use anyhow::{Result, bail};
use evidence::{Entry, Outcome, Stop, Verdict};
use ledger::{Ledger, Options, Position, Record};

const PAGE: u32 = 500;

/// Opens a ledger for reading.
pub fn open(url: Option<&str>) -> Result<Box<dyn Ledger>> {
    Ok(ledger::open(url, Options::read_only())?)
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Result<()> {
    match args {
        Args::List(a) => list(a),
        Args::Show { id, args } => show(id, args),
        Args::Export(a) => {
            let ledger = open(a.ledger.as_deref())?;
            ledger::export(&*ledger, Position::START, &mut std::io::stdout().lock())?;
            Ok(())
        }
        Args::Check(a) => check(a),
    }
}

fn list(args: &LedgerArgs) -> Result<()> {
    let ledger = open(args.ledger.as_deref())?;
    for_each(&*ledger, |record| {
        if args.json {
            println!("{}", as_json(record)?);
        } else {
            println!(
                "{:>6}  {}  {:<8}  {}",
                record.position.0,
                record.content.short(),
                record.entry.kind(),
                words(&record.entry)
            );
        }
        Ok(())
    })
}

/// All entries in order, a page in memory at a time.
fn for_each(ledger: &dyn Ledger, mut see: impl FnMut(&Record) -> Result<()>) -> Result<()> {
    let mut after = Position::START;
    loop {
        let page = ledger.entries(after, PAGE)?;
        let Some(last) = page.last() else { return Ok(()) };
        after = last.position;
        page.iter().try_for_each(&mut see)?;
    }
}

fn show(id: &str, args: &LedgerArgs) -> Result<()> {
    let ledger = open(args.ledger.as_deref())?;
    let position = id.parse::<u64>().ok().filter(|n| *n > 0 && id.len() < 12);
    let by_position = match position {
        Some(n) => ledger.entries(Position(n - 1), 1)?.into_iter().find(|r| r.position.0 == n),
        None => None,
    };
    let record = match by_position {
        Some(record) => record,
        None => ledger.find(id)?,
    };
    println!("{}", if args.json { as_json(&record)? } else { serde_json::to_string_pretty(&record.entry)? });
    Ok(())
}

fn check(args: &LedgerArgs) -> Result<()> {
    let ledger = open(args.ledger.as_deref())?;
    let check = ledger.check()?;
    // Entries behind a damaged one cannot be read.
    let seeds = check.damage.is_none().then(|| seeds::check(&*ledger)).transpose()?;
    if args.json {
        println!("{}", serde_json::json!({"chain": check, "seeds": seeds}));
    } else {
        println!(
            "{} entries intact; head {} at {}",
            check.intact,
            check.head.chain.short(),
            check.head.position
        );
        if let Some(seeds) = &seeds {
            println!(
                "{} measurements of kernels with the seeds of their runs' secrets; {} of runs that revealed none",
                seeds.proved, seeds.unrevealed
            );
        }
    }
    if let Some((position, what)) = check.damage {
        bail!("the ledger is damaged at position {position}: {what}");
    }
    let swapped = seeds.map_or_else(Vec::new, |s| s.swapped);
    if let Some(first) = swapped.first() {
        bail!(
            "{} measurements were made with other seeds than their run was bound to; the first is evidence {first}",
            swapped.len()
        );
    }
    Ok(())
}

fn as_json(record: &Record) -> Result<String> {
    Ok(serde_json::to_string(&serde_json::json!({
        "position": record.position, "recorded_ms": record.recorded_ms, "content": record.content,
        "chain": record.chain, "entry": record.entry,
    }))?)
}

/// One line about an entry.
pub fn words(entry: &Entry) -> String {
    match entry {
        Entry::Posed(task) => match &task.contract {
            evidence::Contract::Kernel { operation, rows_low, rows_high, .. } => {
                let high = if *rows_high == u32::MAX { "+".to_owned() } else { format!("-{rows_high}") };
                format!("{operation} rows {rows_low}{high} on {}", task.target)
            }
            evidence::Contract::Engine { model, .. } => {
                format!("engine for model {model} on {}", task.target)
            }
        },
        Entry::Proposed(c) => format!("by {}: {}", c.proposer.name, c.hypothesis),
        Entry::Observed(e) => {
            let outcome = match &e.outcome {
                Outcome::Measured(m) => format!("measured, {} cases passed", m.check.cases),
                Outcome::Stopped(Stop::Rejected(r)) => format!("rejected ({:?}): {}", r.reason, r.detail),
                Outcome::Stopped(Stop::Inconclusive { fault, detail }) => {
                    format!("inconclusive ({fault:?}): {detail}")
                }
            };
            format!("{} {:?}: {outcome}", e.candidate.short(), e.phase)
        }
        Entry::Decided(d) => format!("{} {}", d.challenger.short(), verdict(&d.verdict)),
    }
}

/// A verdict in words.
pub fn verdict(verdict: &Verdict) -> String {
    let effect = |e: &evidence::Effect| format!("x{:.3} ({:.3} to {:.3})", e.ratio, e.low, e.high);
    match verdict {
        Verdict::Promote(Some(e)) => format!("promoted {}", effect(e)),
        Verdict::Promote(None) => "promoted as the first champion".to_owned(),
        Verdict::Keep(e) => format!("not better {}", effect(e)),
        Verdict::Refuse => "refused".to_owned(),
        Verdict::Evaluate(phase) => format!("to be evaluated further: {phase:?}"),
        Verdict::Revoke => "champion revoked".to_owned(),
    }
}
