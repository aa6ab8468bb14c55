//! Any bytes as one file of a Hugging Face folder (the first byte says which), the other files sound: an error or a model,
//! never a panic. Seeds: the files of conformance/models/tiny/qwen2.
#![no_main]

use libfuzzer_sys::fuzz_target;
use model::Model;
use std::path::Path;

const FILES: [&str; 5] = [
    "model.safetensors",
    "config.json",
    "tokenizer.json",
    "model.safetensors.index.json",
    "chat_template.jinja",
];

fuzz_target!(|bytes: &[u8]| {
    let Some((which, contents)) = bytes.split_first() else { return };
    let sound = Path::new(env!("CARGO_MANIFEST_DIR")).join("../conformance/models/tiny/qwen2");
    let folder = tempfile::tempdir().expect("a temporary folder");
    for file in ["model.safetensors", "config.json", "tokenizer.json"] {
        std::fs::copy(sound.join(file), folder.path().join(file)).expect("copying a fixture");
    }
    std::fs::write(folder.path().join(FILES[usize::from(*which) % FILES.len()]), contents)
        .expect("writing the input");
    if let Ok(model) = Model::open(folder.path()) {
        let _ = model.dequantised(model::Role::Embedding);
    }
});
