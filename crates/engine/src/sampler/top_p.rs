//! Top-p: the smallest set of likeliest tokens that reaches a probability (nucleus sampling, Holtzman et al. 2020).

use super::candidates::{Candidate, sorted_softmax};

/// Keeps the likeliest candidates whose probabilities first reach `p` in sum; 1 keeps all.
pub(super) fn apply(candidates: &mut Vec<Candidate>, p: f32) {
    if p >= 1.0 {
        return;
    }
    sorted_softmax(candidates);
    let mut sum = 0.0;
    let kept = candidates.iter().position(|candidate| {
        sum += candidate.weight;
        sum >= f64::from(p)
    });
    candidates.truncate(kept.map_or(candidates.len(), |last| last + 1));
}
