//! `messages` to a prompt.

use super::error::ApiError;
use super::fields::{Fields, brief};
use crate::text::{Text, TextError};
use model::{EncodeOptions, RenderOptions};
use serde_json::{Map, Value};

/// The prompt of a conversation, in token ids.
pub(crate) fn prompt(fields: &Fields, text: &dyn Text) -> Result<Vec<u32>, ApiError> {
    let messages = messages(fields)?;
    let extra = match fields.get("chat_template_kwargs") {
        None => Map::new(),
        Some(Value::Object(extra)) => extra.clone(),
        Some(_) => {
            return Err(ApiError::invalid(
                "chat_template_kwargs",
                "`chat_template_kwargs` must be an object",
            ));
        }
    };
    if fields.get("chat_template").is_some() {
        return Err(ApiError::unsupported("chat_template", ""));
    }
    let options = RenderOptions {
        add_generation_prompt: fields.flag("add_generation_prompt")?.unwrap_or(true),
        tools: None,
        extra,
        now: None,
    };
    let rendered = text.render(&messages, &options).map_err(|e| ApiError::text("messages", &e))?;
    let ids = text.encode(&rendered, EncodeOptions::TEMPLATE).map_err(|e| ApiError::text("messages", &e))?;
    if ids.is_empty() {
        let error = TextError::Template("it gave no text".into());
        return Err(ApiError::text("messages", &error));
    }
    Ok(ids)
}

/// Who may speak, as in the OpenAI API.
const ROLES: [&str; 6] = ["system", "developer", "user", "assistant", "tool", "function"];

/// Checked messages in the form that templates expect: contents as strings.
fn messages(fields: &Fields) -> Result<Value, ApiError> {
    let wrong = |message: &str| Err(ApiError::invalid("messages", message));
    let Some(Value::Array(messages)) = fields.get("messages") else {
        return wrong("`messages` must be an array of messages");
    };
    if messages.is_empty() {
        return wrong("`messages` is empty");
    }
    let plain = messages.iter().enumerate().map(|(i, message)| plain(message, &format!("messages[{i}]")));
    plain.collect::<Result<Vec<_>, _>>().map(Value::Array)
}

fn plain(message: &Value, place: &str) -> Result<Value, ApiError> {
    let Value::Object(message) = message else {
        return Err(ApiError::invalid(place, format!("`{place}` must be an object, not {}", brief(message))));
    };
    let fields = Fields(message);
    let Some(role) = message.get("role").and_then(Value::as_str) else {
        return Err(ApiError::invalid(format!("{place}.role"), format!("`{place}.role` must be a string")));
    };
    if !ROLES.contains(&role) {
        let message = format!("`{place}.role` is {role:?}; it must be one of {}", ROLES.join(", "));
        return Err(ApiError::invalid(format!("{place}.role"), message));
    }
    for name in ["tool_calls", "function_call", "audio"] {
        if fields.get(name).is_some_and(|v| v.as_array().is_none_or(|a| !a.is_empty())) {
            return Err(ApiError::unsupported(&format!("{place}.{name}"), ""));
        }
    }
    let mut out = message.clone();
    // Newer clients say `developer` where templates know `system`.
    let role = if role == "developer" { "system" } else { role };
    out.insert("role".into(), role.into());
    let content = match message.get("content") {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => parts_text(parts, place)?,
        None | Some(Value::Null) if role == "assistant" => String::new(),
        _ => {
            let message = format!("`{place}.content` must be a string or an array of text parts");
            return Err(ApiError::invalid(format!("{place}.content"), message));
        }
    };
    out.insert("content".into(), content.into());
    Ok(Value::Object(out))
}

fn parts_text(parts: &[Value], place: &str) -> Result<String, ApiError> {
    let mut out = Vec::with_capacity(parts.len());
    for (i, part) in parts.iter().enumerate() {
        let place = format!("{place}.content[{i}]");
        match (part.get("type").and_then(Value::as_str), part.get("text").and_then(Value::as_str)) {
            (Some("text"), Some(text)) => out.push(text),
            (Some(kind), _) if kind != "text" => {
                return Err(ApiError::unsupported(&place, &format!(": parts of type {kind:?}")));
            }
            _ => return Err(ApiError::invalid(place.clone(), format!("`{place}` must be a text part"))),
        }
    }
    Ok(out.join("\n"))
}
