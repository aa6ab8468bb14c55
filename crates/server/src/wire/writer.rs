//! Chunks of a streamed response, from templates made once per response.

use super::json::{escape, number, string, text};
use super::logprobs;
use crate::api::error::ApiError;
use crate::generation::{Counts, Delta, Finish, Placed};
use crate::text::Text;
use std::sync::Arc;

/// Which of the two routes is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Route {
    Chat,
    Completions,
}

/// Does the client want `usage` in the stream?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UsageChunk {
    Wanted,
    Unwanted,
}

/// What all pieces of one response share.
pub(crate) struct Writer {
    pub route: Route,
    pub id: String,
    pub created: u64,
    pub model: String,
    pub fingerprint: Option<String>,
    /// How many top log probabilities; none: `logprobs` is null
    pub logprobs: Option<u32>,
    pub usage: UsageChunk,
    pub vocabulary: Arc<dyn Text>,
}

impl Writer {
    /// `{"id":..,"object":..,"created":..,"model":..,"system_fingerprint":..,"choices":[`
    pub(crate) fn head(&self, object: &str) -> Vec<u8> {
        let mut out = Vec::with_capacity(192);
        text(&mut out, "{\"id\":");
        string(&mut out, &self.id);
        text(&mut out, ",\"object\":");
        string(&mut out, object);
        text(&mut out, ",\"created\":");
        number(&mut out, self.created);
        text(&mut out, ",\"model\":");
        string(&mut out, &self.model);
        text(&mut out, ",\"system_fingerprint\":");
        match &self.fingerprint {
            Some(value) => string(&mut out, value),
            None => text(&mut out, "null"),
        }
        text(&mut out, ",\"choices\":[");
        out
    }

    /// The `logprobs` value of some tokens: null where not asked for.
    pub(crate) fn write_logprobs(&self, out: &mut Vec<u8>, tokens: &[Placed]) {
        match (self.logprobs, self.route) {
            (None, _) => text(out, "null"),
            (Some(_), Route::Chat) => logprobs::chat(out, tokens, &*self.vocabulary),
            (Some(top), Route::Completions) => logprobs::legacy(out, tokens, top, &*self.vocabulary),
        }
    }

    /// The events of a stream.
    pub(crate) fn events(self) -> Events {
        let object = match self.route {
            Route::Chat => "chat.completion.chunk",
            Route::Completions => "text_completion",
        };
        let mut head = b"data: ".to_vec();
        head.extend(self.head(object));
        let tail = match self.usage {
            UsageChunk::Wanted => "}],\"usage\":null}\n\n",
            UsageChunk::Unwanted => "}]}\n\n",
        };
        Events { writer: self, head, tail }
    }
}

/// `{"prompt_tokens":..}`
pub(crate) fn usage(out: &mut Vec<u8>, counts: Counts) {
    for (name, value) in [
        ("{\"prompt_tokens\":", counts.prompt),
        (",\"completion_tokens\":", counts.completion),
        (",\"total_tokens\":", counts.prompt + counts.completion),
        (",\"prompt_tokens_details\":{\"cached_tokens\":", counts.cached),
    ] {
        text(out, name);
        number(out, value);
    }
    text(out, "}}");
}

/// Writes the events of one stream, in the order and shape that clients depend on.
pub(crate) struct Events {
    pub writer: Writer,
    head: Vec<u8>,
    tail: &'static str,
}

impl Events {
    /// Chat only: the role, alone in the choice's first chunk.
    pub(crate) fn role(&self, out: &mut Vec<u8>, slot: usize) {
        if self.writer.route == Route::Chat {
            self.open(out, slot);
            text(
                out,
                ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null",
            );
            text(out, self.tail);
        }
    }

    /// Text and log probabilities, then the finish chunk, as far as the delta has them.
    pub(crate) fn delta(&self, out: &mut Vec<u8>, delta: &Delta) {
        if !delta.text.is_empty() || !delta.tokens.is_empty() {
            self.open(out, delta.slot);
            let (before, after) = match self.writer.route {
                Route::Chat => (",\"delta\":{\"content\":\"", "\"},\"logprobs\":"),
                Route::Completions => (",\"text\":\"", "\",\"logprobs\":"),
            };
            text(out, before);
            escape(out, &delta.text);
            text(out, after);
            self.writer.write_logprobs(out, &delta.tokens);
            text(out, ",\"finish_reason\":null");
            text(out, self.tail);
        }
        if let Some(finish) = delta.finish {
            self.finish(out, delta.slot, finish);
        }
    }

    /// Its own chunk with an empty delta.
    fn finish(&self, out: &mut Vec<u8>, slot: usize, finish: Finish) {
        self.open(out, slot);
        text(
            out,
            match self.writer.route {
                Route::Chat => ",\"delta\":{},\"logprobs\":null,\"finish_reason\":\"",
                Route::Completions => ",\"text\":\"\",\"logprobs\":null,\"finish_reason\":\"",
            },
        );
        text(out, finish.word());
        out.push(b'"');
        text(out, self.tail);
    }

    /// The usage chunk, if wanted, and the end.
    pub(crate) fn done(&self, out: &mut Vec<u8>, counts: Counts) {
        if self.writer.usage == UsageChunk::Wanted {
            out.extend_from_slice(&self.head);
            text(out, "],\"usage\":");
            usage(out, counts);
            text(out, "}\n\n");
        }
        text(out, "data: [DONE]\n\n");
    }

    /// An error after the first byte: one frame, and the stream ends without `[DONE]`.
    pub(crate) fn error(out: &mut Vec<u8>, error: &ApiError) {
        text(out, "data: ");
        out.extend(error.body());
        text(out, "\n\n");
    }

    fn open(&self, out: &mut Vec<u8>, slot: usize) {
        out.extend_from_slice(&self.head);
        text(out, "{\"index\":");
        number(out, slot as u64);
    }
}
