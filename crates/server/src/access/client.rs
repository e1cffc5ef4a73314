//! Identity of clients towards the engine: a realm and a flow, derived from their keys.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use muser_engine::engine::Flow;
use muser_kv::Realm;

use crate::record::RequestMetrics;

/// The client of one request.
#[derive(Clone, Debug)]
pub struct Client {
    /// Realm within which it shares cached prefixes.
    pub realm: Realm,
    /// Scheduling flow: the client is its key, the group this request.
    pub flow: Flow,
    /// Token counts of this request.
    pub metrics: Arc<RequestMetrics>,
}

impl Client {
    /// Client of a new request with this key, whose tokens are added to `metrics`; `None` on routes and servers without
    /// keys.
    pub(super) fn new(realms: &Realms, key: Option<&[u8]>, metrics: Arc<RequestMetrics>) -> Self {
        static REQUESTS: AtomicU64 = AtomicU64::new(0);
        let client = key.map_or(0, |key| {
            let [a, b, c, d, e, f, g, h, ..] = *blake3::hash(key).as_bytes();
            u64::from_le_bytes([a, b, c, d, e, f, g, h])
        });
        let flow = Flow { client, group: REQUESTS.fetch_add(1, Ordering::Relaxed) };
        Self { realm: realms.of(key), flow, metrics }
    }
}

/// Prefix realms of keys.
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

    /// Realm of a request with this key; `None` on routes and servers without keys.
    fn of(&self, key: Option<&[u8]>) -> Realm {
        match (self.0, key) {
            (None, _) => Realm::COMMON,
            (Some(secret), key) => Realm::from_secret(secret).divided_by(key.unwrap_or_default()),
        }
    }
}

/// One realm for all, or one per key; never the secret.
impl fmt::Debug for Realms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Realms(by key)" } else { "Realms(common)" })
    }
}
