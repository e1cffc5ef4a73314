//! The MAC keys of the cluster: one seals new handoffs, older and newer ones verify, revoked ones are refused by their id.
//!
//! A new key is first known everywhere, as the next one, and begins to seal when it is activated: so a rotation is no outage,
//! however long the file takes to be carried. `file` is the list of them.

mod file;

use std::fmt;

use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::random::{self, NoRandomness};

pub use file::{EntryFault, KeyFileError};

/// Bytes of a MAC key.
pub const KEY_BYTES: usize = 32;

/// More than a rotation a day for ten years.
const KEYS_MAX: usize = 4096;

/// Permitted use of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeyState {
    /// Seals and verifies.
    Active,
    /// Verifies what was sealed before a newer key was activated.
    VerifyOnly,
    /// Verifies what nodes seal that have activated it already.
    Next,
    /// Refused. Its bytes are gone.
    Revoked,
}

/// The keys that a node knows. Printing it shows ids and states only.
pub struct KeyRing {
    /// Ids rise; at most one is active. Keys before it are verify-only or revoked, those after it next or revoked.
    keys: Vec<MacKey>,
}

#[derive(Clone)]
struct MacKey {
    id: u32,
    state: KeyState,
    created_unix_s: u64,
    /// `None` for a revoked key.
    key: Option<Zeroizing<[u8; KEY_BYTES]>>,
}

/// Refusal of a key's use. For ids that a peer named, it is the peer's fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// No such key.
    #[error("there is no MAC key {id}")]
    Unknown {
        /// As asked for.
        id: u32,
    },
    /// It was revoked.
    #[error("MAC key {id} is revoked")]
    Revoked {
        /// As asked for.
        id: u32,
    },
    /// The key is verify-only: a newer one was activated before.
    #[error("MAC key {id} is {state} and cannot be activated: only a newer key than the active one can")]
    NotNext {
        /// As asked for.
        id: u32,
        /// Current state of the key.
        state: KeyState,
    },
    /// The active key was revoked, and none has taken its place.
    #[error("there is no active MAC key; rotate to make one, or activate the next")]
    NoActive,
    /// A ring does not grow for ever.
    #[error("there are {KEYS_MAX} MAC keys already, at most that many are kept")]
    TooMany,
    /// No secret can be made.
    #[error(transparent)]
    NoRandomness(#[from] NoRandomness),
}

impl KeyRing {
    /// A ring with one active key, of id 1.
    ///
    /// # Errors
    /// [`KeyError::NoRandomness`].
    pub fn generate(now_unix_s: u64) -> Result<Self, KeyError> {
        let mut ring = Self { keys: Vec::new() };
        ring.rotate(now_unix_s)?;
        Ok(ring)
    }

    /// The key that seals, with its id.
    ///
    /// # Errors
    /// [`KeyError::NoActive`] between a revocation and the next rotation.
    pub fn active(&self) -> Result<(u32, &[u8; KEY_BYTES]), KeyError> {
        let active = self.keys.iter().find(|key| key.state == KeyState::Active);
        active.and_then(|key| Some((key.id, &**key.key.as_ref()?))).ok_or(KeyError::NoActive)
    }

    /// The key to verify with what a peer sealed under `id`.
    ///
    /// # Errors
    /// [`KeyError::Unknown`] and [`KeyError::Revoked`].
    pub fn verifying(&self, id: u32) -> Result<&[u8; KEY_BYTES], KeyError> {
        let key = self.keys.iter().find(|key| key.id == id).ok_or(KeyError::Unknown { id })?;
        key.key.as_deref().ok_or(KeyError::Revoked { id })
    }

    /// Makes a new key and returns its id. It is the next one; or the active one at once, where none is.
    ///
    /// # Errors
    /// [`KeyError::NoRandomness`] and [`KeyError::TooMany`]; the ring is as it was.
    pub fn add(&mut self, now_unix_s: u64) -> Result<u32, KeyError> {
        let key = Some(Zeroizing::new(random::bytes()?));
        let id = self.keys.last().map_or(Some(1), |last| last.id.checked_add(1));
        let id = id.filter(|_| self.keys.len() < KEYS_MAX).ok_or(KeyError::TooMany)?;
        self.keys.push(MacKey { id, state: KeyState::Next, created_unix_s: now_unix_s, key });
        if self.active().is_err() { self.activate(id).map(|()| id) } else { Ok(id) }
    }

