//! Requests and errors of the engine.

use std::sync::Arc;

use muser_kv::{ExportError, Realm, SpecError};
use muser_model::{CacheError, DeviceError, ForwardError, StepError};

use crate::sampler::{LogprobsWanted, SamplingError, SamplingSettings};

/// Generation request: prompt, limits, sampling and scheduling flow.
#[derive(Clone, Debug)]
pub struct Request {
    /// Token ids to continue; at least one.
    pub prompt: Vec<u32>,
    /// Tokens to generate at most; `None` goes on until a stop token or the end of the context. With 0 the prompt's keys and
    /// values are computed and nothing else.
    pub tokens_max: Option<usize>,
    /// Positions of prompt and generated tokens together; at most the engine's.
    pub context: usize,
    /// Tokens that end the text.
    pub stop_tokens: Arc<[u32]>,
    /// Sampler settings.
    pub sampling: SamplingSettings,
    /// If present, each token comes with its probability and those of the likeliest tokens.
    pub logprobs: Option<LogprobsWanted>,
    /// Reuse of kept pages, those of other requests by it and its own by others. No token depends on it.
    pub reuse: PrefixReuse,
    /// Client and group, for turns.
    pub flow: Flow,
}

/// Scheduling flow of a request: places turn between clients, then between the groups of a client. No token depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// The client.
    pub client: u64,
    /// Requests of a client that share one turn: the answers to one question.
    pub group: u64,
}

/// Scope of a request's prefix reuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefixReuse {
    /// It resumes from kept pages of the common realm, and its own are kept there.
    Share,
    /// It resumes from kept pages of this realm, and its own are kept there, visible to no other realm.
    Within(Realm),
    /// It computes everything itself, and leaves nothing behind.
    Isolate,
}

impl PrefixReuse {
    /// The realm whose pages it uses, if any.
    pub fn realm(&self) -> Option<Realm> {
        match self {
            Self::Share => Some(Realm::COMMON),
            Self::Within(realm) => Some(*realm),
            Self::Isolate => None,
        }
    }

    /// The identity that its page names start from. Without a realm it is the model's, and no page is kept or found by
    /// name.
    pub(super) fn identity(&self, model: &[u8; 32]) -> [u8; 32] {
        self.realm().map_or(*model, |realm| realm.identity(model))
    }
}

impl Request {
    /// Rows whose keys and values it comes to have at most: the last token's are never computed, since no token follows it.
    pub(super) fn rows_most(&self) -> usize {
        let generated = self.tokens_max.map_or(self.context, |more| self.prompt.len().saturating_add(more));
        generated.min(self.context).saturating_sub(1).max(self.prompt.len())
    }
}

/// Names a request within its engine; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub(crate) u64);

impl RequestId {
    /// Number of requests and audits that the engine had accepted before.
    pub fn number(self) -> u64 {
        self.0
    }
}

/// Error of submitting a request: it was not accepted, and nothing of it remains.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// The prompt has no tokens.
    #[error("the prompt has no tokens")]
    EmptyPrompt,
    /// A token that the model does not have.
    #[error("token {token} does not exist: the vocabulary has {vocab}")]
    UnknownToken {
        /// Token of the prompt.
        token: u32,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// The prompt leaves no room for a token; nothing is cut silently.
    #[error("the prompt has {prompt} tokens, the context holds {context}: at most {} fit before the first new token", context.saturating_sub(1))]
    PromptTooLong {
        /// Tokens in the prompt.
        prompt: usize,
        /// Positions of the request's context.
        context: usize,
    },
    /// More positions than the engine has.
    #[error("a context of {wanted} positions was asked for, the engine has {max}")]
    ContextTooLong {
        /// Positions asked for.
        wanted: usize,
        /// Positions of the engine's sequences.
        max: usize,
    },
    /// A sampling setting is out of range.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// The queue is full; the caller tries again later.
    #[error("{waiting} requests are waiting, no more than {max} may")]
    QueueFull {
        /// Requests that wait.
        waiting: usize,
        /// Most that may.
        max: usize,
    },
    /// Even alone, with nothing kept for reuse, it could need more memory than there is: a shorter context or fewer tokens
    /// would do.
    #[error("the request may need {needed_bytes} bytes of KV pages, there are {budget_bytes}")]
    NeverFits {
        /// Bytes it holds at most.
        needed_bytes: usize,
        /// The engine's budget.
        budget_bytes: usize,
    },
}

/// Error of creating an engine: the settings do not fit the model or the executor.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The model's geometry cannot be cached in this layout or for this many positions.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// More positions than the model has.
    #[error("a context of {wanted} positions was asked for, the model was made for {trained}")]
    ContextTooLong {
        /// Positions asked for.
        wanted: usize,
        /// Positions the model was made for.
        trained: usize,
    },
    /// Decode rows of all running sequences must fit one step.
    #[error("{running_max} sequences may run, but a step has only {rows_max} rows")]
    TooManyRunning {
        /// Sequences that may run at once.
        running_max: usize,
        /// Rows of the executor's steps.
        rows_max: usize,
    },
}

impl From<SpecError> for EngineError {
    fn from(refused: SpecError) -> Self {
        Self::Cache(refused.into())
    }
}

/// The step could not be run. No cache has changed.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum StepRefused {
    /// An error in the engine: the executor refuses what was planned, before anything is computed.
    #[error("the engine planned a step that cannot be run: {0}")]
    Planned(StepError),
    /// The device failed and computes nothing any more. Every request has ended with [`RequestError::DeviceFailed`].
    #[error(transparent)]
    DeviceFailed(DeviceError),
}

/// Failure of one request. Tokens chosen before it stand.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The computation met a value that is not a number.
    #[error(transparent)]
    NotFinite(#[from] ForwardError),
    /// The device has no room for a step of this request, with no other beside it.
    #[error("a step of this request alone does not fit: {0}")]
    DeviceMemory(DeviceError),
    /// The device failed; so has every other request.
    #[error(transparent)]
    DeviceFailed(DeviceError),
    /// A page to export is not held.
    #[error(transparent)]
    Export(#[from] ExportError),
}

/// Rows computed by a step, and sequences after it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepReport {
    /// Rows from which next tokens were chosen, one per decoding sequence.
    pub decode_rows: usize,
    /// Rows of prompts, and of tokens computed again.
    pub prefill_rows: usize,
    /// Sequences that run after the step.
    pub running: usize,
    /// Requests that wait after the step.
    pub waiting: usize,
}
