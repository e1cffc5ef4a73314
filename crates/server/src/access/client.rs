//! Clients as the engine knows them: by what follows from their keys, and never by the keys.

use std::fmt;

use muser_kv::Realm;

/// The client of one request.
#[derive(Clone, Copy, Debug)]
pub struct Client {
    /// The prefixes that it shares.
    pub realm: Realm,
}

/// The realms of prefixes that keys have.
#[derive(Clone, Default)]
pub struct Realms(Option<[u8; 32]>);

impl Realms {
    /// One realm for all.
    pub const COMMON: Self = Self(None);

    /// A realm for each key, and one for all who need none: keyed BLAKE3 of the key under `secret`, which is of this
    /// process, so that a realm gives nothing of its key away.
    pub fn by_key(secret: [u8; 32]) -> Self {
        Self(Some(secret))
    }

    /// The realm of whoever has this key, or needs none.
    pub(super) fn of(&self, key: Option<&[u8]>) -> Realm {
        match (self.0, key) {
            (None, _) => Realm::COMMON,
            (Some(secret), key) => Realm::from_secret(secret).divided_by(key.unwrap_or_default()),
        }
    }
}

/// Whether there are several, and nothing of the secret.
impl fmt::Debug for Realms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Realms(by key)" } else { "Realms(common)" })
    }
}
