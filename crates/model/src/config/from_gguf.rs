//! The configuration from GGUF metadata.

use super::{Family, ModelConfig, SlidingWindow};
use crate::error::{Error, Result};
use crate::gguf::Gguf;
use crate::quant::dequantise_into;
use crate::rope::{Rope, RopeScaling};

/// Keys below `{architecture}.`, with errors that name them.
struct Keys<'a> {
    gguf: &'a Gguf,
    architecture: String,
}

impl Keys<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    fn usize(&self, name: &str) -> Result<Option<usize>> {
        self.gguf.usize(&self.key(name))
    }

    fn needed(&self, name: &str) -> Result<usize> {
        self.usize(name)?.ok_or_else(|| Error::missing(self.gguf.path(), "key", self.key(name)))
    }

    fn f64(&self, name: &str) -> Result<Option<f64>> {
        self.gguf.f64(&self.key(name))
    }

    /// A count that some files give once and others once per layer; layers that differ are not supported.
    fn uniform(&self, name: &str) -> Result<Option<usize>> {
        let key = self.key(name);
        match self.gguf.get(&key).and_then(|v| v.as_u32s()) {
            None => self.gguf.usize(&key),
            Some(items) => match items.first() {
                Some(&first) if items.iter().all(|&x| x == first) => Ok(Some(first as usize)),
                _ => Err(Error::unsupported(
                    self.gguf.path(),
                    key,
                    "a value that differs from layer to layer",
                    "one value",
                )),
            },
        }
    }
}

/// Reads the configuration. End-of-text tokens are filled in from the tokenizer later.
pub(crate) fn config_from_gguf(gguf: &Gguf) -> Result<ModelConfig> {
    let path = gguf.path();
    let architecture = gguf
        .str("general.architecture")?
        .ok_or_else(|| Error::missing(path, "key", "general.architecture"))?
        .to_owned();
    let family = match architecture.as_str() {
        "llama" => Family::Llama,
        "qwen2" => Family::Qwen2,
        "qwen3" => Family::Qwen3,
        other => {
            let found = format!("architecture {other:?}");
            return Err(Error::unsupported(path, "general.architecture", found, Family::SUPPORTED));
        }
    };
    let keys = Keys { gguf, architecture };
    if keys.usize("expert_count")?.is_some_and(|n| n > 0) {
        return Err(Error::unsupported(
            path,
            keys.key("expert_count"),
            "a mixture of experts",
            "dense feed-forward layers",
        ));
    }
    let hidden = keys.needed("embedding_length")?;
    let heads = keys
        .uniform("attention.head_count")?
        .ok_or_else(|| Error::missing(path, "key", keys.key("attention.head_count")))?;
    let head_dim = match keys.usize("attention.key_length")? {
        Some(dim) => dim,
        None if heads > 0 => hidden / heads,
        None => 0,
    };
    if keys.usize("attention.value_length")?.is_some_and(|v| v != head_dim) {
        return Err(Error::unsupported(
            path,
            keys.key("attention.value_length"),
            "a value head unlike the key head",
            "equal ones",
        ));
    }
    let config = ModelConfig {
        family,
        name: gguf.str("general.name")?.map(str::to_owned),
        layers: keys.needed("block_count")?,
        hidden,
        heads,
        kv_heads: keys.uniform("attention.head_count_kv")?.unwrap_or(heads),
        head_dim,
        ffn: keys
            .uniform("feed_forward_length")?
            .ok_or_else(|| Error::missing(path, "key", keys.key("feed_forward_length")))?,
        vocab: vocabulary(gguf, &keys)?,
        context: keys.needed("context_length")?,
        rms_eps: keys
            .f64("attention.layer_norm_rms_epsilon")?
            .ok_or_else(|| Error::missing(path, "key", keys.key("attention.layer_norm_rms_epsilon")))?
            as f32,
        rope: rope(&keys, head_dim, family)?,
        qkv_bias: gguf.tensor("blk.0.attn_q.bias").is_some(),
        output_bias: gguf.tensor("blk.0.attn_output.bias").is_some(),
        qk_norm: gguf.tensor("blk.0.attn_q_norm.weight").is_some(),
        tied: gguf.tensor("output.weight").is_none(),
        sliding_window: keys
            .usize("attention.sliding_window")?
            .filter(|&tokens| tokens > 0)
            .map(|tokens| SlidingWindow { tokens, first_layer: 0 }),
        bos: gguf.usize("tokenizer.ggml.bos_token_id")?.and_then(|id| u32::try_from(id).ok()),
        eos: Vec::new(),
    };
    config.check(path)?;
    Ok(config)
}

