//! OpenAI-compatible HTTP server (layer 5, engine side). Knows an engine by [`Backend`] and a model's text side by
//! [`Text`]; knows nothing of how the engine came to be.
//!
//! ```no_run
//! # fn main() {}
//! # fn start(engine: engine::EngineHandle, model: model::Model) -> Result<(), Box<dyn std::error::Error>> {
//! use server::{ModelText, ServerOptions, serve};
//! use std::sync::Arc;
//! let options = ServerOptions { model_names: vec!["smollm2-135m".into()], ..ServerOptions::default() };
//! serve(options, Arc::new(engine), Arc::new(ModelText::of(&model)), |address| eprintln!("http://{address}"))?;
//! # Ok(()) }
//! ```
//!
//! A request goes one way: body -> `api` (checked fields, token ids; on a blocking thread if large) -> [`Backend::submit`]
//! -> events -> `generation` (whole code points, stop strings, counts) -> `wire` (chunks or one body). Dropping a
//! response at any point cancels its generations in the engine: that is all there is to client disconnects.

#![deny(unsafe_code)]
#![warn(missing_docs)]

mod access_log;
mod api;
mod backend;
mod error;
mod generation;
mod metrics;
mod options;
mod server;
mod state;
mod text;
mod wire;

pub use backend::Backend;
pub use error::ServerError;
pub use options::{Cors, MetricsNames, ServerOptions};
pub use server::{Server, serve};
pub use text::{ModelText, Text, TextError};