    /// Seals with this key from now on. All before it verify only. Nothing changes if it is active already.
    ///
    /// # Errors
    /// [`KeyError::Unknown`], [`KeyError::Revoked`] and [`KeyError::NotNext`]; the ring is as it was.
    pub fn activate(&mut self, id: u32) -> Result<(), KeyError> {
        let place = self.keys.iter().position(|key| key.id == id).ok_or(KeyError::Unknown { id })?;
        match self.keys[place].state {
            KeyState::Active => return Ok(()),
            KeyState::Revoked => return Err(KeyError::Revoked { id }),
            state @ KeyState::VerifyOnly => return Err(KeyError::NotNext { id, state }),
            KeyState::Next => {}
        }
        let older = self.keys[..place].iter_mut().filter(|key| key.state != KeyState::Revoked);
        older.for_each(|key| key.state = KeyState::VerifyOnly);
        self.keys[place].state = KeyState::Active;
        Ok(())
    }

    /// Makes a new key, activates it and returns its id: for nodes that share their files.
    ///
    /// # Errors
    /// As of [`Self::add`].
    pub fn rotate(&mut self, now_unix_s: u64) -> Result<u32, KeyError> {
        let id = self.add(now_unix_s)?;
        self.activate(id)?;
        Ok(id)
    }

    /// Adds what `other` knows, which is a ring of the same cluster: its keys, which of them are revoked, and which one seals if
    /// that is newer.
    ///
    /// # Errors
    /// [`KeyFileError::OtherKey`] and [`KeyFileError::TooMany`]; the ring is as it was.
    pub fn merge(&mut self, other: &Self) -> Result<(), KeyFileError> {
        let same = |one: &MacKey, two: &MacKey| one.key.is_none() || two.key.is_none() || one.key == two.key;
        let known = |key: &MacKey| self.keys.iter().find(|own| own.id == key.id);
        if let Some(key) = other.keys.iter().find(|key| known(key).is_some_and(|own| !same(own, key))) {
            return Err(KeyFileError::OtherKey { id: key.id });
        }
        let new: Vec<MacKey> = other.keys.iter().filter(|key| known(key).is_none()).cloned().collect();
        if self.keys.len() + new.len() > KEYS_MAX {
            return Err(KeyFileError::TooMany { keys: self.keys.len() + new.len() });
        }
        self.keys.extend(new);
        self.keys.sort_unstable_by_key(|key| key.id);
        for revoked in other.keys.iter().filter(|key| key.state == KeyState::Revoked) {
            if let Some(own) = self.keys.iter_mut().find(|own| own.id == revoked.id) {
                (own.state, own.key) = (KeyState::Revoked, None);
            }
        }
        self.settle(other.keys.iter().find(|key| key.state == KeyState::Active).map(|key| key.id));
        Ok(())
    }

    /// Gives the keys their states again: the newest active one seals, `active` counted in; all before it verify only.
    fn settle(&mut self, active: Option<u32>) {
        let usable = |key: &&MacKey| key.state != KeyState::Revoked;
        let is_active = |key: &MacKey| key.state == KeyState::Active || Some(key.id) == active;
        let active = self.keys.iter().filter(usable).filter(|key| is_active(key)).map(|key| key.id).max();
        let is_old = |key: &&MacKey| key.state == KeyState::VerifyOnly;
        let oldest_next = active.or_else(|| self.keys.iter().filter(is_old).map(|key| key.id).max());
        for key in self.keys.iter_mut().filter(|key| key.state != KeyState::Revoked) {
            key.state = match Some(key.id) {
                id if id == active => KeyState::Active,
                id if id > oldest_next => KeyState::Next,
                _ => KeyState::VerifyOnly,
            };
        }
    }

    /// Refuses a key from now on, and forgets its bytes.
    ///
    /// # Errors
    /// [`KeyError::Unknown`].
    pub fn revoke(&mut self, id: u32) -> Result<(), KeyError> {
        let key = self.keys.iter_mut().find(|key| key.id == id).ok_or(KeyError::Unknown { id })?;
        (key.state, key.key) = (KeyState::Revoked, None);
        Ok(())
    }

    /// Id, state and time of making of every key, oldest first.
    pub fn list(&self) -> impl Iterator<Item = (u32, KeyState, u64)> + '_ {
        self.keys.iter().map(|key| (key.id, key.state, key.created_unix_s))
    }
}

impl fmt::Display for KeyState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Active => "active",
            Self::VerifyOnly => "verify-only",
            Self::Next => "next",
            Self::Revoked => "revoked",
        })
    }
}

