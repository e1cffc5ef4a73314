//! Penalties on tokens that occurred lately: repeat, frequency and presence.

use super::super::SamplerWorkspace;
use super::SamplingSettings;

/// Lowers the logits of the last `penalty_tokens` of `tokens`. The candidates are in the order of tokens.
pub(super) fn apply(workspace: &mut SamplerWorkspace, settings: &SamplingSettings, tokens: &[u32]) {
    let SamplerWorkspace { candidates, recent, .. } = workspace;
    let repeat = f64::from(settings.repeat_penalty);
    let (frequency, presence) = (f64::from(settings.frequency_penalty), f64::from(settings.presence_penalty));
    if repeat == 1.0 && frequency == 0.0 && presence == 0.0 {
        return;
    }
    recent.clear();
    recent.extend_from_slice(&tokens[tokens.len().saturating_sub(settings.penalty_tokens)..]);
    recent.sort_unstable();
    for same in recent.chunk_by(|a, b| a == b) {
        // A banned token is no candidate any more.
        let Ok(index) = candidates.binary_search_by_key(&same[0], |candidate| candidate.token) else { continue };
        let logit = &mut candidates[index].logit;
        // Dividing a negative logit would raise it.
        *logit = if *logit > 0.0 { *logit / repeat } else { *logit * repeat };
        *logit -= frequency * same.len() as f64 + presence;
    }
}
