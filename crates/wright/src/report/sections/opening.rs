//! What one sees first: the model, the machine, the headline numbers and the final table.

use crate::report::html::{Links, escape, number, times};
use crate::report::page::Section;
use crate::report::source::Source;
use crate::report::story::{TaskStory, overall};
use crate::summary::{Row, Summary};
use std::fmt::Write;

/// Title of the page.
pub fn title(source: &Source) -> String {
    match model(source) {
        Some(model) => format!("{model} · Enginewright"),
        None => "Search ledger · Enginewright".to_owned(),
    }
}

fn model(source: &Source) -> Option<&str> {
    let named = source.summary.as_ref().map(|s| s.model.as_str()).filter(|m| !m.is_empty());
    named.or(source.manifest.as_ref().map(|m| m.model_name.as_str()))
}

/// Title, machine and tiles.
pub fn header(source: &Source, links: &Links, tasks: &[TaskStory]) -> String {
    let mut out = String::from(
        "<header class=\"top\"><div class=\"top-line\"><span class=\"brand\">Enginewright report</span>\
         <button id=\"theme\" type=\"button\">Light / dark</button></div>",
    );
    let _ = write!(out, "<h1>{}</h1>", escape(model(source).unwrap_or("Search ledger")));
    let facts = facts(source);
    let _ = write!(out, "<div class=\"sub\">{}</div></header>", facts.join(" · "));
    let mut tiles = String::new();
    if let Some(summary) = &source.summary {
        speed_tiles(&mut tiles, summary, links);
        let _ = write!(out, "<div class=\"tiles\">{tiles}</div>");
        tiles.clear();
        quality_tile(&mut tiles, summary, links);
        memory_tile(&mut tiles, summary);
    }
    if let Some((_, _, speedup)) = overall(tasks).last() {
        let what = "kernels of the plan, each weighed by the time its first champion takes";
        tile(&mut tiles, "", "Kernel speed-up", &times(*speedup), what);
    }
    let counts = source.fold.statistics.values();
    let (observed, promoted) = counts.fold((0, 0), |n, s| (n.0 + s.observed, n.1 + s.promoted));
    let observed = source.summary.as_ref().map_or(observed, |s| s.evaluations.max(observed));
    let search = match &source.summary {
        Some(s) if s.search_s > 0.0 => format!("in {} of search, {promoted} promoted", minutes(s.search_s)),
        _ => format!("{promoted} promoted"),
    };
    tile(&mut tiles, "", "Evaluations", &observed.to_string(), &search);
    let _ = write!(out, "<div class=\"tiles\">{tiles}</div>");
    out
}

fn facts(source: &Source) -> Vec<String> {
    let mut facts = Vec::new();
    let machine = source.manifest.as_ref().map(|m| &m.machine);
    let summary = source.summary.as_ref();
    let named = summary.and_then(|s| s.machine.get("name").or(s.machine.get("cpu")));
    if let Some(name) = named.map(String::as_str).or(machine.and_then(|m| m.get("cpu")).map(String::as_str)) {
        facts.push(escape(name));
    }
    let mut target = summary.map(|s| s.target.clone()).unwrap_or_default();
    if target.is_empty() {
        let targets: std::collections::BTreeSet<&str> =
            source.fold.tasks.values().map(|t| t.target.as_str()).collect();
        target = targets.into_iter().take(3).collect::<Vec<_>>().join(", ");
    }
    if !target.is_empty() {
        facts.push(format!("target <code>{}</code>", escape(target)));
    }
    if let Some(s) = summary {
        facts.push(format!("seed {}", s.seed));
    }
    if let Some(m) = &source.manifest {
        facts.push(escape(&m.toolchain));
    }
    facts
}

fn speed_tiles(out: &mut String, summary: &Summary, links: &Links) {
    for row in summary.table.iter().filter(|r| r.engine == "champion" && r.tokens_per_s.is_finite()) {
        let name = format!("Concurrency {}", row.concurrency);
        let evidence = cited(links, &row.evidence);
        match row.vs_portable {
            Some(ratio) => {
                let small = format!("{} output tokens/s{evidence}", number(row.tokens_per_s));
                tile(out, "hero", &format!("{name}, against portable"), &times(ratio), &small);
            }
            None => {
                tile(out, "hero", &name, &number(row.tokens_per_s), &format!("output tokens/s{evidence}"))
            }
        }
    }
}

/// Links on a line of their own; nothing where there is no evidence.
fn cited<'a>(links: &Links, ids: impl IntoIterator<Item = &'a String>) -> String {
    let mut ids = ids.into_iter().filter(|i| !i.is_empty()).peekable();
    if ids.peek().is_none() {
        return String::new();
    }
    format!("<br>{}", links.all(ids))
}

