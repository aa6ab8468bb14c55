//! Token ids against llama.cpp's vocabulary fixtures, fetched by `conformance/models/tools/fetch_vocabularies.py` (pinned,
//! digest checked, cached), and decoding.

mod tiny;

use model::gguf::Gguf;
use model::{ControlTokens, EncodeOptions, Model, Tokenizer, Utf8Buffer, default_cache_dir};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Vocabularies of the supported families, and of others that the same code serves.
const VOCABULARIES: [&str; 13] = [
    "llama-spm",
    "llama-bpe",
    "qwen2",
    "qwen35",
    "gpt-2",
    "phi-3",
    "deepseek-llm",
    "deepseek-coder",
    "falcon",
    "starcoder",
    "refact",
    "mpt",
    "command-r",
];

/// The folder of fixtures; `None`, loudly, where they cannot be had.
fn fixtures(test: &str) -> Option<&'static PathBuf> {
    static FOLDER: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let folder =
            default_cache_dir().map_err(|e| e.to_string())?.join("../fixtures/llama-cpp-python-0.3.36");
        let script = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../conformance/models/tools/fetch_vocabularies.py");
        let output =
            Command::new("python3").arg(script).arg(&folder).output().map_err(|e| format!("python3: {e}"))?;
        if output.status.success() {
            Ok(folder)
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    });
    match folder {
        Ok(folder) => Some(folder),
        Err(reason) => {
            std::io::stderr()
                .write_all(
                    format!("SKIPPED {test}: llama.cpp's vocabulary fixtures cannot be fetched: {reason}\n")
                        .as_bytes(),
                )
                .unwrap();
            None
        }
    }
}

fn tokenizer(folder: &Path, name: &str) -> Tokenizer {
    Tokenizer::from_gguf(&Gguf::open(&folder.join(format!("ggml-vocab-{name}.gguf"))).unwrap()).unwrap()
}

#[test]
fn ids_equal_llama_cpps_fixtures() {
    let Some(folder) = fixtures("ids_equal_llama_cpps_fixtures") else { return };
    for name in VOCABULARIES {
        let tokenizer = tokenizer(folder, name);
        let file = |ending: &str| {
            std::fs::read_to_string(folder.join(format!("ggml-vocab-{name}.gguf.{ending}"))).unwrap()
        };
        let (inputs, outputs) = (file("inp"), file("out"));
        let expected: Vec<Vec<u32>> =
            outputs.lines().map(|l| l.split_whitespace().map(|id| id.parse().unwrap()).collect()).collect();
        assert!(expected.len() >= 46, "{name}: {} cases", expected.len());
        for (text, expected) in inputs.split("\n__ggml_vocab_test__\n").zip(expected) {
            let ids = tokenizer.encode(text, EncodeOptions::RAW).unwrap();
            assert_eq!(ids, expected, "{name}: {text:?}");
            let decoded = tokenizer.decode(&ids, ControlTokens::Show);
            assert_eq!(decoded, text, "{name}: decoded");
            assert_eq!(streamed(&tokenizer, &ids).trim_start(), text.trim_start(), "{name}: streamed");
        }
    }
}

fn streamed(tokenizer: &Tokenizer, ids: &[u32]) -> String {
    let mut stream = tokenizer.stream(ControlTokens::Show);
    let mut text: String = ids.iter().map(|&id| stream.push(id)).collect();
    text.push_str(&stream.flush());
    text
}

#[test]
fn control_tokens_are_parsed_only_on_request() {
    let Some(folder) = fixtures("control_tokens_are_parsed_only_on_request") else { return };
    let qwen = tokenizer(folder, "qwen2");
    let text = "<|im_start|>user\nhi<|im_end|>";
    let parsed = qwen.encode(text, EncodeOptions::TEMPLATE).unwrap();
    assert_eq!((parsed[0], *parsed.last().unwrap()), (151_644, 151_645));
    let literal = qwen.encode(text, EncodeOptions::RAW).unwrap();
    assert!(!literal.contains(&151_644) && literal.len() > parsed.len());
    assert_eq!(qwen.decode(&parsed, ControlTokens::Skip), "user\nhi");
    assert_eq!(qwen.decode(&parsed, ControlTokens::Show), text);
    assert!(qwen.is_eos(151_645) && qwen.is_eos(151_643) && !qwen.is_eos(0));

    let llama2 = tokenizer(folder, "llama-spm");
    assert_eq!(llama2.encode("Hello", EncodeOptions::TEXT).unwrap(), [1, 15_043]);
    assert_eq!(llama2.encode("", EncodeOptions::TEXT).unwrap(), [1]);
    let llama3 = tokenizer(folder, "llama-bpe");
    assert_eq!(llama3.encode("Hello", EncodeOptions::TEXT).unwrap()[0], 128_000);
    assert_eq!(llama3.eos(), [128_001, 128_009]);
}

