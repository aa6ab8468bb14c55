//! What was tried, and what became of it.

use crate::report::chart;
use crate::report::html::{Links, clip, escape, times};
use crate::report::page::Section;
use crate::report::source::Source;
use crate::report::story::{change, measured};
use evidence::{Candidate, Contract, Fault, Id, Outcome, Reason, Stop, Verdict};
use ledger::{Fold, Seen};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Candidates in the table.
const RECENT: usize = 250;

/// What became of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    Promoted,
    Kept,
    Refused,
    Inconclusive,
    Open,
}

impl Fate {
    const ALL: [Fate; 5] = [Fate::Promoted, Fate::Kept, Fate::Refused, Fate::Inconclusive, Fate::Open];

    fn of(fold: &Fold, id: Id<Candidate>) -> Self {
        let decisions = fold.decisions.get(&id).map_or(&[][..], Vec::as_slice);
        if decisions.iter().any(|(_, d)| matches!(d.verdict, Verdict::Promote(_))) {
            return Fate::Promoted;
        }
        let seen = fold.evidence_of(id);
        let rejected = |s: &Seen| matches!(s.evidence.outcome, Outcome::Stopped(Stop::Rejected(_)));
        match decisions.last().map(|(_, d)| &d.verdict) {
            Some(Verdict::Keep(_)) => Fate::Kept,
            Some(Verdict::Refuse) => Fate::Refused,
            _ if seen.iter().any(rejected) => Fate::Refused,
            _ if !seen.is_empty() && seen.iter().all(|s| measured(&s.evidence).is_none()) => {
                Fate::Inconclusive
            }
            _ => Fate::Open,
        }
    }

    fn words(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Fate::Promoted => ("good", "good", "promoted"),
            Fate::Kept => ("kept", "plain", "right, not better"),
            Fate::Refused => ("bad", "bad", "refused"),
            Fate::Inconclusive => ("warn", "warn", "inconclusive"),
            Fate::Open => ("open", "plain", "undecided"),
        }
    }
}

/// Candidates by proposer and fate, and evidence by reason.
pub fn counts(source: &Source) -> Option<Section> {
    let fold = &source.fold;
    if fold.candidates.is_empty() {
        return None;
    }
    let mut by: BTreeMap<&str, BTreeMap<Fate, u64>> = BTreeMap::new();
    for (id, c) in &fold.candidates {
        *by.entry(&c.proposer.name).or_default().entry(Fate::of(fold, *id)).or_default() += 1;
    }
    let mut rows: Vec<_> = by.into_iter().collect();
    rows.sort_by_key(|(_, counts)| std::cmp::Reverse(counts.values().sum::<u64>()));
    let rows: Vec<_> = rows
        .into_iter()
        .map(|(name, counts)| {
            let parts = Fate::ALL.map(|f| (f.words().0, counts.get(&f).copied().unwrap_or(0), f.words().2));
            (name.to_owned(), parts.to_vec())
        })
        .collect();
    let mut body = String::from(
        "<p class=\"lead\">All candidates, by who proposed them and what became of them.</p><div class=\"panel\"><div class=\"key\">",
    );
    for f in Fate::ALL {
        let _ = write!(body, "<span><i class=\"{}\"></i>{}</span>", f.words().0, f.words().2);
    }
    let _ = write!(body, "</div><div class=\"scroll\">{}</div></div>", chart::stacked(&rows));
    let reasons = reasons(fold);
    if !reasons.is_empty() {
        let _ = write!(
            body,
            "<h3>Why evaluations ended early</h3><div class=\"panel\"><div class=\"key\"><span><i class=\"bad\"></i>the candidate’s fault: final</span>\
             <span><i class=\"warn\"></i>ours or the machine’s: evaluated again</span></div><div class=\"scroll\">{}</div></div>",
            chart::stacked(&reasons)
        );
    }
    Some(Section { anchor: "tried", title: "What was tried", body })
}