fn quality_tile(out: &mut String, summary: &Summary, links: &Links) {
    let Some(q) = summary.quality.as_ref().filter(|q| q.kl.is_finite() && q.tokens > 0) else { return };
    let bound = q.bound_kl.map_or(String::new(), |b| format!(", bound {}", number(b)));
    tile(
        out,
        "",
        "KL from the f32 reference",
        &number(q.kl),
        &format!("nats per token{bound}{}", cited(links, [&q.evidence])),
    );
}

fn memory_tile(out: &mut String, summary: &Summary) {
    let most = |engine: &str| {
        summary.table.iter().filter(|r| r.engine == engine).map(|r| r.memory_bytes).max().filter(|m| *m > 0)
    };
    let Some(champion) = most("champion") else { return };
    let against = most("portable").map_or(String::new(), |p| format!(", portable {}", megabytes(p)));
    tile(out, "", "Memory", &megabytes(champion), &format!("peak resident{against}"));
}

fn tile(out: &mut String, class: &str, name: &str, big: &str, small: &str) {
    let _ = write!(
        out,
        "<div class=\"tile {class}\"><div class=\"name\">{}</div><div class=\"big\">{}</div><div class=\"small\">{small}</div></div>",
        escape(name),
        escape(big)
    );
}

/// Reference, portable and champion, side by side.
pub fn table(source: &Source, links: &Links) -> Option<Section> {
    let summary = source.summary.as_ref().filter(|s| !s.table.is_empty())?;
    let mut rows: Vec<&Row> = summary.table.iter().collect();
    let order = |e: &str| ["reference", "portable", "champion"].iter().position(|n| *n == e).unwrap_or(3);
    rows.sort_by_key(|r| (r.concurrency, order(&r.engine)));
    let most = rows.iter().map(|r| r.tokens_per_s).filter(|v| v.is_finite()).fold(0.0, f64::max);
    let mut body = String::from(
        "<p class=\"lead\">Output tokens per second of all requests together, at the given number of open requests. Raw samples of every cell are in build.json.</p>\
         <div class=\"panel scroll\"><table><thead><tr><th class=\"n\">Open</th><th>Engine</th><th class=\"n\">Tokens/s</th><th></th><th class=\"n\">vs portable</th>\
         <th class=\"n\">Tokens in + out</th><th class=\"n\">Requests</th><th class=\"n\">TTFT ms</th><th class=\"n\">ITL ms</th>\
         <th class=\"n\">Memory</th><th>Evidence</th></tr></thead><tbody>",
    );
    for r in rows {
        let class = ["reference", "portable", "champion"][order(&r.engine).min(2)];
        let width = if r.tokens_per_s.is_finite() && most > 0.0 { 72.0 * r.tokens_per_s / most } else { 0.0 };
        let bar = format!(
            "<svg width=\"72\" height=\"12\"><rect class=\"{class}\" width=\"{:.1}\" height=\"12\" rx=\"2\"/></svg>",
            width.max(1.0)
        );
        let median = |v: &[f64]| statistics::median(v).map_or("–".to_owned(), number);
        let mut memory = if r.memory_bytes > 0 { megabytes(r.memory_bytes) } else { "–".to_owned() };
        if r.weights_only() {
            memory.push_str(" of weights");
        }
        let _ = write!(
            body,
            "<tr><td class=\"n\">{}</td><td>{}</td><td class=\"n\"><b>{}</b></td><td>{bar}</td><td class=\"n\">{}</td><td class=\"n\">{} + {}</td>\
             <td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{memory}</td><td>{}</td></tr>",
            r.concurrency,
            escape(&r.engine),
            number(r.tokens_per_s),
            r.vs_portable.map_or(String::new(), times),
            r.prompt_tokens,
            r.output_tokens,
            r.requests,
            median(&r.ttft_ms),
            median(&r.itl_ms),
            links.all(&r.evidence),
        );
    }
    body += "</tbody></table></div>";
    if let Some(p) = summary.table.iter().find(|r| r.engine == "portable") {
        let _ = write!(
            body,
            "<p class=\"lead\">\"vs portable\": champion and portable plan on the same prompts, {} tokens in and {} out.</p>",
            p.prompt_tokens, p.output_tokens
        );
    }
    Some(Section { anchor: "speed", title: "Speed", body })
}

fn megabytes(bytes: u64) -> String {
    format!("{} MB", number(bytes as f64 / 1e6))
}

fn minutes(s: f64) -> String {
    match s {
        s if s < 90.0 => format!("{s:.0} s"),
        s if s < 5400.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}
