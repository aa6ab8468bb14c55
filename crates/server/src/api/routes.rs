//! Routes, and what every request passes through.

use super::error::ApiError;
use super::generate::generate;
use super::{models, tokens};
use crate::access_log::{Line, Logged, Record};
use crate::error::ServerError;
use crate::options::Cors;
use crate::state::State;
use crate::wire::Route;
use axum::Router;
use axum::body::{Body, Bytes, HttpBody as _};
use axum::extract::{Path, Request, State as Shared};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tower_http::cors::{AllowOrigin, Any, CorsLayer};

type App = Shared<Arc<State>>;

/// Bytes over the limit that are read and thrown away: most clients read an answer only after they have sent everything, and
/// would see a broken pipe in its place.
const DISCARDED: usize = 64 << 20;
/// And the time for it.
const DISCARDING: Duration = Duration::from_secs(2);

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// All routes.
///
/// # Errors
/// An origin that no header can carry.
pub(crate) fn router(state: &Arc<State>) -> Result<Router, ServerError> {
    let routes = Router::new()
        .route("/v1/chat/completions", post(|s: App, r: Request| generate(s.0, Route::Chat, r)))
        .route("/v1/completions", post(|s: App, r: Request| generate(s.0, Route::Completions, r)))
        .route("/v1/models", get(async |s: App| models::list(&s)))
        .route("/v1/models/{*name}", get(async |s: App, Path(name): Path<String>| models::one(&s, &name)))
        .route("/tokenize", post(async |s: App, r: Request| convert(s.0, r, tokens::tokenize).await))
        .route("/detokenize", post(async |s: App, r: Request| convert(s.0, r, tokens::detokenize).await))
        .route("/health", get(async || json(b"{\"status\":\"ok\"}".to_vec())))
        .route("/ready", get(async |s: App| ready(&s)))
        .route("/metrics", get(async |s: App| metrics(&s)))
        .fallback(async |r: Request| ApiError::no_route(r.uri().path()))
        .method_not_allowed_fallback(async |r: Request| ApiError::method(r.method().as_str(), r.uri().path()))
        .with_state(Arc::clone(state))
        .layer(from_fn_with_state(Arc::clone(state), authorise));
    let routes = match cors(&state.options.cors)? {
        Some(layer) => routes.layer(layer),
        None => routes,
    };
    Ok(routes.layer(from_fn_with_state(Arc::clone(state), observe)))
}

fn cors(cors: &Cors) -> Result<Option<CorsLayer>, ServerError> {
    let layer = CorsLayer::new().allow_methods(Any).allow_headers(Any).expose_headers([REQUEST_ID]);
    match cors {
        Cors::Off => Ok(None),
        Cors::Any => Ok(Some(layer.allow_origin(Any))),
        Cors::Origins(origins) => {
            let parse = |origin: &String| {
                let problem =
                    |_| ServerError::Option { option: "cors", problem: format!("{origin:?} is no origin") };
                HeaderValue::from_str(origin).map_err(problem)
            };
            let origins = origins.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
            Ok(Some(layer.allow_origin(AllowOrigin::list(origins))))
        }
    }
}

/// Request id and access log, around everything else.
async fn observe(state: App, mut request: Request, next: Next) -> Response {
    let given = request.headers().get(&REQUEST_ID).and_then(|v| v.to_str().ok());
    let usable = given.filter(|id| (1..=128).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_graphic()));
    let id = usable.map_or_else(|| format!("req-{:016x}", state.random()), str::to_owned);
    let record = Record::default();
    let mut line = Line {
        method: request.method().to_string(),
        path: request.uri().path().to_owned(),
        id: id.clone(),
        start: Instant::now(),
        status: None,
        record: record.clone(),
    };
    request.extensions_mut().insert(record);
    let mut response = next.run(request).await;
    line.status = Some(response.status().as_u16());
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    if state.is_draining() {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response.map(|body| Body::new(Logged { body, _line: line }))
}

