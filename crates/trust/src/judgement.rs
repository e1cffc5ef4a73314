//! Judgement about a peer, by facts gathered before. It reads no file and no clock, so it may run in the engine's turn,
//! or in a simulation.

use std::path::PathBuf;

use muser_wire::{KeyError, MacKeys};

use crate::identity::{NodeFacts, NodeId, RevocationsError, Revoked};
use crate::keys::KeyFileError;
use crate::quarantine::QuarantineError;

/// Reason for which a handoff is neither begun nor used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrustError {
    /// This node's MAC keys cannot be read.
    #[error("{}: the MAC keys cannot be used: {error}", path.display())]
    Keys {
        /// The file.
        path: PathBuf,
        /// Error of the key file.
        #[source]
        error: KeyFileError,
    },
    /// This node's deny-list cannot be read.
    #[error("the deny-list cannot be used: {0}")]
    Revocations(#[from] RevocationsError),
    /// The peer was revoked since it was admitted.
    #[error("node {id} is revoked ({revoked:?})")]
    Revoked {
        /// The peer.
        id: NodeId,
        /// Matching entry of the deny-list.
        revoked: Revoked,
    },
    /// The peer's certificate is not valid at this moment, though its lane is open.
    #[error(
        "the certificate of node {id} is valid from {from_unix_s} to {until_unix_s}, and it is {now_unix_s} (seconds since 1970)"
    )]
    OutOfTime {
        /// The peer.
        id: NodeId,
        /// Its first second.
        from_unix_s: u64,
        /// Its last second.
        until_unix_s: u64,
        /// This node's clock.
        now_unix_s: u64,
    },
    /// The peer is quarantined here.
    #[error("node {0} is quarantined, as it sent wrong keys and values: see muser cluster show")]
    Quarantined(NodeId),
    /// The quarantine cannot be read.
    #[error(transparent)]
    Quarantine(#[from] QuarantineError),
    /// The handoff's MAC key is not one that handoffs are served with.
    #[error(transparent)]
    Key(#[from] KeyError),
}

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
