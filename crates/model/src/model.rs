//! The canonical model: configuration, tensors by role, tokenizer, chat template.

use crate::config::ModelConfig;
use crate::error::{Error, Result};
use crate::load;
use crate::mapped::Mapped;
use crate::quant::Affine;
use crate::template::ChatTemplate;
use crate::tensor::{Role, Tensor};
use crate::tokenizer::Tokenizer;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// Sampling parameters that the model's makers suggest.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationDefaults {
    /// Divisor of logits.
    pub temperature: Option<f32>,
    /// How many likeliest tokens are kept.
    pub top_k: Option<u32>,
    /// Cumulative probability that is kept.
    pub top_p: Option<f32>,
    /// Least probability relative to the likeliest token.
    pub min_p: Option<f32>,
    /// Penalty on tokens already present.
    pub repetition_penalty: Option<f32>,
}

/// A model, whatever files it came from. Weights stay in their mapped files.
#[derive(Debug)]
pub struct Model {
    config: ModelConfig,
    tensors: HashMap<Role, Tensor>,
    tokenizer: Arc<Tokenizer>,
    chat_template: Option<Arc<ChatTemplate>>,
    generation: GenerationDefaults,
    licence: Option<String>,
    files: Vec<Mapped>,
    digest: OnceLock<String>,
}

impl Model {
    /// Opens a GGUF file or a Hugging Face folder, checks everything in it, and maps its weights.
    ///
    /// # Errors
    /// Any [`Error`] about files, naming the file and the tensor or key.
    pub fn open(path: &Path) -> Result<Model> {
        load::open(path)
    }

    /// The model in a GGUF file that is already open.
    ///
    /// # Errors
    /// As [`Model::open`].
    pub fn from_gguf(gguf: &crate::gguf::Gguf) -> Result<Model> {
        load::from_gguf(gguf)
    }

    pub(crate) fn new(
        config: ModelConfig,
        tensors: HashMap<Role, Tensor>,
        tokenizer: Tokenizer,
        chat_template: Option<ChatTemplate>,
        generation: GenerationDefaults,
        licence: Option<String>,
        files: Vec<Mapped>,
    ) -> Model {
        Model {
            config,
            tensors,
            tokenizer: Arc::new(tokenizer),
            chat_template: chat_template.map(Arc::new),
            generation,
            licence,
            files,
            digest: OnceLock::new(),
        }
    }

    /// What the model computes.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Its tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// Its chat template, if it has one.
    pub fn chat_template(&self) -> Option<&Arc<ChatTemplate>> {
        self.chat_template.as_ref()
    }

    /// Suggested sampling parameters.
    pub fn generation(&self) -> &GenerationDefaults {
        &self.generation
    }

    /// The licence that the files name.
    pub fn licence(&self) -> Option<&str> {
        self.licence.as_deref()
    }

    /// The tensor with this role; the embedding for a tied head; `None` for what the architecture does not have.
    pub fn tensor(&self, role: Role) -> Option<&Tensor> {
        match role {
            Role::Head if self.config.tied => self.tensors.get(&Role::Embedding),
            role => self.tensors.get(&role),
        }
    }

    /// All weights of a role as f32, row-major `[outputs, inputs]`, in the half-split rope convention.
    ///
    /// # Errors
    /// [`Error::Argument`] if this model has no such tensor.
    pub fn dequantised(&self, role: Role) -> Result<Vec<f32>> {
        self.needed(role).map(Tensor::dequantised)
    }

    /// The exact affine form of a role, `None` if its format has none (floats and k-quants).
    ///
    /// # Errors
    /// [`Error::Argument`] if this model has no such tensor.
    pub fn affine(&self, role: Role) -> Result<Option<Affine>> {
        self.needed(role).map(Tensor::affine)
    }

    fn needed(&self, role: Role) -> Result<&Tensor> {
        self.tensor(role).ok_or_else(|| {
            Error::Argument(format!("{} models have no tensor {role:?}", self.config.family.name()))
        })
    }

    /// Writes tokenizer, chat template and generation defaults into `folder`; [`crate::TextFiles::open`] reads them.
    ///
    /// # Errors
    /// [`Error::Io`] with the file.
    pub fn write_text_files(&self, folder: &Path) -> Result<()> {
        load::write_text_files(&self.files, folder)
    }

    /// Weights, an embedding that serves as head counted once.
    pub fn parameters(&self) -> u64 {
        self.tensors.values().map(|t| (t.rows * t.cols) as u64).sum()
    }

    /// Bytes of all weights as the files hold them.
    pub fn weight_bytes(&self) -> u64 {
        self.tensors.values().map(|t| t.byte_len() as u64).sum()
    }

    /// SHA-256 over the files' names and contents, hexadecimal; of a single file, that of its contents. Computed once, on
    /// first use.
    pub fn digest(&self) -> &str {
        self.digest.get_or_init(|| match self.files.as_slice() {
            [only] => sha256_hex(only),
            files => {
                let mut entries: Vec<(String, String)> = files
                    .iter()
                    .map(|file| {
                        let name = file.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
                        (name, sha256_hex(file))
                    })
                    .collect();
                entries.sort();
                let text: String =
                    entries.iter().map(|(name, digest)| format!("{digest}  {name}\n")).collect();
                sha256_hex(text.as_bytes())
            }
        })
    }
}

/// SHA-256, hexadecimal.
pub(crate) fn sha256_hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
