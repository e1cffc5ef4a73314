//! Errors of the engine: of its creation, of a submitted request, of one under way, and of a step.

use muser_kv::{ExportError, SpecError};
use muser_model::{CacheError, DeviceError, ForwardError, StepError};

use crate::sampler::SamplingError;

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
