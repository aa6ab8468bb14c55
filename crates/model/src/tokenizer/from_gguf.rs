//! A tokenizer from a GGUF vocabulary.

use super::bpe::Bpe;
use super::pre::PreTokenizer;
use super::special::SpecialTokens;
use super::spm::Spm;
use super::table::{Kind, Spelling, TokenTable, hex_byte};
use super::{Encoder, GgufEncoder, Tokenizer, Words, end_tokens};
use crate::error::{Error, Result};
use crate::gguf::Gguf;

/// The token types of GGUF's `tokenizer.ggml.token_type`.
const UNKNOWN: u32 = 2;
const CONTROL: u32 = 3;
const USER_DEFINED: u32 = 4;
const BYTE: u32 = 6;

/// Builds the tokenizer that the file's metadata describes.
pub(crate) fn tokenizer_from_gguf(gguf: &Gguf) -> Result<Tokenizer> {
    let path = gguf.path();
    let model = needed_str(gguf, "tokenizer.ggml.model")?;
    let tokens = gguf
        .typed("tokenizer.ggml.tokens", "an array of text", |v| v.as_strings())?
        .filter(|t| !t.is_empty())
        .ok_or_else(|| Error::missing(path, "key", "tokenizer.ggml.tokens"))?;
    let kinds = kinds(gguf, tokens)?;
    let special = kinds.special(tokens);
    let id = |key: &str| token_id(gguf, key, tokens.len());
    let bos = id("tokenizer.ggml.bos_token_id")?;
    let eos = id("tokenizer.ggml.eos_token_id")?;
    let (words, spelling, defaults) = match model {
        "gpt2" => bpe(gguf, tokens)?,
        "llama" => spm(gguf, tokens, &kinds.of, id("tokenizer.ggml.unknown_token_id")?)?,
        other => {
            let supported = "gpt2 (byte-level BPE), llama (SentencePiece)";
            return Err(Error::unsupported(path, "tokenizer.ggml.model", format!("{other:?}"), supported));
        }
    };
    let add_bos = gguf.bool("tokenizer.ggml.add_bos_token")?.unwrap_or(defaults.add_bos);
    let add_eos = gguf.bool("tokenizer.ggml.add_eos_token")?.unwrap_or(false);
    let mut table =
        TokenTable::build(tokens.iter().map(String::as_str).zip(kinds.of.iter().copied()), spelling);
    table.strips_leading_space = defaults.space_prefix;
    let mut ends = end_tokens(&table);
    ends.extend(eos);
    ends.extend(id("tokenizer.ggml.eot_token_id")?);
    ends.extend(id("tokenizer.ggml.eom_token_id")?);
    let encoder =
        GgufEncoder { special, words, add_bos: bos.filter(|_| add_bos), add_eos: eos.filter(|_| add_eos) };
    let mut tokenizer = Tokenizer {
        encoder: Encoder::Gguf(Box::new(encoder)),
        table,
        bos,
        eos: Vec::new(),
        pad: id("tokenizer.ggml.padding_token_id")?,
        digest_source: if model == "gpt2" { "GGUF BPE" } else { "GGUF SentencePiece" },
    };
    tokenizer.add_eos(&ends);
    Ok(tokenizer)
}

/// What holds where the file does not say.
struct Defaults {
    add_bos: bool,
    space_prefix: bool,
}

fn bpe(gguf: &Gguf, tokens: &[String]) -> Result<(Words, Spelling, Defaults)> {
    let path = gguf.path();
    let name = gguf.str("tokenizer.ggml.pre")?.unwrap_or("default");
    let pre = PreTokenizer::by_name(name).ok_or_else(|| {
        Error::unsupported(
            path,
            "tokenizer.ggml.pre",
            format!("pre-tokenizer {name:?}"),
            PreTokenizer::supported(),
        )
    })?;
    let merges = gguf
        .typed("tokenizer.ggml.merges", "an array of text", |v| v.as_strings())?
        .ok_or_else(|| Error::missing(path, "key", "tokenizer.ggml.merges"))?;
    let bpe = Bpe::new(tokens, merges, &pre)
        .map_err(|reason| Error::Tokenizer { path: path.to_owned(), reason })?;
    Ok((
        Words::Bpe(Box::new(bpe)),
        Spelling::ByteLevel,
        Defaults { add_bos: pre.add_bos, space_prefix: false },
    ))
}

fn spm(
    gguf: &Gguf,
    tokens: &[String],
    kinds: &[Kind],
    unknown: Option<u32>,
) -> Result<(Words, Spelling, Defaults)> {
    let scores = gguf
        .typed("tokenizer.ggml.scores", "an array of f32", |v| v.as_f32s())?
        .filter(|s| s.len() == tokens.len())
        .ok_or_else(|| {
            Error::bad_value(gguf.path(), "tokenizer.ggml.scores", "one f32 per token is needed")
        })?;
    let space_prefix = gguf.bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    let spm = Spm::new(tokens, kinds, scores.to_vec(), unknown, space_prefix);
    Ok((Words::Spm(Box::new(spm)), Spelling::SentencePiece, Defaults { add_bos: true, space_prefix }))
}

struct Kinds {
    of: Vec<Kind>,
    unknown: Vec<bool>,
}

impl Kinds {
    fn special(&self, tokens: &[String]) -> SpecialTokens {
        let special = tokens.iter().enumerate().filter_map(|(id, text)| {
            let control = self.of[id] == Kind::Control || self.unknown[id];
            (control || self.of[id] == Kind::UserDefined).then(|| (text.clone(), id as u32, control))
        });
        SpecialTokens::new(special)
    }
}

fn kinds(gguf: &Gguf, tokens: &[String]) -> Result<Kinds> {
    let key = "tokenizer.ggml.token_type";
    let types = match gguf.typed(key, "an array of integers", |v| v.as_u32s())? {
        Some(types) if types.len() == tokens.len() => types,
        Some(types) => {
            return Err(Error::bad_value(
                gguf.path(),
                key,
                format!("{} types for {} tokens", types.len(), tokens.len()),
            ));
        }
        None => vec![1; tokens.len()],
    };
    let kind = |(&kind, text): (&u32, &String)| match kind {
        CONTROL => Kind::Control,
        USER_DEFINED => Kind::UserDefined,
        BYTE if hex_byte(text).is_some() => Kind::Byte,
        _ => Kind::Normal,
    };
    Ok(Kinds {
        of: types.iter().zip(tokens).map(kind).collect(),
        unknown: types.iter().map(|&t| t == UNKNOWN).collect(),
    })
}

fn needed_str<'a>(gguf: &'a Gguf, key: &str) -> Result<&'a str> {
    gguf.str(key)?.ok_or_else(|| Error::missing(gguf.path(), "key", key))
}

/// A token id under `key`; ids outside the vocabulary count as absent, as in llama.cpp.
fn token_id(gguf: &Gguf, key: &str, vocab: usize) -> Result<Option<u32>> {
    Ok(gguf.usize(key)?.filter(|&id| id < vocab).map(|id| id as u32))
}
