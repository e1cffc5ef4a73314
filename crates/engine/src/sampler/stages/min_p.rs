//! Min-p: the tokens that are not far less likely than the likeliest.

use super::super::SamplerWorkspace;
use super::super::candidates::peak;
use super::SamplingSettings;

/// Keeps the candidates at least `min_p` times as likely as the likeliest; 0 keeps all.
pub(super) fn apply(workspace: &mut SamplerWorkspace, settings: &SamplingSettings, _tokens: &[u32]) {
    let (candidates, p) = (&mut workspace.candidates, settings.min_p);
    if p > 0.0 {
        let lowest = peak(candidates) + libm::log(f64::from(p));
        candidates.retain(|candidate| candidate.logit >= lowest);
    }
}
