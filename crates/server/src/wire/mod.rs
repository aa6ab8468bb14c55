//! What goes over the wire: JSON by hand, chunks, whole responses, the streaming body.

mod body;
pub(crate) mod json;
mod logprobs;
mod whole;
mod writer;

pub(crate) use body::EventBody;
pub(crate) use whole::Whole;
pub(crate) use writer::{Route, UsageChunk, Writer};
