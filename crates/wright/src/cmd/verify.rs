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

/// Checks files, kernels, evidence and claims. Fails unless everything that was checked agrees, and no claim stays open.
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
            say(Finding::open(&claim.id, "not run: the bundle is damaged (see above)"));
        }
    } else {
        let bundle = claims::Bundle {
            folder: &args.bundle,
            manifest: &manifest,
            records: records.as_ref(),
            model: args.model.as_deref(),
        };
        claims::check(bundle, &chosen, &mut say);
    }
    let verdict = verdict(args, &findings);
    print(args, &findings, verdict.is_ok());
    verdict
}

fn count(findings: &[Finding], status: Status) -> usize {
    findings.iter().filter(|f| f.status == status).count()
}

/// What the exit status says.
fn verdict(args: &Verify, findings: &[Finding]) -> Result<()> {
    let (agree, differ) = (count(findings, Status::Agrees), count(findings, Status::Differs));
    if differ > 0 {
        bail!("{differ} of {} checks of {} do not agree", agree + differ, args.bundle.display());
    }
    // A claim that was asked for by name is open whatever kept it from being checked.
    let asked = |f: &Finding| f.status == Status::Unchecked && args.claim.as_ref() == Some(&f.subject);
    let open: Vec<&str> =
        findings.iter().filter(|f| f.open || asked(f)).map(|f| f.subject.as_str()).collect();
    if !open.is_empty() && !args.allow_unchecked {
        bail!(
            "claims that could not be checked: {} (why is said above; --allow-unchecked accepts that)",
            open.join(", ")
        );
    }
    Ok(())
}

fn print(args: &Verify, findings: &[Finding], holds: bool) {
    let count = |status| count(findings, status);
    let (agree, differ, unchecked) =
        (count(Status::Agrees), count(Status::Differs), count(Status::Unchecked));
    if args.json {
        println!(
            "{}",
            serde_json::json!({
                "bundle": args.bundle, "holds": holds, "agree": agree, "differ": differ, "unchecked": unchecked,
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
        println!("{agree} agree, {differ} differ, {unchecked} not checked");
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The manifest of an empty bundle.
    pub fn manifest() -> Manifest {
        serde_json::from_value(serde_json::json!({
            "version": plan::PLAN_VERSION, "abi": plan::ABI_VERSION, "model_name": "", "model_digest": "",
            "created_s": 0, "machine": {}, "toolchain": "", "kernels": {}, "tensors": {}, "weights_bytes": 0,
            "weights_digest": "", "ledger_head": null, "claims": [],
        }))
        .unwrap()
    }

    #[test]
    fn open_claims_fail_unless_allowed() {
        let verdict = |findings: &[Finding], claim: Option<&str>, allow_unchecked| {
            let claim = claim.map(str::to_owned);
            let args = Verify { bundle: "b".into(), claim, model: None, allow_unchecked, json: false };
            verdict(&args, findings).map_err(|e| e.to_string())
        };
        let agrees = Finding::agrees("weights.bin", "");
        let old_file = Finding::unchecked("build.json", "older");
        let elsewhere = Finding::unchecked("speed.c1", "another processor");
        let open = Finding::open("quality.kl", "no model");
        let differs = Finding::differs("speed.c4", "slow");
        let excused = [agrees.clone(), old_file.clone(), elsewhere];
        assert_eq!(verdict(&excused, None, false), Ok(()));
        assert!(verdict(&excused, Some("speed.c1"), false).unwrap_err().contains("speed.c1"));
        assert_eq!(verdict(&[agrees.clone(), old_file], Some("speed.c1"), false), Ok(()));
        let some_open = [agrees, open];
        let error = verdict(&some_open, None, false).unwrap_err();
        assert!(error.contains("quality.kl") && error.contains("--allow-unchecked"), "{error}");
        assert_eq!(verdict(&some_open, None, true), Ok(()));
        assert!(verdict(&[differs], None, true).is_err());
    }
}
