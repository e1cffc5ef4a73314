//! Manifest of a handoff: its binding, the hash chain over its frames, and the keys of its MAC.

use std::collections::BTreeMap;

use crate::hello::Node;
use crate::transfer::{Accept, Request, SenderTimes};

/// The chain over the binding of a handoff and the digests of its `Pages` frames, in order.
///
/// Root 0 is BLAKE3 in key-derivation mode, with the context string `muser 2026 handoff manifest v3`, over:
///
/// | byte | field             | meaning                                               |
/// |------|-------------------|-------------------------------------------------------|
/// | 0    | identity          | the five digests of the receiver's identity, 160 bytes |
/// | 160  | key_id            | `u32`                                                 |
/// | 164  | nonce             | 32 bytes, the receiver's                              |
/// | 196  | sender nonce      | 32 bytes                                              |
/// | 228  | handoff           | 16 bytes                                              |
/// | 244  | receiver boot id  | 16 bytes                                              |
/// | 260  | sender boot id    | 16 bytes                                              |
/// | 276  | receiver node id  | 32 bytes                                              |
/// | 308  | sender node id    | 32 bytes                                              |
/// | 340  | prompt digest     | 32 bytes, BLAKE3 of the token ids, `u32` each         |
/// | 372  | rows              | `u32`                                                 |
/// | 376  | first_page        | `u32`                                                 |
/// | 380  | expires_in_ms     | `u32`                                                 |
/// | 384  | reused_rows       | `u32`                                                 |
///
/// Root k + 1 is BLAKE3 over root k, the body digest of frame k, and k as `u64`. The MAC is BLAKE3 keyed with the key of
/// that id over the [`LaneBinding`], the last root, the number of frames and the stored bytes, `u64` each, and the
/// [`SenderTimes`].
#[derive(Clone, Debug)]
pub struct Manifest {
    root: blake3::Hash,
    frames: u64,
    stored_bytes: u64,
}

/// Channel binding: a value that both ends of one connection know and no other connection has; for TLS, exported keying
/// material (RFC 5705). A manifest made for another connection, and relayed or sent again, does not have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneBinding(pub [u8; 32]);

/// The keys of manifests, by id.
#[derive(Clone, Default)]
pub struct MacKeys(BTreeMap<u32, ([u8; 32], KeyState)>);

/// Permitted use of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyState {
    /// Beginning and serving handoffs.
    Active,
    /// Serving handoffs that the peer began; a receiver begins none. A new key is distributed in this state before it
    /// becomes active, and an old one stays in it until no peer uses it.
    VerifyOnly,
    /// No use.
    Revoked,
}

/// Error of a key lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// No key of this id.
    #[error("key {0} is not known")]
    Unknown(u32),
    /// The key was revoked.
    #[error("key {0} is revoked")]
    Revoked(u32),
    /// The key serves only what peers began with it.
    #[error("key {0} does not begin handoffs")]
    VerifyOnly(u32),
}

impl Manifest {
    /// The chain before the first frame.
    pub fn new(request: &Request, accept: &Accept, receiver: &Node, sender: &Node) -> Self {
        let mut prompt = blake3::Hasher::new();
        for token in &request.tokens {
            prompt.update(&token.to_le_bytes());
        }
        let mut binding = blake3::Hasher::new_derive_key("muser 2026 handoff manifest v3");
        binding.update(receiver.identity.0.as_flattened());
        binding.update(&request.key_id.to_le_bytes());
        binding.update(&request.nonce).update(&accept.nonce).update(&request.handoff.0);
        binding.update(&receiver.boot_id).update(&sender.boot_id);
        binding.update(&receiver.node_id).update(&sender.node_id);
        binding.update(prompt.finalize().as_bytes());
        binding.update(&crate::rows_of(&request.tokens).to_le_bytes());
        binding.update(&accept.first_page.to_le_bytes());
        binding.update(&request.expires_in_ms.to_le_bytes());
        binding.update(&accept.reused_rows.to_le_bytes());
        Self { root: binding.finalize(), frames: 0, stored_bytes: 0 }
    }

    /// Adds the next `Pages` frame: the digest of its body, and the bytes of its pages as stored.
    pub fn add(&mut self, body: &blake3::Hash, stored_bytes: u64) {
        let mut chain = blake3::Hasher::new();
        chain.update(self.root.as_bytes()).update(body.as_bytes()).update(&self.frames.to_le_bytes());
        self.root = chain.finalize();
        self.frames += 1;
        self.stored_bytes += stored_bytes;
    }

    /// The root over the frames so far.
    pub fn root(&self) -> blake3::Hash {
        self.root
    }

    /// Frames so far.
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// Bytes of their pages, as stored.
    pub fn stored_bytes(&self) -> u64 {
        self.stored_bytes
    }

    /// The MAC over the lane, the frames so far and the sender's times. Comparing two takes the same time wherever they
    /// differ.
    pub fn mac(&self, key: &[u8; 32], lane: &LaneBinding, times: &SenderTimes) -> blake3::Hash {
        let mut mac = blake3::Hasher::new_keyed(key);
        mac.update(&lane.0).update(self.root.as_bytes());
        mac.update(&self.frames.to_le_bytes()).update(&self.stored_bytes.to_le_bytes()).update(&times.to_bytes());
        mac.finalize()
    }
}

impl MacKeys {
    /// Adds a key, or replaces the one with its id.
    pub fn set(&mut self, id: u32, key: [u8; 32], state: KeyState) {
        self.0.insert(id, (key, state));
    }

    /// The key that a receiver begins a handoff with.
    ///
    /// # Errors
    /// Any [`KeyError`].
    pub fn to_begin(&self, id: u32) -> Result<&[u8; 32], KeyError> {
        match self.0.get(&id) {
            Some((_, KeyState::VerifyOnly)) => Err(KeyError::VerifyOnly(id)),
            _ => self.to_serve(id),
        }
    }

    /// The key of a handoff that the peer began, or that is under way.
    ///
    /// # Errors
    /// [`KeyError::Unknown`] or [`KeyError::Revoked`].
    pub fn to_serve(&self, id: u32) -> Result<&[u8; 32], KeyError> {
        match self.0.get(&id) {
            None => Err(KeyError::Unknown(id)),
            Some((_, KeyState::Revoked)) => Err(KeyError::Revoked(id)),
            Some((key, KeyState::Active | KeyState::VerifyOnly)) => Ok(key),
        }
    }
}

/// Keys are secret: only their ids and states are shown.
impl std::fmt::Debug for MacKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.0.iter().map(|(id, (_, state))| (id, state))).finish()
    }
}
