//! What one request saw.

use serde::{Deserialize, Serialize};

/// Why a request did not complete. Data, never a number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Failure {
    /// No connection
    Connect {
        /// Cause
        reason: String,
    },
    /// A bound of [`crate::Timeouts`] was passed
    Timeout {
        /// `connect`, `idle` or `total`
        which: String,
    },
    /// HTTP status other than 200
    Status {
        /// Status
        status: u16,
        /// First 512 bytes of the body
        body: String,
    },
    /// An `error` event after the first byte
    ErrorFrame {
        /// The event's data, at most 512 bytes
        data: String,
    },
    /// The connection broke, or the stream ended without `[DONE]`
    Truncated {
        /// Cause
        reason: String,
    },
    /// Bytes that are not what the protocol says
    Protocol {
        /// What was seen
        reason: String,
    },
    /// Completed without a single content chunk
    Empty,
    /// Not sent: too many requests in flight on an open loop
    ClientLimit,
}

impl Failure {
    /// A short word for counting, such as `status 429`.
    pub fn label(&self) -> String {
        match self {
            Self::Connect { .. } => "connect".into(),
            Self::Timeout { which } => format!("timeout {which}"),
            Self::Status { status, .. } => format!("status {status}"),
            Self::ErrorFrame { .. } => "error frame".into(),
            Self::Truncated { .. } => "truncated".into(),
            Self::Protocol { .. } => "protocol".into(),
            Self::Empty => "empty".into(),
            Self::ClientLimit => "client limit".into(),
        }
    }
}

/// How a request ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// `[DONE]` was read
    Completed,
    /// We hung up on purpose ([`crate::Abandon`])
    Abandoned,
    /// It failed
    Failed(Failure),
}

/// One request, raw. Times are nanoseconds since the start of the run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// Index of the item in the workload
    pub index: usize,
    /// Start: before the connection is opened
    pub start_ns: u64,
    /// First chunk with text, minus start
    pub ttft_ns: Option<u64>,
    /// Gaps between consecutive chunks with text
    pub gaps_ns: Vec<u64>,
    /// Last byte
    pub end_ns: u64,
    /// Chunks with text
    pub chunks: u64,
    /// `usage.prompt_tokens`
    pub prompt_tokens: Option<u64>,
    /// `usage.completion_tokens`
    pub completion_tokens: Option<u64>,
    /// Last non-null `finish_reason`
    pub finish_reason: Option<String>,
    /// Text of choice 0
    pub text: String,
    /// How it ended
    pub outcome: Outcome,
}

impl Sample {
    /// Output tokens: the server's `usage`, or the number of chunks where it sent none.
    pub fn output_tokens(&self) -> u64 {
        self.completion_tokens.unwrap_or(self.chunks)
    }

    /// Start to last byte, ns.
    pub fn e2el_ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.start_ns)
    }

    /// (E2EL - TTFT) / (n - 1), ns; none for one token or none.
    pub fn tpot_ns(&self) -> Option<f64> {
        let n = self.output_tokens();
        let ttft = self.ttft_ns?;
        (n > 1).then(|| self.e2el_ns().saturating_sub(ttft) as f64 / (n - 1) as f64)
    }

    /// (last chunk - first chunk) / (n - 1), ns: the gap per token even where a chunk holds several (speculation).
    pub fn token_itl_ns(&self) -> Option<f64> {
        let n = self.output_tokens();
        (n > 1 && !self.gaps_ns.is_empty()).then(|| self.gaps_ns.iter().sum::<u64>() as f64 / (n - 1) as f64)
    }

    /// True when `[DONE]` was read.
    pub fn completed(&self) -> bool {
        self.outcome == Outcome::Completed
    }
}
