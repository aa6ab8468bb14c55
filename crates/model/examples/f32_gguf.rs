//! Writes a model's weights as an F32 GGUF file: what other engines' divergence tools compare with.
//!
//! `cargo run --release -p model --example f32_gguf -- MODEL.gguf OUT.gguf`

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [from, to] = arguments.as_slice() else {
        eprintln!("usage: f32_gguf MODEL.gguf OUT.gguf");
        return ExitCode::from(2);
    };
    match model::gguf::export_f32_gguf(Path::new(from), Path::new(to)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("f32_gguf: {error}");
            ExitCode::FAILURE
        }
    }
}
