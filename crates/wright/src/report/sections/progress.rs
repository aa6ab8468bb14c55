//! Champions over time, and what each accepted change bought.

use crate::report::chart::{self, Stair};
use crate::report::html::{Links, clip, escape, time, times};
use crate::report::page::Section;
use crate::report::source::Source;
use crate::report::story::{Rise, TaskStory, first_row, overall};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Most steps of one staircase that are drawn; tables show all.
const STAIRS: usize = 28;

fn observed(source: &Source) -> f64 {
    source.fold.evidence.values().map(Vec::len).sum::<usize>() as f64
}

fn seconds(source: &Source, at_ms: u64) -> f64 {
    at_ms.saturating_sub(source.span_ms.0) as f64 / 1e3
}

/// The overall speed-up, against evaluations and against time.
pub fn overall_section(source: &Source, tasks: &[TaskStory]) -> Option<Section> {
    let points = overall(tasks);
    if points.is_empty() {
        return None;
    }
    let start = (0.0, 1.0, String::new());
    let words = |p: &(u64, u64, f64)| {
        format!("{} after {} evaluations, {:.0} s", times(p.2), p.1, seconds(source, p.0))
    };
    let by_evaluation: Vec<_> =
        std::iter::once(start.clone()).chain(points.iter().map(|p| (p.1 as f64, p.2, words(p)))).collect();
    let mut ordered = points.clone();
    ordered.sort_by_key(|p| p.0);
    let by_time: Vec<_> =
        std::iter::once(start).chain(ordered.iter().map(|p| (seconds(source, p.0), p.2, words(p)))).collect();
    let body = format!(
        "<p class=\"lead\">Speed-up of all kernels together against the portable baseline. Each operation counts by the time \
         that its first champion takes; each dot is a promotion that a held-out confirmation backs.</p>\
         <div class=\"panel\" data-tabs><div class=\"key\"><button type=\"button\" data-tab=\"n\" aria-selected=\"true\">by evaluation</button>\
         <button type=\"button\" data-tab=\"t\" aria-selected=\"false\">by time</button></div>\
         <div class=\"scroll\" data-pane=\"n\">{}</div><div class=\"scroll\" data-pane=\"t\" hidden>{}</div></div>",
        chart::progress(&by_evaluation, observed(source), "evaluations"),
        chart::progress(&by_time, seconds(source, source.span_ms.1), "seconds since the first entry"),
    );
    Some(Section { anchor: "progress", title: "Champion over time", body })
}

/// One small chart for each operation and bucket.
pub fn matrix(source: &Source, tasks: &[TaskStory], links: &Links) -> Option<Section> {
    let kernels: Vec<&TaskStory> = tasks.iter().filter(|t| t.name != "engine").collect();
    if kernels.is_empty() {
        return None;
    }
    let mut columns: Vec<&str> =
        kernels.iter().map(|t| t.rows.as_str()).collect::<BTreeSet<_>>().into_iter().collect();
    columns.sort_by_key(|r| (first_row(r), r.len()));
    let mut cells: BTreeMap<(&str, &str), &TaskStory> = BTreeMap::new();
    for t in &kernels {
        // Several tasks of one name: a ledger of several plans. The most improved one stands for them.
        let cell = cells.entry((&t.name, &t.rows)).or_insert(t);
        if t.speedup() > cell.speedup() {
            *cell = t;
        }
    }
    let most = kernels.iter().map(|t| t.speedup()).fold(1.2, f64::max);
    let end = observed(source);
    let mut body = String::from(
        "<p class=\"lead\">Rows are operations, columns are rows of a call (tokens in one pass). Lines run over all evaluations, \
         on one log scale; deeper colour is a larger speed-up over the portable kernel.</p><div class=\"panel scroll\"><table class=\"matrix\"><thead><tr><th></th>",
    );
    columns
        .iter()
        .for_each(|c| body += &format!("<th>{} {}</th>", escape(c), if *c == "1" { "row" } else { "rows" }));
    body += "</tr></thead><tbody>";
    let mut names: Vec<&str> = kernels.iter().map(|t| t.name.as_str()).collect();
    names.dedup();
    for name in names {
        let _ = write!(body, "<tr><th>{}</th>", escape(name));
        for column in &columns {
            let Some(t) = cells.get(&(name, *column)) else {
                body += "<td></td>";
                continue;
            };
            body += &cell(t, most, end, links);
        }
        body += "</tr>";
    }
    body += "</tbody></table></div>";
    Some(Section { anchor: "operations", title: "Operation by operation", body })
}

