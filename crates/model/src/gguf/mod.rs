//! GGUF v3: a header of typed metadata, a table of tensors, then the aligned tensor data.
//!
//! Source: `docs/gguf.md` of ggml. Every count, offset, alignment and size is checked against the file's length before it is
//! used; no input makes the reader panic or allocate more than a small multiple of the file.

mod cursor;
mod export;
mod reader;
mod value;
mod writer;

pub use export::{export_f32_gguf, export_f32_model};
pub use reader::{Gguf, TensorEntry};
pub use value::{Array, Value, ValueType};
pub use writer::{GgufTensor, write_gguf};

/// The four bytes a GGUF file starts with.
pub const MAGIC: [u8; 4] = *b"GGUF";
/// The version read and written.
pub const VERSION: u32 = 3;
/// Alignment of tensor data where `general.alignment` is absent.
pub const DEFAULT_ALIGNMENT: u64 = 32;
