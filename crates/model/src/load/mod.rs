//! From files to a [`Model`].

mod gguf;
mod hugging_face;

pub(crate) use gguf::from_gguf;
mod text;

pub use text::TextFiles;
pub(crate) use text::write_text_files;

use crate::config::ModelConfig;
use crate::error::{Error, Result};
use crate::model::Model;
use crate::tensor::{Role, Tensor};
use std::collections::HashMap;
use std::path::Path;

/// Opens a `.gguf` file, a Hugging Face folder, or a folder holding one `.gguf` file.
pub(crate) fn open(path: &Path) -> Result<Model> {
    let metadata = std::fs::metadata(path).map_err(Error::io("find", path))?;
    if !metadata.is_dir() {
        return gguf::open(path);
    }
    if path.join("config.json").is_file() {
        return hugging_face::open(path);
    }
    let entries = std::fs::read_dir(path).map_err(Error::io("list", path))?;
    let mut ggufs: Vec<_> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|file| file.extension().is_some_and(|e| e == "gguf"))
        .collect();
    match (ggufs.pop(), ggufs.is_empty()) {
        (Some(only), true) => gguf::open(&only),
        (Some(_), false) => {
            Err(Error::NotAModel { path: path.to_owned(), reason: "several .gguf files; name one".into() })
        }
        (None, _) => Err(Error::NotAModel {
            path: path.to_owned(),
            reason: "no config.json and no .gguf file in it".into(),
        }),
    }
}

/// Checks that every role has its tensor in the right shape.
fn check_complete(
    path: &Path,
    config: &ModelConfig,
    tensors: &HashMap<Role, Tensor>,
    name_of: impl Fn(Role) -> String,
) -> Result<()> {
    for role in Role::all(config) {
        let tensor = tensors.get(&role).ok_or_else(|| Error::missing(path, "tensor", name_of(role)))?;
        tensor.check(role.shape(config))?;
    }
    Ok(())
}

/// `blk.12.attn_q.weight` with prefix `blk.` gives `(12, "attn_q.weight")`.
fn layer_of<'a>(name: &'a str, prefix: &str) -> Option<(usize, &'a str)> {
    let (layer, rest) = name.strip_prefix(prefix)?.split_once('.')?;
    if layer.len() > 1 && layer.starts_with('0') {
        return None;
    }
    Some((layer.parse().ok()?, rest))
}
