//! Text to token ids and back, from a `tokenizer.json` or a GGUF vocabulary.

mod bpe;
mod from_gguf;
mod from_hf;
mod pre;
mod special;
mod spm;
mod stream;
mod table;

pub use stream::{StreamDecoder, Utf8Buffer};

pub(crate) use from_gguf::tokenizer_from_gguf;
pub(crate) use from_hf::tokenizer_from_hf;

use crate::error::{Error, Result};
use from_hf::HuggingFace;
use special::{Fragment, SpecialTokens};
use table::TokenTable;

/// How to encode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Add the tokens that the model wants around a text (BOS for Llama).
    pub add_special: bool,
    /// Read control tokens such as `<|im_end|>` in the text as tokens, as a rendered chat template needs; otherwise they are
    /// ordinary text, as user input needs.
    pub parse_special: bool,
}

impl EncodeOptions {
    /// For plain text: special tokens added, control tokens in the text not recognised.
    pub const TEXT: EncodeOptions = EncodeOptions { add_special: true, parse_special: false };
    /// For a rendered chat template, which writes its own special tokens.
    pub const TEMPLATE: EncodeOptions = EncodeOptions { add_special: false, parse_special: true };
    /// The bare text.
    pub const RAW: EncodeOptions = EncodeOptions { add_special: false, parse_special: false };
}

/// What to do with control tokens when decoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlTokens {
    /// Leave them out: what a user reads.
    Skip,
    /// Write their text.
    Show,
}

/// A tokenizer. Cheap to share behind an `Arc`; all methods take `&self`.
pub struct Tokenizer {
    encoder: Encoder,
    table: TokenTable,
    bos: Option<u32>,
    eos: Vec<u32>,
    pad: Option<u32>,
    digest_source: &'static str,
}

enum Encoder {
    HuggingFace(Box<HuggingFace>),
    Gguf(Box<GgufEncoder>),
}

/// A GGUF vocabulary: special tokens are cut out first, the rest goes through BPE or SentencePiece.
struct GgufEncoder {
    special: SpecialTokens,
    words: Words,
    add_bos: Option<u32>,
    add_eos: Option<u32>,
}

enum Words {
    Bpe(Box<bpe::Bpe>),
    Spm(Box<spm::Spm>),
}

impl Tokenizer {
    /// The tokenizer of a GGUF file, which may hold a vocabulary and nothing else.
    ///
    /// # Errors
    /// Any [`Error`] about keys, naming the file and the key.
    pub fn from_gguf(gguf: &crate::gguf::Gguf) -> Result<Tokenizer> {
        tokenizer_from_gguf(gguf)
    }

    /// Token ids of `text`.
    ///
    /// # Errors
    /// [`Error::Encode`] if the vocabulary cannot express the text.
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Result<Vec<u32>> {
        match &self.encoder {
            Encoder::HuggingFace(hf) => hf.encode(text, options),
            Encoder::Gguf(gguf) => gguf.encode(text, options),
        }
    }

    /// The text of `ids`; bytes that are not UTF-8 become U+FFFD. Ids outside the vocabulary give nothing.
    pub fn decode(&self, ids: &[u32], control: ControlTokens) -> String {
        let mut bytes = Vec::new();
        for &id in ids {
            if control == ControlTokens::Show || !self.is_control(id) {
                bytes.extend_from_slice(self.token_bytes(id));
            }
        }
        if self.table.strips_leading_space && bytes.first() == Some(&b' ') {
            bytes.remove(0);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// A decoder for tokens that arrive one by one.
    pub fn stream(&self, control: ControlTokens) -> StreamDecoder<'_> {
        StreamDecoder::new(self, control)
    }

    /// The bytes that `id` stands for (a control token's name for a control token); empty outside the vocabulary. One
    /// token need not be whole UTF-8.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.table.bytes(id)
    }

    /// Whether `id` is a control token, not text.
    pub fn is_control(&self, id: u32) -> bool {
        self.table.is_control(id)
    }

    /// The id of the token whose text in the vocabulary is exactly `text`, control tokens included.
    pub fn token_id(&self, text: &str) -> Option<u32> {
        self.table.id(text)
    }

    /// Number of token ids: one more than the highest.
    pub fn vocab_size(&self) -> usize {
        self.table.len()
    }

    /// The token put before a text, if any.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// Tokens that end a generation, ascending: eos, eot, im_end and the like.
    pub fn eos(&self) -> &[u32] {
        &self.eos
    }

    /// Whether `id` ends a generation.
    pub fn is_eos(&self, id: u32) -> bool {
        self.eos.binary_search(&id).is_ok()
    }

    /// The padding token, if the model names one.
    pub fn pad(&self) -> Option<u32> {
        self.pad
    }

    /// Where this tokenizer came from, for reports: `tokenizer.json`, `GGUF BPE`, `GGUF SentencePiece`.
    pub fn source(&self) -> &'static str {
        self.digest_source
    }

    pub(crate) fn add_eos(&mut self, ids: &[u32]) {
        let len = self.table.len();
        self.eos.extend(ids.iter().filter(|&&id| (id as usize) < len));
        self.eos.sort_unstable();
        self.eos.dedup();
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tokenizer({}, {} tokens)", self.digest_source, self.vocab_size())
    }
}

impl GgufEncoder {
    fn encode(&self, text: &str, options: EncodeOptions) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        if options.add_special {
            ids.extend(self.add_bos);
        }
        let mut after_special = true;
        for fragment in self.special.split(text, options.parse_special) {
            match fragment {
                Fragment::Token(id) => {
                    ids.push(id);
                    after_special = true;
                }
                Fragment::Text(text) => {
                    match &self.words {
                        Words::Bpe(bpe) => bpe.encode(text, &mut ids)?,
                        Words::Spm(spm) => spm.encode(text, after_special, &mut ids),
                    }
                    after_special = false;
                }
            }
        }
        if options.add_special {
            ids.extend(self.add_eos);
        }
        Ok(ids)
    }
}

/// Texts of control tokens that end a generation in the supported families and their relatives (as llama.cpp knows them).
const END_TEXTS: [&str; 14] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<｜end▁of▁sentence｜>",
];

/// Ids of the tokens that end a generation, by their text.
fn end_tokens(table: &TokenTable) -> Vec<u32> {
    END_TEXTS.iter().filter_map(|text| table.id(text)).filter(|&id| table.is_control(id)).collect()
}

fn encode_error(e: impl std::fmt::Display) -> Error {
    Error::Encode(e.to_string())
}
