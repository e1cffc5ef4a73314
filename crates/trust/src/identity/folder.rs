//! The cluster folder of a node, and the identity that is loaded from it.
//!
//! | name           | content                                              | who has it          | mode |
//! |----------------|------------------------------------------------------|---------------------|------|
//! | `ca.pem`       | the cluster's CA certificate                         | every node          | 0644 |
//! | `ca.key`       | its private key                                      | the enrolling node  | 0600 |
//! | `node.pem`     | this node's certificate                              | every node          | 0644 |
//! | `node.key`     | this node's private key                              | every node, its own | 0600 |
//! | `keys.toml`    | MAC keys, see [`crate::keys`]                        | every node          | 0600 |
//! | `revoked.toml` | what is no longer admitted, see [`super::Revocations`] | every node        | 0644 |
//! | `quarantine.toml` | who sent something wrong, see [`crate::quarantine`] | decoders that found one | 0644 |
//! | `ledger/`      | accepted handoffs, see `muser-ledger`                | every decoder       | 0755 |

use std::fmt;
use std::fs::DirBuilder;
use std::path::{Path, PathBuf};

use muser_files::{self as files, FileError, Secrecy};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use super::authority::{AuthorityError, ClusterAuthority, NodeKey, cluster_id};
use super::facts::{CertificateError, NodeFacts};
use super::revocations::{Revocations, RevocationsError};
use crate::keys::{KeyFileError, KeyRing};
use crate::quarantine::{Quarantine, QuarantineError};

/// Paths of one node's cluster folder.
#[derive(Debug, Clone)]
pub struct ClusterFolder {
    path: PathBuf,
}

/// Certificate chain and private key by which a node authenticates itself. `Debug` shows the certificate's facts only.
pub struct NodeIdentity {
    facts: NodeFacts,
    authority: CertificateDer<'static>,
    certificate: CertificateDer<'static>,
    key: NodeKey,
}

/// Failure to load an identity from the folder. The message names the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// The file cannot be read, locked or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file does not hold what its name says.
    #[error("{}: {error}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// Error of the key or certificate.
        #[source]
        error: AuthorityError,
    },
    /// The node's certificate is not valid.
    #[error("{}: {error}", path.display())]
    Certificate {
        /// The file.
        path: PathBuf,
        /// Error of the certificate.
        #[source]
        error: CertificateError,
    },
}

impl ClusterFolder {
    /// The folder at `path`, which need not exist yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The folder of the replay ledger.
    pub fn ledger(&self) -> PathBuf {
        self.path.join("ledger")
    }

    /// Path of the placement policy's learned rates.
    pub fn policy(&self) -> PathBuf {
        self.path.join("policy.toml")
    }

    /// The quarantine: producers that are not asked any more.
    ///
    /// # Errors
    /// [`QuarantineError`].
    pub fn load_quarantine(&self) -> Result<Quarantine, QuarantineError> {
        Quarantine::load(&self.file("quarantine.toml"))
    }

    /// The file of the MAC keys.
    pub fn keys(&self) -> PathBuf {
        self.file("keys.toml")
    }

    /// Begins a cluster here: writes the CA's certificate and key, a first MAC key and an empty deny-list.
    ///
    /// # Errors
    /// [`FileError::Exists`] if there is a CA already; nothing is ever overwritten.
    pub fn begin(&self, authority: &ClusterAuthority, keys: &KeyRing) -> Result<(), IdentityError> {
        self.make()?;
        files::create(&self.file("ca.key"), &authority.key_pem(), Secrecy::Secret)?;
        files::create(&self.file("ca.pem"), authority.certificate_pem(), Secrecy::Public)?;
        files::create(&self.file("keys.toml"), &keys.to_text(), Secrecy::Secret)?;
        Ok(Revocations::create(&self.file("revoked.toml"))?)
    }

    /// Joins a cluster here: writes its CA certificate, its MAC keys and an empty deny-list.
    ///
    /// # Errors
    /// [`FileError::Exists`] if this folder belongs to a cluster already; nothing is ever overwritten.
    pub fn join(&self, authority_certificate: &str, keys: &KeyRing) -> Result<(), IdentityError> {
        self.make()?;
        files::create(&self.file("ca.pem"), authority_certificate, Secrecy::Public)?;
        files::create(&self.file("keys.toml"), &keys.to_text(), Secrecy::Secret)?;
        Ok(Revocations::create(&self.file("revoked.toml"))?)
    }

