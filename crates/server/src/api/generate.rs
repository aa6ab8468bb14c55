//! `/v1/chat/completions` and `/v1/completions`.

use super::body::Body;
use super::completions::{Input, inputs};
use super::error::ApiError;
use super::fields::Fields;
use super::routes::{json, read_body};
use super::sampling::{MAX_TOP_LOGPROBS, Shared};
use super::{chat, models};
use crate::access_log::Record;
use crate::generation::{Choice, Counts, Feed, FeedSink, Generation, TextRules, Ticket};
use crate::metrics::Outcome;
use crate::state::{Flight, State, unix_seconds};
use crate::wire::{EventBody, Route, UsageChunk, Whole, Writer};
use axum::body::Body as HttpBody;
use axum::http::{HeaderValue, Request as HttpRequest, header};
use axum::response::{IntoResponse, Response};
use engine::{Request, RequestId};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

/// Bodies up to this size are parsed, rendered and tokenised in place (tens of microseconds); larger ones on a blocking
/// thread, so that running streams do not wait for them.
const INLINE_BYTES: usize = 2048;

/// A request that was understood.
struct Prepared {
    shared: Shared,
    inputs: Vec<Input>,
    /// `logprobs`: how many top ones; none: not asked for
    logprobs: Option<u32>,
    echo: bool,
    max_tokens: Vec<u32>,
    model: String,
}

/// Answers one request of either route.
pub(crate) async fn generate(state: Arc<State>, route: Route, request: HttpRequest<HttpBody>) -> Response {
    match answer(&state, route, request).await {
        Ok(response) => response,
        Err(error) => {
            state.metrics.refused();
            error.into_response()
        }
    }
}

