//! Damaged and hostile files: an error or a model, never a panic, never a huge allocation.

mod tiny;

use model::gguf::Gguf;
use model::{Model, Tokenizer};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// A seeded generator (xorshift), so that a failure can be run again.
struct Noise(u64);

impl Noise {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

fn sample_gguf() -> Vec<u8> {
    let work = tempfile::tempdir().unwrap();
    let path = work.path().join("tiny.gguf");
    tiny::as_gguf(&Model::open(&tiny::folder("qwen3")).unwrap(), &path);
    std::fs::read(path).unwrap()
}

/// Opens, and if that works uses what was read.
fn try_gguf(path: &Path, bytes: Vec<u8>) {
    let Ok(gguf) = Gguf::from_bytes(path, bytes) else { return };
    for tensor in gguf.tensors() {
        assert!(!gguf.bytes(tensor).is_empty());
    }
    if let Ok(model) = Model::from_gguf(&gguf) {
        let _ = model.dequantised(model::Role::FinalNorm);
    }
    if let Ok(tokenizer) = Tokenizer::from_gguf(&gguf) {
        let ids = tokenizer.encode("the <s> rat", model::EncodeOptions::TEMPLATE);
        tokenizer.decode(&ids.unwrap_or_default(), model::ControlTokens::Show);
    }
}

fn must_not_panic(what: &str, run: impl FnOnce()) {
    assert!(catch_unwind(AssertUnwindSafe(run)).is_ok(), "panicked: {what}");
}

#[test]
fn truncated_ggufs() {
    let bytes = sample_gguf();
    let path = Path::new("truncated.gguf");
    // Every boundary of the header, then steps through the tensor data.
    let header = 6_000.min(bytes.len());
    for len in (0..header).chain((header..bytes.len()).step_by(97)) {
        must_not_panic(&format!("truncated to {len}"), || {
            assert!(
                Gguf::from_bytes(path, bytes[..len].to_vec()).is_err(),
                "{len} of {} bytes were accepted",
                bytes.len()
            );
        });
    }
}

#[test]
fn flipped_bits_in_ggufs() {
    let bytes = sample_gguf();
    let mut noise = Noise(0x9e37_79b9_7f4a_7c15);
    for round in 0..3_000 {
        let mut damaged = bytes.clone();
        for _ in 0..1 + noise.below(3) {
            // Mostly in the header, where it matters.
            let at = if noise.below(8) == 0 {
                noise.below(bytes.len())
            } else {
                noise.below(6_000.min(bytes.len()))
            };
            damaged[at] ^= 1 << noise.below(8);
        }
        must_not_panic(&format!("round {round}"), || try_gguf(Path::new("flipped.gguf"), damaged));
    }
}

#[test]
fn hostile_counts_are_refused_before_memory_is_asked_for() {
    let header = |tensors: u64, keys: u64| {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend(tensors.to_le_bytes());
        bytes.extend(keys.to_le_bytes());
        bytes
    };
    let key = |kind: u32, rest: &[u8]| {
        let mut bytes = header(0, 1);
        bytes.extend(1_u64.to_le_bytes());
        bytes.push(b'k');
        bytes.extend(kind.to_le_bytes());
        bytes.extend(rest);
        bytes.extend([0; 64]);
        bytes
    };
    let array = |kind: u32, count: u64| [&kind.to_le_bytes()[..], &count.to_le_bytes()].concat();
    let cases = [
        ("tensor count", header(u64::MAX, 0)),
        ("metadata count", header(0, u64::MAX)),
        ("string length", key(8, &u64::MAX.to_le_bytes())),
        ("array of strings", key(9, &array(8, 1 << 40))),
        ("array of bytes", key(9, &array(0, u64::MAX))),
        ("unknown type", key(13, &[0; 8])),
        ("unknown array type", key(9, &array(99, 1))),
        ("deeply nested arrays", key(9, &array(9, 1).repeat(6))),
        ("a truth value of 2", key(7, &[2])),
        ("version 2", b"GGUF\x02\0\0\0".to_vec()),
        ("another magic", b"GGML\x03\0\0\0".to_vec()),
        ("nothing", Vec::new()),
    ];
    for (what, bytes) in cases {
        let e = Gguf::from_bytes(Path::new("hostile.gguf"), bytes).expect_err(what).to_string();
        assert!(e.contains("hostile.gguf"), "{what}: {e}");
    }
}

/// A copy of a tiny folder, one file replaced.
fn folder_with(file: &str, contents: Option<&[u8]>) -> tempfile::TempDir {
    let work = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(tiny::folder("qwen2")).unwrap() {
        let from = entry.unwrap().path();
        std::fs::copy(&from, work.path().join(from.file_name().unwrap())).unwrap();
    }
    match contents {
        Some(bytes) => std::fs::write(work.path().join(file), bytes).unwrap(),
        None => std::fs::remove_file(work.path().join(file)).unwrap(),
    }
    work
}

#[test]
fn damaged_safetensors() {
    let path = tiny::folder("qwen2").join("model.safetensors");
    let bytes = std::fs::read(path).unwrap();
    let work = folder_with("model.safetensors", Some(&bytes));
    let target = work.path().join("model.safetensors");
    // A mapped file must not change under its map: each damaged version is a new file.
    let put = |bytes: &[u8]| {
        let new = work.path().join("new");
        std::fs::write(&new, bytes).unwrap();
        std::fs::rename(&new, &target).unwrap();
    };
    let mut noise = Noise(42);
    for len in (0..bytes.len()).step_by(61) {
        put(&bytes[..len]);
        must_not_panic(&format!("truncated to {len}"), || {
            assert!(Model::open(work.path()).is_err(), "{len} bytes were accepted")
        });
    }
    for round in 0..1_000 {
        let mut damaged = bytes.clone();
        let at = noise.below(3_000);
        damaged[at] ^= 1 << noise.below(8);
        put(&damaged);
        must_not_panic(&format!("round {round}, byte {at}"), || drop(Model::open(work.path())));
    }
}

#[test]
fn damaged_json_files() {
    let mut noise = Noise(7);
    for file in ["config.json", "tokenizer.json"] {
        let bytes = std::fs::read(tiny::folder("qwen2").join(file)).unwrap();
        let work = folder_with(file, Some(&bytes));
        for round in 0..300 {
            let mut damaged = bytes.clone();
            let at = noise.below(bytes.len());
            damaged[at] ^= 1 << noise.below(7);
            std::fs::write(work.path().join(file), &damaged).unwrap();
            must_not_panic(&format!("{file} round {round}"), || drop(Model::open(work.path())));
        }
    }
}

#[test]
fn errors_name_what_is_wrong() {
    let config = |change: &str, value: serde_json::Value| {
        let text = std::fs::read_to_string(tiny::folder("qwen2").join("config.json")).unwrap();
        let mut json: serde_json::Value = serde_json::from_str(&text).unwrap();
        json[change] = value;
        folder_with("config.json", Some(json.to_string().as_bytes()))
    };
    let cases: Vec<(tempfile::TempDir, &[&str])> = vec![
        (folder_with("model.safetensors", None), &["model.safetensors", "missing"]),
        (folder_with("tokenizer.json", None), &["tokenizer.json", "missing"]),
        (folder_with("config.json", None), &["no config.json"]),
        (folder_with("config.json", Some(b"{")), &["config.json", "JSON"]),
        (folder_with("tokenizer.json", Some(b"{}")), &["tokenizer.json"]),
        (config("model_type", "mixtral".into()), &["config.json", "model_type", "mixtral", "qwen3"]),
        (config("hidden_size", "wide".into()), &["config.json", "hidden_size", "wide"]),
        (config("hidden_size", 32.into()), &["model.safetensors", "[40, 16]", "[40, 32]"]),
        (config("num_hidden_layers", 3.into()), &["model.layers.2.", "missing"]),
        (config("num_hidden_layers", 1.into()), &["model.layers.1."]),
        (config("num_key_value_heads", 3.into()), &["key/value heads"]),
        (
            config("rope_scaling", serde_json::json!({"rope_type": "longrope", "factor": 2.0})),
            &["rope_type", "longrope", "yarn"],
        ),
        (
            config("quantization_config", serde_json::json!({"quant_method": "gptq"})),
            &["quantization_config", "gptq"],
        ),
        (folder_with("chat_template.jinja", Some(b"{% if %}")), &["chat template"]),
    ];
    for (folder, words) in cases {
        let e = Model::open(folder.path()).expect_err(words[0]).to_string();
        for word in words {
            assert!(e.contains(word), "{word:?} is not in: {e}");
        }
    }
    let nowhere = PathBuf::from("no/such/model.gguf");
    assert!(Model::open(&nowhere).unwrap_err().to_string().contains("no/such/model.gguf"));
}
