//! The canonical configuration of a decoder, whatever file it came from.

mod from_gguf;
mod from_hf;

pub(crate) use from_gguf::config_from_gguf;
pub(crate) use from_hf::{GenerationFile, config_from_hf, read_json};

use crate::error::{Error, Result};
use crate::rope::{Rope, RopeScaling};
use std::path::Path;

/// The decoder family. All four share one block: RMSNorm, attention with rope and GQA, RMSNorm, SiLU-gated FFN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// Llama 2 and 3, SmolLM2, and Mistral when it comes as GGUF (which does not tell them apart).
    Llama,
    /// Mistral: Llama with an optional sliding window.
    Mistral,
    /// Qwen2 and Qwen2.5: biases on Q, K and V.
    Qwen2,
    /// Qwen3: RMSNorm on each Q and K head.
    Qwen3,
}

impl Family {
    /// Supported families, for error messages.
    pub const SUPPORTED: &str = "llama (Llama 2 and 3, SmolLM2), mistral, qwen2 (and Qwen2.5), qwen3";

    /// `llama`, `mistral`, `qwen2`, `qwen3`.
    pub fn name(self) -> &'static str {
        match self {
            Family::Llama => "llama",
            Family::Mistral => "mistral",
            Family::Qwen2 => "qwen2",
            Family::Qwen3 => "qwen3",
        }
    }
}

/// What a decoder computes, without its weights.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct ModelConfig {
    /// The family.
    pub family: Family,
    /// The model's own name, where the files give one.
    pub name: Option<String>,
    /// Decoder layers.
    pub layers: usize,
    /// Width of the residual stream (d_model).
    pub hidden: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// Width of the feed-forward layer.
    pub ffn: usize,
    /// Rows of the embedding, so also logits; the tokenizer may know fewer tokens.
    pub vocab: usize,
    /// Most positions that the model was trained for.
    pub context: usize,
    /// Epsilon inside every RMSNorm's root.
    pub rms_eps: f32,
    /// Rotary position embedding, in the half-split (NeoX, Hugging Face) convention.
    pub rope: Rope,
    /// Whether Q, K and V have biases.
    pub qkv_bias: bool,
    /// Whether the output projection of attention has a bias.
    pub output_bias: bool,
    /// Whether each Q and K head is RMS-normalised before rope.
    pub qk_norm: bool,
    /// Whether the head is the embedding.
    pub tied: bool,
    /// The sliding window, where the model has one.
    pub sliding_window: Option<SlidingWindow>,
    /// Token put before a text, where the model names one.
    pub bos: Option<u32>,
    /// Tokens that end a generation (eos, eot, im_end), ascending.
    pub eos: Vec<u32>,
}

/// Attention limited to the latest positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SlidingWindow {
    /// A query at position p sees keys at positions greater than p - tokens.
    pub tokens: usize,
    /// Layers below this one attend to everything.
    pub first_layer: usize,
}

impl ModelConfig {
    /// Rows of the Q projection: `heads * head_dim`.
    pub fn q_dim(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Rows of the K and of the V projection: `kv_heads * head_dim`.
    pub fn kv_dim(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// How many latest positions (its own among them) a query of `layer` sees; `None` for all.
    pub fn window_of(&self, layer: usize) -> Option<usize> {
        self.sliding_window.filter(|w| layer >= w.first_layer).map(|w| w.tokens)
    }

    /// Refuses values that no decoder has, so that later arithmetic on them cannot overflow.
    pub(crate) fn check(&self, path: &Path) -> Result<()> {
        let sizes = [
            ("number of layers", self.layers, 1_024),
            ("hidden size", self.hidden, 1 << 17),
            ("number of heads", self.heads, 1_024),
            ("number of key/value heads", self.kv_heads, 1_024),
            ("head dimension", self.head_dim, 4_096),
            ("feed-forward size", self.ffn, 1 << 19),
            ("vocabulary size", self.vocab, 1 << 22),
            ("context length", self.context, 1 << 28),
        ];
        for (what, value, most) in sizes {
            if value == 0 || value > most {
                return Err(Error::bad_value(path, what, format!("{value} is not between 1 and {most}")));
            }
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            let reason = format!("{} query heads cannot share {} key/value heads", self.heads, self.kv_heads);
            return Err(Error::bad_value(path, "number of key/value heads", reason));
        }
        if !(self.rms_eps > 0.0 && self.rms_eps < 1.0) {
            return Err(Error::bad_value(
                path,
                "RMSNorm epsilon",
                format!("{} is not between 0 and 1", self.rms_eps),
            ));
        }
        self.check_rope(path)
    }

    fn check_rope(&self, path: &Path) -> Result<()> {
        let rope = &self.rope;
        if rope.dim == 0 || rope.dim > self.head_dim || !rope.dim.is_multiple_of(2) {
            let reason =
                format!("{} is not an even number up to the head dimension {}", rope.dim, self.head_dim);
            return Err(Error::bad_value(path, "rope dimension", reason));
        }
        if !(rope.theta.is_finite() && rope.theta > 1.0) {
            return Err(Error::bad_value(
                path,
                "rope theta",
                format!("{} is not a finite number above 1", rope.theta),
            ));
        }
        if let RopeScaling::Factors(factors) = &rope.scaling
            && factors.len() != rope.dim / 2
        {
            let reason = format!("{} factors for {} frequencies", factors.len(), rope.dim / 2);
            return Err(Error::bad_value(path, "rope_freqs.weight", reason));
        }
        let (inverse_frequencies, attention_factor) = rope.frequencies();
        if !attention_factor.is_finite() || inverse_frequencies.iter().any(|f| !f.is_finite()) {
            return Err(Error::bad_value(path, "rope scaling", "it gives frequencies that are not finite"));
        }
        Ok(())
    }
}
