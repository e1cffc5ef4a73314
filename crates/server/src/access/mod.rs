//! Authentication and origin checks: keys with scopes, CORS, DNS rebinding.
//!
//! - `keys` are the API keys with their scopes.
//! - `client` is the engine's view of a key: realm and flow.
//! - `origin` checks the `Host` and the `Origin` of a request.
//! - `guard` is the middleware in front of every route; it answers before a body is read.

mod client;
mod guard;
mod keys;
mod origin;

use std::sync::Arc;

use crate::record::RequestMetrics;

pub use client::{Client, Realms};
pub use guard::{guard, is_open, scope_of};
pub use keys::{ApiKeyError, ApiKeyFileError, Keys, Scope, Scopes};
pub use origin::{NoOrigin, Origins};

/// Access control of a server.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// API keys; without any, all routes but those of [`Scope::Admin`] are open.
    pub keys: Keys,
    /// Origins other than the server's own whose pages may send requests.
    pub origins: Origins,
    /// Reachability of a server without keys.
    pub exposure: Exposure,
    /// Prefix realms: the keys that share cached prefixes.
    pub realms: Realms,
}

/// Reachability of a server without keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Exposure {
    /// From this machine alone. A request must then name this machine, too.
    #[default]
    Local,
    /// From any machine, without a key.
    Public,
}

impl Access {
    /// Client of a request with this key, or without one. Its tokens are added to `metrics`.
    fn client(&self, key: Option<&[u8]>, metrics: Arc<RequestMetrics>) -> Client {
        Client::new(&self.realms, key, metrics)
    }

    /// True if there are no keys, so that all routes but those of [`Scope::Admin`] are open.
    pub fn is_open(&self) -> bool {
        self.keys.is_empty()
    }
}
