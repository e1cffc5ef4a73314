//! Trust in a peer: its certificate's time, deny-list, quarantine and MAC keys, gathered here ([`Standing`]) and judged by one
//! function ([`Evidence::judge`]) whenever it counts: when a handoff is asked for, when it is committed, and when its pages
//! are to become visible; and, as far as it concerns pages that came before, whenever kept ones may be used.
//!
//! Files are read again whenever they change, so that a rotation or a revocation counts from the next handoff on, and for one
//! under way at its end. A file that cannot be read stops handoffs until it can: nothing that was known before is used
//! instead. The engine never waits for a disk: in its turn the judgement is by what was read just before.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use muser_files::{Content, Watched};
use muser_kv::Voucher;
use muser_lane::{Lane, LaneSettings};
use muser_trust::identity::{ClusterFolder, NodeFacts, Revocations};
use muser_trust::judgement::{Evidence, TrustError};
use muser_trust::keys::{KeyFileError, KeyRing, KeyState};
use muser_trust::quarantine::Quarantine;
use muser_wire::{KeyState as WireKeyState, MacKeys};

use super::Member;

/// A peer on its lane, with the lists and keys by which it is trusted.
#[derive(Clone)]
pub(super) struct Standing {
    peer: NodeFacts,
    lane: LaneSettings,
    member: Member,
    /// Decoders only: their quarantine.
    quarantine: Option<Arc<Quarantine>>,
    /// Refusal of the last reading of the files, if it gave one.
    failure: Arc<Mutex<Option<String>>>,
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
    /// Reads the keys; the deny-list is shared with the acceptor of lanes.
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

    /// The keys as they were last read, without blocking.
    fn known_keys(&self) -> Arc<Keys> {
        self.keys.known()
    }

    /// Checks that the peer is not on the deny-list, after reading it again if it changed.
    pub(super) async fn admits(&self, peer: &NodeFacts) -> Result<(), TrustError> {
        match self.revocations.lookup(peer).await? {
            Some(revoked) => Err(TrustError::Revoked { id: peer.id, revoked }),
            None => Ok(()),
        }
    }
}

impl Standing {
    /// The peer of this lane, as `member` sees it.
    pub(super) fn of(member: &Member, lane: &Lane, quarantine: Option<Arc<Quarantine>>) -> Self {
        Self::of_certificate(member, lane.peer().clone(), lane.settings().clone(), quarantine)
    }

    /// A node by a certificate that it had on a lane with these settings.
    pub(super) fn of_certificate(
        member: &Member,
        peer: NodeFacts,
        lane: LaneSettings,
        quarantine: Option<Arc<Quarantine>>,
    ) -> Self {
        Self { peer, lane, member: member.clone(), quarantine, failure: Arc::default() }
    }

    /// The keys, if the peer is trusted by the files as they are now; with `key`, that of a handoff under way.
    pub(super) async fn current(&self, key: Option<u32>) -> Result<Arc<Keys>, TrustError> {
        let current = self.read(key).await;
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = current.as_ref().err().map(ToString::to_string);
        current
    }

    async fn read(&self, key: Option<u32>) -> Result<Arc<Keys>, TrustError> {
        match &self.member.trust {
            Some(trust) => trust.admits(&self.peer).await?,
            None => drop(self.lane.revocations.lookup(&self.peer).await?),
        }
        if let Some(quarantine) = &self.quarantine {
            quarantine.lookup(self.peer.id).await?;
        }
        let keys = self.member.keys().await?;
        self.judge(key.map(|key| (key, &*keys)))?;
        Ok(keys)
    }

    /// The judgement, by what was last read of the files, and by the clock.
    fn judge(&self, key: Option<(u32, &Keys)>) -> Result<(), TrustError> {
        let evidence = Evidence {
            peer: &self.peer,
            now_unix_s: (self.lane.clock)(),
            revoked: self.deny_lists().find_map(|list| list.known(&self.peer)),
            quarantined: self.quarantine.as_ref().is_some_and(|quarantine| quarantine.known(self.peer.id)),
            key: key.map(|(id, keys)| (id, &keys.macs)),
        };
        evidence.judge()
    }

    /// True if pages that the peer sent before are to be taken back, by the lists as they are now. One that cannot be read
    /// stops handoffs, and takes nothing back.
    pub(super) async fn voids_earlier_pages(&self) -> bool {
        for list in self.deny_lists() {
            drop(list.lookup(&self.peer).await);
        }
        if let Some(quarantine) = &self.quarantine {
            drop(quarantine.lookup(self.peer.id).await);
        }
        self.judge(None).is_err_and(|error| error.concerns_earlier_pages())
    }

    fn deny_lists(&self) -> impl Iterator<Item = &Arc<Revocations>> {
        [Some(&self.lane.revocations), self.member.trust.as_ref().map(|trust| &trust.revocations)].into_iter().flatten()
    }

    /// Answers for what the peer sends with this key, in the engine's turn.
    pub(super) fn voucher(&self, key: u32) -> Voucher {
        let (asked, renewed) = (self.clone(), self.clone());
        let ask = move || {
            if let Some(failure) = asked.failure.lock().unwrap_or_else(PoisonError::into_inner).clone() {
                return Err(failure);
            }
            let keys =
                asked.member.trust.as_ref().map_or_else(|| Arc::clone(&asked.member.keys), |trust| trust.known_keys());
            asked.judge(Some((key, &keys))).map_err(|error| error.to_string())
        };
        Voucher::new(ask).renewed_by(move || {
            let standing = renewed.clone();
            // What came of it is kept for the engine's turn.
            Box::pin(async move { drop(standing.current(Some(key)).await) })
        })
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
