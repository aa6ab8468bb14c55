//! Stop strings over text that arrives in pieces.

/// The stop strings of one request.
#[derive(Debug, Clone, Default)]
pub(crate) struct StopSet {
    stops: Vec<String>,
    longest: usize,
}

/// A stop that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    /// Byte offset of the stop
    pub start: usize,
    /// Byte offset behind it
    pub end: usize,
}

impl StopSet {
    /// Empty strings must have been refused before.
    pub(crate) fn new(stops: Vec<String>) -> Self {
        let longest = stops.iter().map(String::len).max().unwrap_or(0);
        Self { stops, longest }
    }

    /// The stop that is complete first when `text` is read character by character (the longest, if two end together),
    /// whatever pieces the text came in.
    pub(crate) fn find(&self, text: &str) -> Option<Found> {
        let found = self.stops.iter().filter_map(|stop| {
            let start = text.find(stop.as_str())?;
            Some(Found { start, end: start + stop.len() })
        });
        found.min_by_key(|f| (f.end, f.start))
    }

    /// How many bytes of `text` can go out: all but the longest suffix that is a proper prefix of some stop.
    pub(crate) fn safe(&self, text: &str) -> usize {
        let earliest = text.len().saturating_sub(self.longest.saturating_sub(1));
        let starts = (earliest..text.len()).filter(|&i| text.is_char_boundary(i));
        let mut held = starts.filter(|&i| {
            let suffix = &text.as_bytes()[i..];
            self.stops.iter().any(|s| s.len() > suffix.len() && s.as_bytes().starts_with(suffix))
        });
        held.next().unwrap_or(text.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(stops: &[&str]) -> StopSet {
        StopSet::new(stops.iter().map(|&s| s.to_owned()).collect())
    }

    /// Feeds pieces; what went out and whether a stop was met.
    fn stream(stops: &StopSet, pieces: &[&str]) -> (String, bool) {
        let (mut out, mut held) = (String::new(), String::new());
        for piece in pieces {
            held.push_str(piece);
            if let Some(found) = stops.find(&held) {
                out.push_str(&held[..found.start]);
                return (out, true);
            }
            let safe = stops.safe(&held);
            out.extend(held.drain(..safe));
        }
        out.push_str(&held);
        (out, false)
    }

    #[test]
    fn holds_back_only_a_proper_prefix() {
        let s = set(&["</s>", "\n\nUser:"]);
        assert_eq!(s.safe("hello"), 5);
        assert_eq!(s.safe("hello<"), 5);
        assert_eq!(s.safe("hello</"), 5);
        assert_eq!(s.safe("hello<x"), 7);
        assert_eq!(s.safe("a\n\n"), 1);
        assert_eq!(s.safe("a\n\n\n"), 2);
        assert_eq!(set(&["aab"]).safe("aaa"), 1);
        assert_eq!(set(&[]).safe("abc"), 3);
        assert_eq!(set(&["\u{e9}x"]).safe("caf\u{e9}"), 3);
    }

    #[test]
    fn any_cut_of_the_text_gives_the_same_output() {
        let s = set(&["STOP", "TOPS", "\u{20ac}\u{20ac}"]);
        for text in ["abSTOPcd", "abSTOcd", "xTOPSTOP", "a\u{20ac}b\u{20ac}\u{20ac}c", "STSTOP", "SSTOTOPSa"]
        {
            let whole: Vec<String> = text.chars().map(String::from).collect();
            let singles: Vec<&str> = whole.iter().map(String::as_str).collect();
            let want = stream(&s, &singles);
            let cuts: Vec<usize> = (0..=text.len()).filter(|&i| text.is_char_boundary(i)).collect();
            for &a in &cuts {
                for &b in cuts.iter().filter(|&&b| b >= a) {
                    let got = stream(&s, &[&text[..a], &text[a..b], &text[b..]]);
                    assert_eq!(got, want, "{text:?} cut at {a} and {b}");
                }
            }
        }
    }

    #[test]
    fn the_first_complete_stop_wins() {
        assert_eq!(set(&["b", "abc"]).find("abc"), Some(Found { start: 1, end: 2 }));
        assert_eq!(set(&["c", "bc"]).find("abc"), Some(Found { start: 1, end: 3 }));
    }
}
