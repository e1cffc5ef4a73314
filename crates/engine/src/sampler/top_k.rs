//! Top-k: the k likeliest tokens.

use super::candidates::{Candidate, likelier};

/// Keeps `k` candidates; 0 keeps all.
pub(super) fn apply(candidates: &mut Vec<Candidate>, k: usize) {
    if k > 0 && k < candidates.len() {
        candidates.select_nth_unstable_by(k - 1, likelier);
        candidates.truncate(k);
    }
}