/// Rows of the embedding, which is what counts; the `vocab_size` key is checked against it by the tensor loader's callers.
fn vocabulary(gguf: &Gguf, keys: &Keys) -> Result<usize> {
    if let Some(embedding) = gguf.tensor("token_embd.weight") {
        return Ok(embedding.shape()[0]);
    }
    if let Some(vocab) = keys.usize("vocab_size")? {
        return Ok(vocab);
    }
    gguf.get("tokenizer.ggml.tokens")
        .and_then(|v| v.as_strings())
        .map(<[String]>::len)
        .ok_or_else(|| Error::missing(gguf.path(), "tensor", "token_embd.weight"))
}

fn rope(keys: &Keys, head_dim: usize, family: Family) -> Result<Rope> {
    let gguf = keys.gguf;
    let dim = keys.usize("rope.dimension_count")?.unwrap_or(head_dim);
    if family == Family::Llama && dim != head_dim {
        let found = format!("{dim} of {head_dim} dimensions rotated");
        return Err(Error::unsupported(gguf.path(), keys.key("rope.dimension_count"), found, "all of them"));
    }
    let theta = keys.f64("rope.freq_base")?.unwrap_or(10_000.0);
    Ok(Rope { theta, dim, scaling: scaling(keys)? })
}

fn scaling(keys: &Keys) -> Result<RopeScaling> {
    if let Some(factors) = frequency_factors(keys.gguf)? {
        return Ok(RopeScaling::Factors(factors));
    }
    let kind_key = keys.key("rope.scaling.type");
    let kind = keys.gguf.str(&kind_key)?.unwrap_or("none");
    let factor = match keys.f64("rope.scaling.factor")? {
        Some(factor) => factor,
        None => keys.f64("rope.scale_linear")?.unwrap_or(1.0),
    };
    if !(factor.is_finite() && factor >= 0.0) {
        return Err(Error::bad_value(
            keys.gguf.path(),
            keys.key("rope.scaling.factor"),
            format!("{factor} is not a factor"),
        ));
    }
    match kind {
        _ if factor == 0.0 || factor == 1.0 => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear { factor }),
        "none" if keys.gguf.get(&kind_key).is_none() => Ok(RopeScaling::Linear { factor }),
        "none" => Ok(RopeScaling::None),
        "yarn" => Ok(RopeScaling::Yarn {
            factor,
            original_context: keys.needed("rope.scaling.original_context_length")?,
            beta_fast: keys.f64("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
            beta_slow: keys.f64("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
            attention_factor: keys.f64("rope.scaling.attn_factor")?.map(|a| a * (1.0 + 0.1 * factor.ln())),
        }),
        other => {
            Err(Error::unsupported(keys.gguf.path(), kind_key, format!("{other:?}"), "none, linear, yarn"))
        }
    }
}

fn frequency_factors(gguf: &Gguf) -> Result<Option<Vec<f32>>> {
    let Some(tensor) = gguf.tensor("rope_freqs.weight") else { return Ok(None) };
    let [rows, cols] = tensor.shape();
    if rows * cols > 4_096 {
        return Err(Error::damaged(
            gguf.path(),
            "tensor rope_freqs.weight",
            format!("{} factors", rows * cols),
        ));
    }
    let mut factors = vec![0.0; rows * cols];
    dequantise_into(tensor.format, gguf.bytes(tensor), &mut factors);
    if factors.iter().any(|f| !(f.is_finite() && *f > 0.0)) {
        return Err(Error::damaged(gguf.path(), "tensor rope_freqs.weight", "a factor that is not positive"));
    }
    Ok(Some(factors))
}
