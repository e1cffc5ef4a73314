//! Scopes of a request: the client whose turns it shares, and the realm whose pages it reuses.

use muser_kv::{KvIdentity, Realm};

/// Scheduling flow of a request: places turn between clients, then between the groups of a client. No token depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// The client.
    pub client: u64,
    /// Requests of a client that share one turn: the answers to one question.
    pub group: u64,
}

/// Scope of a request's prefix reuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefixReuse {
    /// It resumes from kept pages of the common realm, and its own are kept there.
    Share,
    /// It resumes from kept pages of this realm, and its own are kept there, visible to no other realm.
    Within(Realm),
    /// It computes everything itself, and leaves nothing behind.
    Isolate,
}

impl PrefixReuse {
    /// The realm whose pages it uses, if any.
    pub fn realm(&self) -> Option<Realm> {
        match self {
            Self::Share => Some(Realm::COMMON),
            Self::Within(realm) => Some(*realm),
            Self::Isolate => None,
        }
    }

    /// The identity that its page names start from. Without a realm it is the model's, and no page is kept or found by
    /// name.
    pub(super) fn identity(&self, model: &KvIdentity) -> KvIdentity {
        self.realm().map_or(*model, |realm| realm.identity(model))
    }
}
