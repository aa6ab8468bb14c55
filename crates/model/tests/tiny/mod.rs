//! The tiny models of `conformance/models/tiny`, and the same as GGUF.
#![allow(dead_code)]

use model::gguf::{Array, GgufTensor, Value, write_gguf};
use model::{Family, Model, Part, Role, RopeScaling};
use std::path::{Path, PathBuf};

/// The Hugging Face folder of a tiny model.
pub fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance/models/tiny").join(name)
}

/// llama.cpp's name of a tensor.
fn name_of(role: Role) -> String {
    match role {
        Role::Embedding => "token_embd.weight".into(),
        Role::FinalNorm => "output_norm.weight".into(),
        Role::Head => "output.weight".into(),
        Role::Layer(layer, part) => {
            let name = match part {
                Part::AttnNorm => "attn_norm.weight",
                Part::Q => "attn_q.weight",
                Part::K => "attn_k.weight",
                Part::V => "attn_v.weight",
                Part::O => "attn_output.weight",
                Part::QBias => "attn_q.bias",
                Part::KBias => "attn_k.bias",
                Part::VBias => "attn_v.bias",
                Part::OBias => "attn_output.bias",
                Part::QNorm => "attn_q_norm.weight",
                Part::KNorm => "attn_k_norm.weight",
                Part::FfnNorm => "ffn_norm.weight",
                Part::Gate => "ffn_gate.weight",
                Part::Up => "ffn_up.weight",
                Part::Down => "ffn_down.weight",
            };
            format!("blk.{layer}.{name}")
        }
    }
}

/// Rows as llama.cpp's converter permutes Q and K: `reshape(heads, 2, d / 2, cols).swapaxes(1, 2)`.
fn permute(weights: &[f32], head_dim: usize, cols: usize) -> Vec<f32> {
    let mut out = Vec::with_capacity(weights.len());
    for head in weights.chunks(head_dim * cols) {
        for j in 0..head_dim / 2 {
            for half in 0..2 {
                out.extend_from_slice(&head[(half * head_dim / 2 + j) * cols..][..cols]);
            }
        }
    }
    out
}

/// Writes `model` as F32 GGUF in llama.cpp's conventions.
pub fn as_gguf(model: &Model, path: &Path) {
    let config = model.config();
    // llama.cpp knows Mistral as llama.
    let permuted = matches!(config.family, Family::Llama | Family::Mistral);
    let arch = if permuted { "llama" } else { config.family.name() };
    let u32_of = |key: &str, value: usize| (format!("{arch}.{key}"), Value::U32(value as u32));
    let mut metadata = vec![
        ("general.architecture".to_owned(), Value::String(arch.into())),
        u32_of("block_count", config.layers),
        u32_of("context_length", config.context),
        u32_of("embedding_length", config.hidden),
        u32_of("feed_forward_length", config.ffn),
        u32_of("attention.head_count", config.heads),
        u32_of("attention.head_count_kv", config.kv_heads),
        u32_of("attention.key_length", config.head_dim),
        u32_of("attention.value_length", config.head_dim),
        u32_of("rope.dimension_count", config.head_dim),
        (format!("{arch}.attention.layer_norm_rms_epsilon"), Value::F32(config.rms_eps)),
        (format!("{arch}.rope.freq_base"), Value::F32(config.rope.theta as f32)),
    ];
    if let Some(window) = config.sliding_window {
        metadata.push(u32_of("attention.sliding_window", window.tokens));
    }
    let mut factors = None;
    match &config.rope.scaling {
        RopeScaling::Linear { factor } => {
            metadata.push((format!("{arch}.rope.scaling.type"), Value::String("linear".into())));
            metadata.push((format!("{arch}.rope.scaling.factor"), Value::F32(*factor as f32)));
        }
        RopeScaling::Yarn { factor, original_context, .. } => {
            metadata.push((format!("{arch}.rope.scaling.type"), Value::String("yarn".into())));
            metadata.push((format!("{arch}.rope.scaling.factor"), Value::F32(*factor as f32)));
            metadata.push(u32_of("rope.scaling.original_context_length", *original_context));
        }
        RopeScaling::Llama3 { .. } => {
            factors = Some(config.rope.divisors());
        }
        _ => {}
    }
    metadata.extend(vocabulary(model));
    let weights: Vec<(Role, Vec<f32>)> = Role::all(config)
        .into_iter()
        .map(|role| {
            let [_, cols] = role.shape(config);
            let plain = model.dequantised(role).unwrap();
            match role {
                Role::Layer(_, Part::Q | Part::K | Part::QBias | Part::KBias) if permuted => {
                    (role, permute(&plain, config.head_dim, cols))
                }
                _ => (role, plain),
            }
        })
        .collect();
    let mut tensors: Vec<GgufTensor> = weights
        .iter()
        .map(|(role, weights)| match role.shape(config) {
            [_, 1] => GgufTensor::f32_vector(name_of(*role), weights),
            [rows, cols] => GgufTensor::f32_matrix(name_of(*role), rows, cols, weights),
        })
        .collect();
    if let Some(factors) = &factors {
        tensors.push(GgufTensor::f32_vector("rope_freqs.weight", factors));
    }
    write_gguf(path, &metadata, &tensors).unwrap();
}

