//! The text side of a model alone: what a bundle carries so that it can be served without the model's files.

use super::{gguf, hugging_face};
use crate::config::{GenerationFile, config_from_hf, read_json};
use crate::error::{Error, Result};
use crate::gguf::{Gguf, write_gguf};
use crate::mapped::Mapped;
use crate::model::GenerationDefaults;
use crate::template::ChatTemplate;
use crate::tokenizer::{Tokenizer, tokenizer_from_gguf, tokenizer_from_hf};
use std::path::Path;
use std::sync::Arc;

/// Vocabulary and metadata of a GGUF file, without tensors.
const GGUF_NAME: &str = "tokenizer.gguf";
/// The files of a Hugging Face folder that text needs; the first one must be there.
const HF_NAMES: [&str; 5] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
    "config.json",
];

/// Tokenizer, chat template and generation defaults.
#[derive(Clone, Debug)]
pub struct TextFiles {
    /// The tokenizer; its `eos` holds all tokens that end a generation.
    pub tokenizer: Arc<Tokenizer>,
    /// The chat template, if the model has one.
    pub chat_template: Option<Arc<ChatTemplate>>,
    /// Suggested sampling parameters.
    pub generation: GenerationDefaults,
}

impl TextFiles {
    /// Opens what [`crate::Model::write_text_files`] wrote.
    ///
    /// # Errors
    /// Any [`Error`] about files, naming the file and the key.
    pub fn open(folder: &Path) -> Result<TextFiles> {
        let vocabulary = folder.join(GGUF_NAME);
        if vocabulary.is_file() {
            let file = Gguf::open(&vocabulary)?;
            let tokenizer = tokenizer_from_gguf(&file)?;
            let chat_template = gguf::chat_template(&file, &tokenizer)?;
            return Ok(TextFiles {
                tokenizer: Arc::new(tokenizer),
                chat_template: chat_template.map(Arc::new),
                generation: GenerationDefaults::default(),
            });
        }
        if !folder.join(HF_NAMES[0]).is_file() {
            return Err(Error::missing(folder, "file", "tokenizer.gguf or tokenizer.json"));
        }
        let tokenizer_config = read_json(&folder.join("tokenizer_config.json"))?;
        let mut tokenizer = tokenizer_from_hf(folder, tokenizer_config.as_ref())?;
        let generation = GenerationFile::read(&folder.join("generation_config.json"))?;
        tokenizer.add_eos(&generation.eos);
        let config_path = folder.join("config.json");
        if let Some(json) = read_json(&config_path)? {
            tokenizer.add_eos(&config_from_hf(&config_path, &json)?.eos);
        }
        let chat_template = hugging_face::chat_template(folder, tokenizer_config.as_ref())?;
        Ok(TextFiles {
            tokenizer: Arc::new(tokenizer),
            chat_template: chat_template.map(Arc::new),
            generation: hugging_face::defaults(&generation),
        })
    }
}

/// Writes the text side of the model whose files these are into `folder`, which is made if need be.
pub(crate) fn write_text_files(files: &[Mapped], folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).map_err(Error::io("make", folder))?;
    let Some(first) = files.first() else { return Ok(()) };
    if first.starts_with(b"GGUF") {
        let source = Gguf::open(first.path())?;
        return write_gguf(&folder.join(GGUF_NAME), source.metadata(), &[]);
    }
    let source = first.path().parent().unwrap_or(Path::new("."));
    for name in HF_NAMES {
        let from = source.join(name);
        if from.is_file() {
            std::fs::copy(&from, folder.join(name)).map_err(Error::io("copy", &from))?;
        }
    }
    Ok(())
}