fn cell(t: &TaskStory, most: f64, end: f64, links: &Links) -> String {
    let mut points = vec![(0.0, 1.0)];
    points.extend(t.steps.iter().skip(1).map(|s| (s.evaluation as f64, s.speedup)));
    let share = t.speedup().max(1.0).ln() / most.ln();
    let promoted = t.steps.len() - 1;
    let evidence = t.steps.last().and_then(|s| s.evidence);
    format!(
        "<td style=\"background:rgba(var(--tint),{:.3})\"{}><span class=\"x\">{}</span><span class=\"c\">{promoted} change{}</span>{}{}</td>",
        0.03 + 0.25 * share,
        chart::tip(&format!("{} at {} rows: {} promotions", t.name, t.rows, promoted)),
        times(t.speedup()),
        if promoted == 1 { "" } else { "s" },
        chart::spark(&points, end, most),
        links.evidence(evidence)
    )
}

/// The staircase of every task that improved, those that save most first.
pub fn stairs(tasks: &[TaskStory], links: &Links) -> Option<Section> {
    let mut improved: Vec<&TaskStory> = tasks.iter().filter(|t| t.steps.len() > 1).collect();
    if improved.is_empty() {
        return None;
    }
    let saved = |t: &TaskStory| t.weight * (1.0 - 1.0 / t.speedup().max(1e-9));
    improved.sort_by(|a, b| saved(b).total_cmp(&saved(a)));
    let mut body = String::from(
        "<p class=\"lead\">Every accepted change, with who proposed it and the hypothesis that was written before anybody measured. \
         Heights are the first champion’s measured time divided by the confirmed effects; whiskers are the intervals of the last effect.</p><div class=\"panel\">",
    );
    for (n, task) in improved.iter().enumerate() {
        let rows =
            if task.rows.is_empty() { String::new() } else { format!(", rows {}", escape(&task.rows)) };
        let _ = write!(
            body,
            "<details{}><summary>{}{rows}<span class=\"sub\">{} in {} change{}</span></summary>",
            if n < 2 { " open" } else { "" },
            escape(&task.name),
            times(task.speedup()),
            task.steps.len() - 1,
            if task.steps.len() == 2 { "" } else { "s" }
        );
        if let Some(base) = task.baseline_ns {
            let _ = write!(body, "<div class=\"scroll\">{}</div>", chart::staircase(&treads(task, base)));
        }
        body += &ladder(task, links);
        body += "</details>";
    }
    body += "</div>";
    Some(Section { anchor: "stairs", title: "What each change bought", body })
}

fn treads(task: &TaskStory, base: f64) -> Vec<Stair> {
    let skipped = task.steps.len().saturating_sub(STAIRS);
    let mut before = 1.0;
    let mut all = Vec::new();
    for (n, s) in task.steps.iter().enumerate() {
        let interval =
            s.effect.map(|e| (base / (before * e.high.max(1e-9)), base / (before * e.low.max(1e-9))));
        before = s.speedup;
        if n > 0 && n <= skipped {
            continue;
        }
        all.push(Stair {
            ns: base / s.speedup,
            interval,
            gain: if n == 0 { time(base) } else { gain(s) },
            tooltip: format!("{}\n{}: {}\n{}", time(base / s.speedup), s.proposer, s.change, s.hypothesis),
        });
    }
    all
}

fn gain(s: &Rise) -> String {
    match s.effect {
        Some(e) => times(e.ratio),
        None if s.revoked => "revoked".to_owned(),
        None => String::new(),
    }
}

fn ladder(task: &TaskStory, links: &Links) -> String {
    let mut out = String::from(
        "<div class=\"scroll\"><table><thead><tr><th class=\"n\">#</th><th class=\"n\">Effect</th><th class=\"n\">Total</th><th>Proposer</th>\
         <th>Hypothesis</th><th>Change</th><th class=\"n\">Evaluation</th><th>Evidence</th></tr></thead><tbody>",
    );
    for (n, s) in task.steps.iter().enumerate() {
        let effect = match (n, s.effect) {
            (0, _) => task.baseline_ns.map_or("first".to_owned(), time),
            (_, Some(e)) => {
                format!("{} <span class=\"none\">{:.2}–{:.2}</span>", times(e.ratio), e.low, e.high)
            }
            (_, None) => "<span class=\"chip bad\">revoked</span>".to_owned(),
        };
        let evidence = if n == 0 { task.baseline_evidence.or(s.evidence) } else { s.evidence };
        let _ = write!(
            out,
            "<tr><td class=\"n\">{n}</td><td class=\"n\">{effect}</td><td class=\"n\">{}</td><td>{}</td><td><div class=\"hyp\">{}</div></td>\
             <td><div class=\"change\">{}</div></td><td class=\"n\">{}</td><td>{}</td></tr>",
            times(s.speedup),
            clip(&s.proposer, 40),
            clip(&s.hypothesis, 400),
            clip(&s.change, 300),
            s.evaluation,
            links.evidence(evidence)
        );
    }
    out + "</tbody></table></div>"
}
