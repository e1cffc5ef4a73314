//! The tokens still in the running, and what all stages need to know about them.

use std::cmp::Ordering;

/// A token that can still be chosen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) token: u32,
    /// Computed in f64, in which no setting that passed its check can overflow a finite f32 logit.
    pub(super) logit: f64,
    /// Score set by the current stage: a probability, a distance or a running sum.
    pub(super) weight: f64,
}

/// Every token with its logit, in the order of tokens.
pub(super) fn fill(candidates: &mut Vec<Candidate>, logits: &[f32]) {
    candidates.clear();
    // Adding zero makes a negative zero positive, so that the two tie.
    candidates.extend((0u32..).zip(logits).map(|(token, &z)| Candidate {
        token,
        logit: f64::from(z) + 0.0,
        weight: 0.0,
    }));
}

/// The likelier first; of equals the lower token first, so that no two candidates are equal.
pub(super) fn likelier(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.total_cmp(&a.logit).then(a.token.cmp(&b.token))
}

/// Sorts by [`likelier`] and sets each weight to the candidate's probability among all of them.
pub(super) fn sorted_softmax(candidates: &mut [Candidate]) {
    candidates.sort_unstable_by(likelier);
    let peak = candidates[0].logit;
    let mut total = 0.0;
    for candidate in &mut *candidates {
        candidate.weight = libm::exp(candidate.logit - peak);
        total += candidate.weight;
    }
    for candidate in candidates {
        candidate.weight /= total;
    }
}

/// The highest logit.
pub(super) fn peak(candidates: &[Candidate]) -> f64 {
    candidates.iter().map(|candidate| candidate.logit).fold(f64::NEG_INFINITY, f64::max)
}
