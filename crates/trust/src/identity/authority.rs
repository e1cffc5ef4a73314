//! The cluster's own certificate authority. It signs a node's request, and takes nothing from the request but the public key:
//! name, roles and times are the authority's decision.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PublicKeyData, SanType, SerialNumber,
    date_time_ymd,
};
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use zeroize::Zeroizing;

use super::facts::{CertificateError, NodeId, NodeName, Roles, uri_of};
use super::folder::NodeIdentity;
use crate::random::{self, NoRandomness};

/// Default lifetime of a node's certificate: 30 days, in seconds.
pub const DEFAULT_LIFETIME_S: u64 = 30 * 24 * 3600;
/// Certificates are valid from this much before they are issued, for nodes whose clocks are behind.
pub const CLOCK_SKEW_S: u64 = 300;
/// The longest lifetime that is issued: a year.
pub const LIFETIME_MAX_S: u64 = 366 * 24 * 3600;

/// The CA's own certificate: ten years.
const AUTHORITY_LIFETIME_S: u64 = 10 * 366 * 24 * 3600;
/// The end of the year 9000, so that no sum of times leaves the calendar.
const NOW_MAX_S: u64 = 221_845_392_000;
/// Every node's certificate carries this name, so that handshakes need no DNS. It says nothing about which node it is.
pub const COMMON_SERVER_NAME: &str = "node.muser.internal";

/// Server name in the certificate of an enrolling node. No node's own certificate carries it, so no node can pose as
/// the CA.
pub const ENROLLING_SERVER_NAME: &str = "enrolling.muser.internal";

/// The CA with its key. Printing it shows the cluster's id only.
pub struct ClusterAuthority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    certificate_pem: String,
}

/// A node's private key. Printing it shows the node id only.
pub struct NodeKey {
    pair: KeyPair,
}

/// Name, roles and lifetime that the authority grants to a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// Name of the node, for people and logs.
    pub name: NodeName,
    /// Roles of the node.
    pub roles: Roles,
    /// Time from now to the end of validity, at most [`LIFETIME_MAX_S`].
    pub lifetime_s: u64,
}