fn reasons(fold: &Fold) -> Vec<(String, Vec<chart::Part>)> {
    let mut refused: BTreeMap<Reason, u64> = BTreeMap::new();
    let mut faults: BTreeMap<Fault, u64> = BTreeMap::new();
    for s in fold.statistics.values() {
        s.refused.iter().for_each(|(r, n)| *refused.entry(*r).or_default() += n);
        s.inconclusive.iter().for_each(|(f, n)| *faults.entry(*f).or_default() += n);
    }
    let mut rows: Vec<_> =
        refused.into_iter().map(|(r, n)| (format!("{r:?}"), vec![("bad", n, "rejections")])).collect();
    rows.extend(faults.into_iter().map(|(f, n)| (format!("{f:?}"), vec![("warn", n, "evaluations")])));
    rows.sort_by_key(|r| std::cmp::Reverse(r.1[0].1));
    rows
}

/// The last candidates, with a filter.
pub fn candidates(source: &Source, links: &Links) -> Option<Section> {
    let fold = &source.fold;
    let mut all: Vec<(&Id<Candidate>, &Candidate, u64)> = fold
        .candidates
        .iter()
        .map(|(id, c)| {
            let decided = fold.decisions.get(id).and_then(|d| d.last()).map(|(p, _)| p.0);
            (id, c, decided.or(fold.evidence_of(*id).last().map(|s| s.position.0)).unwrap_or(0))
        })
        .collect();
    if all.is_empty() {
        return None;
    }
    all.sort_by_key(|c| std::cmp::Reverse(c.2));
    let mut body = format!(
        "<p class=\"lead\">The last {} of {} candidates, newest first. <code>wright explain ID</code> shows source and lineage.</p>\
         <input id=\"filter\" type=\"search\" placeholder=\"Filter: operation, proposer, verdict, words of a hypothesis\" aria-label=\"Filter candidates\">\
         <div class=\"panel tall\"><table id=\"candidates\"><thead><tr><th>Candidate</th><th>Operation</th><th>Proposer</th><th>Verdict</th>\
         <th>Hypothesis</th><th>Change</th><th>Evidence</th></tr></thead><tbody>",
        all.len().min(RECENT),
        all.len()
    );
    for (id, c, _) in all.iter().take(RECENT) {
        let (_, chip, word) = Fate::of(fold, **id).words();
        let seen = fold.evidence_of(**id).last();
        let parent = c.parents.first().and_then(|p| fold.candidates.get(p));
        let _ = write!(
            body,
            "<tr><td><code>{}</code></td><td>{}</td><td>{}</td><td><span class=\"chip {chip}\">{word}</span> <span class=\"none\">{}</span></td>\
             <td><div class=\"hyp\">{}</div></td><td><div class=\"change\">{}</div></td><td>{}</td></tr>",
            id.short(),
            clip(&operation(source, c), 60),
            clip(&c.proposer.name, 40),
            detail(fold, **id, seen),
            clip(&c.hypothesis, 240),
            clip(&change(parent, Some(c)), 200),
            links.evidence(seen.map(|s| s.id)),
        );
    }
    body += "</tbody></table></div>";
    Some(Section { anchor: "candidates-list", title: "Recent candidates", body })
}

fn operation(source: &Source, candidate: &Candidate) -> String {
    match source.fold.tasks.get(&candidate.task).map(|t| &t.contract) {
        Some(Contract::Kernel { operation, rows_low, rows_high, .. }) => {
            format!("{operation}, rows {}", plan::RowBucket { low: *rows_low, high: *rows_high })
        }
        Some(Contract::Engine { .. }) => "engine".to_owned(),
        None => "unknown".to_owned(),
    }
}

