//! Model files to one canonical description.
//!
//! [`Model::open`] reads a GGUF file or a Hugging Face folder and gives a [`ModelConfig`], tensors by [`Role`] (dequantised
//! to f32, or in their exact [`Affine`] form), a [`Tokenizer`] and a [`ChatTemplate`]. [`pull()`] fetches a known model.
//! [`mod@reference`] runs the model in f32: the yardstick of every engine's quality.
//!
//! Supported: Llama 2 and 3, SmolLM2, Mistral, Qwen2 and Qwen2.5, Qwen3. Everything else is an error that names the file and
//! the tensor or key.

#![deny(unsafe_code)]
#![warn(missing_docs)]

mod config;
mod error;
pub mod gguf;
mod load;
mod mapped;
mod model;
mod pull;
mod quant;
pub mod reference;
mod rope;
mod template;
mod tensor;
mod tokenizer;

pub use config::{Family, ModelConfig, SlidingWindow};
pub use error::{Error, Result};
pub use load::TextFiles;
pub use mapped::Mapped;
pub use model::{GenerationDefaults, Model};
pub use pull::{KNOWN_MODELS, KnownModel, default_cache_dir, pull, resolve};
pub use quant::{Affine, DataType, dequantise_into};
pub use rope::{Rope, RopeScaling};
pub use template::{ChatTemplate, RenderOptions};
pub use tensor::{Part, Role, Tensor};
pub use tokenizer::{ControlTokens, EncodeOptions, StreamDecoder, Tokenizer, Utf8Buffer};
