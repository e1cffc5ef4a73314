//! Logprobs: what the model itself thinks, before any sampler.

use super::candidates::{Candidate, fill, likelier, peak};

/// A token and the natural logarithm of its probability.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub token: u32,
    /// At most 0; finite.
    pub logprob: f64,
}

/// Probabilities at one position, under the softmax of the raw logits over the whole vocabulary.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Logprobs<'a> {
    /// The chosen token, likely or not.
    pub chosen: TokenLogprob,
    /// The likeliest tokens, likeliest first and the lower token first among equals; as many as were asked for.
    pub top: &'a [TokenLogprob],
}

/// See [`super::SamplerWorkspace::logprobs`].
pub(super) fn of<'a>(
    logits: &[f32],
    chosen: u32,
    count: usize,
    (candidates, top): (&mut Vec<Candidate>, &'a mut Vec<TokenLogprob>),
) -> Logprobs<'a> {
    fill(candidates, logits);
    let peak = peak(candidates);
    let total: f64 = candidates.iter().map(|candidate| libm::exp(candidate.logit - peak)).sum();
    // The sum is at least 1, the peak's own term, so that no logprob is above 0.
    let log_total = libm::log(total);
    let logprob = |logit: f64| logit - peak - log_total;
    let chosen = TokenLogprob { token: chosen, logprob: logprob(candidates[chosen as usize].logit) };
    if 0 < count && count < candidates.len() {
        candidates.select_nth_unstable_by(count - 1, likelier);
    }
    candidates.truncate(count);
    candidates.sort_unstable_by(likelier);
    top.clear();
    top.extend(
        candidates.iter().map(|&Candidate { token, logit, .. }| TokenLogprob { token, logprob: logprob(logit) }),
    );
    Logprobs { chosen, top }
}