async fn authorise(state: App, request: Request, next: Next) -> Response {
    let open = matches!(request.uri().path(), "/health" | "/ready" | "/metrics");
    let keys = &state.options.api_keys;
    if open || keys.is_empty() {
        return next.run(request).await;
    }
    let value = request.headers().get(header::AUTHORIZATION).map_or(&b""[..], HeaderValue::as_bytes);
    let given = match value.split_at_checked(7) {
        Some((scheme, key)) if scheme.eq_ignore_ascii_case(b"bearer ") => key.trim_ascii(),
        _ => return ApiError::unauthorised().into_response(),
    };
    // All keys are compared, each in full, so that the time says nothing about them.
    let matches = keys.iter().fold(false, |found, key| found | same(key.as_bytes(), given));
    if matches { next.run(request).await } else { ApiError::unauthorised().into_response() }
}

fn same(a: &[u8], b: &[u8]) -> bool {
    let differing = a.iter().zip(b).fold(0u8, |acc, (x, y)| acc | (x ^ y));
    a.len() == b.len() && std::hint::black_box(differing) == 0
}

/// The whole body, within the limits of size and time.
pub(crate) async fn read_body(state: &State, request: Request) -> Result<Bytes, ApiError> {
    if let Some(kind) = request.headers().get(header::CONTENT_TYPE) {
        let kind = kind.to_str().unwrap_or("").split(';').next().unwrap_or("").trim().to_ascii_lowercase();
        if kind != "application/json" && !(kind.starts_with("application/") && kind.ends_with("+json")) {
            return Err(ApiError::media_type());
        }
    }
    let limit = state.options.max_body_bytes;
    let announced = request.body().size_hint().lower();
    let over = announced > limit as u64;
    // Who asks first (`Expect: 100-continue`) has sent nothing yet.
    if over && request.headers().contains_key(header::EXPECT) {
        return Err(ApiError::too_large(limit));
    }
    let mut body = std::pin::pin!(request.into_body());
    let mut bytes = Vec::with_capacity(if over { 0 } else { announced as usize });
    let mut next = async || std::future::poll_fn(|cx| body.as_mut().poll_frame(cx)).await;
    let read = async {
        while !over && let Some(frame) = next().await {
            let frame = frame.map_err(|e| ApiError::malformed(format!("The body could not be read: {e}")))?;
            let data = frame.data_ref().map_or(&[][..], |d| d);
            if bytes.len() + data.len() > limit {
                return Ok(None);
            }
            bytes.extend_from_slice(data);
        }
        Ok((!over).then(|| Bytes::from(std::mem::take(&mut bytes))))
    };
    match tokio::time::timeout(state.options.read_timeout, read).await {
        Ok(Ok(Some(bytes))) => Ok(bytes),
        Ok(Ok(None)) => {
            let discard = async {
                let mut left = DISCARDED;
                while left > 0
                    && let Some(Ok(frame)) = next().await
                {
                    left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
                }
            };
            // Late or not, the answer is the same.
            let _ = tokio::time::timeout(DISCARDING, discard).await;
            Err(ApiError::too_large(limit))
        }
        Ok(Err(error)) => Err(error),
        Err(_) => Err(ApiError::slow_body()),
    }
}

type Convert = fn(&State, &[u8]) -> Result<Vec<u8>, ApiError>;

async fn convert(state: Arc<State>, request: Request, convert: Convert) -> Result<Response, ApiError> {
    let bytes = read_body(&state, request).await?;
    let work = tokio::task::spawn_blocking(move || convert(&state, &bytes));
    work.await.map_err(|_| ApiError::internal("reading the request failed"))?.map(json)
}

fn ready(state: &State) -> Response {
    if state.is_draining() || !state.backend.is_serving() {
        return ApiError::draining(state.options.retry_after_s).into_response();
    }
    json(b"{\"status\":\"ready\"}".to_vec())
}

fn metrics(state: &State) -> Response {
    let model = state.options.model_names.first().map_or("", String::as_str);
    let page = state.metrics.render(&state.backend.stats(), state.in_flight(), model, state.options.metrics);
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    (StatusCode::OK, [(header::CONTENT_TYPE, kind)], page).into_response()
}

/// A JSON response with status 200.
pub(crate) fn json(body: Vec<u8>) -> Response {
    ([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], body).into_response()
}
