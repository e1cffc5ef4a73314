//! Temperature: how much less likely tokens matter; at zero not at all.

use super::candidates::{Candidate, likelier};

/// Divides the logits by `temperature`, or at 0 keeps the likeliest candidate alone, the lowest token of a tie.
pub(super) fn apply(candidates: &mut Vec<Candidate>, temperature: f32) {
    if temperature == 0.0 {
        if let Some(best) = candidates.iter().copied().min_by(likelier) {
            candidates.clear();
            candidates.push(best);
        }
        return;
    }
    let temperature = f64::from(temperature);
    for candidate in candidates {
        candidate.logit /= temperature;
    }
}
