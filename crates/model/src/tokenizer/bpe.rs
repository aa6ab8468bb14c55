//! Byte-level BPE from a GGUF vocabulary, on the `tokenizers` crate.

use super::encode_error;
use super::pre::PreTokenizer;
use crate::error::Result;
use std::collections::HashMap;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::SplitDelimiterBehavior;
use tokenizers::{PreTokenizerWrapper, Tokenizer};

/// A byte-level BPE without special tokens: those are cut out before.
pub(super) struct Bpe {
    inner: Tokenizer,
}

impl Bpe {
    /// `merges` as GGUF gives them, `left right`, best first; merges whose parts or result are no token are left out.
    pub(super) fn new(tokens: &[String], merges: &[String], pre: &PreTokenizer) -> Result<Bpe, String> {
        let vocab: HashMap<String, u32> =
            tokens.iter().enumerate().map(|(id, text)| (text.clone(), id as u32)).collect();
        let pairs = merges.iter().enumerate().filter_map(|(i, merge)| match split_merge(merge) {
            None => Some(Err(format!("tokenizer.ggml.merges[{i}] is {merge:?}, not two parts"))),
            Some((left, right)) => {
                let known = vocab.contains_key(left)
                    && vocab.contains_key(right)
                    && vocab.contains_key(&format!("{left}{right}"));
                known.then(|| Ok((left.to_owned(), right.to_owned())))
            }
        });
        let pairs = pairs.collect::<Result<Vec<_>, String>>()?;
        let model = BPE::builder()
            .vocab_and_merges(vocab.into_iter().collect::<Vocab>(), pairs)
            .ignore_merges(pre.ignore_merges)
            .build()
            .map_err(|e| e.to_string())?;
        let mut inner = Tokenizer::new(model);
        let mut steps: Vec<PreTokenizerWrapper> = Vec::new();
        for pattern in pre.patterns {
            let split = Split::new(
                SplitPattern::Regex((*pattern).to_owned()),
                SplitDelimiterBehavior::Isolated,
                false,
            );
            steps.push(split.map_err(|e| e.to_string())?.into());
        }
        steps.push(ByteLevel::new(false, false, false).into());
        inner.with_pre_tokenizer(Some(Sequence::new(steps)));
        Ok(Bpe { inner })
    }

    pub(super) fn encode(&self, text: &str, out: &mut Vec<u32>) -> Result<()> {
        let encoding = self.inner.encode_fast(text, false).map_err(encode_error)?;
        out.extend_from_slice(encoding.get_ids());
        Ok(())
    }
}

/// The parts of `left right`; either may start with a space of its own.
fn split_merge(merge: &str) -> Option<(&str, &str)> {
    let first = merge.chars().next()?.len_utf8();
    let at = first + merge[first..].find(' ')?;
    Some((&merge[..at], &merge[at + 1..]))
}
