//! Judgement about a peer, by facts gathered before. It reads no file and no clock, so it may run in the engine's turn,
//! or in a simulation.

use muser_trust::identity::{NodeFacts, Revoked};
use muser_wire::MacKeys;

use super::trust::TrustError;

/// Facts by which a peer is judged at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Evidence<'a> {
    /// The peer, by the certificate of its lane.
    pub peer: &'a NodeFacts,
    /// This node's clock, seconds since 1970.
    pub now_unix_s: u64,
    /// Entry of a deny-list that concerns it.
    pub revoked: Option<Revoked>,
    /// True if this node has the peer in its quarantine.
    pub quarantined: bool,
    /// MAC key of the handoff in question, with this node's keys; `None` if it is about no handoff.
    pub key: Option<(u32, &'a MacKeys)>,
}

impl Evidence<'_> {
    /// Checks that handoffs of the peer may be begun, committed and used.
    ///
    /// # Errors
    /// [`TrustError`]; reasons that void earlier handoffs too are reported first.
    pub fn judge(&self) -> Result<(), TrustError> {
        let NodeFacts { id, not_before_unix_s, not_after_unix_s, .. } = *self.peer;
        if let Some(revoked) = self.revoked {
            return Err(TrustError::Revoked { id, revoked });
        }
        if self.quarantined {
            return Err(TrustError::Quarantined(id));
        }
        if !(not_before_unix_s..=not_after_unix_s).contains(&self.now_unix_s) {
            let (from_unix_s, until_unix_s) = (not_before_unix_s, not_after_unix_s);
            return Err(TrustError::OutOfTime { id, from_unix_s, until_unix_s, now_unix_s: self.now_unix_s });
        }
        self.key.map_or(Ok(()), |(id, keys)| keys.to_serve(id).map(drop).map_err(TrustError::from))
    }
}

impl TrustError {
    /// True if pages that came before are taken back as well. A certificate or a key that came to its end says nothing about
    /// what was sent while it was valid.
    pub fn concerns_earlier_pages(&self) -> bool {
        matches!(self, Self::Revoked { .. } | Self::Quarantined(_))
    }
}
