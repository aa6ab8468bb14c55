//! What each token id stands for.

use std::collections::HashMap;

/// How a vocabulary spells bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spelling {
    /// GPT-2's printable stand-ins for the 256 bytes.
    ByteLevel,
    /// SentencePiece: `▁` for a space, `<0xXX>` for single bytes.
    SentencePiece,
}

/// A token's role in a vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Text, spelled.
    Normal,
    /// Text, verbatim, matched before everything else.
    UserDefined,
    /// A control token.
    Control,
    /// A single byte, `<0xXX>`.
    Byte,
}

/// Bytes, kinds and ids of all tokens.
pub(super) struct TokenTable {
    arena: Vec<u8>,
    ends: Vec<u32>,
    control: Vec<bool>,
    ids: HashMap<String, u32>,
    /// Whether a decoded text loses one leading space (the tokenizer puts one before a text).
    pub(super) strips_leading_space: bool,
}

impl TokenTable {
    pub(super) fn build<'a>(tokens: impl Iterator<Item = (&'a str, Kind)>, spelling: Spelling) -> TokenTable {
        let mut table = TokenTable {
            arena: Vec::new(),
            ends: Vec::new(),
            control: Vec::new(),
            ids: HashMap::new(),
            strips_leading_space: false,
        };
        let bytes = byte_of_char();
        for (id, (text, kind)) in tokens.enumerate() {
            match (kind, spelling) {
                (Kind::Control | Kind::UserDefined, _) => table.arena.extend(text.as_bytes()),
                (Kind::Byte, _) => table.arena.extend(hex_byte(text)),
                (Kind::Normal, Spelling::ByteLevel) => unspell(text, &bytes, &mut table.arena),
                (Kind::Normal, Spelling::SentencePiece) => {
                    table.arena.extend(text.replace('▁', " ").as_bytes())
                }
            }
            table.ends.push(table.arena.len() as u32);
            table.control.push(kind == Kind::Control);
            table.ids.entry(text.to_owned()).or_insert(id as u32);
        }
        table
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn bytes(&self, id: u32) -> &[u8] {
        let id = id as usize;
        match self.ends.get(id) {
            None => &[],
            Some(&end) => {
                let start = if id == 0 { 0 } else { self.ends[id - 1] };
                &self.arena[start as usize..end as usize]
            }
        }
    }

    pub(super) fn is_control(&self, id: u32) -> bool {
        self.control.get(id as usize).copied().unwrap_or(false)
    }

    pub(super) fn id(&self, text: &str) -> Option<u32> {
        self.ids.get(text).copied()
    }
}

/// The byte of a token spelled `<0xXX>`.
pub(super) fn hex_byte(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() != 2 {
        return None;
    }
    u8::from_str_radix(digits, 16).ok()
}

/// GPT-2's map from printable stand-ins to bytes: printable Latin-1 stands for itself, the rest for U+0100 onwards in order.
fn byte_of_char() -> HashMap<char, u8> {
    let printable = |b: u8| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut next = 0x100_u32;
    (0..=255_u8)
        .map(|byte| {
            let code = if printable(byte) {
                u32::from(byte)
            } else {
                next += 1;
                next - 1
            };
            (char::from_u32(code).unwrap_or('\u{fffd}'), byte)
        })
        .collect()
}

fn unspell(text: &str, bytes: &HashMap<char, u8>, out: &mut Vec<u8>) {
    for c in text.chars() {
        match bytes.get(&c) {
            Some(&byte) => out.push(byte),
            None => out.extend(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}
