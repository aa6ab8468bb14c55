//! The OpenAI API: request bodies to engine requests, errors, routes.

mod body;
mod chat;
mod completions;
pub(crate) mod error;
mod fields;
mod generate;
mod models;
pub(crate) mod routes;
mod sampling;
mod tokens;
