//! The table that every number links to.

use crate::report::html::{Links, clip, escape, number, time};
use crate::report::page::Section;
use crate::report::source::Source;
use evidence::{Evidence, Measured, Outcome, Samples, Stop};
use ledger::Seen;
use std::collections::BTreeMap;
use std::fmt::Write;

/// All evidence that the page cites.
pub fn table(source: &Source, links: &Links) -> Option<Section> {
    let cited = links.cited();
    if cited.is_empty() {
        return None;
    }
    let seen: BTreeMap<String, &Seen> =
        source.fold.evidence.values().flatten().map(|s| (s.id.to_string(), s)).collect();
    let mut body = String::from(
        "<p class=\"lead\">What the numbers above rest on. <code>wright ledger show ID</code> prints an entry whole, raw samples included; \
         <code>wright verify</code> measures a bundle’s claims again.</p><div class=\"panel tall\"><table><thead><tr><th>Evidence</th><th>Candidate</th><th>Phase</th>\
         <th>Outcome</th><th>Samples</th><th>Checked before timing</th><th>Protocol</th><th>Sandbox layers</th></tr></thead><tbody>",
    );
    for id in &cited {
        let short = &id[..12];
        let _ = write!(body, "<tr id=\"e-{short}\"><td><code title=\"{id}\">{short}</code></td>");
        match seen.get(id) {
            Some(s) => body += &row(&s.evidence),
            None => body += "<td colspan=\"7\">not among the entries that came with this report</td>",
        }
        body += "</tr>";
    }
    body += "</tbody></table></div>";
    Some(Section { anchor: "evidence", title: "Evidence", body })
}

fn row(e: &Evidence) -> String {
    let (outcome, samples, check) = match &e.outcome {
        Outcome::Measured(m) => {
            ("<span class=\"chip good\">measured</span>".to_owned(), summary(&m.samples), checks(m))
        }
        Outcome::Stopped(Stop::Rejected(r)) => {
            let words = format!("<span class=\"chip bad\">{:?}</span> {}", r.reason, clip(&r.detail, 160));
            (words, String::new(), String::new())
        }
        Outcome::Stopped(Stop::Inconclusive { fault, detail }) => {
            let words = format!("<span class=\"chip warn\">{fault:?}</span> {}", clip(detail, 160));
            (words, String::new(), String::new())
        }
    };
    let against =
        e.against.map_or(String::new(), |a| format!("<br><span class=\"none\">against {}</span>", a.short()));
    let p = &e.protocol;
    format!(
        "<td><code>{}</code>{against}</td><td>{:?}</td><td>{outcome}</td><td>{samples}</td><td>{check}</td>\
         <td>{}<br><span class=\"none\">corpus {}, machine {}<br>{}</span></td><td>{}</td>",
        e.candidate.short(),
        e.phase,
        clip(&p.version, 60),
        clip(&p.corpus, 40),
        e.machine.short(),
        clip(&p.toolchain, 60),
        escape(p.layers.join(", ")),
    )
}

fn summary(samples: &Samples) -> String {
    let median = |v: &[f64]| statistics::median(v).map_or("–".to_owned(), time);
    match samples {
        Samples::Paired { champion_ns, challenger_ns, calls } => format!(
            "{} pairs of {calls} calls<br>champion {}, challenger {}",
            challenger_ns.len(),
            median(champion_ns),
            median(challenger_ns)
        ),
        Samples::Single { ns, calls } => {
            format!("{} blocks of {calls} calls, median {}", ns.len(), median(ns))
        }
        Samples::Series { series, .. } => {
            let words: Vec<String> = series
                .iter()
                .take(8)
                .map(|(name, v)| {
                    format!(
                        "{} {} (n {})",
                        escape(name),
                        statistics::median(v).map_or("–".to_owned(), number),
                        v.len()
                    )
                })
                .collect();
            words.join("<br>")
        }
    }
}

fn checks(m: &Measured) -> String {
    let c = &m.check;
    let mut out = format!(
        "{} cases, {} row counts, worst error {:.2} of its bound, {} timed outputs checked again",
        c.cases,
        c.keys.len(),
        c.worst_ratio,
        c.timed_checked
    );
    for (name, value) in &c.quality {
        let _ = write!(out, "<br>{} {}", escape(name), number(*value));
    }
    out
}
