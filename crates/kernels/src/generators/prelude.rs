//! The head of every kernel source: crate attributes, the C view of the arguments, the trusted prelude.

use plan::abi::ARGS_V1_SOURCE;

/// Panic handler and memory functions, so that a kernel imports nothing.
const RUNTIME: &str = include_str!("source/prelude.rs");

/// Starts a kernel source: `title` says in one line what it computes.
///
/// `no_builtins` keeps the optimiser from turning the prelude's loops into calls of themselves.
pub fn begin(title: &str) -> String {
    format!(
        "//! {title}\n#![no_std]\n#![no_builtins]\n#![allow(dead_code, unused, unsafe_op_in_unsafe_fn)]\n{ARGS_V1_SOURCE}\n{RUNTIME}\n"
    )
}
