//! Min-p: the tokens that are not far less likely than the likeliest.

use super::candidates::{Candidate, peak};

/// Keeps the candidates at least `p` times as likely as the likeliest; 0 keeps all.
pub(super) fn apply(candidates: &mut Vec<Candidate>, p: f32) {
    if p > 0.0 {
        let lowest = peak(candidates) + libm::log(f64::from(p));
        candidates.retain(|candidate| candidate.logit >= lowest);
    }
}
