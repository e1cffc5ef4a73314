//! One request on its own: chunked prefill, then one token at a time.

use std::ops::ControlFlow;

use muser_kernels::attention::KvLayout;
use muser_kv::{PagePool, SequenceCache};
use muser_model::{CacheError, Executor, ForwardError, LogitsWanted, SequenceInput, StepError};

use crate::sampler::{Sampler, SamplerWorkspace, Sampling, SamplingError};

/// What to generate.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// Token ids to continue; at least one.
    pub prompt: &'a [u32],
    /// Tokens to generate at most; `None` goes on until the model ends or the context is full.
    pub tokens_max: Option<usize>,
    /// Positions to make room for: prompt and generated tokens together.
    pub context: usize,
    /// How the cache keeps keys and values.
    pub kv: KvLayout,
    /// How tokens are chosen.
    pub sampling: Sampling,
}

/// Why generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model chose a token that ends the text.
    EndOfGeneration,
    /// `tokens_max` tokens were generated.
    Limit,
    /// Prompt and generated tokens fill the context.
    ContextFull,
    /// The receiver of the tokens asked to stop.
    Stopped,
}

/// What came of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Tokens generated, the one that ended the text included.
    pub generated: usize,
    /// Why it ended.
    pub finish: Finish,
    /// Bytes of KV pages held at the end.
    pub kv_bytes: usize,
    /// Tokens of the prompt whose keys and values were there already.
    pub reused: usize,
    /// How often it gave up its pages to others and computed them again.
    pub preemptions: usize,
}

/// Why a request failed. Nothing of it remains.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GenerateError {
    /// There is nothing to continue.
    #[error("the prompt has no tokens, and this model adds none at the start")]
    EmptyPrompt,
    /// The prompt leaves no room for a token; nothing is cut silently.
    #[error("the prompt has {prompt} tokens, the context holds {context}: at most {} fit before the first new token", context.saturating_sub(1))]
    PromptTooLong {
        /// Tokens in the prompt.
        prompt: usize,
        /// Positions of the context.
        context: usize,
    },
    /// More positions than the model has.
    #[error("a context of {wanted} positions was asked for, the model was made for {trained}")]
    ContextTooLong {
        /// Positions asked for.
        wanted: usize,
        /// Positions the model was made for.
        trained: usize,
    },
    /// Sampling settings out of range.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// The model's geometry cannot be cached in this layout.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// The step was refused.
    #[error(transparent)]
    Step(#[from] StepError),
    /// The computation met a value that is not a number.
    #[error(transparent)]
    Forward(#[from] ForwardError),
}

/// A request under way, one token per call.
pub struct Generation<'a> {
    executor: &'a mut Executor,
    cache: SequenceCache,
    sampler: Sampler,
    workspace: SamplerWorkspace,
    tokens: Vec<u32>,
    logits: Vec<f32>,
    context: usize,
    left: Option<usize>,
    generated: usize,
}

impl<'a> Generation<'a> {
    /// Computes the prompt's KV in chunks of at most `executor.rows_max()` rows, and the logits after it.
    ///
    /// # Errors
    /// [`GenerateError`] names what was wrong with the request or met on the way.
    pub fn prefill(executor: &'a mut Executor, pages: &PagePool, request: &Request<'_>) -> Result<Self, GenerateError> {
        let config = executor.model().config();
        let (prompt, trained) = (request.prompt.len(), config.context);
        if request.prompt.is_empty() {
            return Err(GenerateError::EmptyPrompt);
        }
        if request.context > trained {
            return Err(GenerateError::ContextTooLong { wanted: request.context, trained });
        }
        if prompt >= request.context && request.tokens_max != Some(0) || prompt > request.context {
            return Err(GenerateError::PromptTooLong { prompt, context: request.context });
        }
        let vocab = config.vocab;
        let spec = executor.model().cache_spec(request.kv, request.context)?;
        let mut generation = Self {
            cache: SequenceCache::new(spec, pages.clone()),
            executor,
            sampler: Sampler::new(request.sampling.into(), vocab)?,
            workspace: SamplerWorkspace::new(vocab),
            tokens: request.prompt.to_vec(),
            logits: vec![0.0; vocab],
            context: request.context,
            left: request.tokens_max,
            generated: 0,
        };
        let chunk = generation.executor.rows_max();
        let mut rest = request.prompt;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(chunk.min(rest.len()));
            generation.forward(now, if later.is_empty() { LogitsWanted::Last } else { LogitsWanted::None })?;
            rest = later;
        }
        Ok(generation)
    }

    /// Generates until one of the ends in [`Finish`]; `on_token` sees every token that is not an end of generation.
    ///
    /// # Errors
    /// [`GenerateError`] from the computation.
    pub fn run(
        mut self,
        is_end: impl Fn(u32) -> bool,
        mut on_token: impl FnMut(u32) -> ControlFlow<()>,
    ) -> Result<Outcome, GenerateError> {
        let finish = loop {
            if self.left.is_some_and(|left| self.generated >= left) {
                break Finish::Limit;
            }
            let token = self.sampler.choose(&self.logits, &self.tokens, &mut self.workspace);
            self.tokens.push(token);
            self.generated += 1;
            if is_end(token) {
                break Finish::EndOfGeneration;
            }
            if on_token(token).is_break() {
                break Finish::Stopped;
            }
            if self.cache.rows() + 1 >= self.context {
                break Finish::ContextFull;
            }
            if self.left.is_none_or(|left| self.generated < left) {
                self.forward(&[token], LogitsWanted::Last)?;
            }
        };
        let kv_bytes = self.cache.bytes();
        Ok(Outcome { generated: self.generated, finish, kv_bytes, reused: 0, preemptions: 0 })
    }

    /// Appends `tokens` to the sequence; with [`LogitsWanted::Last`], keeps the logits after them.
    fn forward(&mut self, tokens: &[u32], logits: LogitsWanted) -> Result<(), GenerateError> {
        let mut batch = [SequenceInput::new(&mut self.cache, tokens, logits)];
        let kept = &mut self.logits;
        self.executor.forward(&mut batch, &mut |_, row| kept.copy_from_slice(row))?;
        let [input] = batch;
        Ok(input.outcome?)
    }
}
