//! A model from a Hugging Face folder.

use super::{check_complete, layer_of};
use crate::config::{GenerationFile, ModelConfig, config_from_hf, read_json};
use crate::error::{Error, Result};
use crate::mapped::Mapped;
use crate::model::{GenerationDefaults, Model};
use crate::quant::DataType;
use crate::template::ChatTemplate;
use crate::tensor::{Part, Role, RowOrder, Tensor};
use crate::tokenizer::tokenizer_from_hf;
use safetensors::tensor::{Dtype, SafeTensors};
use serde_json::Value;
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

/// Names of a layer's tensors after `model.layers.N.`.
const PARTS: [(&str, Part); 15] = [
    ("input_layernorm.weight", Part::AttnNorm),
    ("self_attn.q_proj.weight", Part::Q),
    ("self_attn.k_proj.weight", Part::K),
    ("self_attn.v_proj.weight", Part::V),
    ("self_attn.o_proj.weight", Part::O),
    ("self_attn.q_proj.bias", Part::QBias),
    ("self_attn.k_proj.bias", Part::KBias),
    ("self_attn.v_proj.bias", Part::VBias),
    ("self_attn.o_proj.bias", Part::OBias),
    ("self_attn.q_norm.weight", Part::QNorm),
    ("self_attn.k_norm.weight", Part::KNorm),
    ("post_attention_layernorm.weight", Part::FfnNorm),
    ("mlp.gate_proj.weight", Part::Gate),
    ("mlp.up_proj.weight", Part::Up),
    ("mlp.down_proj.weight", Part::Down),
];

pub(super) fn open(folder: &Path) -> Result<Model> {
    let config_path = folder.join("config.json");
    let json = read_json(&config_path)?.ok_or_else(|| Error::missing(folder, "file", "config.json"))?;
    let mut config = config_from_hf(&config_path, &json)?;
    let generation = GenerationFile::read(&folder.join("generation_config.json"))?;
    let files = weight_files(folder)?.iter().map(|path| Mapped::open(path)).collect::<Result<Vec<_>>>()?;
    let mut tensors = HashMap::new();
    for file in &files {
        add_tensors(file, &config, &mut tensors)?;
    }
    check_complete(folder, &config, &tensors, name_of)?;
    let tokenizer_config = read_json(&folder.join("tokenizer_config.json"))?;
    let mut tokenizer = tokenizer_from_hf(folder, tokenizer_config.as_ref())?;
    tokenizer.add_eos(&generation.eos);
    tokenizer.add_eos(&config.eos);
    config.eos = tokenizer.eos().to_vec();
    let chat_template = chat_template(folder, tokenizer_config.as_ref())?;
    let defaults = defaults(&generation);
    let mut sources = files;
    for name in [
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "generation_config.json",
    ] {
        let path = folder.join(name);
        if path.is_file() {
            sources.push(Mapped::open(&path)?);
        }
    }
    Ok(Model::new(config, tensors, tokenizer, chat_template, defaults, licence(folder), sources))
}

/// Sampling parameters that generation_config.json suggests.
pub(super) fn defaults(generation: &GenerationFile) -> GenerationDefaults {
    GenerationDefaults {
        temperature: generation.temperature,
        top_k: generation.top_k,
        top_p: generation.top_p,
        min_p: generation.min_p,
        repetition_penalty: generation.repetition_penalty,
    }
}

/// The files that hold weights: one, or those that the index names.
fn weight_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let index_path = folder.join("model.safetensors.index.json");
    let Some(index) = read_json(&index_path)? else {
        let single = folder.join("model.safetensors");
        if !single.is_file() {
            return Err(Error::missing(
                folder,
                "file",
                "model.safetensors (or model.safetensors.index.json)",
            ));
        }
        return Ok(vec![single]);
    };
    let map = index
        .get("weight_map")
        .and_then(Value::as_object)
        .ok_or_else(|| Error::missing(&index_path, "key", "weight_map"))?;
    let mut names = BTreeSet::new();
    for (tensor, file) in map {
        let plain =
            file.as_str().filter(|f| !f.is_empty() && !f.contains(['/', '\\']) && *f != ".." && *f != ".");
        let name = plain.ok_or_else(|| {
            Error::bad_value(
                &index_path,
                format!("weight_map.{tensor}"),
                format!("a file name in this folder is needed, found {file}"),
            )
        })?;
        names.insert(folder.join(name));
    }
    Ok(names.into_iter().collect())
}

