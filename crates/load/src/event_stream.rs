//! Server-sent events, as they arrive in pieces.

use serde::Deserialize;

/// Cuts a byte stream into the `data` fields of its events. Comments and other fields are skipped.
#[derive(Debug, Default)]
pub(crate) struct EventStream {
    pending: Vec<u8>,
    /// Where the unread part of `pending` starts
    read: usize,
}

/// An event longer than this is not one of ours.
const MAX_LINE: usize = 8 << 20;

impl EventStream {
    /// Adds bytes; false when a line grew beyond all measure.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> bool {
        if self.read > 0 {
            self.pending.drain(..self.read);
            self.read = 0;
        }
        self.pending.extend_from_slice(bytes);
        self.pending.len() < MAX_LINE
    }

    /// The next complete `data:` line's payload. Every server driven here sends one data line per event.
    pub(crate) fn next_data(&mut self) -> Option<&[u8]> {
        loop {
            let rest = &self.pending[self.read..];
            let end = rest.iter().position(|&b| b == b'\n')?;
            let (start, stop) = (self.read, self.read + end);
            self.read = stop + 1;
            let line = &self.pending[start..stop];
            if line.starts_with(b"data:") {
                return Some(self.pending[start + 5..stop].trim_ascii());
            }
        }
    }
}

/// The fields of a chunk that the client needs; the rest is skipped without being built.
#[derive(Debug, Deserialize)]
pub(crate) struct Chunk {
    #[serde(default)]
    pub choices: Vec<Choice>,
    #[serde(default)]
    pub usage: Option<Usage>,
    #[serde(default)]
    pub error: Option<serde_json::Value>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Choice {
    #[serde(default)]
    pub text: Option<String>,
    #[serde(default)]
    pub delta: Option<Delta>,
    #[serde(default)]
    pub finish_reason: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Delta {
    #[serde(default)]
    pub content: Option<String>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
pub(crate) struct Usage {
    #[serde(default)]
    pub prompt_tokens: Option<u64>,
    #[serde(default)]
    pub completion_tokens: Option<u64>,
}

impl Choice {
    pub(crate) fn content(&self) -> &str {
        let delta = self.delta.as_ref().and_then(|d| d.content.as_deref());
        self.text.as_deref().or(delta).unwrap_or("")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(pieces: &[&[u8]]) -> Vec<String> {
        let mut stream = EventStream::default();
        let mut out = Vec::new();
        for piece in pieces {
            assert!(stream.push(piece));
            while let Some(data) = stream.next_data() {
                out.push(String::from_utf8_lossy(data).into_owned());
            }
        }
        out
    }

    #[test]
    fn events_survive_any_cut() {
        let whole =
            b": ping\r\n\r\ndata: {\"a\":1}\r\n\r\nevent: x\ndata:{\"b\":\"\xc3\xa9\"}\n\ndata: [DONE]\n\n";
        let want = ["{\"a\":1}", "{\"b\":\"\u{e9}\"}", "[DONE]"];
        assert_eq!(all(&[whole]), want);
        for cut in 1..whole.len() {
            assert_eq!(all(&[&whole[..cut], &whole[cut..]]), want, "cut at {cut}");
        }
        let bytes: Vec<&[u8]> = whole.chunks(1).collect();
        assert_eq!(all(&bytes), want);
    }

    #[test]
    fn chunks_of_both_routes() {
        let text: Chunk =
            serde_json::from_str(r#"{"choices":[{"text":"a","finish_reason":null}],"usage":null}"#).unwrap();
        assert_eq!(text.choices[0].content(), "a");
        let chat: Chunk =
            serde_json::from_str(r#"{"choices":[{"delta":{"content":"b"},"finish_reason":"stop"}]}"#)
                .unwrap();
        assert_eq!(
            (chat.choices[0].content(), chat.choices[0].finish_reason.as_deref()),
            ("b", Some("stop"))
        );
    }
}