#[test]
fn unsupported_vocabularies_are_named() {
    let Some(folder) = fixtures("unsupported_vocabularies_are_named") else { return };
    let gguf = Gguf::open(&folder.join("ggml-vocab-bert-bge.gguf")).unwrap();
    let e = Tokenizer::from_gguf(&gguf).unwrap_err().to_string();
    assert!(e.contains("tokenizer.ggml.model") && e.contains("bert"), "{e}");
    let e = Model::open(&folder.join("ggml-vocab-gemma-4.gguf")).unwrap_err().to_string();
    assert!(e.contains("general.architecture") && e.contains("gemma"), "{e}");
    let e = Model::open(&folder.join("ggml-vocab-llama-bpe.gguf")).unwrap_err().to_string();
    assert!(e.contains("missing"), "{e}");
}

/// Templates that are meant to run under `apply_chat_template`; the rest use extensions of single engines.
#[test]
fn chat_templates_of_the_field_parse() {
    let Some(folder) = fixtures("chat_templates_of_the_field_parse") else { return };
    let (mut parsed, mut failed) = (0, Vec::new());
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "jinja") {
            match model::ChatTemplate::new(&std::fs::read_to_string(&path).unwrap(), "<s>", "</s>") {
                Ok(_) => parsed += 1,
                Err(e) => failed.push(format!("{}: {e}", path.file_name().unwrap().to_string_lossy())),
            }
        }
    }
    assert!(parsed >= 40 && failed.is_empty(), "{parsed} parsed; {failed:#?}");
}

#[test]
fn chat_templates_of_the_families_render() {
    let Some(folder) = fixtures("chat_templates_of_the_families_render") else { return };
    let messages = serde_json::json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": "3+3?"},
    ]);
    let tools = serde_json::json!([{"type": "function", "function": {"name": "add", "description": "adds",
        "parameters": {"type": "object", "properties": {"a": {"type": "number", "description": "one"}}}}}]);
    for (file, ending) in [
        ("Qwen-Qwen2.5-7B-Instruct.jinja", "<|im_start|>user\n3+3?<|im_end|>\n<|im_start|>assistant\n"),
        ("Qwen-Qwen3-0.6B.jinja", "<|im_start|>user\n3+3?<|im_end|>\n<|im_start|>assistant\n"),
        ("meta-llama-Llama-3.1-8B-Instruct.jinja", "<|start_header_id|>assistant<|end_header_id|>\n\n"),
        ("mistralai-Mistral-Nemo-Instruct-2407.jinja", "3+3?[/INST]"),
    ] {
        let source = std::fs::read_to_string(folder.join(file)).unwrap();
        let template = model::ChatTemplate::new(&source, "<s>", "</s>").unwrap();
        for tools in [None, Some(tools.clone())] {
            let options = model::RenderOptions {
                add_generation_prompt: true,
                tools: tools.clone(),
                ..Default::default()
            };
            let text = template.render(&messages, &options).unwrap_or_else(|e| panic!("{file}: {e}"));
            assert!(text.contains("Be brief.") && text.contains("3+3?"), "{file}: {text}");
            if tools.is_none() {
                assert!(text.ends_with(ending), "{file}: {text:?}");
            } else {
                assert!(text.contains("\"add\""), "{file}: {text}");
            }
        }
    }
}

#[test]
fn unfinished_code_points_wait() {
    let mut buffer = Utf8Buffer::default();
    let llama = "🦙".as_bytes();
    assert_eq!(buffer.push(&llama[..1]), "");
    assert_eq!(buffer.push(&llama[1..3]), "");
    assert!(buffer.is_waiting());
    assert_eq!(buffer.push(&llama[3..]), "🦙");
    assert_eq!(buffer.push(b"a\xffb"), "a\u{fffd}b");
    assert_eq!(buffer.push(&llama[..2]), "");
    assert_eq!(buffer.push(b"x"), "\u{fffd}x");
    assert_eq!(buffer.push(&llama[..2]), "");
    assert_eq!(buffer.flush(), "\u{fffd}");
    assert_eq!(buffer.flush(), "");
}

#[test]
fn tokenizer_json_encodes_and_decodes() {
    let model = Model::open(&tiny::folder("llama")).unwrap();
    let tokenizer = model.tokenizer();
    let ids = tokenizer.encode("the rat in</s>", EncodeOptions::TEMPLATE).unwrap();
    assert_eq!(ids.last(), Some(&2));
    assert_eq!(tokenizer.decode(&ids, ControlTokens::Skip), "the rat in");
    assert_eq!(streamed(tokenizer, &ids), "the rat in</s>");
    assert_eq!(tokenizer.token_id("th"), Some(31));
    assert_eq!(tokenizer.token_bytes(32), b" th");
    assert_eq!(tokenizer.token_bytes(4_000), b"");
    assert!(tokenizer.is_eos(2));
}
