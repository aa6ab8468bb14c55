//! Log probabilities in the two shapes of the API.

use super::json::{logprob, number, string, text};
use crate::generation::Placed;
use crate::text::Text;
use std::collections::HashSet;
use std::fmt::Write;

/// Chat: one object per token, with its raw bytes.
pub(crate) fn chat(out: &mut Vec<u8>, tokens: &[Placed], vocabulary: &dyn Text) {
    text(out, "{\"content\":[");
    chat_items(out, tokens, vocabulary);
    text(out, "],\"refusal\":null}");
}

pub(crate) fn chat_items(out: &mut Vec<u8>, tokens: &[Placed], vocabulary: &dyn Text) {
    for (i, token) in tokens.iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        let lp = token.logprobs.as_ref();
        entry(out, token.id, lp.map_or(f32::NEG_INFINITY, |l| l.logprob), vocabulary);
        text(out, ",\"top_logprobs\":[");
        for (j, (id, value)) in lp.map_or(&[][..], |l| &l.top).iter().enumerate() {
            if j > 0 {
                out.push(b',');
            }
            entry(out, *id, *value, vocabulary);
            out.push(b'}');
        }
        text(out, "]}");
    }
}

/// `{"token":..,"logprob":..,"bytes":[..]` without the closing brace.
fn entry(out: &mut Vec<u8>, id: u32, value: f32, vocabulary: &dyn Text) {
    let bytes = vocabulary.token_bytes(id);
    text(out, "{\"token\":");
    string(out, &String::from_utf8_lossy(bytes));
    text(out, ",\"logprob\":");
    logprob(out, value);
    text(out, ",\"bytes\":[");
    for (i, b) in bytes.iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        number(out, *b);
    }
    out.push(b']');
}

/// Completions: parallel arrays. `top` 0 gives `top_logprobs: null`.
pub(crate) fn legacy(out: &mut Vec<u8>, tokens: &[Placed], top: u32, vocabulary: &dyn Text) {
    text(out, "{\"tokens\":[");
    separated(out, tokens, |out, t| string(out, &name(t.id, vocabulary)));
    text(out, "],\"token_logprobs\":[");
    separated(out, tokens, |out, t| match &t.logprobs {
        Some(l) => logprob(out, l.logprob),
        None => text(out, "null"),
    });
    text(out, "],\"top_logprobs\":");
    if top == 0 {
        text(out, "null");
    } else {
        out.push(b'[');
        separated(out, tokens, |out, t| legacy_top(out, t, vocabulary));
        out.push(b']');
    }
    text(out, ",\"text_offset\":[");
    separated(out, tokens, |out, t| number(out, t.offset as u64));
    text(out, "]}");
}

/// A map from token to log probability; the chosen token is always in it.
fn legacy_top(out: &mut Vec<u8>, token: &Placed, vocabulary: &dyn Text) {
    let Some(lp) = &token.logprobs else {
        return text(out, "null");
    };
    let mut seen = HashSet::new();
    let chosen = (token.id, lp.logprob);
    let all = lp.top.iter().copied().filter(|(id, _)| *id != token.id).chain([chosen]);
    let mut all: Vec<(u32, f32)> = all.collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    out.push(b'{');
    for (id, value) in all {
        let key = name(id, vocabulary);
        if !seen.insert(key.clone()) {
            continue;
        }
        if seen.len() > 1 {
            out.push(b',');
        }
        string(out, &key);
        out.push(b':');
        logprob(out, value);
    }
    out.push(b'}');
}

fn separated(out: &mut Vec<u8>, tokens: &[Placed], mut each: impl FnMut(&mut Vec<u8>, &Placed)) {
    for (i, token) in tokens.iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        each(out, token);
    }
}

/// The token's text; `bytes:\xe2\x80` where it is not whole UTF-8, as OpenAI writes it.
fn name(id: u32, vocabulary: &dyn Text) -> String {
    let bytes = vocabulary.token_bytes(id);
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.iter().fold("bytes:".to_owned(), |mut out, b| {
            // Writing to a string cannot fail.
            let _ = write!(out, "\\x{b:02x}");
            out
        }),
    }
}
