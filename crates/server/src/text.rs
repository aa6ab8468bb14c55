//! What the server needs of a model's text side: tokenizer, chat template, suggested sampling parameters.

use model::{ChatTemplate, EncodeOptions, GenerationDefaults, Model, RenderOptions, Tokenizer};
use serde_json::Value;
use std::sync::Arc;

/// Why a text could not be turned into tokens: always the request's fault, so the message goes to the client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// The model has no chat template.
    #[error("this model has no chat template: use /v1/completions")]
    NoTemplate,
    /// The template raised an exception or uses what the messages lack.
    #[error("the chat template refused the messages: {0}")]
    Template(String),
    /// The vocabulary cannot express the text.
    #[error("the text cannot be tokenised: {0}")]
    Encode(String),
}

/// Text to tokens and back. Called from blocking threads and, for single tokens, from async code.
pub trait Text: Send + Sync + 'static {
    /// Token ids of a text.
    ///
    /// # Errors
    /// [`TextError::Encode`].
    fn encode(&self, text: &str, options: EncodeOptions) -> Result<Vec<u32>, TextError>;
    /// The prompt of a conversation.
    ///
    /// # Errors
    /// [`TextError::NoTemplate`] and [`TextError::Template`].
    fn render(&self, messages: &Value, options: &RenderOptions) -> Result<String, TextError>;
    /// Bytes of one token, which need not be whole UTF-8; a control token's name for a control token.
    fn token_bytes(&self, id: u32) -> &[u8];
    /// Whether a token is control, not text.
    fn is_control(&self, id: u32) -> bool;
    /// Token ids are below this.
    fn vocab_size(&self) -> usize;
    /// The token put before a text, if any.
    fn bos(&self) -> Option<u32>;
    /// Tokens that end a generation.
    fn eos(&self) -> &[u32];
    /// Sampling parameters for what a request leaves open.
    fn defaults(&self) -> &GenerationDefaults;
}

/// [`Text`] of a loaded model.
#[derive(Debug, Clone)]
pub struct ModelText {
    tokenizer: Arc<Tokenizer>,
    template: Option<Arc<ChatTemplate>>,
    defaults: GenerationDefaults,
}

impl ModelText {
    /// From its parts.
    pub fn new(
        tokenizer: Arc<Tokenizer>,
        template: Option<Arc<ChatTemplate>>,
        defaults: GenerationDefaults,
    ) -> Self {
        Self { tokenizer, template, defaults }
    }

    /// From a model.
    pub fn of(model: &Model) -> Self {
        Self::new(model.tokenizer().clone(), model.chat_template().cloned(), model.generation().clone())
    }
}

impl Text for ModelText {
    fn encode(&self, text: &str, options: EncodeOptions) -> Result<Vec<u32>, TextError> {
        self.tokenizer.encode(text, options).map_err(|e| TextError::Encode(e.to_string()))
    }

    fn render(&self, messages: &Value, options: &RenderOptions) -> Result<String, TextError> {
        let template = self.template.as_ref().ok_or(TextError::NoTemplate)?;
        template.render(messages, options).map_err(|e| TextError::Template(e.to_string()))
    }

    fn token_bytes(&self, id: u32) -> &[u8] {
        self.tokenizer.token_bytes(id)
    }

    fn is_control(&self, id: u32) -> bool {
        self.tokenizer.is_control(id)
    }

    fn vocab_size(&self) -> usize {
        self.tokenizer.vocab_size()
    }

    fn bos(&self) -> Option<u32> {
        self.tokenizer.bos()
    }

    fn eos(&self) -> &[u32] {
        self.tokenizer.eos()
    }

    fn defaults(&self) -> &GenerationDefaults {
        &self.defaults
    }
}
