//! Top-k: the k likeliest tokens.

use super::super::SamplerWorkspace;
use super::super::candidates::likelier;
use super::SamplingSettings;

/// Keeps `top_k` candidates; 0 keeps all.
pub(super) fn apply(workspace: &mut SamplerWorkspace, settings: &SamplingSettings, _tokens: &[u32]) {
    let (candidates, k) = (&mut workspace.candidates, settings.top_k);
    if k > 0 && k < candidates.len() {
        candidates.select_nth_unstable_by(k - 1, likelier);
        candidates.truncate(k);
    }
}
