//! Pre-tokenizers of byte-level BPE vocabularies, by the name that GGUF's `tokenizer.ggml.pre` gives them.
//!
//! The patterns are those of the models' own `tokenizer.json` files, as llama.cpp's `llama-vocab.cpp` records them. A text is
//! split by the first pattern; what lies inside and between its matches is split by the next, and so on.

/// One pre-tokenizer.
#[derive(Clone, Copy, Debug)]
pub(super) struct PreTokenizer {
    /// Patterns, applied in turn.
    pub(super) patterns: &'static [&'static str],
    /// Whether a piece that is a token as a whole skips the merges.
    pub(super) ignore_merges: bool,
    /// Whether BOS is added where the file does not say.
    pub(super) add_bos: bool,
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK3_WORDS: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
const DEEPSEEK_LLM_WORDS: &str = r"\s?[A-Za-z\u{b5}\u{c0}-\u{d6}\u{d8}-\u{f6}\u{f8}-\u{1ba}\u{1bc}-\u{1bf}\u{1c4}-\u{293}\u{295}-\u{2af}\u{370}-\u{373}\u{376}\u{377}\u{37b}-\u{37d}\u{37f}\u{386}\u{388}-\u{38a}\u{38c}\u{38e}-\u{3a1}\u{3a3}-\u{3f5}\u{3f7}-\u{481}\u{48a}-\u{52f}\u{531}-\u{556}\u{10a0}-\u{10c5}\u{13a0}-\u{13f5}\u{13f8}-\u{13fd}\u{1c90}-\u{1cba}\u{1cbd}-\u{1cbf}\u{1d00}-\u{1d2b}\u{1d6b}-\u{1d77}\u{1d79}-\u{1d9a}\u{1e00}-\u{1f15}\u{1f18}-\u{1f1d}\u{1f20}-\u{1f45}\u{1f48}-\u{1f4d}\u{1f50}-\u{1f57}\u{1f59}\u{1f5b}\u{1f5d}\u{1f5f}-\u{1f7d}\u{1f80}-\u{1fb4}\u{1fb6}-\u{1fbc}\u{1fbe}\u{1fc2}-\u{1fc4}\u{1fc6}-\u{1fcc}\u{1fd0}-\u{1fd3}\u{1fd6}-\u{1fdb}\u{1fe0}-\u{1fec}\u{1ff2}-\u{1ff4}\u{1ff6}-\u{1ffc}\u{2102}\u{2107}\u{210a}-\u{2113}\u{2115}\u{2119}-\u{211d}\u{2124}\u{2126}\u{2128}\u{212a}-\u{212d}\u{212f}-\u{2134}\u{2139}\u{213c}-\u{213f}\u{2145}-\u{2149}\u{214e}\u{2183}\u{2184}\u{2c00}-\u{2c7b}\u{2c7e}-\u{2ce4}\u{2ceb}-\u{2cee}\u{2cf2}\u{2cf3}\u{a640}-\u{a66d}\u{a680}-\u{a69b}\u{a722}-\u{a76f}\u{a771}-\u{a787}\u{a78b}-\u{a78e}\u{ab70}-\u{abbf}\u{fb00}-\u{fb06}\u{fb13}-\u{fb17}\u{ff21}-\u{ff3a}\u{ff41}-\u{ff5a}\u{10400}-\u{1044f}\u{104b0}-\u{104d3}\u{104d8}-\u{104fb}\u{10c80}-\u{10cb2}\u{10cc0}-\u{10cf2}\u{118a0}-\u{118df}\u{1e900}-\u{1e943}]+";
const CJK: &str = "[一-龥\u{800}-一가-\u{d7ff}]+";

impl PreTokenizer {
    const fn plain(patterns: &'static [&'static str]) -> PreTokenizer {
        PreTokenizer { patterns, ignore_merges: false, add_bos: false }
    }

    /// The pre-tokenizer called `name`; `None` if it is not supported.
    pub(super) fn by_name(name: &str) -> Option<PreTokenizer> {
        NAMES.iter().find(|(names, _)| names.contains(&name)).map(|(_, pre)| *pre)
    }

    /// All names, for error messages.
    pub(super) fn supported() -> String {
        NAMES.iter().flat_map(|(names, _)| names.iter().copied()).collect::<Vec<_>>().join(", ")
    }
}

static NAMES: &[(&[&str], PreTokenizer)] = &[
    (
        &["llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"],
        PreTokenizer { patterns: &[LLAMA3], ignore_merges: true, add_bos: true },
    ),
    (&["dbrx", "smaug-bpe", "chatglm-bpe"], PreTokenizer::plain(&[LLAMA3])),
    (&["glm4"], PreTokenizer { patterns: &[LLAMA3], ignore_merges: true, add_bos: false }),
    (&["tekken"], PreTokenizer { patterns: &[TEKKEN], ignore_merges: true, add_bos: true }),
    (
        &[
            "qwen2",
            "deepseek-r1-qwen",
            "kormo",
            "f2llmv2",
            "megrez",
            "stablelm2",
            "hunyuan",
            "grok-2",
            "solar-open",
        ],
        PreTokenizer::plain(&[QWEN2]),
    ),
    (&["qwen35"], PreTokenizer::plain(&[QWEN35])),
    (&["gpt-4o", "llama4", "kanana2", "minimax-m2"], PreTokenizer::plain(&[GPT4O])),
    (
        &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"],
        PreTokenizer::plain(&[r"\p{N}", GPT2]),
    ),
    (
        &[
            "gpt-2", "phi-2", "jina-es", "jina-de", "gigachat", "a.x-4.0", "mellum", "mpt", "olmo", "jais",
            "trillion", "exaone4",
        ],
        PreTokenizer::plain(&[GPT2]),
    ),
    (
        &["deepseek-llm"],
        PreTokenizer::plain(&[
            r"[\r\n]",
            DEEPSEEK_LLM_WORDS,
            r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
            r"\s+$",
            CJK,
            r"\p{N}+",
        ]),
    ),
    (&["deepseek-coder"], PreTokenizer::plain(&[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK, r"\p{N}"])),
    (
        &["deepseek-v3", "hunyuan-dense", "joyai-llm"],
        PreTokenizer::plain(&[r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK3_WORDS]),
    ),
    (&["falcon"], PreTokenizer::plain(&[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, r"[0-9][0-9][0-9]"])),
    (&["default"], PreTokenizer::plain(&[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"])),
];
