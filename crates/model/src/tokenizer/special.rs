//! Special tokens are cut out of a text before anything else looks at it.

/// A piece of a text.
#[derive(Debug, PartialEq)]
pub(super) enum Fragment<'a> {
    /// Ordinary text.
    Text(&'a str),
    /// A special token that stood in the text.
    Token(u32),
}

/// Special tokens, the longest first.
#[derive(Default)]
pub(super) struct SpecialTokens {
    tokens: Vec<Special>,
}

struct Special {
    text: String,
    id: u32,
    control: bool,
}

impl SpecialTokens {
    /// `tokens`: text, id and whether it is a control token (others are matched even in plain text).
    pub(super) fn new(tokens: impl Iterator<Item = (String, u32, bool)>) -> SpecialTokens {
        let mut tokens: Vec<Special> = tokens
            .filter(|(text, ..)| !text.is_empty())
            .map(|(text, id, control)| Special { text, id, control })
            .collect();
        tokens.sort_by_key(|t| std::cmp::Reverse(t.text.len()));
        SpecialTokens { tokens }
    }

    /// Splits `text`; control tokens count only if `parse_control`. The longest token wins, then the first.
    pub(super) fn split<'a>(&self, text: &'a str, parse_control: bool) -> Vec<Fragment<'a>> {
        if text.is_empty() {
            return Vec::new();
        }
        let mut fragments = vec![Fragment::Text(text)];
        for special in self.tokens.iter().filter(|t| parse_control || !t.control) {
            if !text.contains(&special.text) {
                continue;
            }
            let mut next = Vec::with_capacity(fragments.len());
            for fragment in fragments {
                match fragment {
                    Fragment::Text(text) => special.cut(text, &mut next),
                    token => next.push(token),
                }
            }
            fragments = next;
        }
        fragments
    }
}

impl Special {
    fn cut<'a>(&self, text: &'a str, out: &mut Vec<Fragment<'a>>) {
        let mut rest = text;
        while let Some(at) = rest.find(&self.text) {
            if at > 0 {
                out.push(Fragment::Text(&rest[..at]));
            }
            out.push(Fragment::Token(self.id));
            rest = &rest[at + self.text.len()..];
        }
        if !rest.is_empty() {
            out.push(Fragment::Text(rest));
        }
    }
}
