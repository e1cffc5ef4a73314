//! Temperature: the divisor of the logits before the softmax; at 0 the likeliest token alone is left.

use super::super::SamplerWorkspace;
use super::super::candidates::likelier;
use super::SamplingSettings;

/// Divides the logits by `temperature`, or at 0 keeps the likeliest candidate alone, the lowest token of a tie.
pub(super) fn apply(workspace: &mut SamplerWorkspace, settings: &SamplingSettings, _tokens: &[u32]) {
    let candidates = &mut workspace.candidates;
    if settings.temperature == 0.0 {
        if let Some(best) = candidates.iter().copied().min_by(likelier) {
            candidates.clear();
            candidates.push(best);
        }
        return;
    }
    let temperature = f64::from(settings.temperature);
    for candidate in candidates {
        candidate.logit /= temperature;
    }
}
