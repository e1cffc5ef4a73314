//! Top-p: the smallest set of likeliest tokens that reaches a probability (nucleus sampling, Holtzman et al. 2020).

use super::super::SamplerWorkspace;
use super::super::candidates::sorted_softmax;
use super::SamplingSettings;

/// Keeps the likeliest candidates whose probabilities first reach `top_p` in sum; 1 keeps all.
pub(super) fn apply(workspace: &mut SamplerWorkspace, settings: &SamplingSettings, _tokens: &[u32]) {
    let (candidates, p) = (&mut workspace.candidates, settings.top_p);
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
