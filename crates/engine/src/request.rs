//! What goes into the engine and what comes out of it: requests, sampling parameters, events and their sink.

use std::sync::mpsc;
use std::time::Duration;

/// Identity of a request, chosen by the caller and unique among the requests that have not finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

impl std::fmt::Display for RequestId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// How the next token is chosen. The default is greedy without penalties.
///
/// Order: `logit_bias`, repetition, frequency and presence penalties, temperature, `min_p`, `top_k`, `top_p`.
/// The random number of a token depends on (`seed`, `choice`, position) alone.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// 0 is greedy; at least 0 and finite.
    pub temperature: f32,
    /// Most candidates kept; 0 keeps all.
    pub top_k: u32,
    /// Smallest set of candidates whose probabilities reach this; in (0, 1], 1 keeps all.
    pub top_p: f32,
    /// Candidates below this fraction of the most probable are dropped; in [0, 1].
    pub min_p: f32,
    /// Subtracted once from the logit of every token generated so far; in [-2, 2].
    pub presence_penalty: f32,
    /// Subtracted for each occurrence among the generated tokens; in [-2, 2].
    pub frequency_penalty: f32,
    /// Divides positive and multiplies negative logits of tokens of the prompt and of the output; above 0, 1 is off.
    pub repetition_penalty: f32,
    /// Added to the logits of these tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed of the random numbers. A caller that wants variety gives a random one.
    pub seed: u64,
    /// Which of several answers to the same prompt this is (`n` of the OpenAI API).
    pub choice: u32,
    /// Log probabilities (of the raw logits) of the chosen token and of this many most probable ones.
    pub logprobs: Option<u32>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            logit_bias: Vec::new(),
            seed: 0,
            choice: 0,
            logprobs: None,
        }
    }
}

/// One generation.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    pub id: RequestId,
    /// Token ids, at least one, each below the vocabulary.
    pub prompt: Vec<u32>,
    pub params: SamplingParams,
    /// Most tokens to generate; the context limit may end the request earlier. 0 only evaluates the prompt.
    pub max_tokens: u32,
    /// Stop tokens are not chosen before this many tokens are generated.
    pub min_tokens: u32,
    /// The model's end-of-text tokens: each ends the request unless `ignore_eos` is set.
    pub eos_tokens: Vec<u32>,
    /// Further tokens that end the request, always.
    pub stop_tokens: Vec<u32>,
    pub ignore_eos: bool,
    /// Log probabilities of the prompt's tokens (the first has none) and of this many most probable ones at each
    /// place: [`Event::PromptToken`]. Such a request does not use cached pages.
    pub prompt_logprobs: Option<u32>,
}

impl Request {
    /// A greedy request for `max_tokens` tokens.
    pub fn new(id: u64, prompt: Vec<u32>, max_tokens: u32) -> Self {
        Self {
            id: RequestId(id),
            prompt,
            params: SamplingParams::default(),
            max_tokens,
            min_tokens: 0,
            eos_tokens: Vec::new(),
            stop_tokens: Vec::new(),
            ignore_eos: false,
            prompt_logprobs: None,
        }
    }
}

/// Natural-log probabilities at one place of the text.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// Of the token that stands there.
    pub logprob: f32,
    /// How many tokens are more probable (0 is the most probable).
    pub rank: u32,
    /// The most probable tokens, in descending order.
    pub top: Vec<(u32, f32)>,
}

/// What the engine reports about a request: one `Started`, then prompt tokens if asked for, then tokens, then
/// exactly one `Finished`. A request that is cancelled or fails while it waits gets `Finished` alone.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The request left the queue. `cached_tokens` of its prompt came from the prefix cache.
    Started {
        prompt_tokens: u32,
        cached_tokens: u32,
    },
    /// Token `index` of the prompt, with log probabilities except for the first.
    PromptToken {
        index: u32,
        id: u32,
        logprobs: Option<TokenLogprobs>,
    },
    /// Token `index` of the output. Tokens that end the request are not sent.
    Token {
        index: u32,
        id: u32,
        logprobs: Option<TokenLogprobs>,
    },
    Finished {
        reason: FinishReason,
        usage: Usage,
    },
}

/// Why a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model chose this stop or end-of-text token.
    Stop {
        token: u32,
    },
    /// `max_tokens` or the context limit was reached.
    Length,
    Cancelled,
    /// The engine could not go on with it; in words.
    Error(String),
}

/// Counts and times of a finished request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub prompt_tokens: u32,
    pub cached_tokens: u32,
    /// Generated tokens, with the one that ended the request.
    pub completion_tokens: u32,
    /// Times that the request gave up its pages and was computed again.
    pub preemptions: u32,
    /// Submission to first row.
    pub queued: Duration,
    /// First row to first token.
    pub prefill: Duration,
    /// First token to end.
    pub decode: Duration,
}

/// The receiver of a request's events is gone; the engine cancels the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed;

/// Where the events of one request go. Called on a compute thread: it must not block.
pub trait EventSink: Send {
    /// Hands over one event, or says that nobody listens any more.
    fn send(&self, event: Event) -> Result<(), Closed>;

    /// Whether nobody listens any more. Asked once in every pass, for waiting requests too.
    fn is_closed(&self) -> bool {
        false
    }
}

impl EventSink for mpsc::Sender<Event> {
    fn send(&self, event: Event) -> Result<(), Closed> {
        mpsc::Sender::send(self, event).map_err(|_| Closed)
    }
}
