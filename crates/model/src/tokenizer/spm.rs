//! SentencePiece (the score-driven merges of Llama 2 and Mistral): the algorithm of llama.cpp's `llm_tokenizer_spm`.

use super::table::{Kind, hex_byte};
use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

/// A SentencePiece vocabulary.
pub(super) struct Spm {
    ids: HashMap<String, u32>,
    scores: Vec<f32>,
    bytes: [Option<u32>; 256],
    unknown: Option<u32>,
    space_prefix: bool,
}

/// A piece of the text while merging; `len` 0 once merged into its left neighbour.
#[derive(Clone, Copy)]
struct Symbol {
    start: usize,
    len: usize,
    previous: Option<usize>,
    next: Option<usize>,
}

/// A candidate merge; the highest score first, then the leftmost.
struct Bigram {
    score: f32,
    left: usize,
    right: usize,
    len: usize,
}

impl Ord for Bigram {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Bigram {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Bigram {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Bigram {}

impl Spm {
    pub(super) fn new(
        tokens: &[String],
        kinds: &[Kind],
        scores: Vec<f32>,
        unknown: Option<u32>,
        space_prefix: bool,
    ) -> Spm {
        let mut ids = HashMap::with_capacity(tokens.len());
        let mut bytes = [None; 256];
        for (id, (text, kind)) in tokens.iter().zip(kinds).enumerate() {
            ids.insert(text.clone(), id as u32);
            if *kind == Kind::Byte
                && let Some(byte) = hex_byte(text)
            {
                bytes[usize::from(byte)] = Some(id as u32);
            }
        }
        Spm { ids, scores, bytes, unknown, space_prefix }
    }

    /// Appends the ids of `text`; `at_start` where a leading space is implied.
    pub(super) fn encode(&self, text: &str, at_start: bool, out: &mut Vec<u32>) {
        let mut escaped = String::with_capacity(text.len() + 8);
        if self.space_prefix && at_start {
            escaped.push('▁');
        }
        escaped.extend(text.chars().map(|c| if c == ' ' { '▁' } else { c }));
        Session::new(self, &escaped).run(out);
    }
}

struct Session<'a> {
    spm: &'a Spm,
    text: &'a str,
    symbols: Vec<Symbol>,
    queue: BinaryHeap<Bigram>,
}

impl<'a> Session<'a> {
    fn new(spm: &'a Spm, text: &'a str) -> Session<'a> {
        let count = text.chars().count();
        let symbols = text
            .char_indices()
            .enumerate()
            .map(|(i, (start, c))| Symbol {
                start,
                len: c.len_utf8(),
                previous: i.checked_sub(1),
                next: (i + 1 < count).then_some(i + 1),
            })
            .collect();
        Session { spm, text, symbols, queue: BinaryHeap::new() }
    }

    fn run(mut self, out: &mut Vec<u32>) {
        for i in 1..self.symbols.len() {
            self.offer(Some(i - 1), Some(i));
        }
        while let Some(bigram) = self.queue.pop() {
            let (left, right) = (self.symbols[bigram.left], self.symbols[bigram.right]);
            if left.len == 0 || right.len == 0 || left.len + right.len != bigram.len {
                continue;
            }
            self.symbols[bigram.left].len = bigram.len;
            self.symbols[bigram.left].next = right.next;
            self.symbols[bigram.right].len = 0;
            if let Some(next) = right.next {
                self.symbols[next].previous = Some(bigram.left);
            }
            self.offer(left.previous, Some(bigram.left));
            self.offer(Some(bigram.left), right.next);
        }
        let mut at = (!self.symbols.is_empty()).then_some(0);
        while let Some(i) = at {
            self.emit(self.symbols[i], out);
            at = self.symbols[i].next;
        }
    }

    fn offer(&mut self, left: Option<usize>, right: Option<usize>) {
        let (Some(left), Some(right)) = (left, right) else { return };
        let start = self.symbols[left].start;
        let len = self.symbols[left].len + self.symbols[right].len;
        if let Some(&id) = self.spm.ids.get(&self.text[start..start + len]) {
            let score = self.spm.scores.get(id as usize).copied().unwrap_or(0.0);
            self.queue.push(Bigram { score, left, right, len });
        }
    }

    /// Merged symbols are tokens; what never merged is one character, spelled in bytes where it is no token.
    fn emit(&self, symbol: Symbol, out: &mut Vec<u32>) {
        let text = &self.text[symbol.start..symbol.start + symbol.len];
        match self.spm.ids.get(text) {
            Some(&id) => out.push(id),
            None => {
                out.extend(text.bytes().filter_map(|b| self.spm.bytes[usize::from(b)].or(self.spm.unknown)))
            }
        }
    }
}