async fn answer(
    state: &Arc<State>,
    route: Route,
    request: HttpRequest<HttpBody>,
) -> Result<Response, ApiError> {
    let arrived = Instant::now();
    let retry = state.options.retry_after_s;
    if state.is_draining() {
        return Err(ApiError::draining(retry));
    }
    let flight = state.enter().ok_or_else(|| ApiError::queue_full(retry))?;
    let record = request.extensions().get::<Record>().cloned().unwrap_or_default();
    let bytes = read_body(state, request).await?;
    let prepared = if bytes.len() <= INLINE_BYTES {
        prepare(state, route, &bytes)?
    } else {
        let state = Arc::clone(state);
        let work = tokio::task::spawn_blocking(move || prepare(&state, route, &bytes));
        work.await.map_err(|_| ApiError::internal("reading the request failed"))??
    };
    let writer = writer(state, route, &prepared);
    let stream = prepared.shared.stream;
    let generation = submit(state, prepared, Arrival { arrived, record, flight })?;
    let timeout = state.options.request_timeout;
    if !stream {
        let (whole, counts) = Whole::collect(generation, timeout).await?;
        return Ok(json(whole.body(&writer, counts)));
    }
    let deadline = timeout.map(|limit| tokio::time::Instant::from_std(arrived + limit));
    let mut body = EventBody::new(generation, writer.events(), state.options.keep_alive, deadline);
    body.start().await?;
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        // nginx would otherwise collect chunks.
        (header::HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    Ok((headers, HttpBody::new(body)).into_response())
}

fn writer(state: &State, route: Route, prepared: &Prepared) -> Writer {
    let prefix = match route {
        Route::Chat => "chatcmpl-",
        Route::Completions => "cmpl-",
    };
    Writer {
        route,
        id: format!("{prefix}{:016x}{:08x}", state.random(), state.unique()),
        created: unix_seconds(),
        model: prepared.model.clone(),
        fingerprint: state.options.fingerprint.clone(),
        logprobs: prepared.logprobs,
        usage: if prepared.shared.include_usage { UsageChunk::Wanted } else { UsageChunk::Unwanted },
        vocabulary: Arc::clone(&state.text),
    }
}

/// Bytes to checked token ids and parameters. Pure but for the seed; may take milliseconds for long prompts.
fn prepare(state: &State, route: Route, bytes: &[u8]) -> Result<Prepared, ApiError> {
    let text = &*state.text;
    let body = Body::parse(bytes)?;
    let fields = Fields(&body.fields);
    let model = models::check(state, &fields)?;
    let max_choices = u32::try_from(state.options.max_choices).unwrap_or(u32::MAX);
    let shared = Shared::read(&fields, text, state.random(), max_choices)?;
    let (inputs, logprobs, echo) = match route {
        Route::Chat => {
            let input = Input { ids: chat::prompt(&fields, text)?, text: None };
            (vec![input], chat_logprobs(&fields)?, false)
        }
        Route::Completions => {
            let echo = fields.flag("echo")?.unwrap_or(false);
            let logprobs = fields.integer_in("logprobs", 0, MAX_TOP_LOGPROBS)?;
            (inputs(body.prompt, text, state.options.max_choices)?, logprobs, echo)
        }
    };
    if inputs.len() * shared.n as usize > state.options.max_choices {
        let message =
            format!("prompts x n is more than the {max_choices} choices that this server takes at a time");
        return Err(ApiError::invalid("n", message));
    }
    let limit =
        |input: &Input| max_tokens(input.ids.len(), &shared, route, echo, state.backend.max_context());
    let max_tokens = inputs.iter().map(limit).collect::<Result<_, _>>()?;
    Ok(Prepared { shared, inputs, logprobs, echo, max_tokens, model })
}

fn chat_logprobs(fields: &Fields) -> Result<Option<u32>, ApiError> {
    let top = fields.integer_in("top_logprobs", 0, MAX_TOP_LOGPROBS)?;
    match (fields.flag("logprobs")?.unwrap_or(false), top) {
        (true, top) => Ok(Some(top.unwrap_or(0))),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => Err(ApiError::invalid("top_logprobs", "`top_logprobs` needs `logprobs: true`")),
    }
}

/// What was asked for, clamped to the room that the prompt leaves.
fn max_tokens(
    prompt: usize,
    shared: &Shared,
    route: Route,
    echo: bool,
    context: u32,
) -> Result<u32, ApiError> {
    let default = match route {
        Route::Chat => u64::MAX,
        Route::Completions => 16,
    };
    let wanted = shared.max_tokens.unwrap_or(default);
    if wanted == 0 && !echo {
        return Err(ApiError::invalid("max_tokens", "`max_tokens` is 0, which needs `echo: true`"));
    }
    let room = u64::from(context).saturating_sub(prompt as u64);
    if prompt as u64 > u64::from(context) || (room == 0 && wanted > 0) {
        return Err(ApiError::context_length(prompt, context));
    }
    Ok(u32::try_from(wanted.min(room)).unwrap_or(u32::MAX))
}

/// What is known of the HTTP request itself.
struct Arrival {
    arrived: Instant,
    record: Record,
    flight: Flight,
}

/// Hands all choices to the engine; if it refuses one, those before it are cancelled.
fn submit(state: &Arc<State>, prepared: Prepared, arrival: Arrival) -> Result<Generation, ApiError> {
    let feed = Arc::<Feed>::default();
    let mut ticket = Ticket::new(Arc::clone(&state.backend), Arc::clone(&feed));
    let Arrival { arrived, record, mut flight } = arrival;
    flight.follow(&feed);
    let rules = TextRules {
        stops: Arc::new(prepared.shared.stops.clone()),
        min_tokens: prepared.shared.min_tokens,
        include_stop: prepared.shared.include_stop,
        skip_special: prepared.shared.skip_special,
        keep_tokens: prepared.logprobs.is_some(),
    };
    let mut choices = Vec::new();
    let submitted = Instant::now();
    for (input, &max_tokens) in prepared.inputs.iter().zip(&prepared.max_tokens) {
        for n in 0..prepared.shared.n {
            let id = state.request_id();
            let request = engine_request(&prepared, &*state.text, id, input, max_tokens, n);
            let echo =
                (prepared.echo && request.prompt_logprobs.is_none()).then(|| echoed(input, state, &rules));
            let sink = FeedSink::new(Arc::clone(&feed), Arc::clone(&state.dispatcher), choices.len());
            let submitted = state.backend.submit(request, Box::new(sink));
            submitted.map_err(|e| ApiError::engine(&e, state.options.retry_after_s))?;
            ticket.submitted(id);
            choices.push(Choice::new(rules.clone(), echo));
        }
    }
    let prompt = prepared.inputs.iter().map(|i| i.ids.len() as u64).sum();
    Ok(Generation {
        ticket,
        feed,
        text: Arc::clone(&state.text),
        metrics: Arc::clone(&state.metrics),
        choices,
        counts: Counts { prompt, ..Counts::default() },
        choices_per_prompt: prepared.shared.n as usize,
        arrived,
        submitted,
        record,
        _flight: flight,
        batch: VecDeque::new(),
        delta: Default::default(),
        outcome: Outcome::Running,
    })
}

fn engine_request(
    prepared: &Prepared,
    text: &dyn crate::text::Text,
    id: RequestId,
    input: &Input,
    max_tokens: u32,
    choice: u32,
) -> Request {
    let shared = &prepared.shared;
    let mut params = shared.params.clone();
    params.choice = choice;
    params.logprobs = prepared.logprobs;
    Request {
        id,
        prompt: input.ids.clone(),
        params,
        max_tokens,
        min_tokens: shared.min_tokens.min(max_tokens),
        eos_tokens: text.eos().to_vec(),
        stop_tokens: shared.stop_tokens.clone(),
        ignore_eos: shared.ignore_eos,
        prompt_logprobs: prepared.logprobs.filter(|_| prepared.echo),
    }
}

/// The prompt's text: as the client wrote it, or decoded.
fn echoed(input: &Input, state: &State, rules: &TextRules) -> String {
    if let Some(text) = &input.text {
        return text.clone();
    }
    let shown = input.ids.iter().filter(|id| !(rules.skip_special && state.text.is_control(**id)));
    let bytes: Vec<u8> = shown.flat_map(|id| state.text.token_bytes(*id)).copied().collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