    /// Writes this node's private key, before anything is asked for with it.
    ///
    /// # Errors
    /// [`FileError::Exists`] if there is one; it is never overwritten.
    pub fn save_node_key(&self, key: &NodeKey) -> Result<(), IdentityError> {
        self.make()?;
        Ok(files::create(&self.file("node.key"), &key.pem(), Secrecy::Secret)?)
    }

    /// Writes this node's certificate, in the place of an earlier one: this is also renewal.
    ///
    /// # Errors
    /// It is not a certificate of this node's key, or an I/O error; the earlier one is still there.
    pub fn save_node_certificate(&self, certificate: &str) -> Result<(), IdentityError> {
        let path = self.file("node.pem");
        let (der, _) = node_certificate_of(&path, certificate)?;
        if !self.load_node_key()?.owns(&der) {
            return Err(IdentityError::Content { path, error: AuthorityError::WrongKey });
        }
        Ok(files::replace(&path, certificate, Secrecy::Public)?)
    }

    /// The CA with its key; only the enrolling node has it.
    ///
    /// # Errors
    /// [`IdentityError`].
    pub fn load_authority(&self) -> Result<ClusterAuthority, IdentityError> {
        let path = self.file("ca.key");
        let key = zeroize::Zeroizing::new(files::read(&path, Secrecy::Secret)?);
        let certificate = files::read(&self.file("ca.pem"), Secrecy::Public)?;
        ClusterAuthority::from_pem(&certificate, &key).map_err(|error| match error {
            AuthorityError::BadCertificate => IdentityError::Content { path: self.file("ca.pem"), error },
            _ => IdentityError::Content { path, error },
        })
    }

    /// This node's private key.
    ///
    /// # Errors
    /// [`IdentityError`], also if others may read it.
    pub fn load_node_key(&self) -> Result<NodeKey, IdentityError> {
        let path = self.file("node.key");
        let key = zeroize::Zeroizing::new(files::read(&path, Secrecy::Secret)?);
        NodeKey::from_pem(&key).map_err(|error| IdentityError::Content { path, error })
    }

    /// Certificate chain and private key of this node.
    ///
    /// # Errors
    /// [`IdentityError`]. That the certificate is still valid is for the peer to check.
    pub fn load_identity(&self) -> Result<NodeIdentity, IdentityError> {
        let (authority_path, path) = (self.file("ca.pem"), self.file("node.pem"));
        let authority = authority_certificate_of(&authority_path, &files::read(&authority_path, Secrecy::Public)?)?;
        let (certificate, facts) = node_certificate_of(&path, &files::read(&path, Secrecy::Public)?)?;
        let key = self.load_node_key()?;
        if !key.owns(&certificate) {
            return Err(IdentityError::Content { path: self.file("node.key"), error: AuthorityError::WrongKey });
        }
        Ok(NodeIdentity { facts, authority, certificate, key })
    }

    /// The deny-list.
    ///
    /// # Errors
    /// [`RevocationsError`].
    pub fn load_revocations(&self) -> Result<Revocations, RevocationsError> {
        Revocations::load(&self.file("revoked.toml"))
    }

    /// Adds to the deny-list what is on another machine's, which was carried here.
    ///
    /// # Errors
    /// [`RevocationsError`], also if the list here is not whole; it is as it was.
    pub fn import_revocations(&self, carried: &Path) -> Result<(), RevocationsError> {
        Revocations::import(&self.file("revoked.toml"), carried)
    }

    /// Takes another machine's deny-list, which was carried here, instead of what is here.
    ///
    /// # Errors
    /// [`RevocationsError`]; the list is as it was.
    pub fn put_revocations(&self, carried: &Path, now_unix_s: u64) -> Result<(), RevocationsError> {
        Revocations::put_instead(&self.file("revoked.toml"), carried, now_unix_s)
    }

