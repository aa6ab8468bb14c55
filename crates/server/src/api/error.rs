//! OpenAI error bodies.

use crate::text::TextError;
use crate::wire::json::{string, text};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use engine::EngineError;

/// An error of one request, as the client sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ApiError {
    pub status: StatusCode,
    kind: &'static str,
    code: Option<&'static str>,
    param: Option<String>,
    message: String,
    retry_after_s: Option<u32>,
    /// Prompt tokens and context, of `context_length_exceeded`
    counts: Option<(usize, u32)>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, code: Option<&'static str>, message: String) -> Self {
        Self { status, kind, code, param: None, message, retry_after_s: None, counts: None }
    }

    /// 400 about one field.
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        let error = Self::new(StatusCode::BAD_REQUEST, INVALID, None, message.into());
        Self { param: Some(param.into()), ..error }
    }

    /// 400 about a field that is known and not supported: never silently ignored.
    pub fn unsupported(param: &str, hint: &str) -> Self {
        let error = Self::invalid(param, format!("`{param}` is not supported by this server{hint}"));
        Self { code: Some("unsupported_parameter"), ..error }
    }

    /// 400 about the body as a whole.
    pub fn malformed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, INVALID, None, message.into())
    }

    pub fn context_length(prompt: usize, context: u32) -> Self {
        let message = format!(
            "This model's maximum context length is {context} tokens, but the prompt has {prompt} tokens and the \
             completion needs at least one. Shorten the prompt."
        );
        let error = Self::new(StatusCode::BAD_REQUEST, INVALID, Some("context_length_exceeded"), message);
        Self { counts: Some((prompt, context)), ..error }
    }

    pub fn text(param: &str, error: &TextError) -> Self {
        Self::invalid(param, error.to_string())
    }

    pub fn no_model(name: &str) -> Self {
        let message = format!("The model `{name}` does not exist; GET /v1/models lists what is served.");
        let error = Self::new(StatusCode::NOT_FOUND, INVALID, Some("model_not_found"), message);
        Self { param: Some("model".into()), ..error }
    }

    pub fn no_route(path: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, INVALID, Some("unknown_url"), format!("There is nothing at {path}."))
    }

    pub fn method(method: &str, path: &str) -> Self {
        let message = format!("{method} is not allowed on {path}.");
        Self::new(StatusCode::METHOD_NOT_ALLOWED, INVALID, Some("method_not_allowed"), message)
    }

    pub fn unauthorised() -> Self {
        let message = "Missing or wrong API key: send `Authorization: Bearer KEY`.".into();
        Self::new(StatusCode::UNAUTHORIZED, INVALID, Some("invalid_api_key"), message)
    }

    pub fn too_large(limit: usize) -> Self {
        let message = format!("The request body is larger than {limit} bytes.");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, INVALID, Some("request_too_large"), message)
    }

    pub fn media_type() -> Self {
        let message = "The body must be JSON: send `Content-Type: application/json`.".into();
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, INVALID, Some("unsupported_media_type"), message)
    }

    pub fn slow_body() -> Self {
        let message = "The request body took too long to arrive.".into();
        Self::new(StatusCode::REQUEST_TIMEOUT, INVALID, Some("request_timeout"), message)
    }

    pub fn queue_full(retry_after_s: u32) -> Self {
        let message = "The request queue is full, try again later.".into();
        let error = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", Some("queue_full"), message);
        Self { retry_after_s: Some(retry_after_s), ..error }
    }

    pub fn draining(retry_after_s: u32) -> Self {
        let message = "The server is shutting down.".into();
        let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, SERVER, Some("shutting_down"), message);
        Self { retry_after_s: Some(retry_after_s), ..error }
    }

    pub fn timed_out() -> Self {
        let message = "The request took longer than this server allows.".into();
        Self::new(StatusCode::GATEWAY_TIMEOUT, SERVER, Some("request_timeout"), message)
    }

    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, SERVER, Some("internal_error"), message.into())
    }

    pub fn engine(error: &EngineError, retry_after_s: u32) -> Self {
        match error {
            EngineError::Invalid { problem, .. } => Self::malformed(problem.clone()),
            EngineError::TooLong { prompt, context, .. } => Self::context_length(*prompt, *context),
            EngineError::QueueFull { .. } => Self::queue_full(retry_after_s),
            EngineError::Draining => Self::draining(retry_after_s),
            EngineError::Stopped(_) => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, SERVER, Some("engine_stopped"), error.to_string())
            }
            other => Self::internal(other.to_string()),
        }
    }

    /// `{"error":{...}}`
    pub fn body(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(160 + self.message.len());
        text(&mut out, "{\"error\":{\"message\":");
        string(&mut out, &self.message);
        text(&mut out, ",\"type\":");
        string(&mut out, self.kind);
        for (name, value) in [("param", self.param.as_deref()), ("code", self.code)] {
            text(&mut out, &format!(",\"{name}\":"));
            match value {
                Some(value) => string(&mut out, value),
                None => text(&mut out, "null"),
            }
        }
        if let Some((prompt, context)) = self.counts {
            text(&mut out, &format!(",\"n_prompt_tokens\":{prompt},\"n_ctx\":{context}"));
        }
        text(&mut out, "}}");
        out
    }
}

const INVALID: &str = "invalid_request_error";
const SERVER: &str = "server_error";

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let json = HeaderValue::from_static("application/json");
        let mut response = (self.status, [(header::CONTENT_TYPE, json)], self.body()).into_response();
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after_s {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
