//! `wright explain`: a candidate in words.

use super::ledger::{open, verdict, words};
use crate::assemble;
use crate::cli::Explain;
use anyhow::{Result, bail};
use evidence::{Candidate, Change, Contract, Entry, Id};
use ledger::Fold;

/// Prints source, lineage, evidence and decision.
pub fn run(args: &Explain) -> Result<()> {
    let ledger = open(args.ledger.as_deref())?;
    let record = ledger.find(&args.id)?;
    let id: Id<Candidate> = match &record.entry {
        Entry::Proposed(_) => Id::from_digest(record.content),
        Entry::Observed(e) => e.candidate,
        Entry::Decided(d) => d.challenger,
        Entry::Posed(_) => bail!("{} is a task; name a candidate, its evidence or its decision", args.id),
    };
    let fold = Fold::read(&*ledger)?;
    let Some(candidate) = fold.candidates.get(&id) else { bail!("candidate {id} is not in this ledger") };
    let source = source(&fold, candidate);
    if args.json {
        let evidence: Vec<_> = fold.evidence_of(id).iter().map(|s| &s.evidence).collect();
        let decisions: Vec<_> = fold.decisions.get(&id).into_iter().flatten().map(|(_, d)| d).collect();
        println!(
            "{}",
            serde_json::json!({
                "id": id, "candidate": candidate, "task": fold.tasks.get(&candidate.task),
                "evidence": evidence, "decisions": decisions, "source": source.ok(),
            })
        );
        return Ok(());
    }
    println!("candidate {id}");
    if let Some(task) = fold.tasks.get(&candidate.task) {
        println!("task      {} ({})", words(&Entry::Posed(task.clone())), candidate.task.short());
    }
    println!("proposer  {}", candidate.proposer.name);
    println!("why       {}", candidate.hypothesis);
    match &candidate.change {
        Change::Recipe { generator, point, .. } => println!("recipe    {generator}: {point}"),
        Change::Source { text, .. } => println!("source    {} bytes of text", text.len()),
        Change::Plan { choices, kernels } => println!("plan      {choices}; {} kernels", kernels.len()),
    }
    println!("\nlineage");
    let mut line = vec![(0usize, id)];
    let mut shown = 0;
    while let Some((depth, at)) = line.pop() {
        let Some(c) = fold.candidates.get(&at) else { continue };
        let decided = fold.last_decision(at).map_or("undecided".to_owned(), |d| verdict(&d.verdict));
        println!("  {}{} {} - {decided}", "  ".repeat(depth.min(20)), at.short(), c.proposer.name);
        shown += 1;
        if shown < 40 {
            line.extend(c.parents.iter().map(|p| (depth + 1, *p)));
        }
    }
    println!("\nevidence");
    for seen in fold.evidence_of(id) {
        println!(
            "  {} at {}: {}",
            seen.id.short(),
            seen.position,
            words(&Entry::Observed(seen.evidence.clone()))
        );
    }
    println!("\ndecisions");
    for (position, decision) in fold.decisions.get(&id).into_iter().flatten() {
        println!("  at {position}: {} by rule {}", verdict(&decision.verdict), decision.rule);
    }
    match source {
        Ok(text) => println!("\nsource\n{text}"),
        Err(error) => println!("\nsource: {error:#}"),
    }
    Ok(())
}

/// The candidate's source, generated again for recipes.
fn source(fold: &Fold, candidate: &Candidate) -> Result<String> {
    match &candidate.change {
        Change::Source { text, .. } => Ok(text.clone()),
        Change::Plan { .. } => bail!("a plan has no source of its own; explain its kernels"),
        Change::Recipe { generator, point, max_rows } => {
            let Some(task) = fold.tasks.get(&candidate.task) else { bail!("its task is not in this ledger") };
            let Contract::Kernel { definition, rows_low, rows_high, .. } = &task.contract else {
                bail!("its task is no kernel task")
            };
            let operation = serde_json::from_str(definition)?;
            let rows = plan::RowBucket { low: *rows_low, high: *rows_high };
            let target = task.target.parse()?;
            let g = assemble::generator(generator)?;
            Ok(g.generate(&operation, rows, &target, point, *max_rows)?.source)
        }
    }
}
