//! How a server is started.

use std::time::Duration;

/// Which origins may call from a browser.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Cors {
    /// No CORS headers
    #[default]
    Off,
    /// `Access-Control-Allow-Origin: *`
    Any,
    /// These origins
    Origins(Vec<String>),
}

/// Which names the metrics page uses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum MetricsNames {
    /// `wright_*`
    #[default]
    Own,
    /// `wright_*` and the same figures as `vllm:*`, for dashboards made for vLLM
    OwnAndVllm,
}

/// Options of [`crate::serve`] and [`crate::Server::bind`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerOptions {
    /// Address or name to listen on
    pub host: String,
    /// Port; 0 lets the system choose
    pub port: u16,
    /// Names that requests may use; responses carry the one used, `/v1/models` lists all
    pub model_names: Vec<String>,
    /// Keys accepted as `Authorization: Bearer KEY`; none: open. `/health`, `/ready` and `/metrics` are always open
    pub api_keys: Vec<String>,
    /// Browser access
    pub cors: Cors,
    /// Names on the metrics page
    pub metrics: MetricsNames,
    /// `system_fingerprint` in responses, such as the plan's digest
    pub fingerprint: Option<String>,
    /// Largest request body, bytes
    pub max_body_bytes: usize,
    /// Most open connections; more wait in the listen queue
    pub max_connections: usize,
    /// Most generation requests in the server, queued ones included; more get 429
    pub max_in_flight: usize,
    /// Most choices of one request (prompts x `n`)
    pub max_choices: usize,
    /// Silence after which a stream gets a comment line
    pub keep_alive: Duration,
    /// Longest life of one request; then it ends with an error. None: no limit
    pub request_timeout: Option<Duration>,
    /// How long request headers, and then the body, may take to arrive
    pub read_timeout: Duration,
    /// On SIGTERM: how long running requests may still take
    pub drain_timeout: Duration,
    /// `Retry-After` of 429 and 503, seconds
    pub retry_after_s: u32,
    /// Threads of the HTTP runtime
    pub worker_threads: usize,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            host: "127.0.0.1".into(),
            port: 8000,
            model_names: vec!["default".into()],
            api_keys: Vec::new(),
            cors: Cors::Off,
            metrics: MetricsNames::Own,
            fingerprint: None,
            max_body_bytes: 8 << 20,
            max_connections: 1024,
            max_in_flight: 1024,
            max_choices: 128,
            keep_alive: Duration::from_secs(10),
            request_timeout: None,
            read_timeout: Duration::from_secs(30),
            drain_timeout: Duration::from_secs(30),
            retry_after_s: 1,
            worker_threads: 1,
        }
    }
}
