//! Listening, accepting, and ending.

use crate::api::routes::router;
use crate::backend::Backend;
use crate::error::ServerError;
use crate::options::ServerOptions;
use crate::state::State;
use crate::text::Text;
use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

/// How long connections may take to send what is left after the end was decided.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// A server that listens already and does not answer yet.
pub struct Server {
    listener: std::net::TcpListener,
    address: SocketAddr,
    state: Arc<State>,
    router: Router,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Server {
    /// Binds the address (port 0: one that is free) and checks the options.
    ///
    /// # Errors
    /// [`ServerError::PortInUse`], [`ServerError::Bind`], [`ServerError::Option`].
    pub fn bind(
        options: ServerOptions,
        backend: Arc<dyn Backend>,
        text: Arc<dyn Text>,
    ) -> Result<Self, ServerError> {
        check(&options)?;
        let asked = format!("{}:{}", options.host, options.port);
        let failed = |source: std::io::Error| match source.kind() {
            std::io::ErrorKind::AddrInUse => ServerError::PortInUse { address: asked.clone() },
            _ => ServerError::Bind { address: asked.clone(), source },
        };
        let listener = std::net::TcpListener::bind((options.host.as_str(), options.port)).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let state = Arc::new(State::new(options, backend, text));
        let router = router(&state)?;
        Ok(Self { listener, address, state, router })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers until `shutdown` is ready, then drains: `/ready` and new requests get 503, running ones go on for at most
    /// the drain timeout and are then ended with an error.
    ///
    /// # Errors
    /// When the listener cannot be used by the runtime.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), ServerError> {
        let listener = TcpListener::from_std(self.listener).map_err(ServerError::Runtime)?;
        let state = self.state;
        let dispatcher = Arc::clone(&state.dispatcher);
        let dispatching = tokio::spawn(async move { dispatcher.run().await });
        let (closing, closed) = watch::channel(false);
        let mut connections = JoinSet::new();
        {
            let accepting = accept(&listener, &state, &self.router, &closed, &mut connections);
            tokio::select! {
                () = accepting => {}
                () = drained(&state, shutdown) => {}
            }
        }
        drop(listener);
        // Nobody may be listening any more; that is fine.
        let _ = closing.send(true);
        let rest = async { while connections.join_next().await.is_some() {} };
        if tokio::time::timeout(LAST_WORDS, rest).await.is_err() {
            connections.abort_all();
        }
        dispatching.abort();
        Ok(())
    }
}

fn check(options: &ServerOptions) -> Result<(), ServerError> {
    let refuse = |option, problem: &str| Err(ServerError::Option { option, problem: problem.into() });
    match options {
        o if o.model_names.is_empty() => refuse("model_names", "at least one name is needed"),
        o if o.api_keys.iter().any(|k| k.trim().is_empty()) => refuse("api_keys", "a key is empty"),
        o if o.max_connections == 0 => refuse("max_connections", "it is 0"),
        o if o.max_in_flight == 0 => refuse("max_in_flight", "it is 0"),
        o if o.max_choices == 0 => refuse("max_choices", "it is 0"),
        o if o.worker_threads == 0 => refuse("worker_threads", "it is 0"),
        o if o.keep_alive.is_zero() => refuse("keep_alive", "it is 0"),
        _ => Ok(()),
    }
}

/// Ready when the server may close: after `shutdown`, when nothing is under way or the time is up.
async fn drained(state: &State, shutdown: impl Future<Output = ()>) {
    shutdown.await;
    state.drain();
    let running = state.in_flight();
    tracing::info!(target: "server", running, "draining");
    let idle = async {
        while state.in_flight() > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    if tokio::time::timeout(state.options.drain_timeout, idle).await.is_err() {
        tracing::warn!(target: "server", running = state.in_flight(), "drain timeout: ending what is left");
        state.abort_all();
    }
}

/// Accepts for ever.
async fn accept(
    listener: &TcpListener,
    state: &Arc<State>,
    router: &Router,
    closed: &watch::Receiver<bool>,
    connections: &mut JoinSet<()>,
) {
    let places = Arc::new(Semaphore::new(state.options.max_connections));
    loop {
        while connections.try_join_next().is_some() {}
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let serving =
                    serve_connection(stream, router.clone(), state.options.read_timeout, closed.clone());
                connections.spawn(async move {
                    serving.await;
                    drop(place);
                });
            }
            // Such as too many open files: a busy loop would not help.
            Err(error) => {
                tracing::warn!(target: "server", %error, "accept failed");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn serve_connection(
    stream: TcpStream,
    router: Router,
    read_timeout: Duration,
    mut closed: watch::Receiver<bool>,
) {
    // Without it the kernel would hold back small chunks; failure only costs latency.
    let _ = stream.set_nodelay(true);
    let mut builder = http1::Builder::new();
    // Half-closed clients count as gone: that is how a disconnect is seen while nothing is being written.
    builder.timer(TokioTimer::new()).header_read_timeout(read_timeout).half_close(false);
    let connection = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = std::pin::pin!(connection);
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = ended(&mut closed) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(target: "server", %error, "connection ended");
    }
}

async fn ended(closed: &mut watch::Receiver<bool>) {
    // An error means that the sender is gone: the server has ended.
    let _ = closed.wait_for(|closed| *closed).await;
}

/// Binds, answers until SIGTERM or SIGINT, drains, returns. Blocks; `ready` is told the address once it listens.
///
/// The runtime has [`ServerOptions::worker_threads`] threads: on two cores that compute threads own, one thread that
/// sleeps between engine passes disturbs them least.
///
/// # Errors
/// As [`Server::bind`], and when the runtime or its signal handlers cannot be started.
pub fn serve(
    options: ServerOptions,
    backend: Arc<dyn Backend>,
    text: Arc<dyn Text>,
    ready: impl FnOnce(SocketAddr),
) -> Result<(), ServerError> {
    let threads = options.worker_threads;
    let server = Server::bind(options, backend, text)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .max_blocking_threads(2)
        .thread_name("http")
        .enable_all()
        .build()
        .map_err(ServerError::Runtime)?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).map_err(ServerError::Runtime)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(ServerError::Runtime)?;
        ready(server.address());
        let shutdown = async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        // On a worker, so that the main thread only waits.
        tokio::spawn(server.run(shutdown))
            .await
            .unwrap_or_else(|e| Err(ServerError::Runtime(std::io::Error::other(e))))
    })
}