/// Failure to make or read a key or a certificate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuthorityError {
    /// The request is not a valid certificate signing request, or not signed by the key that it names.
    #[error("the node's request for a certificate is not valid: {0}")]
    BadRequest(#[source] rcgen::Error),
    /// The lifetime is not allowed.
    #[error("a lifetime of {lifetime_s} s was asked for, allowed are 1 to {LIFETIME_MAX_S}")]
    BadLifetime {
        /// As asked for.
        lifetime_s: u64,
    },
    /// The clock is too far off for a certificate.
    #[error("the clock says {now_unix_s} s after 1970, which no certificate can hold")]
    BadClock {
        /// As given.
        now_unix_s: u64,
    },
    /// The CA's is not a certificate.
    #[error("the CA's certificate cannot be read")]
    BadCertificate,
    /// A node's is not one.
    #[error("the node's certificate cannot be read: {0}")]
    BadNodeCertificate(#[source] CertificateError),
    /// Not a private key.
    #[error("the private key cannot be read")]
    BadKey,
    /// Key and certificate belong to different owners.
    #[error("the private key does not belong to the certificate")]
    WrongKey,
    /// The provider refused.
    #[error("the certificate could not be made: {0}")]
    Making(#[source] rcgen::Error),
    /// No secret can be made.
    #[error(transparent)]
    NoRandomness(#[from] NoRandomness),
}

impl ClusterAuthority {
    /// A new CA, with a key of its own.
    ///
    /// # Errors
    /// [`AuthorityError::BadClock`], or the provider's refusal.
    pub fn create(cluster: &NodeName, now_unix_s: u64) -> Result<Self, AuthorityError> {
        let mut params = params(now_unix_s, AUTHORITY_LIFETIME_S, format!("muser cluster {cluster}"))?;
        // Only nodes are signed, never another CA.
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let pair = KeyPair::generate().map_err(AuthorityError::Making)?;
        let certificate = params.self_signed(&pair).map_err(AuthorityError::Making)?;
        let (certificate, certificate_pem) = (certificate.der().clone(), certificate.pem());
        Ok(Self { issuer: Issuer::new(params, pair), certificate, certificate_pem })
    }

    /// A CA from its certificate and key.
    ///
    /// # Errors
    /// Either cannot be read, or they do not belong together.
    pub fn from_pem(certificate: &str, key: &str) -> Result<Self, AuthorityError> {
        let certificate_pem = certificate.to_owned();
        let certificate =
            CertificateDer::from_pem_slice(certificate.as_bytes()).map_err(|_| AuthorityError::BadCertificate)?;
        let pair = KeyPair::from_pem(key).map_err(|_| AuthorityError::BadKey)?;
        if public_key_of(&certificate).ok_or(AuthorityError::BadCertificate)? != pair.subject_public_key_info() {
            return Err(AuthorityError::WrongKey);
        }
        let issuer = Issuer::from_ca_cert_der(&certificate, pair).map_err(|_| AuthorityError::BadCertificate)?;
        Ok(Self { issuer, certificate, certificate_pem })
    }

    /// Signs a node's request (PEM), granting `grant` to the key that signed it. Renewal is the same with a later `now`.
    ///
    /// # Errors
    /// A request that is not valid, a lifetime or a clock that is not allowed.
    pub fn sign(&self, request: &str, grant: &Grant, now_unix_s: u64) -> Result<String, AuthorityError> {
        if !(1..=LIFETIME_MAX_S).contains(&grant.lifetime_s) {
            return Err(AuthorityError::BadLifetime { lifetime_s: grant.lifetime_s });
        }
        let request = CertificateSigningRequestParams::from_pem(request).map_err(AuthorityError::BadRequest)?;
        let mut params = params(now_unix_s, grant.lifetime_s, format!("muser node {}", grant.name))?;
        let making = |_| AuthorityError::Making(rcgen::Error::CouldNotParseCertificate);
        params.subject_alt_names = vec![
            SanType::DnsName(COMMON_SERVER_NAME.try_into().map_err(making)?),
            SanType::URI(uri_of(&grant.name, grant.roles).try_into().map_err(making)?),
        ];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        Ok(params.signed_by(&request.public_key, &self.issuer).map_err(AuthorityError::Making)?.pem())
    }

    /// A chain and a key that prove the CA's presence to a new node, for `lifetime_s` from now. The certificate names
    /// no node, so no lane accepts it.
    ///
    /// # Errors
    /// [`AuthorityError::BadLifetime`] or [`AuthorityError::BadClock`], or the provider's refusal.
    pub fn enrolling(
        &self,
        lifetime_s: u64,
        now_unix_s: u64,
    ) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), AuthorityError> {
        if !(1..=LIFETIME_MAX_S).contains(&lifetime_s) {
            return Err(AuthorityError::BadLifetime { lifetime_s });
        }
        let mut params = params(now_unix_s, lifetime_s, "muser enrolment".into())?;
        let making = |_| AuthorityError::Making(rcgen::Error::CouldNotParseCertificate);
        params.subject_alt_names = vec![SanType::DnsName(ENROLLING_SERVER_NAME.try_into().map_err(making)?)];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let pair = KeyPair::generate().map_err(AuthorityError::Making)?;
        let certificate = params.signed_by(&pair, &self.issuer).map_err(AuthorityError::Making)?;
        let key = PrivatePkcs8KeyDer::from(pair.serialize_der()).into();
        Ok((vec![certificate.der().clone(), self.certificate.clone()], key))
    }

    /// True if this CA signed the certificate of `identity`, expired or not.
    pub fn issued(&self, identity: &NodeIdentity) -> bool {
        let mut roots = RootCertStore::empty();
        if roots.add(self.certificate.clone()).is_err() {
            return false;
        }
        let provider = Arc::new(aws_lc_rs::default_provider());
        let Ok(verifier) = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build() else {
            return false;
        };
        let Ok(name) = ServerName::try_from(COMMON_SERVER_NAME) else { return false };
        // At the end of its time, so that a certificate that has run out counts too.
        let at = UnixTime::since_unix_epoch(Duration::from_secs(identity.facts().not_after_unix_s));
        verifier.verify_server_cert(identity.certificate(), &[], &name, &[], at).is_ok()
    }

    /// The CA's certificate, for every node.
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// The CA's key, for the folder of the enrolling node.
    pub(super) fn key_pem(&self) -> Zeroizing<String> {
        Zeroizing::new(self.issuer.key().serialize_pem())
    }

    /// BLAKE3 of the CA's certificate: the cluster's id, as in tickets.
    pub fn cluster_id(&self) -> [u8; 32] {
        cluster_id(&self.certificate)
    }
}

impl NodeKey {
    /// A new key (ECDSA, P-256).
    ///
    /// # Errors
    /// The provider's refusal.
    pub fn generate() -> Result<Self, AuthorityError> {
        Ok(Self { pair: KeyPair::generate().map_err(AuthorityError::Making)? })
    }

    /// Reads a key (PKCS 8, PEM).
    ///
    /// # Errors
    /// [`AuthorityError::BadKey`].
    pub fn from_pem(key: &str) -> Result<Self, AuthorityError> {
        Ok(Self { pair: KeyPair::from_pem(key).map_err(|_| AuthorityError::BadKey)? })
    }

    /// The request (PEM) that the authority signs. It proves that this node has the key, and says nothing else.
    ///
    /// # Errors
    /// The provider's refusal.
    pub fn request(&self) -> Result<String, AuthorityError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        let request = params.serialize_request(&self.pair).map_err(AuthorityError::Making)?;
        request.pem().map_err(AuthorityError::Making)
    }

    /// The id that every certificate of this key gives.
    pub fn id(&self) -> NodeId {
        NodeId::of_public_key(&self.pair.subject_public_key_info())
    }

    pub(super) fn pem(&self) -> Zeroizing<String> {
        Zeroizing::new(self.pair.serialize_pem())
    }

    /// PKCS 8 in DER.
    pub(super) fn der(&self) -> Vec<u8> {
        self.pair.serialize_der()
    }

    /// True if the certificate is for this key.
    pub(super) fn owns(&self, certificate: &CertificateDer<'_>) -> bool {
        public_key_of(certificate).is_some_and(|key| key == self.pair.subject_public_key_info())
    }
}

impl fmt::Debug for ClusterAuthority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClusterAuthority({})", crate::hex::encode(&self.cluster_id()))
    }
}

impl fmt::Debug for NodeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeKey({})", self.id())
    }
}

/// BLAKE3 of a CA's certificate in DER.
pub fn cluster_id(certificate_der: &[u8]) -> [u8; 32] {
    *blake3::hash(certificate_der).as_bytes()
}

/// The SubjectPublicKeyInfo of a certificate, in DER.
fn public_key_of(certificate: &CertificateDer<'_>) -> Option<Vec<u8>> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    Some(parsed.public_key().raw.to_vec())
}

fn params(now_unix_s: u64, lifetime_s: u64, common_name: String) -> Result<CertificateParams, AuthorityError> {
    if now_unix_s > NOW_MAX_S {
        return Err(AuthorityError::BadClock { now_unix_s });
    }
    let at = |unix_s| date_time_ymd(1970, 1, 1) + Duration::from_secs(unix_s);
    let mut params = CertificateParams::default();
    params.not_before = at(now_unix_s.saturating_sub(CLOCK_SKEW_S));
    params.not_after = at(now_unix_s + lifetime_s);
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    let mut serial: [u8; 16] = random::bytes()?;
    // Neither negative nor with leading zeros, both of which would change its length: 126 bits are random.
    serial[0] = serial[0] & 0x3f | 0x40;
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    Ok(params)
}
