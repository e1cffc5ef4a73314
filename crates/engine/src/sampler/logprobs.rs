//! Logprobs under the model's own distribution, before any sampler, or under the one that the samplers left to draw from.

use super::candidates::{Candidate, likelier, peak};

/// Logprobs that a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogprobsWanted {
    /// Likeliest tokens to report, besides the chosen one.
    pub count: usize,
    /// Distribution that they are taken from.
    pub stage: LogprobsStage,
}

/// Distribution that logprobs are taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogprobsStage {
    /// The softmax of the raw logits over the whole vocabulary, before any sampler.
    Model,
    /// The softmax that the token was drawn from: of the tokens that all stages left, divided by the temperature. Greedy,
    /// it is one token with probability 1.
    Draw,
}

/// A token and the natural logarithm of its probability.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub token: u32,
    /// At most 0; finite.
    pub logprob: f64,
}

/// Probabilities at one position, under the softmax of [`LogprobsWanted::stage`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Logprobs<'a> {
    /// The chosen token, likely or not.
    pub chosen: TokenLogprob,
    /// The likeliest tokens, likeliest first and the lower token first among equals; as many as were asked for, or all that
    /// there are.
    pub top: &'a [TokenLogprob],
}

/// [`Logprobs`] that outlive the sampler's workspace.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// Of the chosen token.
    pub chosen: TokenLogprob,
    /// Of the likeliest, likeliest first.
    pub top: Vec<TokenLogprob>,
}

impl From<Logprobs<'_>> for TokenLogprobs {
    fn from(found: Logprobs<'_>) -> Self {
        Self { chosen: found.chosen, top: found.top.to_vec() }
    }
}

/// The probabilities of `chosen`, which is among `candidates`, and of the `count` likeliest, under their softmax.
pub(super) fn of<'a>(
    candidates: &mut Vec<Candidate>,
    chosen: u32,
    count: usize,
    top: &'a mut Vec<TokenLogprob>,
) -> Logprobs<'a> {
    let peak = peak(candidates);
    let total: f64 = candidates.iter().map(|candidate| libm::exp(candidate.logit - peak)).sum();
    // The sum is at least 1, the peak's own term, so that no logprob is above 0.
    let log_total = libm::log(total);
    let logprob =
        |candidate: &Candidate| TokenLogprob { token: candidate.token, logprob: candidate.logit - peak - log_total };
    let chosen = candidates.iter().find(|candidate| candidate.token == chosen).map(logprob);
    let chosen = chosen.expect("the chosen token is one of the candidates");
    if 0 < count && count < candidates.len() {
        candidates.select_nth_unstable_by(count - 1, likelier);
    }
    candidates.truncate(count);
    candidates.sort_unstable_by(likelier);
    top.clear();
    top.extend(candidates.iter().map(logprob));
    Logprobs { chosen, top }
}
