//! Locally typical sampling: the tokens whose surprise is closest to the expected surprise (Meister et al. 2022).

use super::super::SamplerWorkspace;
use super::super::candidates::{Candidate, likelier, sorted_softmax};
use super::SamplingSettings;

/// Keeps the candidates closest to the entropy whose probabilities first exceed `typical_p` in sum; 1 keeps all.
pub(super) fn apply(workspace: &mut SamplerWorkspace, settings: &SamplingSettings, _tokens: &[u32]) {
    let (candidates, p) = (&mut workspace.candidates, settings.typical_p);
    if p >= 1.0 {
        return;
    }
    sorted_softmax(candidates);
    let surprise = |probability: f64| if probability > 0.0 { -libm::log(probability) } else { f64::INFINITY };
    let mut entropy = 0.0;
    for candidate in candidates.iter().filter(|candidate| candidate.weight > 0.0) {
        entropy += candidate.weight * surprise(candidate.weight);
    }
    let distance = |candidate: &Candidate| (surprise(candidate.weight) - entropy).abs();
    candidates.sort_unstable_by(|a, b| distance(a).total_cmp(&distance(b)).then_with(|| likelier(a, b)));
    let mut sum = 0.0;
    let kept = candidates.iter().position(|candidate| {
        sum += candidate.weight;
        sum > f64::from(p)
    });
    candidates.truncate(kept.map_or(candidates.len(), |last| last + 1));
}
