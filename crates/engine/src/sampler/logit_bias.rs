//! Suppressed tokens, which the model rules out, and biases: what the caller adds to single tokens. The first stage, so that
//! penalties see what it made of the logits.

use super::candidates::Candidate;
use super::settings::LogitBias;

/// Adds the biases and drops the banned and the suppressed tokens. `candidates` are all tokens in order.
pub(super) fn apply(candidates: &mut Vec<Candidate>, suppressed: &[u32], biases: &[LogitBias]) {
    let mut bans = !suppressed.is_empty();
    for &token in suppressed {
        candidates[token as usize].logit = f64::NEG_INFINITY; // and stays so with any bias
    }
    for &LogitBias { token, bias } in biases {
        candidates[token as usize].logit += f64::from(bias);
        bans |= bias == f32::NEG_INFINITY;
    }
    if bans {
        candidates.retain(|candidate| candidate.logit > f64::NEG_INFINITY);
    }
}
