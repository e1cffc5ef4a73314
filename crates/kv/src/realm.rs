//! Realms: the scopes within which pages are shared.

use std::fmt;

use crate::name::KvIdentity;

/// Scope within which pages are shared: a secret that salts page names. A request of another realm cannot compute the name
/// of its pages, so it can neither reuse one nor detect it.
///
/// Derived values are keyed BLAKE3, with the realm's 32 bytes as key, over a label and the bytes named below.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Realm([u8; 32]);

impl Realm {
    /// The shared realm. Names in it are not salted.
    pub const COMMON: Self = Self([0; 32]);

    /// The realm with this secret.
    pub fn from_secret(secret: [u8; 32]) -> Self {
        Self(secret)
    }

    /// The part of this realm that `division` names: label `division`, then the bytes of `division`.
    #[must_use]
    pub fn divided_by(&self, division: &[u8]) -> Self {
        Self(self.derive(b"muser realm, division", division))
    }

    /// The realm as a producer sees it: label `handoffs`. It does not reveal page names of this machine. [`Self::COMMON`]
    /// stays common.
    pub fn for_handoffs(&self) -> [u8; 32] {
        if *self == Self::COMMON { self.0 } else { self.derive(b"muser realm, handoffs", &[]) }
    }

    /// The identity that page names start from in this realm: label `identity`, then that of the model. In the common realm
    /// it is the model's.
    pub fn identity(&self, model: &KvIdentity) -> KvIdentity {
        if *self == Self::COMMON {
            *model
        } else {
            KvIdentity::from_digest(self.derive(b"muser realm, identity", model.as_bytes()))
        }
    }

    /// `label` is one of three of equal length, so that no two inputs are the same bytes.
    fn derive(&self, label: &[u8; 21], bytes: &[u8]) -> [u8; 32] {
        *blake3::Hasher::new_keyed(&self.0).update(label).update(bytes).finalize().as_bytes()
    }
}

/// Scope within which a producer reuses what it computed. Within either scope the realm that a request names divides it
/// further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefixScope {
    /// The node that asks: no node can learn what another one had computed.
    Node,
    /// All nodes that are admitted: requests that name the same realm share prefixes, whichever node they come from.
    Cluster,
}

impl PrefixScope {
    /// The realm of the pages that are computed for the node with id `asker`, whose request names the realm `named`.
    pub fn realm(self, asker: [u8; 32], named: &[u8; 32]) -> Realm {
        let scope = match self {
            Self::Node => Realm::from_secret(asker),
            Self::Cluster => Realm::COMMON,
        };
        scope.divided_by(named)
    }
}

/// Prints nothing of the secret.
impl fmt::Debug for Realm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::COMMON { "Realm(common)" } else { "Realm(secret)" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::names_of;

    #[test]
    fn names_of_one_realm_are_none_of_another_or_of_a_part_of_it() {
        let (model, tokens) = (KvIdentity::from_digest([7; 32]), [5; 128]);
        let realm = Realm::from_secret([1; 32]);
        let realms = [
            Realm::COMMON,
            realm,
            Realm::from_secret([2; 32]),
            realm.divided_by(b"a"),
            realm.divided_by(b"b"),
            realm.divided_by(model.as_bytes()),
            realm.divided_by(b"a").divided_by(b"b"),
            Realm::COMMON.divided_by(b"a"),
            Realm::from_secret(realm.for_handoffs()),
        ];
        let names = realms.map(|realm| names_of(&realm.identity(&model), &tokens).last().unwrap());
        for (index, name) in names.iter().enumerate() {
            assert!(!names[..index].contains(name), "{index}");
        }
        assert_eq!(names[0], names_of(&model, &tokens).last().unwrap(), "common names are not salted");
    }

    #[test]
    fn nothing_of_a_secret_is_shown() {
        assert_eq!(format!("{:?}", Realm::from_secret([17; 32])), "Realm(secret)");
    }
}
