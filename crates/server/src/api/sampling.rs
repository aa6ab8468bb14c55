//! The fields that chat and completions share.

use super::error::ApiError;
use super::fields::{Fields, brief};
use crate::generation::StopSet;
use crate::text::Text;
use engine::SamplingParams;
use serde_json::Value;

/// Most top log probabilities per token (OpenAI's bound).
pub(crate) const MAX_TOP_LOGPROBS: u32 = 20;
const MAX_STOPS: usize = 64;
const MAX_STOP_BYTES: usize = 1024;

/// Shared fields, checked.
#[derive(Debug)]
pub(crate) struct Shared {
    pub params: SamplingParams,
    pub n: u32,
    pub stops: StopSet,
    pub stop_tokens: Vec<u32>,
    /// As asked for; none: the route's own default
    pub max_tokens: Option<u64>,
    pub min_tokens: u32,
    pub ignore_eos: bool,
    pub include_stop: bool,
    pub skip_special: bool,
    pub stream: bool,
    pub include_usage: bool,
}

impl Shared {
    /// `random_seed` is used where the request has none; `max_n` bounds `n`.
    pub(crate) fn read(
        fields: &Fields,
        text: &dyn Text,
        random_seed: u64,
        max_n: u32,
    ) -> Result<Self, ApiError> {
        refuse_unsupported(fields)?;
        let vocabulary = u32::try_from(text.vocab_size()).unwrap_or(u32::MAX);
        let stream = fields.flag("stream")?.unwrap_or(false);
        Ok(Self {
            params: params(fields, text, random_seed, vocabulary)?,
            n: fields.integer_in("n", 1, max_n)?.unwrap_or(1),
            stops: stops(fields)?,
            stop_tokens: stop_tokens(fields, vocabulary)?,
            max_tokens: max_tokens(fields)?,
            min_tokens: fields.integer_in("min_tokens", 0, u32::MAX)?.unwrap_or(0),
            ignore_eos: fields.flag("ignore_eos")?.unwrap_or(false),
            include_stop: fields.flag("include_stop_str_in_output")?.unwrap_or(false),
            skip_special: fields.flag("skip_special_tokens")?.unwrap_or(true),
            include_usage: include_usage(fields, stream)?,
            stream,
        })
    }
}

fn params(
    fields: &Fields,
    text: &dyn Text,
    random_seed: u64,
    vocabulary: u32,
) -> Result<SamplingParams, ApiError> {
    let default = text.defaults();
    let top_p = fields.number_in("top_p", 0.0, 1.0)?.or(default.top_p).unwrap_or(1.0);
    Ok(SamplingParams {
        temperature: fields.number_in("temperature", 0.0, 100.0)?.or(default.temperature).unwrap_or(1.0),
        top_k: top_k(fields, vocabulary)?.or(default.top_k).unwrap_or(0),
        // 0 keeps the most probable token only, as does the smallest number that the engine takes.
        top_p: top_p.max(f32::MIN_POSITIVE),
        min_p: fields.number_in("min_p", 0.0, 1.0)?.or(default.min_p).unwrap_or(0.0),
        presence_penalty: fields.number_in("presence_penalty", -2.0, 2.0)?.unwrap_or(0.0),
        frequency_penalty: fields.number_in("frequency_penalty", -2.0, 2.0)?.unwrap_or(0.0),
        repetition_penalty: fields
            .number_in("repetition_penalty", 0.01, 100.0)?
            .or(default.repetition_penalty)
            .unwrap_or(1.0),
        logit_bias: logit_bias(fields, vocabulary)?,
        seed: seed(fields)?.unwrap_or(random_seed),
        choice: 0,
        logprobs: None,
    })
}

/// -1 and 0 keep all; more than the vocabulary keeps all as well.
fn top_k(fields: &Fields, vocabulary: u32) -> Result<Option<u32>, ApiError> {
    let Some(value) = fields.integer("top_k")? else { return Ok(None) };
    if value < -1 {
        return Err(ApiError::invalid(
            "top_k",
            format!("`top_k` is {value}, it must be -1, 0 (all) or positive"),
        ));
    }
    Ok(Some(u32::try_from(value.max(0)).unwrap_or(u32::MAX).min(vocabulary)))
}

/// Any 64-bit integer, negative ones too.
fn seed(fields: &Fields) -> Result<Option<u64>, ApiError> {
    Ok(fields.integer("seed")?.map(|s| s as u64))
}

fn max_tokens(fields: &Fields) -> Result<Option<u64>, ApiError> {
    for name in ["max_completion_tokens", "max_tokens"] {
        if let Some(value) = fields.integer(name)? {
            let negative =
                |_| ApiError::invalid(name, format!("`{name}` is {value}, it must not be negative"));
            return u64::try_from(value).map(Some).map_err(negative);
        }
    }
    Ok(None)
}

fn include_usage(fields: &Fields, stream: bool) -> Result<bool, ApiError> {
    let Some(options) = fields.get("stream_options") else { return Ok(false) };
    if !stream {
        return Err(ApiError::invalid("stream_options", "`stream_options` needs `stream: true`"));
    }
    let Value::Object(options) = options else {
        return Err(ApiError::invalid("stream_options", "`stream_options` must be an object"));
    };
    Ok(Fields(options).flag("include_usage")?.unwrap_or(false))
}

