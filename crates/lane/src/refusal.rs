//! Failures of a lane's handshake, by the end that refuses.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use muser_trust::identity::{CertificateError, NodeId, RevocationsError, Revoked, Role, Roles};
use rustls::{AlertDescription, CertificateError as TlsCertificateError, Error as TlsError};

/// Verdict byte of an admitted peer.
pub(super) const WELCOME: u8 = 0;

/// Failure to establish a lane.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaneError {
    /// No connection to the address.
    #[error("{address} cannot be reached: {error}")]
    Connect {
        /// Address of the peer.
        address: SocketAddr,
        /// I/O error of the connection attempt.
        #[source]
        error: io::Error,
    },
    /// The handshake exceeded its time limit.
    #[error("the handshake was not done within {} ms", limit.as_millis())]
    Timeout {
        /// The limit.
        limit: Duration,
    },
    /// This node refuses the peer.
    #[error("the peer is refused: {0}")]
    Refused(#[from] Refusal),
    /// The peer refuses this node.
    #[error("the peer refuses us: {0}")]
    RefusedByPeer(#[from] PeerRefusal),
    /// The peer closed the connection without a verdict.
    #[error("the peer closed the connection during the handshake")]
    Closed,
    /// The network failed.
    #[error("the connection failed during the handshake: {0}")]
    Io(#[source] io::Error),
}

/// Reason for which this node refuses a peer. All but the last are facts about the peer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Its certificate is not of this cluster's CA.
    #[error("its certificate is not of this cluster")]
    NotOurCluster,
    /// Its certificate's time is over.
    #[error("its certificate has expired")]
    Expired,
    /// Its certificate's time has not begun, or a clock is wrong.
    #[error("its certificate is not valid yet")]
    NotYetValid,
    /// The peer presented no certificate.
    #[error("it has no certificate")]
    NoCertificate,
    /// Its certificate is not one of a node.
    #[error("its certificate is not acceptable: {0}")]
    BadCertificate(#[from] CertificateError),
    /// Its certificate breaks a rule of TLS.
    #[error("its certificate is not acceptable: {reason}")]
    InvalidCertificate {
        /// Message of the TLS library.
        reason: String,
    },
    /// It is on the deny-list.
    #[error("node {id} is on the deny-list by {revoked:?}")]
    Revoked {
        /// The node.
        id: NodeId,
        /// Matching entry.
        revoked: Revoked,
    },
    /// Another node than the wanted one.
    #[error("it is node {found}, and {expected} was meant")]
    WrongNode {
        /// The wanted node.
        expected: NodeId,
        /// The peer.
        found: NodeId,
    },
    /// Not granted the needed role.
    #[error("it is a {has}, and a {needed} is needed")]
    WrongRole {
        /// Role needed.
        needed: Role,
        /// Roles in its certificate.
        has: Roles,
    },
    /// It speaks TLS, not our protocol.
    #[error("it does not speak muser-handoff/2")]
    WrongProtocol,
    /// It speaks no TLS 1.3.
    #[error("it offers no TLS that the lane accepts: {reason}")]
    IncompatibleTls {
        /// Message of the TLS library.
        reason: String,
    },
    /// It speaks no TLS, or broken TLS.
    #[error("what it sends is not TLS: {reason}")]
    NotTls {
        /// Message of the TLS library.
        reason: String,
    },
    /// This node's deny-list cannot be read, so no peer is admitted.
    #[error("nobody is admitted, as our deny-list cannot be read: {0}")]
    NoDenyList(#[from] RevocationsError),
}

/// Reason for which a peer refuses this node, as far as its verdict byte or TLS alert shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PeerRefusal {
    /// See [`Refusal::NotOurCluster`].
    #[error("our certificate is not of its cluster")]
    NotOurCluster,
    /// See [`Refusal::Expired`] and [`Refusal::NotYetValid`], which TLS does not tell apart.
    #[error("our certificate is not valid at its time")]
    NotValidNow,
    /// See [`Refusal::NoCertificate`].
    #[error("we presented no certificate")]
    NoCertificate,
    /// See [`Refusal::BadCertificate`] and [`Refusal::InvalidCertificate`].
    #[error("our certificate is not acceptable to it")]
    BadCertificate,
    /// See [`Refusal::Revoked`].
    #[error("we are on its deny-list")]
    Revoked,
    /// See [`Refusal::WrongNode`].
    #[error("it meant another node")]
    WrongNode,
    /// See [`Refusal::WrongRole`].
    #[error("our certificate does not grant the role that it needs")]
    WrongRole,
    /// See [`Refusal::WrongProtocol`].
    #[error("it does not speak our protocol")]
    WrongProtocol,
    /// See [`Refusal::IncompatibleTls`].
    #[error("it accepts none of our TLS versions")]
    IncompatibleTls,
    /// See [`Refusal::NoDenyList`].
    #[error("it admits nobody, as its deny-list cannot be read")]
    NoDenyList,
    /// Another alert of TLS, or another byte of a later version.
    #[error("for a reason with code {code}")]
    Other {
        /// As received.
        code: u8,
    },
}

impl Refusal {
    /// Verdict byte sent to the peer.
    pub(super) fn verdict(&self) -> u8 {
        match self {
            Self::Revoked { .. } => 1,
            Self::WrongRole { .. } => 2,
            Self::WrongNode { .. } => 3,
            Self::WrongProtocol => 4,
            Self::NoDenyList(_) => 5,
            // What else there is, TLS has refused before a byte can be sent.
            _ => 6,
        }
    }
}

impl PeerRefusal {
    /// Maps a verdict byte other than [`WELCOME`] to the refusal that it stands for.
    pub(super) fn of_verdict(verdict: u8) -> Self {
        match verdict {
            1 => Self::Revoked,
            2 => Self::WrongRole,
            3 => Self::WrongNode,
            4 => Self::WrongProtocol,
            5 => Self::NoDenyList,
            6 => Self::BadCertificate,
            code => Self::Other { code },
        }
    }

    fn of_alert(alert: AlertDescription) -> Self {
        match alert {
            AlertDescription::UnknownCA | AlertDescription::DecryptError => Self::NotOurCluster,
            AlertDescription::CertificateExpired => Self::NotValidNow,
            AlertDescription::CertificateRequired => Self::NoCertificate,
            AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateUnknown => Self::BadCertificate,
            AlertDescription::CertificateRevoked => Self::Revoked,
            AlertDescription::NoApplicationProtocol => Self::WrongProtocol,
            AlertDescription::ProtocolVersion | AlertDescription::HandshakeFailure => Self::IncompatibleTls,
            other => Self::Other { code: other.into() },
        }
    }
}

impl LaneError {
    /// Maps an error during the handshake to the refusal or failure that it stands for.
    pub(super) fn of_handshake(error: io::Error) -> Self {
        let Some(tls) = error.get_ref().and_then(|inner| inner.downcast_ref::<TlsError>()) else {
            return match error.kind() {
                io::ErrorKind::UnexpectedEof => Self::Closed,
                _ => Self::Io(error),
            };
        };
        let refusal = match tls {
            TlsError::AlertReceived(alert) => return PeerRefusal::of_alert(*alert).into(),
            TlsError::InvalidCertificate(fault) => of_certificate(fault),
            TlsError::NoCertificatesPresented => Refusal::NoCertificate,
            TlsError::NoApplicationProtocol => Refusal::WrongProtocol,
            TlsError::PeerIncompatible(_) => Refusal::IncompatibleTls { reason: tls.to_string() },
            _ => Refusal::NotTls { reason: tls.to_string() },
        };
        refusal.into()
    }
}

fn of_certificate(fault: &TlsCertificateError) -> Refusal {
    match fault {
        TlsCertificateError::Expired | TlsCertificateError::ExpiredContext { .. } => Refusal::Expired,
        TlsCertificateError::NotValidYet | TlsCertificateError::NotValidYetContext { .. } => Refusal::NotYetValid,
        // Another CA of the same name is found out by its signature.
        TlsCertificateError::UnknownIssuer | TlsCertificateError::BadSignature => Refusal::NotOurCluster,
        other => Refusal::InvalidCertificate { reason: format!("{other:?}") },
    }
}
