//! Text for the page: escaping, numbers, links to evidence.

use evidence::{Evidence, Id};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt::Display;

/// Escapes text for content and attributes. Everything from ledgers and bundles goes through here.
pub fn escape(text: impl Display) -> String {
    let text = text.to_string();
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // Direction overrides could make a candidate's text read as something else.
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => out.push('\u{fffd}'),
            c if c.is_control() && c != '\n' => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

/// The first `most` characters, escaped.
pub fn clip(text: &str, most: usize) -> String {
    let mut short: String = text.chars().take(most).collect();
    if text.chars().count() > most {
        short.push('…');
    }
    escape(short)
}

/// Three significant digits, without exponents for everyday sizes.
pub fn number(x: f64) -> String {
    match x.abs() {
        _ if !x.is_finite() => "–".to_owned(),
        0.0 => "0".to_owned(),
        a if a >= 1e6 => format!("{:.2}M", x / 1e6),
        a if a >= 100.0 => format!("{x:.0}"),
        a if a >= 10.0 => format!("{x:.1}"),
        a if a >= 1.0 => format!("{x:.2}"),
        a if a >= 0.001 => format!("{x:.4}"),
        _ => format!("{x:.1e}"),
    }
}

/// A speed-up.
pub fn times(x: f64) -> String {
    match x.is_finite() {
        true if x >= 9.95 => format!("{x:.1}×"),
        true => format!("{x:.2}×"),
        false => "–".to_owned(),
    }
}

/// A time given in nanoseconds.
pub fn time(ns: f64) -> String {
    match ns {
        _ if !ns.is_finite() => "–".to_owned(),
        n if n >= 1e9 => format!("{} s", number(n / 1e9)),
        n if n >= 1e6 => format!("{} ms", number(n / 1e6)),
        n if n >= 1e3 => format!("{} µs", number(n / 1e3)),
        n => format!("{n:.0} ns"),
    }
}

/// Links to evidence; remembers which entries the page must show.
#[derive(Debug, Default)]
pub struct Links {
    cited: RefCell<BTreeSet<String>>,
}

impl Links {
    /// A link to an evidence id, given as hex digits.
    pub fn to(&self, id: &str) -> String {
        if !id.chars().all(|c| c.is_ascii_hexdigit()) || id.len() < 12 {
            return match id.is_empty() {
                true => String::new(),
                false => format!("<span class=\"none\">{}</span>", escape(id)),
            };
        }
        self.cited.borrow_mut().insert(id.to_owned());
        let short = &id[..12];
        format!("<a class=\"id\" href=\"#e-{short}\">{short}</a>")
    }

    /// A link to evidence, or a word where there is none.
    pub fn evidence(&self, id: Option<Id<Evidence>>) -> String {
        id.map_or_else(|| "<span class=\"none\">none</span>".to_owned(), |id| self.to(&id.to_string()))
    }

    /// Links to several.
    pub fn all<'a>(&self, ids: impl IntoIterator<Item = &'a String>) -> String {
        let links: Vec<String> = ids.into_iter().filter(|i| !i.is_empty()).map(|i| self.to(i)).collect();
        match links.is_empty() {
            true => "<span class=\"none\">none</span>".to_owned(),
            false => links.join(" "),
        }
    }

    /// What was cited, as hex digits.
    pub fn cited(&self) -> BTreeSet<String> {
        self.cited.borrow().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_from_outside_is_markup() {
        assert_eq!(escape("<b a='\"&"), "&lt;b a=&#39;&quot;&amp;");
        assert_eq!(escape("a\u{202e}b\u{7}"), "a\u{fffd}b ");
        let links = Links::default();
        assert!(!links.to("\"><script>alert(1)</script>").contains("<script"));
        assert!(links.cited().is_empty());
    }

    #[test]
    fn numbers_for_people() {
        for (x, text) in
            [(0.0, "0"), (1234567.0, "1.23M"), (123.4, "123"), (1.234, "1.23"), (0.00123, "0.0012")]
        {
            assert_eq!(number(x), text);
        }
        assert_eq!(
            (times(3.456), times(12.34), time(1500.0)),
            ("3.46×".into(), "12.3×".into(), "1.50 µs".into())
        );
        assert_eq!(number(f64::NAN), "–");
    }
}
