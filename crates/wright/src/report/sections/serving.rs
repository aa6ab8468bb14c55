//! What users of the engine feel: latency, and quality.

use crate::report::chart;
use crate::report::html::{Links, number};
use crate::report::page::Section;
use crate::report::source::Source;
use std::collections::BTreeSet;
use std::fmt::Write;

/// Distributions of TTFT and ITL, from raw samples.
pub fn latency(source: &Source) -> Option<Section> {
    let summary = source.summary.as_ref()?;
    let concurrencies: BTreeSet<u32> = summary.table.iter().map(|r| r.concurrency).collect();
    let mut rows = [String::new(), String::new()];
    for c in concurrencies {
        let of = |engine: &str, first: usize| {
            summary.row(engine, c).map_or(&[][..], |r| if first == 0 { &r.ttft_ms } else { &r.itl_ms })
        };
        for (n, name) in ["Time to first token", "Inter-token latency"].into_iter().enumerate() {
            let series =
                [("portable", "portable", of("portable", n)), ("champion", "champion", of("champion", n))];
            if let Some(svg) = chart::ecdf(&series, name) {
                let _ = write!(rows[n], "<div><h3>{name}, concurrency {c}</h3>{svg}</div>");
            }
        }
    }
    if rows.iter().all(String::is_empty) {
        return None;
    }
    let body = format!(
        "<p class=\"lead\">Share of samples up to a latency, on a log axis: the further left, the better. All raw samples; the dot is the median.</p>\
         <div class=\"panel\"><div class=\"key\"><span><i class=\"champion\"></i>champion</span><span><i class=\"portable\"></i>portable baseline</span></div>\
         <div class=\"grid3\">{}</div><div class=\"grid3\">{}</div></div>",
        rows[0], rows[1]
    );
    Some(Section { anchor: "latency", title: "Latency", body })
}

/// KL, top-1 agreement and perplexity against their bounds.
pub fn quality(source: &Source, links: &Links) -> Option<Section> {
    let q = source.summary.as_ref()?.quality.as_ref().filter(|q| q.tokens > 0 && q.kl.is_finite())?;
    let holds = q.bound_kl.is_none_or(|b| q.kl <= b);
    let chip = match (q.bound_kl, holds) {
        (None, _) => "",
        (_, true) => "<span class=\"chip good\">within the bound</span>",
        (_, false) => "<span class=\"chip bad\">beyond the bound</span>",
    };
    let mut body = format!(
        "<p class=\"lead\">Divergence from the f32 reference model of the same weights on {} tokens of held-out text that no proposer saw. Evidence: {}</p>\
         <div class=\"panel\"><div class=\"grid3\">",
        q.tokens,
        links.all([&q.evidence])
    );
    let bound = q.bound_kl.map_or(String::new(), |b| format!(" of at most {}", number(b)));
    let _ = write!(
        body,
        "<div><h3>KL divergence {chip}</h3>{}<p class=\"sub\">{}{bound} nats per token</p></div>",
        chart::bullet(q.kl, q.bound_kl, if holds { "good" } else { "bad" }, &format!("KL {}", q.kl)),
        number(q.kl)
    );
    let _ = write!(
        body,
        "<div><h3>Same most probable token</h3>{}<p class=\"sub\">{:.2} % of positions</p></div>",
        chart::bullet(q.top1, Some(1.0), "champion", &format!("top-1 agreement {}", q.top1)),
        q.top1 * 100.0
    );
    let shift = (q.perplexity / q.reference_perplexity - 1.0) * 100.0;
    let _ = write!(
        body,
        "<div><h3>Perplexity</h3>{}<p class=\"sub\">{:.3}, reference {:.3} ({shift:+.3} %)</p></div></div></div>",
        chart::bullet(
            q.perplexity,
            Some(q.reference_perplexity),
            "champion",
            &format!("perplexity {}", q.perplexity)
        ),
        q.perplexity,
        q.reference_perplexity
    );
    Some(Section { anchor: "quality", title: "Quality", body })
}
