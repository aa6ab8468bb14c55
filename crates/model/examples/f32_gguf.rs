//! Rewrites a GGUF file with every tensor dequantised to F32, so that other programs can use the exact weights as a
//! reference: `cargo run --release -p model --example f32_gguf -- IN.gguf OUT.gguf`.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [source, out] = args.as_slice() else {
        eprintln!("usage: f32_gguf IN.gguf OUT.gguf");
        return ExitCode::FAILURE;
    };
    match model::gguf::export_f32_gguf(Path::new(source), Path::new(out)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
