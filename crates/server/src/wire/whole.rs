//! A response that is not streamed.

use super::json::{number, string, text};
use super::writer::{Route, Writer, usage};
use crate::api::error::ApiError;
use crate::generation::{Counts, Delta, Finish, Generation, Placed};
use crate::metrics::Outcome;
use std::time::Duration;

/// One finished choice.
#[derive(Default)]
struct Collected {
    text: String,
    tokens: Vec<Placed>,
    finish: Option<Finish>,
}

/// Collects all choices of a request.
pub(crate) struct Whole {
    choices: Vec<Collected>,
}

impl Whole {
    /// Waits for the end of all choices. Dropping the future cancels them.
    ///
    /// # Errors
    /// What ended the request early.
    pub(crate) async fn collect(
        mut generation: Generation,
        timeout: Option<Duration>,
    ) -> Result<(Self, Counts), ApiError> {
        let mut choices: Vec<Collected> = generation.choices.iter().map(|_| Collected::default()).collect();
        let mut add = |delta: &Delta| {
            let choice = &mut choices[delta.slot];
            choice.text.push_str(&delta.text);
            choice.tokens.extend_from_slice(&delta.tokens);
            choice.finish = delta.finish.or(choice.finish);
        };
        let ended = async {
            while !std::future::poll_fn(|cx| generation.poll(cx, &mut add)).await? {}
            Ok(())
        };
        let result = match timeout {
            Some(limit) => {
                tokio::time::timeout(limit, ended).await.unwrap_or_else(|_| Err(ApiError::timed_out()))
            }
            None => ended.await,
        };
        if let Err(error) = result {
            generation.outcome = Outcome::Error;
            return Err(error);
        }
        Ok((Self { choices }, generation.counts))
    }

    /// The JSON body.
    pub(crate) fn body(&self, writer: &Writer, counts: Counts) -> Vec<u8> {
        let object = match writer.route {
            Route::Chat => "chat.completion",
            Route::Completions => "text_completion",
        };
        let mut out = writer.head(object);
        for (slot, choice) in self.choices.iter().enumerate() {
            if slot > 0 {
                out.push(b',');
            }
            text(&mut out, "{\"index\":");
            number(&mut out, slot as u64);
            match writer.route {
                Route::Chat => {
                    text(&mut out, ",\"message\":{\"role\":\"assistant\",\"content\":");
                    string(&mut out, &choice.text);
                    text(&mut out, ",\"refusal\":null}");
                }
                Route::Completions => {
                    text(&mut out, ",\"text\":");
                    string(&mut out, &choice.text);
                }
            }
            text(&mut out, ",\"logprobs\":");
            writer.write_logprobs(&mut out, &choice.tokens);
            text(&mut out, ",\"finish_reason\":");
            string(&mut out, choice.finish.unwrap_or(Finish::Length).word());
            text(&mut out, "}");
        }
        text(&mut out, "],\"usage\":");
        usage(&mut out, counts);
        text(&mut out, "}");
        out
    }
}