fn stops(fields: &Fields) -> Result<StopSet, ApiError> {
    let wrong = |message: &str| ApiError::invalid("stop", message);
    let stops = match fields.get("stop") {
        None => Vec::new(),
        Some(Value::String(stop)) => vec![stop.clone()],
        Some(Value::Array(stops)) => {
            let strings = stops.iter().map(|s| s.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>();
            strings.ok_or_else(|| wrong("`stop` must be a string or an array of strings"))?
        }
        Some(_) => return Err(wrong("`stop` must be a string or an array of strings")),
    };
    if stops.iter().any(String::is_empty) {
        return Err(wrong("`stop` holds an empty string"));
    }
    if stops.len() > MAX_STOPS || stops.iter().any(|s| s.len() > MAX_STOP_BYTES) {
        let message = format!("`stop` may hold {MAX_STOPS} strings of at most {MAX_STOP_BYTES} bytes");
        return Err(wrong(&message));
    }
    Ok(StopSet::new(stops))
}

fn stop_tokens(fields: &Fields, vocabulary: u32) -> Result<Vec<u32>, ApiError> {
    let wrong = |what: &Value| {
        let message = format!(
            "`stop_token_ids` must be an array of token ids below {vocabulary}, found {}",
            brief(what)
        );
        ApiError::invalid("stop_token_ids", message)
    };
    let Some(value) = fields.get("stop_token_ids") else { return Ok(Vec::new()) };
    let ids = value.as_array().ok_or_else(|| wrong(value))?;
    if ids.len() > 1024 {
        return Err(wrong(value));
    }
    ids.iter().map(|id| token_id(id, vocabulary).ok_or_else(|| wrong(id))).collect()
}

pub(crate) fn token_id(value: &Value, vocabulary: u32) -> Option<u32> {
    value.as_u64().and_then(|id| u32::try_from(id).ok()).filter(|id| *id < vocabulary)
}

fn logit_bias(fields: &Fields, vocabulary: u32) -> Result<Vec<(u32, f32)>, ApiError> {
    let wrong = |message: String| ApiError::invalid("logit_bias", message);
    let Some(value) = fields.get("logit_bias") else { return Ok(Vec::new()) };
    let Value::Object(map) = value else {
        return Err(wrong("`logit_bias` must be an object from token ids to numbers".into()));
    };
    let pair = |(key, bias): (&String, &Value)| {
        let id = key.parse::<u32>().ok().filter(|id| *id < vocabulary);
        let id =
            id.ok_or_else(|| wrong(format!("`logit_bias`: {key:?} is not a token id below {vocabulary}")))?;
        let bias = bias.as_f64().filter(|b| (-100.0..=100.0).contains(b));
        let bias =
            bias.ok_or_else(|| wrong(format!("`logit_bias` of token {id} must lie in -100 to 100")))?;
        Ok((id, bias as f32))
    };
    map.iter().map(pair).collect()
}

/// Fields that would change the answer, with the values at which they change nothing. Fields that nobody here has heard
/// of are ignored, since clients send those of other servers freely.
fn refuse_unsupported(fields: &Fields) -> Result<(), ApiError> {
    let off = |v: &Value| match v {
        Value::Bool(b) => !b,
        Value::Array(a) => a.is_empty(),
        Value::Object(o) => o.is_empty(),
        Value::String(s) => s.is_empty(),
        Value::Number(n) => n.as_f64() == Some(0.0),
        Value::Null => true,
    };
    for name in [
        "tools",
        "functions",
        "function_call",
        "audio",
        "prediction",
        "web_search_options",
        "reasoning_effort",
        "guided_json",
        "guided_regex",
        "guided_choice",
        "guided_grammar",
        "structured_outputs",
        "json_schema",
        "grammar",
        "use_beam_search",
        "continue_final_message",
        "documents",
        "prompt_embeds",
        "logits_processors",
        "allowed_token_ids",
        "bad_words",
        "truncate_prompt_tokens",
        "mirostat",
        "dry_multiplier",
        "xtc_probability",
        "dynatemp_range",
        "top_a",
        "suffix",
        "lora",
    ] {
        if fields.get(name).is_some_and(|v| !off(v)) {
            return Err(ApiError::unsupported(name, ""));
        }
    }
    for (name, neutral) in [("best_of", 1.0), ("typical_p", 1.0), ("length_penalty", 1.0), ("tfs_z", 1.0)] {
        if fields.get(name).is_some_and(|v| v.as_f64() != Some(neutral)) {
            return Err(ApiError::unsupported(name, ""));
        }
    }
    for (name, instead) in [("repeat_penalty", "repetition_penalty"), ("n_predict", "max_tokens")] {
        if fields.get(name).is_some() {
            return Err(ApiError::unsupported(name, &format!(": use `{instead}`")));
        }
    }
    if let Some(choice) = fields.get("tool_choice")
        && !matches!(choice.as_str(), Some("none" | "auto"))
    {
        return Err(ApiError::unsupported("tool_choice", ""));
    }
    if let Some(format) = fields.get("response_format")
        && format.get("type").and_then(Value::as_str) != Some("text")
    {
        return Err(ApiError::unsupported("response_format", " beyond `{\"type\":\"text\"}`"));
    }
    if let Some(modalities) = fields.get("modalities")
        && modalities.as_array().is_none_or(|m| m.iter().any(|x| x.as_str() != Some("text")))
    {
        return Err(ApiError::unsupported("modalities", " beyond `[\"text\"]`"));
    }
    Ok(())
}
