//! One choice: from token ids to text that may go out.

use crate::generation::stop::StopSet;
use crate::text::Text;
use engine::TokenLogprobs;
use model::Utf8Buffer;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

/// Why a choice ended, as the API says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Finish {
    Stop,
    Length,
}

impl Finish {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
        }
    }
}

/// A token with its place in the text.
#[derive(Debug, Clone)]
pub(crate) struct Placed {
    pub id: u32,
    /// Code points before it in the choice's text, echo included
    pub offset: usize,
    /// Absent for the first token of an echoed prompt
    pub logprobs: Option<TokenLogprobs>,
    /// Bytes of generated text before it
    start: usize,
}

/// Text and tokens that became ready to go out together.
#[derive(Debug, Default)]
pub(crate) struct Delta {
    pub slot: usize,
    pub text: String,
    pub tokens: Vec<Placed>,
    pub finish: Option<Finish>,
}

impl Delta {
    pub(crate) fn is_empty(&self) -> bool {
        self.text.is_empty() && self.tokens.is_empty() && self.finish.is_none()
    }

    pub(crate) fn clear(&mut self) {
        self.text.clear();
        self.tokens.clear();
        self.finish = None;
    }
}

/// How tokens become text.
#[derive(Debug, Clone)]
pub(crate) struct TextRules {
    pub stops: Arc<StopSet>,
    /// Stop strings are looked for only from this many tokens on
    pub min_tokens: u32,
    /// The found stop string goes out too
    pub include_stop: bool,
    /// Control tokens are left out of the text
    pub skip_special: bool,
    /// Tokens are kept for `logprobs`
    pub keep_tokens: bool,
}

/// State of one choice.
#[derive(Debug)]
pub(crate) struct Choice {
    rules: TextRules,
    utf8: Utf8Buffer,
    /// Generated text that may still turn out to be the start of a stop string
    held: String,
    /// Bytes of generated text that went out
    released: usize,
    /// Tokens whose text has not gone out
    waiting: VecDeque<Placed>,
    /// Code points so far, held ones included
    chars: usize,
    /// Text of the prompt, to go out first
    echo: Option<String>,
    pub tokens: u32,
    pub finished: Option<Finish>,
    pub started_at: Option<Instant>,
    pub first_at: Option<Instant>,
    pub last_at: Option<Instant>,
}

impl Choice {
    /// `echo`: the prompt's text goes out before everything else (none where the engine reports prompt tokens).
    pub(crate) fn new(rules: TextRules, echo: Option<String>) -> Self {
        Self {
            rules,
            utf8: Utf8Buffer::default(),
            held: String::new(),
            released: 0,
            waiting: VecDeque::new(),
            chars: 0,
            echo,
            tokens: 0,
            finished: None,
            started_at: None,
            first_at: None,
            last_at: None,
        }
    }

    /// A token of an echoed prompt: no stop string ends it.
    pub(crate) fn prompt_token(
        &mut self,
        text: &dyn Text,
        id: u32,
        logprobs: Option<TokenLogprobs>,
        out: &mut Delta,
    ) {
        let piece = self.piece(text, id);
        out.tokens.push(Placed { id, offset: self.chars, logprobs, start: 0 });
        self.chars += piece.chars().count();
        out.text.push_str(&piece);
    }

    /// A generated token. True when a stop string is complete: the choice is finished then.
    pub(crate) fn token(
        &mut self,
        text: &dyn Text,
        id: u32,
        logprobs: Option<TokenLogprobs>,
        out: &mut Delta,
    ) -> bool {
        self.begin(out);
        self.tokens += 1;
        if self.rules.keep_tokens {
            let start = self.released + self.held.len();
            self.waiting.push_back(Placed { id, offset: self.chars, logprobs, start });
        }
        let piece = self.piece(text, id);
        self.add(&piece);
        self.release(out)
    }

    /// The end, as the engine says it; a stop string may still be completed by the last bytes.
    pub(crate) fn end(&mut self, finish: Finish, out: &mut Delta) {
        self.begin(out);
        let rest = self.utf8.flush();
        self.add(&rest);
        if self.release(out) {
            return;
        }
        out.text.push_str(&self.held);
        self.released += self.held.len();
        self.held.clear();
        out.tokens.extend(self.waiting.drain(..));
        self.finished = Some(finish);
        out.finish = Some(finish);
    }

    /// Before the first generated token: the echo, and the end of a prompt that ended within a code point.
    fn begin(&mut self, out: &mut Delta) {
        if let Some(echo) = self.echo.take() {
            self.chars += echo.chars().count();
            out.text.push_str(&echo);
        }
        if self.tokens == 0 && self.utf8.is_waiting() {
            let rest = self.utf8.flush();
            self.chars += rest.chars().count();
            out.text.push_str(&rest);
        }
    }

    fn piece(&mut self, text: &dyn Text, id: u32) -> String {
        if self.rules.skip_special && text.is_control(id) {
            return String::new();
        }
        self.utf8.push(text.token_bytes(id))
    }

    fn add(&mut self, piece: &str) {
        self.chars += piece.chars().count();
        self.held.push_str(piece);
    }

    /// Moves what is safe from `held` to `out`; true when a stop string was found.
    fn release(&mut self, out: &mut Delta) -> bool {
        let found = match self.rules.stops.find(&self.held) {
            Some(found) if self.tokens >= self.rules.min_tokens => Some(found),
            _ => None,
        };
        let safe = match found {
            Some(found) if self.rules.include_stop => found.end,
            Some(found) => found.start,
            None => self.rules.stops.safe(&self.held),
        };
        out.text.push_str(&self.held[..safe]);
        self.held.drain(..safe);
        self.released += safe;
        while self.waiting.front().is_some_and(|t| t.start < self.released) {
            out.tokens.extend(self.waiting.pop_front());
        }
        if found.is_some() {
            self.held.clear();
            self.waiting.clear();
            self.finished = Some(Finish::Stop);
            out.finish = self.finished;
        }
        found.is_some()
    }
}
