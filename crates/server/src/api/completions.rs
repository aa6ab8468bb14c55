//! `prompt` to token ids.

use super::body::Prompt;
use super::error::ApiError;
use crate::text::Text;
use model::EncodeOptions;

/// One prompt of a completions request.
#[derive(Debug, PartialEq)]
pub(crate) struct Input {
    pub ids: Vec<u32>,
    /// As the client wrote it, if it was text
    pub text: Option<String>,
}

/// All prompts of a request, each with at least one token.
pub(crate) fn inputs(
    prompt: Option<Prompt>,
    text: &dyn Text,
    max_prompts: usize,
) -> Result<Vec<Input>, ApiError> {
    let wrong = |message: String| ApiError::invalid("prompt", message);
    let too_many =
        |n: usize| wrong(format!("`prompt` holds {n} prompts, this server takes {max_prompts} at a time"));
    match prompt {
        None => Err(wrong("`prompt` is missing".into())),
        Some(Prompt::Empty) => Err(wrong("`prompt` is an empty array".into())),
        Some(Prompt::Wrong(what)) => Err(wrong(format!(
            "`prompt` must be a string, an array of strings, of token ids, or of arrays of token ids: {what}"
        ))),
        Some(Prompt::Text(prompt)) => Ok(vec![from_text(prompt, text)?]),
        Some(Prompt::Ids(ids)) => Ok(vec![from_ids(ids, text)?]),
        Some(Prompt::Texts(all)) if all.len() > max_prompts => Err(too_many(all.len())),
        Some(Prompt::IdLists(all)) if all.len() > max_prompts => Err(too_many(all.len())),
        Some(Prompt::Texts(all)) => all.into_iter().map(|p| from_text(p, text)).collect(),
        Some(Prompt::IdLists(all)) => all.into_iter().map(|p| from_ids(p, text)).collect(),
    }
}

/// Control tokens in the text count as such: here the caller writes the whole prompt, template and all.
fn from_text(prompt: String, text: &dyn Text) -> Result<Input, ApiError> {
    let options = EncodeOptions { add_special: true, parse_special: true };
    let mut ids = text.encode(&prompt, options).map_err(|e| ApiError::text("prompt", &e))?;
    if ids.is_empty() {
        let none =
            || ApiError::invalid("prompt", "`prompt` is empty, and this model has no token to begin with");
        ids.push(text.bos().ok_or_else(none)?);
    }
    Ok(Input { ids, text: Some(prompt) })
}

fn from_ids(ids: Vec<u32>, text: &dyn Text) -> Result<Input, ApiError> {
    let vocabulary = text.vocab_size();
    if let Some(id) = ids.iter().find(|id| **id as usize >= vocabulary) {
        return Err(ApiError::invalid(
            "prompt",
            format!("`prompt`: token id {id} is not below the vocabulary of {vocabulary}"),
        ));
    }
    Ok(Input { ids, text: None })
}