/// The tiny byte-level vocabulary as GGUF metadata.
fn vocabulary(model: &Model) -> Vec<(String, Value)> {
    let tokenizer = model.tokenizer();
    let ids = 0..tokenizer.vocab_size() as u32;
    let text = |id: u32| String::from_utf8(tokenizer.token_bytes(id).to_vec()).unwrap().replace(' ', "Ġ");
    let tokens: Vec<String> = ids.clone().map(text).collect();
    let types = ids.map(|id| if tokenizer.is_control(id) { 3 } else { 1 }).collect();
    let merges = ["t h", "Ġ th", "h e", "i n", "a n", "e r", "o n", "r e", "a t"].map(str::to_owned).into();
    [
        ("tokenizer.ggml.model", Value::String("gpt2".into())),
        ("tokenizer.ggml.pre", Value::String("gpt-2".into())),
        ("tokenizer.ggml.tokens", Value::Array(Array::String(tokens))),
        ("tokenizer.ggml.token_type", Value::Array(Array::I32(types))),
        ("tokenizer.ggml.merges", Value::Array(Array::String(merges))),
        ("tokenizer.ggml.bos_token_id", Value::U32(1)),
        ("tokenizer.ggml.eos_token_id", Value::U32(2)),
        (
            "tokenizer.chat_template",
            Value::String("{% for m in messages %}{{ m.content }}{% endfor %}".into()),
        ),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .into()
}

/// Copies a folder with its weights split over two files and an index.
pub fn shard(from: &Path, to: &Path) {
    for name in ["config.json", "tokenizer.json"] {
        std::fs::copy(from.join(name), to.join(name)).unwrap();
    }
    let bytes = std::fs::read(from.join("model.safetensors")).unwrap();
    let whole = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut tensors = whole.tensors();
    tensors.sort_by(|a, b| a.0.cmp(&b.0));
    let second = tensors.split_off(tensors.len() / 2);
    let mut map = serde_json::Map::new();
    for (file, part) in [("model-1.safetensors", tensors), ("model-2.safetensors", second)] {
        for (name, _) in &part {
            map.insert(name.clone(), file.into());
        }
        let data = safetensors::serialize(part.iter().map(|(n, t)| (n.as_str(), t.clone())), None).unwrap();
        std::fs::write(to.join(file), data).unwrap();
    }
    let index = serde_json::json!({ "metadata": {}, "weight_map": map });
    std::fs::write(to.join("model.safetensors.index.json"), index.to_string()).unwrap();
}
