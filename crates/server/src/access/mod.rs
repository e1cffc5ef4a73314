//! Who may ask what: keys with scopes, pages of foreign origins, names that lead here by deceit.
//!
//! - `keys` are the keys and what each opens.
//! - `client` is what the engine is told of whoever has a key.
//! - `origin` judges the `Host` and the `Origin` of a request.
//! - `guard` is in front of every route, and answers before a body is read.

mod client;
mod guard;
mod keys;
mod origin;

pub use client::{Client, Realms};
pub use guard::{guard, is_open, scope_of};
pub use keys::{KeyError, KeyFileError, Keys, Scope, Scopes};
pub use origin::{NoOrigin, Origins};

/// Who may ask what.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// The keys; without any, everything but the server itself is open to those who reach it.
    pub keys: Keys,
    /// Pages of other origins that may ask.
    pub origins: Origins,
    /// Whether a server without keys may be reached from other machines.
    pub exposure: Exposure,
    /// Who shares prefixes with whom.
    pub realms: Realms,
}

/// From where a server without keys may be reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Exposure {
    /// From this machine alone. A request must then name this machine, too.
    #[default]
    Local,
    /// From anywhere, by anybody.
    Public,
}

impl Access {
    /// Whoever has this key, or needs none.
    fn client(&self, key: Option<&[u8]>) -> Client {
        Client::new(&self.realms, key)
    }

    /// Whether everything is open.
    pub fn is_open(&self) -> bool {
        self.keys.is_empty()
    }
}
