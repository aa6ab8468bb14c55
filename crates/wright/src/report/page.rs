//! The page: one HTML file that asks nobody for anything.

use super::html::{Links, escape};
use super::sections::{evidence, opening, operations, progress, serving, tried};
use super::source::Source;
use super::story;
use std::fmt::Write;

/// A section: anchor, name in the contents, title, body.
pub struct Section {
    pub anchor: &'static str,
    pub title: &'static str,
    pub body: String,
}

/// Renders the page. Sections without data are left out.
pub fn render(source: &Source) -> String {
    let links = Links::default();
    let tasks = story::tasks(source);
    let top = opening::header(source, &links, &tasks);
    let mut sections: Vec<Section> = [
        opening::table(source, &links),
        progress::overall_section(source, &tasks),
        progress::matrix(source, &tasks, &links),
        progress::stairs(&tasks, &links),
        operations::roofline(source, &tasks, &links),
        operations::profile(source),
        serving::latency(source),
        serving::quality(source, &links),
        tried::counts(source),
        tried::candidates(source, &links),
        tried::plans(source, &links),
        tried::lessons(source),
    ]
    .into_iter()
    .flatten()
    .collect();
    // Last, when it is known what was cited.
    sections.extend(evidence::table(source, &links));
    document(source, &top, &sections)
}

fn document(source: &Source, top: &str, sections: &[Section]) -> String {
    let mut contents = String::new();
    let mut body = String::new();
    for s in sections {
        let _ = write!(contents, "<a href=\"#{}\">{}</a>", s.anchor, escape(s.title));
        let _ = write!(body, "<section id=\"{}\"><h2>{}</h2>{}</section>", s.anchor, escape(s.title), s.body);
    }
    let style = include_str!("style.css");
    let script = include_str!("script.js");
    let damage = source.damage.as_ref().map_or(String::new(), |d| {
        format!(
            "<p class=\"warning\"><b>The evidence is damaged</b>, so what follows is incomplete: {}</p>",
            escape(d)
        )
    });
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><title>{}</title><style>{style}</style></head>\
         <body><main>{top}{damage}<nav>{contents}</nav>{body}\
         <footer>Written by wright {} from {} ledger entries. Dots, bars and lines show more when pointed at.</footer></main>\
         <div id=\"tip\" role=\"tooltip\"></div><script>{script}</script></body></html>\n",
        escape(opening::title(source)),
        env!("CARGO_PKG_VERSION"),
        source.entries,
    )
}