impl fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.list().map(|(id, state, _)| (id, state))).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rotated_key_verifies_and_a_revoked_one_is_refused_by_its_id_also_after_reloading() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys.toml");
        let mut ring = KeyRing::generate(100).unwrap();
        let first = *ring.active().unwrap().1;
        assert_eq!(ring.rotate(200), Ok(2));
        assert_eq!(ring.rotate(300), Ok(3));
        ring.revoke(2).unwrap();
        ring.save(&path).unwrap();
        let mut ring = KeyRing::load(&path).unwrap();
        assert_eq!(ring.verifying(1), Ok(&first));
        assert_eq!(ring.verifying(2), Err(KeyError::Revoked { id: 2 }));
        assert_eq!(ring.verifying(4), Err(KeyError::Unknown { id: 4 }));
        let (id, third) = ring.active().unwrap();
        assert!(id == 3 && *third != first && ring.verifying(3) == Ok(third));
        ring.revoke(3).unwrap();
        assert_eq!(ring.active(), Err(KeyError::NoActive));
        assert_eq!(ring.rotate(400), Ok(4));
        let states = [KeyState::VerifyOnly, KeyState::Revoked, KeyState::Revoked, KeyState::Active];
        assert!(ring.list().map(|(_, state, _)| state).eq(states));
    }

    #[test]
    fn a_new_key_is_the_next_one_until_it_is_activated_and_verifies_meanwhile() {
        let mut ring = KeyRing::generate(100).unwrap();
        assert_eq!((ring.add(200), ring.add(300)), (Ok(2), Ok(3)));
        assert_eq!(ring.active().unwrap().0, 1);
        let ring_at = |ring: &KeyRing| KeyRing::from_text(&ring.to_text()).unwrap();
        assert!(ring_at(&ring).verifying(2).is_ok() && ring_at(&ring).active().unwrap().0 == 1);
        // Carried at any time before or after the activation, in either order, each end knows the other's key.
        let carried = ring_at(&ring);
        ring.activate(3).unwrap();
        ring.activate(3).unwrap();
        assert_eq!(ring.active().unwrap().0, 3);
        assert!(carried.verifying(3).is_ok() && ring.verifying(carried.active().unwrap().0).is_ok());
        assert!(ring_at(&ring).list().map(|(_, state, _)| state).eq([
            KeyState::VerifyOnly,
            KeyState::VerifyOnly,
            KeyState::Active
        ]));
        let back = KeyError::NotNext { id: 1, state: KeyState::VerifyOnly };
        assert_eq!((ring.activate(1), ring.activate(9)), (Err(back), Err(KeyError::Unknown { id: 9 })));
        // Without an active key there is nothing to overlap with.
        ring.revoke(3).unwrap();
        assert_eq!((ring.activate(3), ring.add(400)), (Err(KeyError::Revoked { id: 3 }), Ok(4)));
        assert_eq!(ring.active().unwrap().0, 4);
    }

    #[test]
    fn a_ring_that_is_carried_adds_keys_and_revocations_and_never_goes_back() {
        let copy = |ring: &KeyRing| KeyRing::from_text(&ring.to_text()).unwrap();
        let states = |ring: &KeyRing| ring.list().map(|(_, state, _)| state).collect::<Vec<_>>();
        let mut ours = KeyRing::generate(100).unwrap();
        let old = copy(&ours);
        let mut theirs = copy(&ours);
        theirs.add(200).unwrap();
        ours.merge(&theirs).unwrap();
        assert_eq!(states(&ours), [KeyState::Active, KeyState::Next]);
        theirs.activate(2).unwrap();
        theirs.revoke(1).unwrap();
        ours.merge(&theirs).unwrap();
        assert_eq!(states(&ours), [KeyState::Revoked, KeyState::Active]);
        // An older file takes nothing back, neither the new key nor the revocation.
        ours.merge(&old).unwrap();
        assert_eq!(states(&ours), [KeyState::Revoked, KeyState::Active]);
        assert_eq!(*copy(&ours).to_text(), *ours.to_text());
        ours.revoke(2).unwrap();
        ours.merge(&old).unwrap();
        assert_eq!(states(&ours), [KeyState::Revoked, KeyState::Revoked]);
        let mut stranger = KeyRing::generate(100).unwrap();
        assert!(matches!(stranger.merge(&old), Err(KeyFileError::OtherKey { id: 1 })));
    }

    #[test]
    fn printing_a_ring_shows_no_key() {
        let ring = KeyRing::generate(0).unwrap();
        assert_eq!(format!("{ring:?}"), "[(1, Active)]");
    }
}