    /// Adds to the MAC keys what is in another machine's file, which was carried here.
    ///
    /// # Errors
    /// [`KeyFileError`], also if it is of another cluster; the keys are as they were. A list that was emptied is of no cluster.
    pub fn import_keys(&self, carried: &Path) -> Result<(), KeyFileError> {
        let text = zeroize::Zeroizing::new(files::read_carried(carried)?);
        KeyRing::import(&self.keys(), &KeyRing::from_text(&text)?)
    }

    /// The MAC keys.
    ///
    /// # Errors
    /// [`KeyFileError`].
    pub fn load_keys(&self) -> Result<KeyRing, KeyFileError> {
        KeyRing::load(&self.keys())
    }

    /// Changes the MAC keys, while no other process does: what `change` made of them is written if it succeeds.
    ///
    /// # Errors
    /// Those of `change`, and [`KeyFileError`]; the earlier list is still there then.
    pub fn change_keys<T, E: From<KeyFileError>>(
        &self,
        change: impl FnOnce(&mut KeyRing) -> Result<T, E>,
    ) -> Result<T, E> {
        KeyRing::change(&self.keys(), change)
    }

    /// Writes the MAC keys, in the place of the earlier list.
    ///
    /// # Errors
    /// I/O error; the earlier list is still there.
    pub fn save_keys(&self, keys: &KeyRing) -> Result<(), KeyFileError> {
        keys.save(&self.keys())
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    fn make(&self) -> Result<(), FileError> {
        let mut builder = DirBuilder::new();
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.recursive(true).create(&self.path).map_err(|error| FileError::Io { path: self.path.clone(), error })
    }
}

impl NodeIdentity {
    /// An identity that is in no folder: a CA's certificate and a node's (both PEM), and the node's key.
    ///
    /// # Errors
    /// [`AuthorityError::BadCertificate`], [`AuthorityError::BadNodeCertificate`] and [`AuthorityError::WrongKey`].
    pub fn from_pem(authority: &str, certificate: &str, key: NodeKey) -> Result<Self, AuthorityError> {
        let authority =
            CertificateDer::from_pem_slice(authority.as_bytes()).map_err(|_| AuthorityError::BadCertificate)?;
        let (certificate, facts) = node_certificate(certificate).map_err(AuthorityError::BadNodeCertificate)?;
        if !key.owns(&certificate) {
            return Err(AuthorityError::WrongKey);
        }
        Ok(Self { facts, authority, certificate, key })
    }

    /// Facts of its certificate.
    pub fn facts(&self) -> &NodeFacts {
        &self.facts
    }

    /// Names the cluster: BLAKE3 of the CA's certificate.
    pub fn cluster_id(&self) -> [u8; 32] {
        cluster_id(&self.authority)
    }

    /// The CA's certificate.
    pub fn authority(&self) -> &CertificateDer<'static> {
        &self.authority
    }

    /// This node's certificate.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// This node's private key (PKCS 8).
    pub fn private_key(&self) -> PrivateKeyDer<'static> {
        PrivatePkcs8KeyDer::from(self.key.der()).into()
    }
}

impl fmt::Debug for NodeIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeIdentity").field("facts", &self.facts).finish_non_exhaustive()
    }
}

/// Facts of a PEM certificate.
///
/// # Errors
/// [`CertificateError`].
pub fn facts_of_pem(text: &str) -> Result<NodeFacts, CertificateError> {
    Ok(node_certificate(text)?.1)
}

/// A node's certificate in PEM, and what it says.
fn node_certificate(text: &str) -> Result<(CertificateDer<'static>, NodeFacts), CertificateError> {
    let not_a_certificate = CertificateError::NotACertificate { bytes: text.len() };
    let der = CertificateDer::from_pem_slice(text.as_bytes()).map_err(|_| not_a_certificate)?;
    let facts = NodeFacts::of_certificate(&der)?;
    Ok((der, facts))
}

fn node_certificate_of(path: &Path, text: &str) -> Result<(CertificateDer<'static>, NodeFacts), IdentityError> {
    node_certificate(text).map_err(|error| IdentityError::Certificate { path: path.into(), error })
}

fn authority_certificate_of(path: &Path, text: &str) -> Result<CertificateDer<'static>, IdentityError> {
    CertificateDer::from_pem_slice(text.as_bytes())
        .map_err(|_| IdentityError::Content { path: path.into(), error: AuthorityError::BadCertificate })
}
