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
    AuthorityError, CLOCK_SKEW_S, ClusterAuthority, DEFAULT_LIFETIME_S, Grant, LIFETIME_MAX_S, NodeKey, cluster_id,
};
pub(crate) use authority::{COMMON_SERVER_NAME, ENROLLING_SERVER_NAME};
pub use facts::{CertificateError, NodeFacts, NodeId, NodeName, Role, Roles, Serial};
pub(crate) use folder::facts_of_pem;
pub use folder::{ClusterFolder, IdentityError, NodeIdentity};
pub use revocations::{Revocations, RevocationsError, Revoked};
