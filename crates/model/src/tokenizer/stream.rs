//! Decoding tokens one by one: only whole code points come out.

use super::{ControlTokens, Tokenizer};

/// Bytes in, whole UTF-8 out. Invalid bytes become U+FFFD; an unfinished code point waits for its rest.
#[derive(Clone, Debug, Default)]
pub struct Utf8Buffer {
    pending: Vec<u8>,
}

impl Utf8Buffer {
    /// Takes bytes and gives back all text that is complete.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.pending.extend_from_slice(bytes);
        let mut text = String::new();
        let mut done = 0;
        loop {
            match std::str::from_utf8(&self.pending[done..]) {
                Ok(rest) => {
                    text.push_str(rest);
                    done = self.pending.len();
                    break;
                }
                Err(e) => {
                    let valid = &self.pending[done..done + e.valid_up_to()];
                    text.push_str(&String::from_utf8_lossy(valid));
                    done += e.valid_up_to();
                    match e.error_len() {
                        None => break,
                        Some(bad) => {
                            text.push('\u{fffd}');
                            done += bad;
                        }
                    }
                }
            }
        }
        self.pending.drain(..done);
        text
    }

    /// The end: an unfinished code point becomes one U+FFFD.
    pub fn flush(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.pending).into_owned();
        self.pending.clear();
        text
    }

    /// Whether bytes are waiting for the rest of their code point.
    pub fn is_waiting(&self) -> bool {
        !self.pending.is_empty()
    }
}

/// Decodes a growing sequence of tokens. The texts it gives, put together, are the decoded text.
#[derive(Debug)]
pub struct StreamDecoder<'a> {
    tokenizer: &'a Tokenizer,
    control: ControlTokens,
    buffer: Utf8Buffer,
}

impl<'a> StreamDecoder<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer, control: ControlTokens) -> StreamDecoder<'a> {
        StreamDecoder { tokenizer, control, buffer: Utf8Buffer::default() }
    }

    /// The text that `id` completes; empty while a code point is unfinished.
    pub fn push(&mut self, id: u32) -> String {
        if self.control == ControlTokens::Skip && self.tokenizer.is_control(id) {
            return String::new();
        }
        self.buffer.push(self.tokenizer.token_bytes(id))
    }

    /// The end of the sequence: an unfinished code point becomes U+FFFD.
    pub fn flush(&mut self) -> String {
        self.buffer.flush()
    }
}
