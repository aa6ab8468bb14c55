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
const DEEPSEEK_LLM_WORDS: &str = r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+";
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
        &["qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan", "grok-2", "solar-open"],
        PreTokenizer::plain(&[QWEN2]),
    ),
    (&["qwen35"], PreTokenizer::plain(&[QWEN35])),
    (&["gpt-4o", "llama4", "kanana2", "minimax-m2"], PreTokenizer::plain(&[GPT4O])),
    (
        &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"],
        PreTokenizer::plain(&[r"\p{N}", GPT2]),
    ),
    (
        &["gpt-2", "phi-2", "jina-es", "jina-de", "gigachat", "a.x-4.0", "mellum", "mpt", "olmo", "jais", "trillion", "exaone4"],
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
