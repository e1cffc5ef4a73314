//! Node identity: a private key that never leaves the node, a certificate of the cluster's own CA, and the deny-list.
//!
//! - `facts` reads what a certificate says: node id, name, roles, serial, times.
//! - `authority` is the CA: it signs requests, and decides names, roles and times by itself.
//! - `folder` is the cluster folder on disk; `revocations` is its deny-list, read again whenever it changes.

mod authority;
mod facts;
mod folder;
mod revocations;

pub use authority::{
    AuthorityError, CLOCK_SKEW_S, COMMON_SERVER_NAME, ClusterAuthority, DEFAULT_LIFETIME_S, ENROLLING_SERVER_NAME,
    Grant, LIFETIME_MAX_S, NodeKey, cluster_id,
};
pub use facts::{CertificateError, NodeFacts, NodeId, NodeName, Role, Roles, Serial};
pub use folder::{ClusterFolder, IdentityError, NodeIdentity, facts_of_pem};
pub use revocations::{Revocations, RevocationsError, Revoked};
