//! The held-out text that quality is measured on.

use evidence::Digest;
use model::{EncodeOptions, Tokenizer};

/// Tokens of a quality window.
pub const WINDOW: usize = 256;

/// Which text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldOut {
    /// Some 2,000 tokens.
    Screen,
    /// Some 8,000 tokens.
    Confirm,
}

impl HeldOut {
    fn text(self) -> &'static str {
        match self {
            HeldOut::Screen => include_str!("../text/screen.txt"),
            HeldOut::Confirm => include_str!("../text/confirm.txt"),
        }
    }

    fn limit(self) -> usize {
        match self {
            HeldOut::Screen => 2_048,
            HeldOut::Confirm => 8_192,
        }
    }

    /// Digest of the text, part of what evidence names.
    pub fn digest(self) -> Digest {
        Digest::of(self.text().as_bytes())
    }

    /// The text as whole windows of [`WINDOW`] tokens.
    pub fn windows(self, tokenizer: &Tokenizer) -> Result<Vec<Vec<u32>>, model::Error> {
        let mut ids = tokenizer.encode(self.text(), EncodeOptions::default())?;
        ids.truncate(self.limit());
        Ok(ids.chunks_exact(WINDOW).map(<[u32]>::to_vec).collect())
    }
}
