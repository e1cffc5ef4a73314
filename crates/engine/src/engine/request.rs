//! Requests as they are submitted.

use std::sync::Arc;

use super::scope::{Flow, PrefixReuse};
use crate::sampler::{LogprobsWanted, SamplingSettings};

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
