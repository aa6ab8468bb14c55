//! Why a server could not be started or ended badly. What goes wrong with one request is an OpenAI error body.

/// Errors of [`crate::serve`] and [`crate::Server`].
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The port is taken.
    #[error(
        "cannot listen on {address}: the port is in use; stop what uses it or choose another with --port"
    )]
    PortInUse {
        /// Address asked for
        address: String,
    },
    /// Any other failure to listen.
    #[error("cannot listen on {address}: {source}")]
    Bind {
        /// Address asked for
        address: String,
        /// Cause
        source: std::io::Error,
    },
    /// An option that cannot work.
    #[error("option {option}: {problem}")]
    Option {
        /// Its name
        option: &'static str,
        /// What is wrong
        problem: String,
    },
    /// The HTTP runtime could not be started or its signals not be caught.
    #[error("cannot start the HTTP runtime: {0}")]
    Runtime(#[source] std::io::Error),
}
