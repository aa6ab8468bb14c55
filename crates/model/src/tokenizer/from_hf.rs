//! A tokenizer from a Hugging Face `tokenizer.json`.

use super::table::{Kind, Spelling, TokenTable, hex_byte};
use super::{EncodeOptions, Encoder, Tokenizer, encode_error, end_tokens};
use crate::error::{Error, Result};
use serde_json::Value;
use std::collections::HashMap;
use std::path::Path;
use std::sync::OnceLock;

/// The `tokenizers` pipeline; a second copy that treats control tokens as text is made when first needed.
pub(super) struct HuggingFace {
    parsing: tokenizers::Tokenizer,
    literal: OnceLock<tokenizers::Tokenizer>,
}

impl HuggingFace {
    pub(super) fn encode(&self, text: &str, options: EncodeOptions) -> Result<Vec<u32>> {
        let pipeline = if options.parse_special {
            &self.parsing
        } else {
            self.literal.get_or_init(|| {
                let mut literal = self.parsing.clone();
                literal.set_encode_special_tokens(true);
                literal
            })
        };
        let encoding = pipeline.encode_fast(text, options.add_special).map_err(encode_error)?;
        Ok(encoding.get_ids().to_vec())
    }
}

/// Reads `tokenizer.json` in `folder`; `config` is the parsed `tokenizer_config.json`, if there is one.
pub(crate) fn tokenizer_from_hf(folder: &Path, config: Option<&Value>) -> Result<Tokenizer> {
    let path = folder.join("tokenizer.json");
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return Err(Error::missing(
                folder,
                "file",
                "tokenizer.json (tokenizer.model alone is not supported; convert it)",
            ));
        }
        Err(e) => return Err(Error::io("read", &path)(e)),
    };
    let failed = |reason: String| Error::Tokenizer { path: path.clone(), reason };
    let json: Value = serde_json::from_slice(&bytes).map_err(|e| failed(e.to_string()))?;
    let mut inner = tokenizers::Tokenizer::from_bytes(&bytes).map_err(|e| failed(e.to_string()))?;
    inner.with_truncation(None).map_err(|e| failed(e.to_string()))?;
    inner.with_padding(None);
    let table = table(&inner, &json).map_err(failed)?;
    let named = |key: &str| config.and_then(|c| token_text(c.get(key)?)).and_then(|text| table.id(text));
    let (bos, eos, pad) = (named("bos_token"), named("eos_token"), named("pad_token"));
    let mut ends = end_tokens(&table);
    ends.extend(eos);
    let encoder = HuggingFace { parsing: inner, literal: OnceLock::new() };
    let mut tokenizer = Tokenizer {
        encoder: Encoder::HuggingFace(Box::new(encoder)),
        table,
        bos,
        eos: Vec::new(),
        pad,
        digest_source: "tokenizer.json",
    };
    tokenizer.add_eos(&ends);
    Ok(tokenizer)
}

/// A token in `tokenizer_config.json`: text, or an object with `content`.
fn token_text(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value.get("content")?.as_str())
}

fn table(inner: &tokenizers::Tokenizer, json: &Value) -> Result<TokenTable, String> {
    let vocab = inner.get_vocab(true);
    let size = vocab.values().max().map_or(0, |&id| id as usize + 1);
    // Ids may have holes, but not many: a hostile file must not make the table huge.
    if size > 4 * vocab.len() + 65_536 {
        return Err(format!("the highest token id is {} for {} tokens", size - 1, vocab.len()));
    }
    let mut texts = vec![String::new(); size];
    for (text, id) in vocab {
        texts[id as usize] = text;
    }
    let added: HashMap<u32, bool> =
        inner.get_added_tokens_decoder().into_iter().map(|(id, t)| (id, t.special)).collect();
    let byte_level =
        mentions(json.get("decoder"), "ByteLevel") || mentions(json.get("pre_tokenizer"), "ByteLevel");
    let spelling = if byte_level { Spelling::ByteLevel } else { Spelling::SentencePiece };
    let fallback = json.pointer("/model/byte_fallback") == Some(&Value::Bool(true));
    let kind = |id: usize, text: &str| match added.get(&(id as u32)) {
        Some(true) => Kind::Control,
        Some(false) => Kind::UserDefined,
        None if fallback && hex_byte(text).is_some() => Kind::Byte,
        None => Kind::Normal,
    };
    let kinds: Vec<Kind> = texts.iter().enumerate().map(|(id, text)| kind(id, text)).collect();
    let mut table = TokenTable::build(texts.iter().map(String::as_str).zip(kinds), spelling);
    table.strips_leading_space = !byte_level && strips_space(json);
    Ok(table)
}

/// Whether `value` is, or holds in its sequence, a step of this type.
fn mentions(value: Option<&Value>, kind: &str) -> bool {
    let Some(value) = value else { return false };
    if value.get("type").and_then(Value::as_str) == Some(kind) {
        return true;
    }
    ["decoders", "pretokenizers"]
        .iter()
        .filter_map(|key| value.get(key)?.as_array())
        .flatten()
        .any(|step| mentions(Some(step), kind))
}

fn strips_space(json: &Value) -> bool {
    let decoder = json.get("decoder");
    let metaspace_prefix = mentions(decoder, "Metaspace")
        && json.pointer("/decoder/prepend_scheme").and_then(Value::as_str) != Some("never")
        && json.pointer("/decoder/add_prefix_space") != Some(&Value::Bool(false));
    metaspace_prefix || mentions(decoder, "Strip")
}
