//! Every family on random weights against an independent numpy implementation (`conformance/models/tools/oracle.py`), from
//! Hugging Face folders and, where GGUF has the family, from a GGUF with the same weights in llama.cpp's conventions.

mod tiny;

use model::reference::Reference;
use model::{Family, Model, Part, Role, RopeScaling};
use std::path::Path;
use tiny::{as_gguf, folder};

const NAMES: [&str; 7] = ["llama", "llama3", "linear", "mistral", "qwen2", "yarn", "qwen3"];

struct Expected {
    tokens: Vec<u32>,
    logits: Vec<(usize, Vec<f32>)>,
}

fn expected(name: &str) -> Expected {
    let text = std::fs::read_to_string(folder(name).join("expected.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let tokens = json["tokens"].as_array().unwrap().iter().map(|t| t.as_u64().unwrap() as u32).collect();
    let logits = json["logits"].as_object().unwrap().iter().map(|(position, row)| {
        (
            position.parse().unwrap(),
            row.as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect(),
        )
    });
    Expected { tokens, logits: logits.collect() }
}

fn check(name: &str, model: &Model) {
    let expected = expected(name);
    let reference = Reference::new(model).unwrap().with_threads(2);
    let hidden = reference.hidden_states(&[&expected.tokens]).unwrap();
    let width = model.config().hidden;
    for (position, row) in expected.logits {
        let got = reference.logits(&hidden[position * width..(position + 1) * width]);
        for (i, (got, expected)) in got.iter().zip(&row).enumerate() {
            assert!(
                (got - expected).abs() < 2e-4,
                "{name}, position {position}, logit {i}: {got}, expected {expected}"
            );
        }
    }
}

#[test]
fn hugging_face_folders_match_numpy() {
    for name in NAMES {
        check(name, &Model::open(&folder(name)).unwrap());
    }
}

#[test]
fn configurations_are_read_as_meant() {
    let open = |name| Model::open(&folder(name)).unwrap();
    let qwen2 = open("qwen2");
    assert_eq!(qwen2.config().family, Family::Qwen2);
    assert!(qwen2.config().qkv_bias && qwen2.config().tied && !qwen2.config().qk_norm);
    assert!(
        qwen2.tensor(Role::Layer(1, Part::KBias)).is_some()
            && qwen2.tensor(Role::Layer(1, Part::OBias)).is_none()
    );
    let qwen3 = open("qwen3");
    assert!(qwen3.config().qk_norm && qwen3.config().q_dim() == 48);
    let mistral = open("mistral");
    assert_eq!(mistral.config().window_of(0), Some(5));
    assert!(!mistral.config().tied);
    assert!(matches!(open("llama3").config().rope.scaling, RopeScaling::Llama3 { .. }));
    assert_eq!(open("llama").config().eos, [2]);
}

#[test]
fn ggufs_in_llama_cpps_conventions_match_numpy() {
    for name in ["llama", "llama3", "linear", "mistral", "qwen2", "yarn", "qwen3"] {
        let original = Model::open(&folder(name)).unwrap();
        let work = tempfile::tempdir().unwrap();
        let path = work.path().join("tiny.gguf");
        as_gguf(&original, &path);
        let model = Model::open(&path).unwrap();
        for role in Role::all(original.config()) {
            assert_eq!(
                model.dequantised(role).unwrap(),
                original.dequantised(role).unwrap(),
                "{name} {role:?}"
            );
        }
        check(name, &model);
    }
}

#[test]
fn one_token_at_a_time_is_the_same_bit_for_bit() {
    for name in ["llama3", "mistral", "qwen3"] {
        let model = Model::open(&folder(name)).unwrap();
        let reference = Reference::new(&model).unwrap();
        let tokens = expected(name).tokens;
        let together = reference.hidden_states(&[&tokens]).unwrap();
        let mut session = reference.session();
        let alone: Vec<f32> = tokens.iter().flat_map(|&t| session.append(&[t]).unwrap()).collect();
        assert_eq!(alone, together, "{name}");
        let threaded = Reference::new(&model).unwrap().with_threads(3);
        assert_eq!(threaded.hidden_states(&[&tokens, &tokens, &tokens]).unwrap()[..together.len()], together);
    }
}

#[test]
fn hidden_states_are_cached_and_a_damaged_cache_is_mended() {
    let model = Model::open(&folder("qwen2")).unwrap();
    let reference = Reference::new(&model).unwrap();
    let work = tempfile::tempdir().unwrap();
    let windows: [&[u32]; 2] = [&[1, 2, 3], &[4]];
    let first = reference.cached_hidden_states(&windows, work.path()).unwrap();
    assert_eq!(first.rows, reference.hidden_states(&windows).unwrap());
    assert_eq!(reference.cached_hidden_states(&windows, work.path()).unwrap(), first);
    assert_ne!(reference.cached_hidden_states(&[&[1, 2, 3, 4]], work.path()).unwrap().key, first.key);
    for file in std::fs::read_dir(work.path()).unwrap() {
        let path = file.unwrap().path();
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[5] ^= 1;
        std::fs::write(&path, bytes).unwrap();
    }
    assert_eq!(reference.cached_hidden_states(&windows, work.path()).unwrap(), first);
}

#[test]
fn sharded_folders_are_one_model() {
    let whole = Model::open(&folder("qwen3")).unwrap();
    let work = tempfile::tempdir().unwrap();
    tiny::shard(&folder("qwen3"), work.path());
    let sharded = Model::open(work.path()).unwrap();
    for role in Role::all(whole.config()) {
        assert_eq!(sharded.dequantised(role).unwrap(), whole.dequantised(role).unwrap());
    }
    assert_ne!(sharded.digest(), whole.digest());
    std::fs::remove_file(work.path().join("model-2.safetensors")).unwrap();
    let e = Model::open(work.path()).unwrap_err().to_string();
    assert!(e.contains("model-2.safetensors"), "{e}");
}

#[test]
fn tokens_outside_the_vocabulary_are_an_error() {
    let model = Model::open(Path::new(&folder("llama"))).unwrap();
    let reference = Reference::new(&model).unwrap();
    assert!(reference.hidden_states(&[&[40]]).unwrap_err().to_string().contains("token 40"));
    assert!(reference.generate_greedy(&[], 1).is_err());
    assert_eq!(
        reference.generate_greedy(&[1, 7], 3).unwrap().len().clamp(1, 3),
        reference.generate_greedy(&[1, 7], 3).unwrap().len()
    );
}
