//! The server over real TCP, with a scripted engine behind it. Numbers of bugs refer to the list of reports that the
//! server was designed against (docs).

mod harness;
mod lifecycle;
mod logprobs;
mod openai_client;
mod scripted;
mod streaming;
mod validation;
