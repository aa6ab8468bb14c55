//! Where the time goes: operations against the roofline, and the steps of a pass.

use crate::report::chart::{self, Distance};
use crate::report::html::{Links, clip, escape, number, time, times};
use crate::report::page::Section;
use crate::report::source::Source;
use crate::report::story::{TaskStory, confirmation, first_row, place};
use crate::summary::{Operation, Row, Step};
use evidence::Id;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Each operation of the plan: portable, champion, floor. Of a bare ledger: portable and champion.
pub fn roofline(source: &Source, tasks: &[TaskStory], links: &Links) -> Option<Section> {
    let operations = source.summary.as_ref().map_or(&[][..], |s| &s.operations);
    let mut operations: Vec<&Operation> =
        operations.iter().filter(|o| o.ns.is_finite() && o.ns > 0.0).collect();
    operations.sort_by_key(|o| (place(&o.name), &o.name, first_row(&o.rows)));
    let mut list: Vec<Distance> = operations.iter().map(|o| distance(o)).collect();
    if list.is_empty() {
        list = tasks.iter().filter(|t| t.name != "engine").filter_map(from_story).collect();
    }
    if list.is_empty() {
        return None;
    }
    let mut body = String::from(
        "<p class=\"lead\">Time of one call, on a log axis. The floor is what this machine’s measured ceilings allow: bytes that must be \
         read, multiplications that must be done. The pale line on its right is what is left to win.</p><div class=\"panel\">\
         <div class=\"key\"><span><i class=\"champion\"></i>champion</span><span><i class=\"portable\"></i>portable baseline</span>\
         <span><i class=\"tick\"></i>measured floor</span></div>",
    );
    let _ = write!(body, "<div class=\"scroll\">{}</div>", chart::roofline(&list));
    if !operations.is_empty() {
        body += &kernels(source, &operations, links);
    }
    body += &ceilings(source);
    body += "</div>";
    Some(Section { anchor: "roofline", title: "Against the roofline", body })
}

fn distance(o: &Operation) -> Distance {
    let positive = |v: f64| Some(v).filter(|v| v.is_finite() && *v > 0.0);
    let floor = o.floor_ns.and_then(positive);
    let share = floor.map_or(String::new(), |f| {
        format!("\n{:.0} % of the roofline (floor {})", 100.0 * f / o.ns, time(f))
    });
    Distance {
        label: o.name.clone(),
        rows: o.rows.clone(),
        baseline: positive(o.baseline_ns),
        now: o.ns,
        floor,
        tooltip: format!(
            "{} at {} rows: {}, portable {}{share}\n{} {}",
            o.name,
            o.rows,
            time(o.ns),
            time(o.baseline_ns),
            o.kernel,
            o.point
        ),
    }
}

fn from_story(t: &TaskStory) -> Option<Distance> {
    let base = t.baseline_ns?;
    let now = base / t.speedup();
    Some(Distance {
        label: t.name.clone(),
        rows: t.rows.clone(),
        baseline: Some(base),
        now,
        floor: None,
        tooltip: format!("{} at {} rows: {}, portable {}", t.name, t.rows, time(now), time(base)),
    })
}

fn kernels(source: &Source, operations: &[&Operation], links: &Links) -> String {
    let mut out = String::from(
        "<details><summary>Kernels of the plan</summary><div class=\"scroll\"><table><thead><tr><th>Operation</th><th>Rows</th>\
         <th class=\"n\">Time</th><th class=\"n\">Floor</th><th class=\"n\">vs portable</th><th>Kernel</th><th>Candidate</th><th>Evidence</th></tr></thead><tbody>",
    );
    for o in operations {
        let candidate = o.candidate.as_deref().and_then(|c| c.parse().ok()).map(Id::from_digest);
        let evidence = candidate.and_then(|c| confirmation(&source.fold, c));
        let _ = write!(
            out,
            "<tr><td>{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
             <td>{} <span class=\"change\">{}</span></td><td><code>{}</code></td><td>{}</td></tr>",
            escape(&o.name),
            escape(&o.rows),
            time(o.ns),
            o.floor_ns.map_or("–".to_owned(), time),
            times(o.baseline_ns / o.ns),
            clip(&o.kernel, 60),
            clip(&o.point, 200),
            candidate.map_or_else(String::new, |c: Id<evidence::Candidate>| c.short()),
            links.evidence(evidence)
        );
    }
    out + "</tbody></table></div></details>"
}

