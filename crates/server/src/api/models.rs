//! `/v1/models` and the `model` field.

use super::error::ApiError;
use super::fields::Fields;
use super::routes::json;
use crate::state::State;
use axum::response::Response;
use serde_json::{Value, json};

/// The model that a request names; the first one where it names none.
pub(crate) fn check(state: &State, fields: &Fields) -> Result<String, ApiError> {
    let names = &state.options.model_names;
    match fields.string("model")? {
        None => Ok(names.first().cloned().unwrap_or_default()),
        Some(name) if names.iter().any(|n| n == name) => Ok(name.to_owned()),
        Some(name) => Err(ApiError::no_model(name)),
    }
}

pub(crate) fn list(state: &State) -> Response {
    let data: Vec<Value> = state.options.model_names.iter().map(|name| describe(state, name)).collect();
    json(json!({ "object": "list", "data": data }).to_string().into_bytes())
}

pub(crate) fn one(state: &State, name: &str) -> Result<Response, ApiError> {
    if !state.options.model_names.iter().any(|n| n == name) {
        return Err(ApiError::no_model(name));
    }
    Ok(json(describe(state, name).to_string().into_bytes()))
}

fn describe(state: &State, name: &str) -> Value {
    json!({
        "id": name,
        "object": "model",
        "created": state.created,
        "owned_by": "enginewright",
        "max_model_len": state.backend.max_context(),
    })
}
