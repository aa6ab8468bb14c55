//! A model from one GGUF file.

use super::{check_complete, layer_of};
use crate::config::{Family, ModelConfig, config_from_gguf};
use crate::error::{Error, Result};
use crate::gguf::{Gguf, TensorEntry};
use crate::model::{GenerationDefaults, Model};
use crate::template::ChatTemplate;
use crate::tensor::{Part, Role, RowOrder, Tensor};
use crate::tokenizer::{Tokenizer, tokenizer_from_gguf};
use std::collections::HashMap;
use std::path::Path;

/// Names of a layer's tensors after `blk.N.`.
const PARTS: [(&str, Part); 15] = [
    ("attn_norm.weight", Part::AttnNorm),
    ("attn_q.weight", Part::Q),
    ("attn_k.weight", Part::K),
    ("attn_v.weight", Part::V),
    ("attn_output.weight", Part::O),
    ("attn_q.bias", Part::QBias),
    ("attn_k.bias", Part::KBias),
    ("attn_v.bias", Part::VBias),
    ("attn_output.bias", Part::OBias),
    ("attn_q_norm.weight", Part::QNorm),
    ("attn_k_norm.weight", Part::KNorm),
    ("ffn_norm.weight", Part::FfnNorm),
    ("ffn_gate.weight", Part::Gate),
    ("ffn_up.weight", Part::Up),
    ("ffn_down.weight", Part::Down),
];

pub(super) fn open(path: &Path) -> Result<Model> {
    from_gguf(&Gguf::open(path)?)
}

/// Builds a model from a parsed file.
pub(crate) fn from_gguf(gguf: &Gguf) -> Result<Model> {
    let path = gguf.path();
    let mut config = config_from_gguf(gguf)?;
    let tensors = tensors(gguf, &config)?;
    check_complete(path, &config, &tensors, name_of)?;
    let tokenizer = tokenizer_from_gguf(gguf)?;
    config.eos = tokenizer.eos().to_vec();
    let chat_template = chat_template(gguf, &tokenizer)?;
    Ok(Model::new(
        config,
        tensors,
        tokenizer,
        chat_template,
        GenerationDefaults::default(),
        gguf.str("general.license")?.map(str::to_owned),
        vec![gguf.file().clone()],
    ))
}

fn tensors(gguf: &Gguf, config: &ModelConfig) -> Result<HashMap<Role, Tensor>> {
    let mut tensors = HashMap::new();
    for entry in gguf.tensors() {
        if entry.name == "rope_freqs.weight" {
            continue;
        }
        let expected = role_of(&entry.name).filter(|&role| role.exists_in(config));
        let role = expected.ok_or_else(|| {
            let supported = format!("the tensors of {} with {} layers", config.family.name(), config.layers);
            Error::unsupported(
                gguf.path(),
                format!("tensor {}", entry.name),
                "a tensor of another architecture",
                supported,
            )
        })?;
        tensors.insert(role, tensor(gguf, entry, role, config));
    }
    Ok(tensors)
}

fn tensor(gguf: &Gguf, entry: &TensorEntry, role: Role, config: &ModelConfig) -> Tensor {
    let [rows, cols] = entry.shape();
    let rotated = matches!(role, Role::Layer(_, Part::Q | Part::K | Part::QBias | Part::KBias));
    let order = match config.family {
        Family::Llama if rotated => RowOrder::InterleavedHeads { head_dim: config.head_dim },
        _ => RowOrder::Canonical,
    };
    Tensor {
        name: entry.name.clone(),
        file: gguf.file().clone(),
        range: entry.range.clone(),
        format: entry.format,
        rows,
        cols,
        order,
    }
}

fn role_of(name: &str) -> Option<Role> {
    match name {
        "token_embd.weight" => Some(Role::Embedding),
        "output_norm.weight" => Some(Role::FinalNorm),
        "output.weight" => Some(Role::Head),
        _ => {
            let (layer, rest) = layer_of(name, "blk.")?;
            let (_, part) = PARTS.iter().find(|(name, _)| *name == rest)?;
            Some(Role::Layer(layer, *part))
        }
    }
}

fn name_of(role: Role) -> String {
    match role {
        Role::Embedding => "token_embd.weight".into(),
        Role::FinalNorm => "output_norm.weight".into(),
        Role::Head => "output.weight".into(),
        Role::Layer(layer, part) => {
            let name = PARTS.iter().find(|(_, p)| *p == part).map_or("", |(name, _)| name);
            format!("blk.{layer}.{name}")
        }
    }
}

pub(super) fn chat_template(gguf: &Gguf, tokenizer: &Tokenizer) -> Result<Option<ChatTemplate>> {
    let Some(source) = gguf.str("tokenizer.chat_template")? else { return Ok(None) };
    let text = |key: &str| -> Result<String> {
        let id = gguf.usize(key)?.and_then(|id| u32::try_from(id).ok());
        Ok(id.map_or_else(String::new, |id| String::from_utf8_lossy(tokenizer.token_bytes(id)).into_owned()))
    };
    let (bos, eos) = (text("tokenizer.ggml.bos_token_id")?, text("tokenizer.ggml.eos_token_id")?);
    ChatTemplate::new(source, &bos, &eos).map(Some)
}