fn add_tensors(file: &Mapped, config: &ModelConfig, tensors: &mut HashMap<Role, Tensor>) -> Result<()> {
    let path = file.path();
    let damaged = |e: safetensors::SafeTensorError| Error::damaged(path, "safetensors header", e.to_string());
    let (header_len, metadata) = SafeTensors::read_metadata(file).map_err(damaged)?;
    let data_start = header_len + 8;
    for (name, info) in metadata.tensors() {
        let place = || format!("tensor {name}");
        let role = match role_of(&name) {
            Some(Role::Head) if config.tied => continue,
            Some(role) if role.exists_in(config) => role,
            _ if name.ends_with("rotary_emb.inv_freq") => continue,
            _ => {
                let supported =
                    format!("the tensors of {} with {} layers", config.family.name(), config.layers);
                return Err(Error::unsupported(path, place(), "a tensor of another architecture", supported));
            }
        };
        let format = match info.dtype {
            Dtype::F32 => DataType::F32,
            Dtype::F16 => DataType::F16,
            Dtype::BF16 => DataType::BF16,
            other => {
                return Err(Error::unsupported(path, place(), format!("dtype {other:?}"), "F32, F16, BF16"));
            }
        };
        let (rows, cols) = match info.shape.as_slice() {
            [n] => (*n, 1),
            [rows, cols] => (*rows, *cols),
            other => {
                return Err(Error::damaged(
                    path,
                    place(),
                    format!("shape {other:?}; one or two dimensions are needed"),
                ));
            }
        };
        let (start, end) = info.data_offsets;
        let range = data_start + start..data_start + end;
        if range.start > range.end || range.end > file.len() {
            return Err(Error::damaged(path, place(), "its data reaches beyond the file's end"));
        }
        let tensor = Tensor {
            name: name.clone(),
            file: file.clone(),
            range,
            format,
            rows,
            cols,
            order: RowOrder::Canonical,
        };
        if tensors.insert(role, tensor).is_some() {
            return Err(Error::damaged(path, place(), "the tensor occurs in several files"));
        }
    }
    Ok(())
}

fn role_of(name: &str) -> Option<Role> {
    match name {
        "model.embed_tokens.weight" => Some(Role::Embedding),
        "model.norm.weight" => Some(Role::FinalNorm),
        "lm_head.weight" => Some(Role::Head),
        _ => {
            let (layer, rest) = layer_of(name, "model.layers.")?;
            let (_, part) = PARTS.iter().find(|(name, _)| *name == rest)?;
            Some(Role::Layer(layer, *part))
        }
    }
}

fn name_of(role: Role) -> String {
    match role {
        Role::Embedding => "model.embed_tokens.weight".into(),
        Role::FinalNorm => "model.norm.weight".into(),
        Role::Head => "lm_head.weight".into(),
        Role::Layer(layer, part) => {
            let name = PARTS.iter().find(|(_, p)| *p == part).map_or("", |(name, _)| name);
            format!("model.layers.{layer}.{name}")
        }
    }
}

/// `chat_template.jinja` if there is one, else the template in `tokenizer_config.json` (the one called `default` of several).
pub(super) fn chat_template(folder: &Path, config: Option<&Value>) -> Result<Option<ChatTemplate>> {
    let text = |key: &str| -> String {
        let value = config.and_then(|c| c.get(key));
        value.and_then(|v| v.as_str().or_else(|| v.get("content")?.as_str())).unwrap_or("").to_owned()
    };
    let path = folder.join("chat_template.jinja");
    let source = match std::fs::read_to_string(&path) {
        Ok(source) => Some(source),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            config.and_then(|c| named_template(c.get("chat_template")?))
        }
        Err(e) => return Err(Error::io("read", &path)(e)),
    };
    source.map(|source| ChatTemplate::new(&source, &text("bos_token"), &text("eos_token"))).transpose()
}

fn named_template(value: &Value) -> Option<String> {
    match value {
        Value::String(source) => Some(source.clone()),
        Value::Array(several) => {
            let default = several.iter().find(|t| t.get("name").and_then(Value::as_str) == Some("default"));
            Some(default.or(several.first())?.get("template")?.as_str()?.to_owned())
        }
        _ => None,
    }
}

/// The `license:` line of the model card, if there is one.
fn licence(folder: &Path) -> Option<String> {
    let card = std::fs::read_to_string(folder.join("README.md")).ok()?;
    let front_matter = card.strip_prefix("---\n")?.split("\n---").next()?;
    let line = front_matter.lines().find_map(|line| line.strip_prefix("license:"))?;
    Some(line.trim().trim_matches(['"', '\'']).to_owned()).filter(|l| !l.is_empty())
}
