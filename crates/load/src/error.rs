//! What can be wrong with a run as a whole. What goes wrong with one request is a [`crate::Failure`].

/// A run that could not be started. Single failed requests are in the samples instead.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The base URL does not parse, has no host, or is not plain HTTP.
    #[error("cannot use URL {url:?}: {reason} (expected http://HOST:PORT)")]
    Url {
        /// The URL as given.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A workload without requests, with zero concurrency, or with a rate that is not positive.
    #[error("the workload cannot be run: {0}")]
    Workload(String),
    /// The client's own runtime or thread could not be started.
    #[error("cannot start the load client: {0}")]
    Start(#[source] std::io::Error),
    /// The client thread died: a bug of this crate.
    #[error("the load client's thread panicked")]
    Died,
    /// The tokenizer handed in by the caller failed.
    #[error("the tokenizer failed while prompts were made: {0}")]
    Tokenizer(String),
    /// No prompt of the wanted length survives decode and encode.
    #[error(
        "could not make {wanted} distinct prompts of exactly {tokens} tokens: {made} after {attempts} attempts"
    )]
    Prompts {
        /// Prompts asked for.
        wanted: usize,
        /// Tokens in each.
        tokens: usize,
        /// Prompts made.
        made: usize,
        /// Attempts spent.
        attempts: usize,
    },
    /// Every request of one side of a comparison failed, so there is no ratio.
    #[error("round {round}: every request to {url} failed ({reason})")]
    NothingCompleted {
        /// Round, from 0.
        round: usize,
        /// Base URL of the side.
        url: String,
        /// The most frequent failure.
        reason: String,
    },
}
