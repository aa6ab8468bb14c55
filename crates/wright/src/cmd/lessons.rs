//! `wright lessons list|show`.

use super::ledger::open;
use crate::cli::{LedgerArgs, Lessons};
use anyhow::{Result, bail};
use ledger::Fold;

/// Runs the subcommand.
pub fn run(args: &Lessons) -> Result<()> {
    match args {
        Lessons::List(a) => print(a, ""),
        Lessons::Show { text, args } => print(args, text),
    }
}

fn print(args: &LedgerArgs, filter: &str) -> Result<()> {
    let ledger = open(args.ledger.as_deref())?;
    let fold = Fold::read(&*ledger)?;
    let mut found = 0;
    for (position, task, lesson) in &fold.lessons {
        if !lesson.scope.contains(filter) && !lesson.statement.contains(filter) {
            continue;
        }
        found += 1;
        if args.json {
            println!("{}", serde_json::json!({ "position": position, "task": task, "lesson": lesson }));
        } else {
            let effect = lesson
                .effect
                .map_or(String::new(), |e| format!(" x{:.3} ({:.3} to {:.3})", e.ratio, e.low, e.high));
            println!("[{}] {}{effect}; support {}", lesson.scope, lesson.statement, lesson.support);
        }
    }
    if found == 0 && !filter.is_empty() {
        bail!("no lesson mentions '{filter}'; `wright lessons list` shows all");
    }
    Ok(())
}
