//! `wright redteam`: the exploit suite against the judge.

use crate::cli::Redteam;
use crate::workshop;
use anyhow::{Context, Result, bail};
use comfy_table::{ContentArrangement, Table, presets::UTF8_FULL_CONDENSED};
use evidence::Content;
use judge::redteam::{Caught, Finding, Report};
use judge::{Effort, Judge, JudgeConfig, Secret};
use std::time::Duration;

/// Longest detail in the table; JSON has it whole.
const DETAIL: usize = 160;

/// Runs the suite. Fails if a cheat got through, an honest candidate was refused, or an evaluation came to no end.
pub fn run(args: &Redteam) -> Result<()> {
    let mut judge = judge()?;
    let total = judge::redteam::DISHONEST.len() + judge::redteam::HONEST.len();
    let mut done = 0;
    let report = judge::redteam::run(&mut judge, |f| {
        done += 1;
        eprintln!("{done:>3}/{total} {:<24} {} ({:.1} s)", f.name, word(f), f.took.as_secs_f64());
    })?;
    if args.json {
        println!("{}", as_json(&report));
    } else {
        println!("{}", table(&report));
        println!("{}", summary(&report));
    }
    if !report.passes() {
        bail!("the judge did not pass: {}", summary(&report));
    }
    Ok(())
}

/// A judge of this machine that cares about verdicts, not about quiet.
fn judge() -> Result<Judge> {
    let builder = workshop::builder()?;
    let machine = workshop::machine(&builder, &workshop::features(&[]))?;
    let processors = kernel_abi::allowed_processors().context("reading which processors may be used")?;
    let workers = workshop::workers(processors)?;
    let secret = Secret::draw().context("drawing the run's secret")?;
    let mut config = JudgeConfig::new(builder, workers, secret, machine.id().digest(), machine.ceilings);
    // No time that is taken here is believed, so a busy machine must not make an evaluation inconclusive.
    let mut effort = Effort {
        working_set: 8 << 20,
        block: Duration::from_micros(300),
        foreign: 1.0,
        call_timeout: Duration::from_secs(2),
        ..Effort::default()
    };
    effort.drift.relative = 100.0;
    effort.drift.steal = 1.0;
    config.effort = effort;
    Ok(Judge::new(config))
}

fn word(finding: &Finding) -> &'static str {
    match finding.verdict {
        Caught::Right if finding.detail == "accepted" => "accepted (honest)",
        Caught::Right => "caught",
        Caught::OtherReason => "caught (another defence)",
        Caught::Missed => "MISSED",
        Caught::HonestRefused => "HONEST REFUSED",
        Caught::Inconclusive => "INCONCLUSIVE",
    }
}

fn table(report: &Report) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Dynamic).set_header([
        "candidate",
        "what it does",
        "verdict",
        "defence",
    ]);
    for finding in report.dishonest.iter().chain(&report.honest) {
        let mut detail: String = finding.detail.chars().filter(|c| !c.is_control()).take(DETAIL).collect();
        if finding.detail.chars().count() > DETAIL {
            detail.push('…');
        }
        table.add_row([finding.name.as_str(), &finding.why, word(finding), &detail]);
    }
    table
}

fn summary(report: &Report) -> String {
    let caught = report.dishonest.iter().filter(|f| matches!(f.verdict, Caught::Right | Caught::OtherReason));
    format!(
        "{} of {} cheats caught ({} by another defence than expected), {} missed; {} of {} honest candidates refused; {} inconclusive",
        caught.count(),
        report.dishonest.len(),
        report.count(Caught::OtherReason),
        report.count(Caught::Missed),
        report.count(Caught::HonestRefused),
        report.honest.len(),
        report.count(Caught::Inconclusive),
    )
}

fn as_json(report: &Report) -> serde_json::Value {
    serde_json::json!({
        "passes": report.passes(),
        "caught": report.dishonest.iter()
            .filter(|f| matches!(f.verdict, Caught::Right | Caught::OtherReason)).count(),
        "caught_for_another_reason": report.count(Caught::OtherReason),
        "missed": report.count(Caught::Missed),
        "honest_refused": report.count(Caught::HonestRefused),
        "inconclusive": report.count(Caught::Inconclusive),
        "dishonest": report.dishonest,
        "honest": report.honest,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(name: &str, verdict: Caught, detail: &str) -> Finding {
        Finding { name: name.into(), why: "why".into(), verdict, detail: detail.into(), took: Duration::ZERO }
    }

    #[test]
    fn results_in_words() {
        let mut report = Report {
            dishonest: vec![
                finding("zeros", Caught::Right, "Wrong: row 1"),
                finding("nan", Caught::OtherReason, "Class: x"),
            ],
            honest: vec![finding("plain", Caught::Right, "accepted")],
        };
        assert!(summary(&report).starts_with("2 of 2 cheats caught (1 by another"), "{}", summary(&report));
        assert_eq!(as_json(&report)["passes"], true);
        report.dishonest.push(finding("sly", Caught::Missed, "accepted"));
        assert!(table(&report).to_string().contains("MISSED"));
        assert_eq!(
            (as_json(&report)["passes"].clone(), as_json(&report)["missed"].clone()),
            (false.into(), 1.into())
        );
    }
}
