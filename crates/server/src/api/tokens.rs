//! `/tokenize` and `/detokenize`, in the shapes of vLLM.

use super::body::{Body, Prompt};
use super::chat;
use super::error::ApiError;
use super::fields::Fields;
use super::models;
use super::sampling::token_id;
use crate::state::State;
use model::EncodeOptions;
use serde_json::{Value, json};

/// `{"prompt": text}` or `{"messages": [...]}` to `{"count", "max_model_len", "tokens"}`.
pub(crate) fn tokenize(state: &State, bytes: &[u8]) -> Result<Vec<u8>, ApiError> {
    let body = Body::parse(bytes)?;
    let fields = Fields(&body.fields);
    models::check(state, &fields)?;
    let ids = match body.prompt {
        Some(Prompt::Text(prompt)) => {
            let add_special = fields.flag("add_special_tokens")?.unwrap_or(true);
            let options = EncodeOptions { add_special, parse_special: true };
            state.text.encode(&prompt, options).map_err(|e| ApiError::text("prompt", &e))?
        }
        Some(_) => return Err(ApiError::invalid("prompt", "`prompt` must be a string")),
        None if fields.get("messages").is_some() => chat::prompt(&fields, &*state.text)?,
        None => return Err(ApiError::invalid("prompt", "`prompt` or `messages` is missing")),
    };
    let strings = fields.flag("return_token_strs")?.unwrap_or(false).then(|| {
        let name = |id: &u32| String::from_utf8_lossy(state.text.token_bytes(*id)).into_owned();
        ids.iter().map(name).collect::<Vec<_>>()
    });
    let answer = json!({
        "count": ids.len(),
        "max_model_len": state.backend.max_context(),
        "tokens": ids,
        "token_strs": strings,
    });
    Ok(answer.to_string().into_bytes())
}

/// `{"tokens": [...]}` to `{"prompt": text}`.
pub(crate) fn detokenize(state: &State, bytes: &[u8]) -> Result<Vec<u8>, ApiError> {
    let body = Body::parse(bytes)?;
    let fields = Fields(&body.fields);
    models::check(state, &fields)?;
    let vocabulary = u32::try_from(state.text.vocab_size()).unwrap_or(u32::MAX);
    let wrong =
        || ApiError::invalid("tokens", format!("`tokens` must be an array of token ids below {vocabulary}"));
    let tokens = fields.get("tokens").and_then(Value::as_array).ok_or_else(wrong)?;
    let ids =
        tokens.iter().map(|t| token_id(t, vocabulary)).collect::<Option<Vec<u32>>>().ok_or_else(wrong)?;
    let bytes: Vec<u8> = ids.iter().flat_map(|id| state.text.token_bytes(*id)).copied().collect();
    Ok(json!({ "prompt": String::from_utf8_lossy(&bytes) }).to_string().into_bytes())
}