/// The effect, or why it stopped, escaped.
fn detail(fold: &Fold, id: Id<Candidate>, seen: Option<&Seen>) -> String {
    let stopped = seen.and_then(|s| match &s.evidence.outcome {
        Outcome::Stopped(Stop::Rejected(r)) => Some(format!("{:?}: {}", r.reason, r.detail)),
        Outcome::Stopped(Stop::Inconclusive { fault, detail }) => Some(format!("{fault:?}: {detail}")),
        Outcome::Measured(_) => None,
    });
    match (stopped, fold.last_decision(id).map(|d| &d.verdict)) {
        (Some(why), _) => clip(&why, 120),
        (None, Some(Verdict::Promote(Some(e)) | Verdict::Keep(e))) => {
            format!("{} ({:.3}–{:.3})", times(e.ratio), e.low, e.high)
        }
        _ => String::new(),
    }
}

/// An id, where there is one.
fn given(id: &String) -> Option<&String> {
    Some(id).filter(|id| !id.is_empty())
}

/// Choices of the plan, plans that were tried, and the audit.
pub fn plans(source: &Source, links: &Links) -> Option<Section> {
    let s = source.summary.as_ref()?;
    if s.plan.is_empty() && s.plan_trials.is_empty() && s.audit.is_empty() {
        return None;
    }
    let mut body = String::new();
    if !s.plan.is_empty() {
        body += "<p class=\"lead\">What the search chose across operations.</p><div class=\"panel scroll\"><table><tbody>";
        for (axis, value) in &s.plan {
            let _ = write!(
                body,
                "<tr><td>{}</td><td><code>{}</code></td></tr>",
                clip(axis, 80),
                clip(value, 200)
            );
        }
        body += "</tbody></table></div>";
    }
    if !s.plan_trials.is_empty() {
        body += "<h3>Plans that ran as whole engines</h3><div class=\"panel scroll\"><table><thead><tr><th>Choices</th><th>Verdict</th><th>Evidence</th></tr></thead><tbody>";
        for t in &s.plan_trials {
            let _ = write!(
                body,
                "<tr><td><div class=\"change\">{}</div></td><td>{}</td><td>{}</td></tr>",
                clip(&t.choices, 400),
                clip(&t.verdict, 200),
                links.all(given(&t.evidence))
            );
        }
        body += "</tbody></table></div>";
    }
    if !s.audit.is_empty() {
        body += "<h3>Audit: each part left out and measured again</h3><div class=\"panel scroll\"><table><thead><tr><th>Part</th><th class=\"n\">With / without</th><th>Verdict</th><th>Evidence</th></tr></thead><tbody>";
        for a in &s.audit {
            let _ = write!(
                body,
                "<tr><td>{}</td><td class=\"n\">{}</td><td>{}</td><td>{}</td></tr>",
                clip(&a.part, 120),
                a.ratio.map_or("–".to_owned(), |r| format!("{r:.3}×")),
                escape(&a.verdict),
                links.all(given(&a.evidence))
            );
        }
        body += "</tbody></table></div>";
    }
    Some(Section { anchor: "plan", title: "The plan", body })
}

/// Lessons that were distilled.
pub fn lessons(source: &Source) -> Option<Section> {
    let lessons = &source.fold.lessons;
    if lessons.is_empty() {
        return None;
    }
    let mut body = String::from(
        "<p class=\"lead\">Statements distilled from paired evidence, newest first.</p><div class=\"panel scroll\"><table><thead><tr>\
         <th>Lesson</th><th>Scope</th><th class=\"n\">Effect</th><th class=\"n\">Support</th></tr></thead><tbody>",
    );
    for (_, _, l) in lessons.iter().rev().take(40) {
        let effect =
            l.effect.map_or("–".to_owned(), |e| format!("{} ({:.2}–{:.2})", times(e.ratio), e.low, e.high));
        let _ = write!(
            body,
            "<tr><td>{}</td><td>{}</td><td class=\"n\">{effect}</td><td class=\"n\">{}</td></tr>",
            clip(&l.statement, 300),
            clip(&l.scope, 120),
            l.support
        );
    }
    body += "</tbody></table></div>";
    Some(Section { anchor: "lessons", title: "Lessons", body })
}
