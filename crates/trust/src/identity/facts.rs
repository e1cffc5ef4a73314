//! Facts of a node's certificate. They hold only if the CA's signature does, which the TLS handshake verifies.
//!
//! A certificate names its node in one URI: `muser://node/NAME?roles=decoder,producer`.

use std::fmt;
use std::str::FromStr;

use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::hex;

const URI_BEGIN: &str = "muser://node/";
const URI_ROLES: &str = "?roles=";
const NAME_BYTES_MAX: usize = 63;

/// BLAKE3 of a node's public key (its SubjectPublicKeyInfo in DER). Renewal keeps it, a new key changes it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub [u8; 32]);

/// A certificate's number under its CA.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Serial(pub [u8; 16]);

/// Human-readable name of a node: 1 to 63 of `a-z`, `0-9` and `-`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NodeName(String);

/// Role of a node in handoffs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Asks for handoffs.
    Decoder,
    /// Answers with pages.
    Producer,
}

/// One role, or both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Roles {
    /// [`Role::Decoder`] alone.
    Decoder,
    /// [`Role::Producer`] alone.
    Producer,
    /// Either.
    Both,
}

/// Facts of a node's certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFacts {
    /// Digest of its public key.
    pub id: NodeId,
    /// Name given by the CA.
    pub name: NodeName,
    /// Roles given by the CA.
    pub roles: Roles,
    /// Serial number of the certificate.
    pub serial: Serial,
    /// First second of validity.
    pub not_before_unix_s: u64,
    /// Last second of validity.
    pub not_after_unix_s: u64,
}

/// Bytes that are not a node's certificate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CertificateError {
    /// Not X.509.
    #[error("these {bytes} bytes are no certificate")]
    NotACertificate {
        /// Length of the input.
        bytes: usize,
    },
    /// Not a node's certificate: it has no node URI, or several.
    #[error("the certificate does not name exactly one node")]
    NotANode,
    /// Not a valid node name.
    #[error("`{name}` is not a node's name: 1 to {NAME_BYTES_MAX} of a-z, 0-9 and -")]
    BadName {
        /// As given.
        name: String,
    },
    /// Not a valid list of roles.
    #[error("`{roles}` are not roles: decoder, producer, or decoder,producer")]
    BadRoles {
        /// As given.
        roles: String,
    },
    /// The serial number does not have the 16 bytes that the CA gives.
    #[error("the certificate's number has {bytes} bytes, not 16")]
    BadSerial {
        /// Its length.
        bytes: usize,
    },
    /// Times before 1970.
    #[error("the certificate's times are before 1970")]
    BadTimes,
}

impl NodeFacts {
    /// Reads a certificate in DER.
    ///
    /// # Errors
    /// [`CertificateError`].
    pub fn of_certificate(der: &[u8]) -> Result<Self, CertificateError> {
        let not_a_certificate = CertificateError::NotACertificate { bytes: der.len() };
        let Ok((rest, certificate)) = X509Certificate::from_der(der) else { return Err(not_a_certificate) };
        if !rest.is_empty() {
            return Err(not_a_certificate);
        }
        let names = certificate.subject_alternative_name().ok().flatten().ok_or(CertificateError::NotANode)?;
        let mut uris = names.value.general_names.iter().filter_map(|name| match name {
            GeneralName::URI(uri) => Some(*uri),
            _ => None,
        });
        let (Some(uri), None) = (uris.next(), uris.next()) else { return Err(CertificateError::NotANode) };
        let (name, roles) = parse_uri(uri)?;
        let raw_serial = certificate.raw_serial();
        let serial = raw_serial.try_into().map_err(|_| CertificateError::BadSerial { bytes: raw_serial.len() })?;
        let seconds = |time: i64| u64::try_from(time).map_err(|_| CertificateError::BadTimes);
        Ok(Self {
            id: NodeId::of_public_key(certificate.public_key().raw),
            name,
            roles,
            serial: Serial(serial),
            not_before_unix_s: seconds(certificate.validity().not_before.timestamp())?,
            not_after_unix_s: seconds(certificate.validity().not_after.timestamp())?,
        })
    }
}

impl NodeId {
    /// The id of the node with this SubjectPublicKeyInfo in DER.
    pub fn of_public_key(der: &[u8]) -> Self {
        Self(*blake3::hash(der).as_bytes())
    }
}

impl NodeName {
    /// Checks a name.
    ///
    /// # Errors
    /// [`CertificateError::BadName`].
    pub fn new(name: &str) -> Result<Self, CertificateError> {
        let good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if !(1..=NAME_BYTES_MAX).contains(&name.len()) || !name.bytes().all(good) {
            return Err(CertificateError::BadName { name: name.into() });
        }
        Ok(Self(name.into()))
    }

    /// The name's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Roles {
    /// True if `role` is one of these.
    pub fn contain(self, role: Role) -> bool {
        matches!((self, role), (Self::Both, _) | (Self::Decoder, Role::Decoder) | (Self::Producer, Role::Producer))
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Decoder => "decoder",
            Self::Producer => "producer",
            Self::Both => "decoder,producer",
        }
    }
}

impl FromStr for Roles {
    type Err = CertificateError;

    fn from_str(text: &str) -> Result<Self, CertificateError> {
        let all = [Self::Decoder, Self::Producer, Self::Both];
        let found = all.into_iter().find(|roles| roles.as_str() == text);
        found.ok_or_else(|| CertificateError::BadRoles { roles: text.into() })
    }
}

impl fmt::Display for Roles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Decoder => "decoder",
            Self::Producer => "producer",
        })
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Display and Debug as hexadecimal digits, and reading them back.
macro_rules! shown_as_hex {
    ($name:ident) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&hex::encode(&self.0))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({self})", stringify!($name))
            }
        }

        impl $name {
            /// Reads hexadecimal digits; `None` if they are not exactly of this length.
            pub fn from_hex(digits: &str) -> Option<Self> {
                hex::decode(digits).map(Self)
            }
        }
    };
}

shown_as_hex!(NodeId);
shown_as_hex!(Serial);

/// The URI that names a node in its certificate.
pub(super) fn uri_of(name: &NodeName, roles: Roles) -> String {
    format!("{URI_BEGIN}{name}{URI_ROLES}{roles}")
}

fn parse_uri(uri: &str) -> Result<(NodeName, Roles), CertificateError> {
    let (name, roles) =
        uri.strip_prefix(URI_BEGIN).and_then(|rest| rest.split_once(URI_ROLES)).ok_or(CertificateError::NotANode)?;
    Ok((NodeName::new(name)?, roles.parse()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_is_read_back_and_others_are_refused() {
        let name = NodeName::new("desk-2").unwrap();
        for roles in [Roles::Decoder, Roles::Producer, Roles::Both] {
            assert_eq!(parse_uri(&uri_of(&name, roles)), Ok((name.clone(), roles)));
        }
        for uri in [
            "",
            "https://node/a?roles=decoder",
            "muser://node/a",
            "muser://node/?roles=decoder",
            "muser://node/A?roles=decoder",
            "muser://node/a/b?roles=decoder",
            "muser://node/a?roles=",
            "muser://node/a?roles=producer,decoder",
            "muser://node/a?roles=decoder&roles=producer",
        ] {
            assert!(parse_uri(uri).is_err(), "{uri}");
        }
    }

    #[test]
    fn no_bytes_are_taken_for_a_certificate() {
        for bytes in [&[][..], &[0x30, 0x80], &[0xff; 300]] {
            let expected = Err(CertificateError::NotACertificate { bytes: bytes.len() });
            assert_eq!(NodeFacts::of_certificate(bytes), expected);
        }
    }
}