fn ceilings(source: &Source) -> String {
    let Some(summary) = source.summary.as_ref().filter(|s| !s.ceilings.is_empty()) else {
        return String::new();
    };
    let mut out = String::from("<details><summary>Measured ceilings of the machine</summary><table><tbody>");
    for (name, value) in &summary.ceilings {
        let words = match name.as_str() {
            n if n.contains("_ns") => time(*value),
            n if n.contains("bytes") => format!("{} GB/s", number(value / 1e9)),
            n if n.contains("macs") => format!("{} GMAC/s", number(value / 1e9)),
            n if n.contains("flops") => format!("{} GFLOP/s", number(value / 1e9)),
            _ => number(*value),
        };
        let _ = write!(out, "<tr><td><code>{}</code></td><td class=\"n\">{words}</td></tr>", escape(name));
    }
    out + "</tbody></table></details>"
}

/// Steps of a pass, for each number of rows that was profiled, and what a server's time went into beside passes.
pub fn profile(source: &Source) -> Option<Section> {
    let summary = source.summary.as_ref()?;
    let mut passes: BTreeMap<(u32, u32), Vec<&Step>> = BTreeMap::new();
    for s in summary.profile.iter().filter(|s| s.ns.is_finite() && s.ns > 0.0) {
        passes.entry((s.rows, s.context)).or_default().push(s);
    }
    let spent: Vec<&Row> = summary.table.iter().filter(|r| r.spent.is_some()).collect();
    if passes.is_empty() && spent.is_empty() {
        return None;
    }
    let mut body = String::new();
    if !passes.is_empty() {
        body += &steps(&passes);
    }
    if !spent.is_empty() {
        body += &wall(&spent);
    }
    Some(Section { anchor: "pass", title: "Where the time goes", body })
}

fn steps(passes: &BTreeMap<(u32, u32), Vec<&Step>>) -> String {
    let mut names: BTreeMap<&str, f64> = BTreeMap::new();
    for list in passes.values() {
        let total: f64 = list.iter().map(|s| s.ns).sum();
        list.iter().for_each(|s| *names.entry(&s.step).or_default() += s.ns / total);
    }
    let mut order: Vec<&str> = names.keys().copied().collect();
    order.sort_by(|a, b| names[b].total_cmp(&names[a]));
    let mut body = String::from(
        "<p class=\"lead\">Share of one pass of the whole engine, by step, on one thread. Barriers: waiting for the other threads. \
         A pass of prompt rows has no context in its table row.</p><div class=\"panel scroll\"><table><thead><tr>\
         <th class=\"n\">Rows</th><th class=\"n\">Context</th><th class=\"n\">Pass</th>",
    );
    order.iter().for_each(|n| body += &format!("<th class=\"n\">{}</th>", clip(n, 24)));
    body += "</tr></thead><tbody>";
    for ((rows, context), list) in passes {
        let total: f64 = list.iter().map(|s| s.ns).sum();
        let context = if *context == 0 { "prompt".to_owned() } else { context.to_string() };
        let _ = write!(
            body,
            "<tr><td class=\"n\">{rows}</td><td class=\"n\">{context}</td><td class=\"n\"><b>{}</b></td>",
            time(total)
        );
        for name in &order {
            let ns: f64 = list.iter().filter(|s| s.step == *name).map(|s| s.ns).sum();
            let share = ns / total;
            let _ = write!(
                body,
                "<td class=\"n\" style=\"background:rgba(var(--tint),{:.3})\"{}>{}</td>",
                0.6 * share,
                chart::tip(&format!("{name}: {}", time(ns))),
                if ns > 0.0 { format!("{:.0} %", share * 100.0) } else { String::new() }
            );
        }
        body += "</tr>";
    }
    body + "</tbody></table></div>"
}

fn wall(rows: &[&Row]) -> String {
    let mut body = String::from(
        "<p class=\"lead\">Wall time of the measurements over HTTP: passes of the plan; the rest of the engine’s loop (scheduling, sampling, \
         handing tokens over); and time in which the engine waited for requests: HTTP, tokenizer and load client. The client’s \
         processor time is part of the machine’s work and overlaps with the rest.</p><div class=\"panel scroll\"><table><thead><tr>\
         <th>Engine</th><th class=\"n\">Concurrency</th><th class=\"n\">Wall</th><th class=\"n\">Passes</th><th class=\"n\">Engine’s loop</th>\
         <th class=\"n\">Waiting for work</th><th class=\"n\">Client’s processor time</th></tr></thead><tbody>",
    );
    for row in rows {
        let Some(spent) = row.spent.as_ref().filter(|s| s.wall_s > 0.0) else { continue };
        let share = |s: f64| format!("{:.1} %", 100.0 * s / spent.wall_s);
        let waiting = (spent.wall_s - spent.passes_s - spent.engine_s).max(0.0);
        let _ = write!(
            body,
            "<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
             <td class=\"n\">{}</td><td class=\"n\">{}</td></tr>",
            escape(&row.engine),
            row.concurrency,
            time(spent.wall_s * 1e9),
            share(spent.passes_s),
            share(spent.engine_s),
            share(waiting),
            spent.client_s.map_or(String::new(), share),
        );
    }
    body + "</tbody></table></div>"
}
