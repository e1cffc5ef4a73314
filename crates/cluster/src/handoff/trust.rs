//! Keys and deny-list of a node that runs: read again whenever their files change, so that a rotation or a revocation counts
//! from the next handoff on, and for one under way at its end.
//!
//! A file that cannot be read stops handoffs until it can: nothing that was known before is used instead.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use muser_wire::{KeyState as WireKeyState, MacKeys};

use crate::files::{Content, Watched};
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
    revocations: Arc<Revocations>,
    keys: Watched<Keys>,
}

/// MAC keys as the protocol wants them.
#[derive(Debug)]
pub(super) struct Keys {
    pub(super) macs: MacKeys,
    /// The key that begins handoffs.
    pub(super) active: Option<u32>,
}

impl Trust {
    /// Reads the keys; the deny-list is shared with whoever admits lanes.
    ///
    /// # Errors
    /// [`TrustError::Keys`].
    pub fn load(folder: ClusterFolder, revocations: Arc<Revocations>) -> Result<Self, TrustError> {
        let path = folder.keys();
        let keys = Watched::load(&path).map_err(|error| TrustError::Keys { path, error })?;
        Ok(Self { revocations, keys })
    }

    /// The keys, after reading them again if they changed.
    pub(super) async fn keys(&self) -> Result<Arc<Keys>, TrustError> {
        let path = self.keys.path();
        self.keys.current().await.map_err(|error| TrustError::Keys { path: path.to_owned(), error })
    }

    /// Whether the peer is admitted still.
    pub(super) async fn admits(&self, peer: &NodeFacts) -> Result<(), TrustError> {
        match self.revocations.lookup(peer).await? {
            Some(revoked) => Err(TrustError::Revoked { id: peer.id, revoked }),
            None => Ok(()),
        }
    }
}

impl Content for Keys {
    type Error = KeyFileError;

    fn read(path: &Path, _: Option<&Self>) -> Result<Self, KeyFileError> {
        Ok(Self::of(&KeyRing::load(path)?))
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
