//! Any bytes as a GGUF file: an error or a model, never a panic. Seeds: conformance/models/quants.gguf.
#![no_main]

use libfuzzer_sys::fuzz_target;
use model::gguf::Gguf;
use model::{ControlTokens, EncodeOptions, Model, Tokenizer};
use std::path::Path;

fuzz_target!(|bytes: &[u8]| {
    let Ok(gguf) = Gguf::from_bytes(Path::new("fuzz.gguf"), bytes.to_vec()) else { return };
    for tensor in gguf.tensors() {
        let [rows, cols] = tensor.shape();
        if tensor.format.row_bytes(cols).is_some() {
            let mut weights = vec![0.0; rows * cols];
            model::dequantise_into(tensor.format, gguf.bytes(tensor), &mut weights);
        }
    }
    if let Ok(tokenizer) = Tokenizer::from_gguf(&gguf) {
        let ids = tokenizer.encode("Hello <s> 123 \u{1f999}\n", EncodeOptions::TEMPLATE).unwrap_or_default();
        tokenizer.decode(&ids, ControlTokens::Show);
    }
    let _ = Model::from_gguf(&gguf);
});
