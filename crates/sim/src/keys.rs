//! MAC keys of one node and their states.

use std::collections::BTreeMap;

use muser_wire::{KeyState, MacKeys};

/// Keys by id.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyTable {
    states: BTreeMap<u32, KeyState>,
    /// True if the keys have the same ids as other nodes' keys and other bytes.
    pub(crate) has_other_bytes: bool,
}

impl KeyTable {
    pub(crate) fn set(&mut self, id: u32, state: KeyState) {
        self.states.insert(id, state);
    }

    /// The newest key that begins handoffs.
    pub(crate) fn active(&self) -> Option<u32> {
        self.states.iter().rev().find(|(_, state)| **state == KeyState::Active).map(|(id, _)| *id)
    }

    /// True if handoffs that a peer began with key `id` are served.
    pub(crate) fn serves(&self, id: u32) -> bool {
        matches!(self.states.get(&id), Some(KeyState::Active | KeyState::VerifyOnly))
    }

    /// True if key `id` was revoked here.
    pub(crate) fn has_revoked(&self, id: u32) -> bool {
        self.states.get(&id) == Some(&KeyState::Revoked)
    }

    /// Keys that are not revoked.
    pub(crate) fn ids(&self) -> Vec<u32> {
        self.states.iter().filter(|(_, state)| **state != KeyState::Revoked).map(|(id, _)| *id).collect()
    }

    /// The keys in the form that the state machines take.
    pub(crate) fn mac_keys(&self) -> MacKeys {
        let mut keys = MacKeys::default();
        for (id, state) in &self.states {
            // The same bytes for the same id everywhere.
            let mut bytes = *blake3::hash(&id.to_le_bytes()).as_bytes();
            bytes[0] ^= u8::from(self.has_other_bytes);
            keys.set(*id, bytes, *state);
        }
        keys
    }
}
