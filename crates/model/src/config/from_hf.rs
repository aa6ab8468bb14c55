//! The configuration from a Hugging Face `config.json`, and `generation_config.json`.

use super::{Family, ModelConfig, SlidingWindow};
use crate::error::{Error, Result};
use crate::rope::{Rope, RopeScaling};
use serde_json::Value;
use std::path::Path;

/// Reads a JSON object, `None` if the file is absent.
pub(crate) fn read_json(path: &Path) -> Result<Option<Value>> {
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Error::io("read", path)(e)),
    };
    let value: Value =
        serde_json::from_slice(&text).map_err(|e| Error::damaged(path, "JSON", e.to_string()))?;
    if !value.is_object() {
        return Err(Error::damaged(path, "JSON", "the top level is not an object"));
    }
    Ok(Some(value))
}

/// What `generation_config.json` says.
#[derive(Clone, Debug, Default)]
pub(crate) struct GenerationFile {
    pub(crate) eos: Vec<u32>,
    pub(crate) temperature: Option<f32>,
    pub(crate) top_k: Option<u32>,
    pub(crate) top_p: Option<f32>,
    pub(crate) min_p: Option<f32>,
    pub(crate) repetition_penalty: Option<f32>,
}

impl GenerationFile {
    pub(crate) fn read(path: &Path) -> Result<GenerationFile> {
        let Some(json) = read_json(path)? else { return Ok(GenerationFile::default()) };
        let fields = Fields { path, json: &json };
        let f32_of = |key: &str| fields.f64(key).map(|v| v.map(|v| v as f32));
        Ok(GenerationFile {
            eos: fields.ids("eos_token_id")?,
            temperature: f32_of("temperature")?,
            top_k: fields.usize("top_k")?.map(|k| k.min(u32::MAX as usize) as u32),
            top_p: f32_of("top_p")?,
            min_p: f32_of("min_p")?,
            repetition_penalty: f32_of("repetition_penalty")?,
        })
    }
}

struct Fields<'a> {
    path: &'a Path,
    json: &'a Value,
}

impl<'a> Fields<'a> {
    fn get(&self, key: &str) -> Option<&'a Value> {
        self.json.get(key).filter(|v| !v.is_null())
    }

    fn typed<T>(&self, key: &str, wanted: &str, read: impl Fn(&'a Value) -> Option<T>) -> Result<Option<T>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| {
            let shown: String = value.to_string().chars().take(80).collect();
            Error::bad_value(self.path, key, format!("{wanted} is needed, found {shown}"))
        })
    }

    fn usize(&self, key: &str) -> Result<Option<usize>> {
        self.typed(key, "a non-negative integer", |v| v.as_u64().and_then(|v| usize::try_from(v).ok()))
    }

    fn needed(&self, key: &str) -> Result<usize> {
        self.usize(key)?.ok_or_else(|| Error::missing(self.path, "key", key))
    }

    fn f64(&self, key: &str) -> Result<Option<f64>> {
        self.typed(key, "a number", Value::as_f64)
    }

    fn bool(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "true or false", Value::as_bool)
    }

    fn str(&self, key: &str) -> Result<Option<&'a str>> {
        self.typed(key, "text", Value::as_str)
    }

    /// One token id or a list of them.
    fn ids(&self, key: &str) -> Result<Vec<u32>> {
        let one = |v: &Value| v.as_u64().and_then(|v| u32::try_from(v).ok());
        let read = |v: &Value| match v {
            Value::Array(items) => items.iter().map(one).collect(),
            other => one(other).map(|id| vec![id]),
        };
        Ok(self.typed(key, "a token id or a list of them", read)?.unwrap_or_default())
    }
}

/// Reads the configuration from parsed `config.json`.
pub(crate) fn config_from_hf(path: &Path, json: &Value) -> Result<ModelConfig> {
    let fields = Fields { path, json };
    let kind = fields.str("model_type")?.ok_or_else(|| Error::missing(path, "key", "model_type"))?;
    let family = match kind {
        "llama" => Family::Llama,
        "mistral" => Family::Mistral,
        "qwen2" => Family::Qwen2,
        "qwen3" => Family::Qwen3,
        other => return Err(Error::unsupported(path, "model_type", format!("{other:?}"), Family::SUPPORTED)),
    };
    refuse_variants(&fields)?;
    let heads = fields.needed("num_attention_heads")?;
    let hidden = fields.needed("hidden_size")?;
    let head_dim = match fields.usize("head_dim")? {
        Some(dim) => dim,
        None if family == Family::Qwen3 => 128,
        None if heads > 0 => hidden / heads,
        None => 0,
    };
    let layers = fields.needed("num_hidden_layers")?;
    let attention_bias = fields.bool("attention_bias")?.unwrap_or(false);
    let config = ModelConfig {
        family,
        name: fields.str("_name_or_path")?.filter(|n| !n.is_empty()).map(str::to_owned),
        layers,
        hidden,
        heads,
        kv_heads: fields.usize("num_key_value_heads")?.unwrap_or(heads),
        head_dim,
        ffn: fields.needed("intermediate_size")?,
        vocab: fields.needed("vocab_size")?,
        context: fields.needed("max_position_embeddings")?,
        rms_eps: fields.f64("rms_norm_eps")?.unwrap_or(1e-6) as f32,
        rope: rope(&fields, head_dim)?,
        qkv_bias: match family {
            Family::Qwen2 => true,
            Family::Llama | Family::Qwen3 => attention_bias,
            Family::Mistral => false,
        },
        output_bias: matches!(family, Family::Llama | Family::Qwen3) && attention_bias,
        qk_norm: family == Family::Qwen3,
        tied: fields.bool("tie_word_embeddings")?.unwrap_or(false),
        sliding_window: sliding_window(&fields, family, layers)?,
        bos: fields.ids("bos_token_id")?.first().copied(),
        eos: fields.ids("eos_token_id")?,
    };
    config.check(path)?;
    Ok(config)
}

