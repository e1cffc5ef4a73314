//! The cluster of the tests: a CA, certificates and a MAC key that are made for one enrolment and forgotten with it.
//!
//! A new node is tested as a member of this cluster. It is given no certificate and no key of the real one before the
//! tests are passed, so a node that leaves in between has nothing of use.

use std::time::Duration;

use muser_enrol::Trial as TrialMessage;
use muser_trust::identity::{ClusterAuthority, Grant, NodeFacts, NodeIdentity, NodeKey, NodeName, Roles, facts_of_pem};
use muser_trust::keys::KeyRing;

use super::failure::EnrolError;
use super::party::Limits;

/// The enrolling node's part of it.
pub(super) struct Trial {
    authority: ClusterAuthority,
    pub(super) identity: NodeIdentity,
    pub(super) keys: KeyRing,
    lifetime_s: u64,
    now_unix_s: u64,
}

impl Trial {
    /// Begins a cluster of which the enrolling node, `ours`, is a member by a new key.
    pub(super) fn begin(ours: &NodeFacts, limits: Limits, now_unix_s: u64) -> Result<Self, EnrolError> {
        let authority = ClusterAuthority::create(&ours.name, now_unix_s)?;
        let lifetime_s = lifetime_s(limits);
        let granted = Grant { name: ours.name.clone(), roles: ours.roles, lifetime_s };
        let key = NodeKey::generate()?;
        let certificate = authority.sign(&key.request()?, &granted, now_unix_s)?;
        let identity = NodeIdentity::from_pem(authority.certificate_pem(), &certificate, key)?;
        let keys = KeyRing::generate(now_unix_s)?;
        Ok(Self { authority, identity, keys, lifetime_s, now_unix_s })
    }

    /// Certificate and keys of the new node for the tests, and the facts of that certificate.
    pub(super) fn admit(
        &self,
        request: &str,
        (name, roles): (NodeName, Roles),
    ) -> Result<(TrialMessage, NodeFacts), EnrolError> {
        let granted = Grant { name, roles, lifetime_s: self.lifetime_s };
        let certificate = self.authority.sign(request, &granted, self.now_unix_s)?;
        let node = facts_of_pem(&certificate)?;
        let facts = self.identity.facts();
        let message = TrialMessage {
            issuer: facts.id,
            issuer_roles: facts.roles,
            authority: self.authority.certificate_pem().into(),
            certificate,
            keys: self.keys.to_text(),
        };
        Ok((message, node))
    }
}

/// Long enough for both qualifications and everything between them.
fn lifetime_s(limits: Limits) -> u64 {
    let all = limits.qualification * 2 + limits.step * 20 + Duration::from_secs(600);
    all.as_secs().clamp(1, muser_trust::identity::LIFETIME_MAX_S)
}
