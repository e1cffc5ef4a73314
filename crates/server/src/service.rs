//! The loaded model behind the routes: engine, tokenizer, chat templates, and facts about the model.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use muser_engine::{Engine, VocabularyLoadError, load_templates, load_tokenizer, main_template};
use muser_text::{ChatTemplates, ControlTokens, Tokenizer};
use muser_weights::gguf::Metadata;

use crate::limits::TEXT_BYTES_MAX;
use crate::pages::{KeptPages, PageSource};
use crate::prompt::PromptLimits;
use crate::settings::ServiceSettings;
use muser_host::EngineHost;

/// Tokenizer and chat templates of a model.
#[derive(Debug)]
pub struct Words {
    /// Text to tokens and back.
    pub tokenizer: Tokenizer,
    /// The chat templates, or the error of loading them: the other routes answer without them.
    pub templates: Result<ChatTemplates, String>,
    /// The main template's source, for `/props`.
    pub template_source: Option<String>,
}

impl Words {
    /// Loads tokenizer and templates from the metadata of a file whose model has `vocab` tokens.
    ///
    /// # Errors
    /// If there is no usable tokenizer.
    pub fn load(metadata: &Metadata<'_>, vocab: usize) -> Result<Self, VocabularyLoadError> {
        Ok(Self {
            tokenizer: load_tokenizer(metadata, vocab)?,
            templates: load_templates(metadata).map_err(|error| error.to_string()),
            template_source: main_template(metadata).ok().flatten().map(str::to_owned),
        })
    }
}

impl Words {
    /// The most bytes of a text whose tokens can fit `context`: a longer one need not be tokenised to be refused.
    fn text_bytes_max(&self, context: usize) -> usize {
        // Bytes without a token are left out of a text, so any number of them fits.
        if !self.tokenizer.missing_bytes().is_empty() {
            return TEXT_BYTES_MAX;
        }
        let ids = (0u32..).take(self.tokenizer.token_count());
        let bytes = ids.filter_map(|id| self.tokenizer.token_bytes(id, ControlTokens::Show).ok()).map(<[u8]>::len);
        // The unknown token stands for a character of up to 4 bytes, and a space may be written with 3.
        let longest = bytes.max().unwrap_or(0).max(4).saturating_mul(3);
        context.saturating_add(1).saturating_mul(longest).min(TEXT_BYTES_MAX)
    }
}

/// A loaded model.
#[derive(Debug)]
pub struct Service {
    /// Source of prompts' pages. The first field, so that it is dropped and a policy file written before the engine
    /// ends: the process may exit as soon as the engine has ended.
    pub pages: Box<dyn PageSource>,
    /// The engine.
    pub host: EngineHost,
    /// Tokenizer and chat templates.
    pub words: Words,
    /// Tokens that end a text.
    pub end_of_generation: Arc<[u32]>,
    /// Positions of a sequence.
    pub context: usize,
    /// Sequences that run at once.
    pub slots: usize,
    /// Facts about the model.
    pub model: ModelFacts,
    /// Limits and defaults applied to every request.
    pub settings: ServiceSettings,
    /// The most bytes of text that can fit the context.
    prompt_bytes_max: usize,
}

/// Facts about the model, for `/v1/models` and `/props`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelFacts {
    /// Tokens of the vocabulary.
    pub vocab: usize,
    /// Positions it was trained for.
    pub context_trained: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Weights in all.
    pub parameters: u64,
    /// Bytes of the weights, as they are in memory.
    pub bytes: usize,
}

impl Service {
    /// Moves the engine into a thread of its own, which ends when the service and all answers are dropped.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub fn start(engine: Engine, words: Words, settings: ServiceSettings) -> io::Result<(Self, JoinHandle<()>)> {
        let executor = engine.executor();
        let config = executor.spec().config();
        let facts = ModelFacts {
            vocab: config.vocab,
            context_trained: config.context,
            hidden: config.hidden,
            parameters: executor.spec().parameters(),
            bytes: executor.weight_bytes(),
        };
        let (context, slots) = (engine.settings().context, engine.settings().running_max.get());
        let end_of_generation = Arc::from(words.tokenizer.end_of_generation_ids());
        let prompt_bytes_max = words.text_bytes_max(context);
        let (host, thread) = EngineHost::start(engine)?;
        let model = facts;
        let pages = Box::new(KeptPages);
        Ok((Self { pages, host, words, end_of_generation, context, slots, model, settings, prompt_bytes_max }, thread))
    }

    /// Begins requests with pages of this source, instead of those that the engine has kept.
    #[must_use]
    pub fn with_pages(self, pages: impl PageSource + 'static) -> Self {
        Self { pages: Box::new(pages), ..self }
    }

    /// Size limits of one request's prompts.
    pub(crate) fn prompt_limits(&self) -> PromptLimits {
        PromptLimits {
            vocab: self.tokenizer().token_count(),
            context: self.context,
            text_bytes: self.prompt_bytes_max,
            prompts: self.settings.answers_max,
        }
    }

    /// Text to tokens and back.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.words.tokenizer
    }
}
