//! Events of requests, from the engine to the client: one type on the whole way, which borrows nothing from the step.

use super::audit::Verdict;
use super::error::RequestError;
use super::export::ReadyPage;
use super::job::RequestId;
use crate::sampler::TokenLogprobs;

/// Event of one request or audit, in the order in which the engine emits them.
#[derive(Clone, Debug)]
pub enum RequestEvent {
    /// The request left the queue for the first time.
    Started {
        /// Tokens of its prompt whose keys and values were there already, cached or installed.
        reused: usize,
        /// Index of its slot, below [`EngineSettings::running_max`](super::EngineSettings::running_max).
        slot: usize,
    },
    /// More of the tokens so far have their keys and values.
    Progress {
        /// Tokens that have them, reused ones included.
        computed: usize,
        /// Tokens that need them before the next token can be chosen.
        total: usize,
        /// Pages that are complete, each given out once; empty unless the request exports them.
        pages: Vec<ReadyPage>,
    },
    /// A token was chosen.
    Token(ChosenToken),
    /// Memory was short: the request gave up its pages and waits again, before all that never ran. Its tokens stand, and
    /// their keys and values will be computed again or found.
    Preempted,
    /// It was another client's turn, or the device has no room for it beside those that started before: the request waits
    /// again and keeps its pages, unless [`RequestEvent::Preempted`] follows.
    Paused,
    /// A request that waited again runs again.
    Resumed {
        /// Index of its slot now.
        slot: usize,
    },
    /// The request is done.
    Finished(Outcome),
    /// The audit is done. Nothing of it is left.
    Audited(Verdict),
    /// The request or audit failed. Tokens chosen before stand.
    Failed(RequestError),
}

/// Callback for the events of a step, called with the request that each is about.
pub type OnEvent<'a> = dyn FnMut(RequestId, RequestEvent) + 'a;

/// One chosen token.
#[derive(Clone, Debug, PartialEq)]
pub struct ChosenToken {
    /// Its id.
    pub token: u32,
    /// True for a stop token of the request, which ends the text and is not part of it; [`RequestEvent::Finished`] follows.
    pub is_stop: bool,
    /// Log-probabilities at its position, if the request asked for them.
    pub logprobs: Option<TokenLogprobs>,
}

/// Finish reason of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model chose a token that ends the text.
    EndOfGeneration,
    /// `tokens_max` tokens were generated.
    Limit,
    /// Prompt and generated tokens fill the context.
    ContextFull,
    /// It was cancelled.
    Stopped,
}

/// Final counts of a request, and its finish reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Tokens generated, the one that ended the text included.
    pub generated: usize,
    /// Finish reason.
    pub finish: Finish,
    /// Bytes of KV pages held at the end.
    pub kv_bytes: usize,
    /// Tokens of the prompt whose keys and values were there already.
    pub reused: usize,
    /// Preemptions: times it gave up its pages to other sequences and waited again.
    pub preemptions: usize,
}

impl RequestEvent {
    /// True if no event of the request follows.
    pub fn is_last(&self) -> bool {
        matches!(self, Self::Finished(_) | Self::Audited(_) | Self::Failed(_))
    }
}