fn refuse_variants(fields: &Fields) -> Result<()> {
    let path = fields.path;
    if let Some(activation) = fields.str("hidden_act")?.filter(|a| *a != "silu" && *a != "swish") {
        return Err(Error::unsupported(path, "hidden_act", format!("{activation:?}"), "silu"));
    }
    if fields.bool("mlp_bias")?.unwrap_or(false) {
        return Err(Error::unsupported(path, "mlp_bias", "a bias in feed-forward layers", "false"));
    }
    if let Some(quantised) = fields.get("quantization_config") {
        let method = quantised.get("quant_method").and_then(Value::as_str).unwrap_or("unnamed");
        return Err(Error::unsupported(
            path,
            "quantization_config",
            format!("method {method}"),
            "F32, F16 and BF16 weights",
        ));
    }
    Ok(())
}

fn sliding_window(fields: &Fields, family: Family, layers: usize) -> Result<Option<SlidingWindow>> {
    let Some(tokens) = fields.usize("sliding_window")?.filter(|&t| t > 0) else { return Ok(None) };
    let in_use = match family {
        Family::Llama => false,
        Family::Mistral => true,
        Family::Qwen2 | Family::Qwen3 => fields.bool("use_sliding_window")?.unwrap_or(false),
    };
    if !in_use {
        return Ok(None);
    }
    let mut first_layer =
        if family == Family::Mistral { 0 } else { fields.usize("max_window_layers")?.unwrap_or(28) };
    if let Some(types) = fields.get("layer_types").and_then(Value::as_array) {
        let sliding: Vec<bool> = types.iter().map(|t| t == "sliding_attention").collect();
        first_layer = sliding.iter().position(|&s| s).unwrap_or(layers);
        if sliding[first_layer.min(sliding.len())..].contains(&false) {
            let supported = "full attention in the first layers, sliding in the rest";
            return Err(Error::unsupported(
                fields.path,
                "layer_types",
                "full attention after sliding",
                supported,
            ));
        }
    }
    Ok((first_layer < layers).then_some(SlidingWindow { tokens, first_layer }))
}

fn rope(fields: &Fields, head_dim: usize) -> Result<Rope> {
    // transformers 5 keeps everything in `rope_parameters`, earlier versions in `rope_theta` and `rope_scaling`.
    let (section, json) = ["rope_parameters", "rope_scaling"]
        .into_iter()
        .find_map(|key| fields.get(key).map(|v| (key, v)))
        .unwrap_or(("rope_scaling", &Value::Null));
    let scaling_fields = Fields { path: fields.path, json };
    let theta = match scaling_fields.f64("rope_theta")? {
        Some(theta) => theta,
        None => fields.f64("rope_theta")?.unwrap_or(10_000.0),
    };
    let partial = match scaling_fields.f64("partial_rotary_factor")? {
        Some(partial) => partial,
        None => fields.f64("partial_rotary_factor")?.unwrap_or(1.0),
    };
    let scaling = scaling(&scaling_fields, section, fields)?;
    Ok(Rope { theta, dim: (head_dim as f64 * partial) as usize, scaling })
}

fn scaling(rope: &Fields, section: &str, config: &Fields) -> Result<RopeScaling> {
    let kind = match rope.str("rope_type")? {
        Some(kind) => Some(kind),
        None => rope.str("type")?,
    };
    let needed = |key: &str| -> Result<f64> {
        rope.f64(key)?.filter(|v| v.is_finite() && *v > 0.0).ok_or_else(|| {
            Error::bad_value(rope.path, format!("{section}.{key}"), "a positive number is needed")
        })
    };
    let original = || -> Result<usize> {
        match rope.usize("original_max_position_embeddings")? {
            Some(context) => Ok(context),
            None => config.needed("max_position_embeddings"),
        }
    };
    match kind {
        None | Some("default") => Ok(RopeScaling::None),
        Some("linear") => Ok(RopeScaling::Linear { factor: needed("factor")? }),
        Some("llama3") => Ok(RopeScaling::Llama3 {
            factor: needed("factor")?,
            low_freq_factor: needed("low_freq_factor")?,
            high_freq_factor: needed("high_freq_factor")?,
            original_context: original()?,
        }),
        Some("yarn") if rope.get("mscale").is_some() || rope.get("mscale_all_dim").is_some() => {
            Err(Error::unsupported(
                rope.path,
                format!("{section}.mscale"),
                "yarn with mscale",
                "yarn with attention_factor",
            ))
        }
        Some("yarn") => Ok(RopeScaling::Yarn {
            factor: needed("factor")?,
            original_context: original()?,
            beta_fast: rope.f64("beta_fast")?.unwrap_or(32.0),
            beta_slow: rope.f64("beta_slow")?.unwrap_or(1.0),
            attention_factor: rope.f64("attention_factor")?,
        }),
        Some(other) => {
            let supported = "default, linear, llama3, yarn";
            Err(Error::unsupported(
                rope.path,
                format!("{section}.rope_type"),
                format!("{other:?}"),
                supported,
            ))
        }
    }
}
