//! Prompts that every server must work for: distinct, of exact length, English-like, without a shared prefix.

use crate::error::LoadError;
use crate::seeded::Seeded;
use std::collections::HashSet;

/// What prompts to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PromptSpec {
    /// How many
    pub count: usize,
    /// Tokens in each, special tokens not counted
    pub tokens: usize,
    /// Same seed, tokenizer and lengths: same prompts
    pub seed: u64,
}

/// A prompt in both forms: encoding the text gives the ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GeneratedPrompt {
    /// Exactly [`PromptSpec::tokens`] ids
    pub ids: Vec<u32>,
    /// Their text
    pub text: String,
}

/// No two prompts share this many first tokens (or all, if they are shorter): less than any prefix cache's block.
const DISTINCT_PREFIX: usize = 6;

/// Makes prompts with the caller's tokenizer. `encode` must not add special tokens.
///
/// # Errors
/// When the tokenizer fails, or no text of that length survives decode and encode.
pub fn prompts(
    spec: PromptSpec,
    encode: impl Fn(&str) -> Result<Vec<u32>, String>,
    decode: impl Fn(&[u32]) -> Result<String, String>,
) -> Result<Vec<GeneratedPrompt>, LoadError> {
    let mut random = Seeded::new(spec.seed.wrapping_mul(1_000_003).wrapping_add(spec.tokens as u64));
    let mut made = Vec::with_capacity(spec.count);
    let mut starts = HashSet::new();
    let max_attempts = 20 * spec.count + 200;
    let mut attempts = 0;
    while made.len() < spec.count {
        attempts += 1;
        let failed =
            |made: usize| LoadError::Prompts { wanted: spec.count, tokens: spec.tokens, made, attempts };
        if attempts > max_attempts || spec.tokens == 0 {
            return Err(failed(made.len()));
        }
        let mut ids = long_enough(&mut random, spec.tokens, &encode)?.ok_or_else(|| failed(made.len()))?;
        ids.truncate(spec.tokens);
        if starts.contains(&ids[..ids.len().min(DISTINCT_PREFIX)]) {
            continue;
        }
        let text = decode(&ids).map_err(LoadError::Tokenizer)?;
        if encode(&text).map_err(LoadError::Tokenizer)? == ids {
            starts.insert(ids[..ids.len().min(DISTINCT_PREFIX)].to_vec());
            made.push(GeneratedPrompt { ids, text });
        }
    }
    Ok(made)
}

/// Ids of a text of at least `tokens` tokens; none when the tokenizer gives (nearly) no tokens for text.
fn long_enough(
    random: &mut Seeded,
    tokens: usize,
    encode: &impl Fn(&str) -> Result<Vec<u32>, String>,
) -> Result<Option<Vec<u32>>, LoadError> {
    let mut text = format!("{} {}, ", capitalised(random.pick(&NOUNS)), random.pick(&ADJECTIVES));
    text.push_str(&format!("{} number {}:", random.pick(&NOUNS), random.below(1_000_000)));
    // A sentence has some ten tokens; growth by half again keeps the number of encodings small.
    let mut sentences = tokens / 10 + 4;
    for _ in 0..64 {
        for _ in 0..sentences {
            let (a, n1, v, n2, n3) = (
                random.pick(&ADJECTIVES),
                random.pick(&NOUNS),
                random.pick(&VERBS),
                random.pick(&NOUNS),
                random.pick(&NOUNS),
            );
            text.push_str(&format!(" The {a} {n1} {v} the {n2} of the {n3}."));
        }
        let ids = encode(&text).map_err(LoadError::Tokenizer)?;
        if ids.len() >= tokens + 8 {
            return Ok(Some(ids));
        }
        sentences = sentences / 2 + 1;
    }
    Ok(None)
}

fn capitalised(word: &str) -> String {
    let mut chars = word.chars();
    chars.next().map_or_else(String::new, |c| c.to_uppercase().chain(chars).collect())
}

const NOUNS: [&str; 96] = [
    "time", "year", "way", "day", "thing", "woman", "life", "child", "world", "school", "state", "family",
    "student", "group", "country", "problem", "hand", "part", "place", "week", "company", "system",
    "question", "work", "night", "point", "home", "water", "room", "mother", "area", "money", "story",
    "fact", "month", "book", "eye", "job", "word", "business", "side", "house", "service", "friend",
    "father", "power", "hour", "game", "line", "city", "name", "team", "minute", "idea", "body", "back",
    "parent", "face", "office", "door", "health", "person", "art", "war", "history", "party", "morning",
    "reason", "girl", "moment", "air", "teacher", "force", "foot", "boy", "policy", "music", "market",
    "nation", "plan", "college", "interest", "garden", "engine", "bridge", "forest", "island", "ocean",
    "winter", "planet", "sugar", "bread", "metal", "glass", "stone", "river",
];
const ADJECTIVES: [&str; 28] = [
    "big", "small", "old", "new", "long", "short", "red", "blue", "quick", "slow", "happy", "sad", "bright",
    "dark", "cold", "warm", "quiet", "loud", "early", "late", "rich", "poor", "heavy", "light", "strange",
    "common", "young", "green",
];
const VERBS: [&str; 20] = [
    "found", "made", "saw", "took", "gave", "kept", "moved", "held", "lost", "built", "wrote", "read",
    "bought", "sold", "broke", "sent", "met", "led", "grew", "drew",
];

#[cfg(test)]
mod tests {
    use super::*;

    /// One token per word with its leading space: enough to check lengths and distinctness.
    fn encode(text: &str) -> Result<Vec<u32>, String> {
        Ok(text
            .split_inclusive(' ')
            .map(|w| w.bytes().fold(7u32, |h, b| h.wrapping_mul(31) + u32::from(b)))
            .collect())
    }

    fn bytes(text: &str) -> Result<Vec<u32>, String> {
        Ok(text.bytes().map(u32::from).collect())
    }

    fn unbytes(ids: &[u32]) -> Result<String, String> {
        String::from_utf8(ids.iter().map(|&b| b as u8).collect()).map_err(|e| e.to_string())
    }

    #[test]
    fn exact_distinct_and_repeatable() {
        for tokens in [7, 64, 700] {
            let spec = PromptSpec { count: 50, tokens, seed: 3 };
            let made = prompts(spec, bytes, unbytes).unwrap();
            assert!(made.iter().all(|p| p.ids.len() == tokens && bytes(&p.text).unwrap() == p.ids));
            let starts: HashSet<_> = made.iter().map(|p| &p.ids[..DISTINCT_PREFIX]).collect();
            assert_eq!(starts.len(), 50);
            assert_eq!(made, prompts(spec, bytes, unbytes).unwrap());
            assert_ne!(made, prompts(PromptSpec { seed: 4, ..spec }, bytes, unbytes).unwrap());
        }
    }

    #[test]
    fn hopeless_tokenizers_end_in_an_error() {
        let spec = PromptSpec { count: 2, tokens: 16, seed: 0 };
        let lossy = prompts(spec, encode, |_| Ok("other".into()));
        assert!(matches!(lossy, Err(LoadError::Prompts { made: 0, .. })));
        assert!(matches!(prompts(spec, |_| Ok(vec![]), unbytes), Err(LoadError::Prompts { .. })));
        assert!(matches!(prompts(spec, |_| Err("x".into()), unbytes), Err(LoadError::Tokenizer(_))));
        assert!(prompts(PromptSpec { tokens: 0, ..spec }, bytes, unbytes).is_err());
    }
}
