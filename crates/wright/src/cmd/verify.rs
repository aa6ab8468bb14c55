//! `wright verify`: is the bundle what it says, and do its claims hold on this machine?

mod claims;
mod files;
mod finding;
mod kernels;

use crate::cli::Verify;
use crate::report::records::Records;
use anyhow::{Context, Result, bail};
use comfy_table::{ContentArrangement, Table, presets::UTF8_FULL_CONDENSED};
use finding::{Finding, Status};
use plan::Manifest;
use std::path::Path;

/// Checks files, kernels, evidence and claims. Fails unless everything that was checked agrees.
pub fn run(args: &Verify) -> Result<()> {
    let manifest = read_manifest(&args.bundle)?;
    if let Some(wanted) = &args.claim
        && !manifest.claims.iter().any(|c| c.id == *wanted)
    {
        let known: Vec<&str> = manifest.claims.iter().map(|c| c.id.as_str()).collect();
        bail!("the bundle claims no '{wanted}'; it claims: {}", known.join(", "));
    }
    let mut findings = Vec::new();
    let mut say = |list: Vec<Finding>| {
        for finding in &list {
            eprintln!("{:<10} {} {}", finding.status.word(), finding.subject, finding.detail);
        }
        findings.extend(list);
    };
    say(files::check(&args.bundle, &manifest));
    let records = read_records(&args.bundle)?;
    say(files::check_evidence(&manifest, records.as_ref()));
    if args.claim.is_none() {
        say(kernels::check(&args.bundle, &manifest));
    }
    let damaged = findings.iter().any(|f| f.status == Status::Differs);
    let wanted = |id: &str| args.claim.as_deref().is_none_or(|w| w == id);
    let chosen: Vec<_> = manifest.claims.iter().filter(|c| wanted(&c.id)).collect();
    let mut say = |finding: Finding| {
        eprintln!("{:<10} {} {}", finding.status.word(), finding.subject, finding.detail);
        findings.push(finding);
    };
    if damaged {
        // A bundle whose files are not what the manifest says is not run.
        for claim in &chosen {
            say(Finding::unchecked(&claim.id, "not run: the bundle is damaged (see above)"));
        }
    } else {
        claims::check(&args.bundle, &manifest, records.as_ref(), &chosen, &mut say);
    }
    print(args, &findings)
}

fn print(args: &Verify, findings: &[Finding]) -> Result<()> {
    let count = |s: Status| findings.iter().filter(|f| f.status == s).count();
    let (agree, differ, open) = (count(Status::Agrees), count(Status::Differs), count(Status::Unchecked));
    if args.json {
        println!(
            "{}",
            serde_json::json!({
                "bundle": args.bundle, "holds": differ == 0, "agree": agree, "differ": differ, "unchecked": open,
                "findings": findings,
            })
        );
    } else {
        let mut table = Table::new();
        table
            .load_preset(UTF8_FULL_CONDENSED)
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_header(["", "what", "found"]);
        for f in findings {
            table.add_row([f.status.word(), &f.subject, &f.detail]);
        }
        println!("{table}");
        println!("{agree} agree, {differ} differ, {open} not checked");
    }
    if differ > 0 {
        bail!("{differ} of {} checks of {} do not agree", agree + differ, args.bundle.display());
    }
    if args.claim.is_some() && open > 0 {
        bail!("the claim could not be checked here (see above)");
    }
    Ok(())
}

fn read_manifest(bundle: &Path) -> Result<Manifest> {
    let path = bundle.join("manifest.json");
    let bytes = std::fs::read(&path)
        .with_context(|| format!("{} is no bundle: {} cannot be read", bundle.display(), path.display()))?;
    serde_json::from_slice(&bytes).with_context(|| format!("reading {}", path.display()))
}

/// The bundled ledger entries; `None` where there is no such file.
fn read_records(bundle: &Path) -> Result<Option<Records>> {
    let path = bundle.join("evidence.jsonl");
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(Some(Records::parse(&text))),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e).with_context(|| format!("reading {}", path.display())),
    }
}
