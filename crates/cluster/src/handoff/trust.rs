//! Keys and deny-list of a node that runs: read again whenever their files change, so that a rotation or a revocation counts
//! from the next handoff on, and for one under way at its end.
//!
//! A file that cannot be read stops handoffs until it can: nothing that was known before is used instead.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use muser_wire::{KeyState as WireKeyState, MacKeys};

use crate::files::{FileError, Stamp};
use crate::identity::{ClusterFolder, NodeFacts, NodeId, Revocations, RevocationsError, Revoked};
use crate::keys::{KeyFileError, KeyRing, KeyState};

/// Why a handoff is neither begun nor used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrustError {
    /// This node's MAC keys cannot be read.
    #[error("{}: the MAC keys cannot be used: {error}", path.display())]
    Keys {
        /// The file.
        path: PathBuf,
        /// What is wrong.
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
        /// By what.
        revoked: Revoked,
    },
}

/// The keys and the deny-list in a cluster folder.
#[derive(Debug)]
pub struct Trust {
    folder: ClusterFolder,
    revocations: Arc<Revocations>,
    known: Mutex<Known>,
}

/// MAC keys as the protocol wants them.
#[derive(Debug)]
pub(super) struct Keys {
    pub(super) macs: MacKeys,
    /// The key that begins handoffs.
    pub(super) active: Option<u32>,
}

#[derive(Debug)]
struct Known {
    stamp: Stamp,
    keys: Arc<Keys>,
}

impl Trust {
    /// Reads the keys; the deny-list is shared with whoever admits lanes.
    ///
    /// # Errors
    /// [`TrustError::Keys`].
    pub fn load(folder: ClusterFolder, revocations: Arc<Revocations>) -> Result<Self, TrustError> {
        let known = Known::read(&folder)?;
        Ok(Self { folder, revocations, known: Mutex::new(known) })
    }

    /// The keys, after reading them again if they changed.
    pub(super) fn keys(&self) -> Result<Arc<Keys>, TrustError> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let stamp = Stamp::of(&self.folder.keys()).map_err(|error| keys_error(&self.folder, error.into()))?;
        if stamp != known.stamp {
            *known = Known::read(&self.folder)?;
        }
        Ok(Arc::clone(&known.keys))
    }

    /// Whether the peer is admitted still.
    pub(super) fn admits(&self, peer: &NodeFacts) -> Result<(), TrustError> {
        match self.revocations.revokes(peer)? {
            Some(revoked) => Err(TrustError::Revoked { id: peer.id, revoked }),
            None => Ok(()),
        }
    }
}

impl Keys {
    pub(super) fn of(ring: &KeyRing) -> Self {
        let mut macs = MacKeys::default();
        for (id, state, _) in ring.list() {
            let state = match state {
                KeyState::Active => WireKeyState::Active,
                KeyState::VerifyOnly | KeyState::Next => WireKeyState::VerifyOnly,
                KeyState::Revoked => WireKeyState::Revoked,
            };
            // A revoked key has no bytes left; nothing is ever made or checked with these.
            macs.set(id, ring.verifying(id).copied().unwrap_or_default(), state);
        }
        Self { macs, active: ring.active().ok().map(|(id, _)| id) }
    }
}

impl Known {
    fn read(folder: &ClusterFolder) -> Result<Self, TrustError> {
        // Looked at before reading: a change in between is seen the next time.
        let stamp = Stamp::of(&folder.keys()).map_err(|error: FileError| keys_error(folder, error.into()))?;
        let ring = folder.load_keys().map_err(|error| keys_error(folder, error))?;
        Ok(Self { stamp, keys: Arc::new(Keys::of(&ring)) })
    }
}

fn keys_error(folder: &ClusterFolder, error: KeyFileError) -> TrustError {
    TrustError::Keys { path: folder.keys(), error }
}
