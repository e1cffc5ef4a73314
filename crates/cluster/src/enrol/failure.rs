//! Every way in which an enrolment ends badly, by whose fault it is.

use std::io;
use std::time::Duration;

use muser_engine::engine::NotInstallable;
use muser_host::Refused;
use muser_kv::{ExportError, InstallError};
use muser_model::Component;
use muser_wire::RequestError;
use rustls::{AlertDescription, CertificateError as TlsCertificateError, Error as TlsError};

use super::frame::{FrameError, Kind};
use super::message::RefuseCode;
use super::report::Difference;
use super::ticket::{IssueError, RedeemError};
use crate::handoff::BringError;
use crate::identity::{AuthorityError, CertificateError, IdentityError, RevocationsError, Roles};
use crate::keys::{KeyError, KeyFileError};
use crate::lane::{LaneError, SetupError};
use crate::ledger::OpenError;
use crate::random::NoRandomness;

/// Failure of an enrolment. Whatever the node was granted, if anything, is revoked, and nothing of its folder is kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnrolError {
    /// The ticket's address leads nowhere.
    #[error("{address} cannot be reached: {error}")]
    Connect {
        /// Where.
        address: String,
        /// What the network says.
        error: io::Error,
    },
    /// Whoever answers does not have the CA's key.
    #[error("who answers is not the cluster of this ticket")]
    OtherCluster,
    /// The two clocks are too far apart.
    #[error("the certificate of the other end is not valid by our clock: compare the clocks of the two machines")]
    Clocks,
    /// It speaks TLS for something else.
    #[error("the other end takes no part in an enrolment")]
    NotEnrolling,
    /// It speaks no TLS that we accept.
    #[error("the other end does not speak our TLS: {reason}")]
    Tls {
        /// In the TLS library's words.
        reason: String,
    },
    /// The other end is too slow.
    #[error("{what} did not come within {} s", limit.as_secs_f64())]
    TooSlow {
        /// What was awaited.
        what: &'static str,
        /// For how long.
        limit: Duration,
    },
    /// The other end left.
    #[error("the other end closed the connection")]
    Closed,
    /// The network failed.
    #[error("the connection failed: {0}")]
    Io(#[source] io::Error),
    /// The other end makes no sense.
    #[error("the other end does not follow the protocol: {0}")]
    Frame(#[from] FrameError),
    /// A sound message in the wrong place.
    #[error("the other end sent {got:?} where {wanted:?} was awaited")]
    Unexpected {
        /// What came.
        got: Kind,
        /// What should have.
        wanted: Kind,
    },
    /// The other end gives up.
    #[error("the other end refuses ({code:?}): {detail}")]
    RefusedByPeer {
        /// The reason.
        code: RefuseCode,
        /// Its words.
        detail: String,
    },
    /// The secret lets nobody in.
    #[error(transparent)]
    Redeem(#[from] RedeemError),
    /// Another model, or another layout of keys and values.
    #[error("the two machines do not have the same model: their {0} differ")]
    OtherModel(Component),
    /// The new node's name.
    #[error(transparent)]
    Name(#[from] CertificateError),
    /// A name must tell nodes apart.
    #[error("the new node wants to be called {name}, as the enrolling node is")]
    SameName {
        /// The name.
        name: String,
    },
    /// Neither could compute for the other.
    #[error("a {theirs} can do nothing with this node, which is a {ours}")]
    NothingInCommon {
        /// What this node may do.
        ours: Roles,
        /// What the new one should.
        theirs: Roles,
    },
    /// A producer that nobody can ask.
    #[error("the new node is to produce, and does not say where it listens")]
    NoAddress,
    /// Nobody used the ticket.
    #[error("nobody used the ticket before it expired")]
    NobodyCame,
    /// No lane between the two nodes.
    #[error("no lane between the two: {0}")]
    Lane(#[from] LaneError),
    /// TLS does not take our own identity.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The bytes of the link test got lost.
    #[error("{sent} bytes were sent through the link and {seen} came")]
    BytesLost {
        /// As counted by the sender.
        sent: u64,
        /// As counted by the receiver.
        seen: u64,
    },
    /// The link is too slow to test anything.
    #[error("the link moved nothing in the time of a test")]
    NoBytes,
    /// The handoff failed.
    #[error("the qualification handoff failed: {0}")]
    Bring(#[from] BringError),
    /// What was brought cannot be used.
    #[error("the qualification handoff failed: {0}")]
    Install(#[from] InstallError),
    /// The handoff brought what cannot be compared.
    #[error("the qualification handoff failed: {0}")]
    Export(#[from] ExportError),
    /// It was brought, and has other bits.
    #[error("the qualification failed: {0}")]
    OtherBits(#[from] Difference),
    /// Our engine does not compute.
    #[error("the engine does not compute the qualification prompt: {0}")]
    Engine(String),
    /// Our folder.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// Our CA.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// A MAC key of the tests.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// Our MAC keys, or those that came.
    #[error(transparent)]
    Keys(#[from] KeyFileError),
    /// Our deny-list.
    #[error(transparent)]
    Revocations(#[from] RevocationsError),
    /// Our ledger.
    #[error(transparent)]
    Ledger(#[from] OpenError),
    /// No ticket can be made.
    #[error(transparent)]
    Issue(#[from] IssueError),
    /// No secret can be made.
    #[error(transparent)]
    Random(#[from] NoRandomness),
    /// The new node could not keep its folder.
    #[error("{0}")]
    Keep(String),
    /// The address cannot be listened on.
    #[error("{address}: {error}")]
    Listen {
        /// Which.
        address: std::net::SocketAddr,
        /// What the system says.
        error: io::Error,
    },
}

impl EnrolError {
    /// What an error during a TLS handshake means.
    pub(super) fn of_handshake(error: io::Error) -> Self {
        let Some(tls) = error.get_ref().and_then(|inner| inner.downcast_ref::<TlsError>()) else {
            return Self::of_io(error);
        };
        use TlsCertificateError as Fault;
        match tls {
            TlsError::InvalidCertificate(Fault::UnknownIssuer | Fault::BadSignature)
            | TlsError::InvalidCertificate(Fault::NotValidForName | Fault::NotValidForNameContext { .. })
            | TlsError::AlertReceived(AlertDescription::UnknownCA | AlertDescription::BadCertificate) => {
                Self::OtherCluster
            }
            TlsError::InvalidCertificate(
                Fault::Expired | Fault::ExpiredContext { .. } | Fault::NotValidYet | Fault::NotValidYetContext { .. },
            )
            | TlsError::AlertReceived(AlertDescription::CertificateExpired) => Self::Clocks,
            TlsError::NoApplicationProtocol | TlsError::AlertReceived(AlertDescription::NoApplicationProtocol) => {
                Self::NotEnrolling
            }
            _ => Self::Tls { reason: tls.to_string() },
        }
    }

    pub(super) fn of_io(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Self::Closed,
            _ => Self::Io(error),
        }
    }

    /// What the other end is told, if it is still there to hear it.
    pub(super) fn code(&self) -> RefuseCode {
        match self {
            Self::Redeem(RedeemError::Wrong) => RefuseCode::WrongTicket,
            Self::Redeem(RedeemError::Used) => RefuseCode::UsedTicket,
            Self::Redeem(RedeemError::Expired { .. }) => RefuseCode::ExpiredTicket,
            Self::Name(_) | Self::SameName { .. } => RefuseCode::BadName,
            Self::Authority(AuthorityError::BadRequest(_)) => RefuseCode::BadRequest,
            Self::OtherModel(_) => RefuseCode::OtherModel,
            Self::Frame(_) | Self::Unexpected { .. } | Self::TooSlow { .. } | Self::NoAddress => RefuseCode::Protocol,
            Self::Lane(_) | Self::BytesLost { .. } | Self::NoBytes | Self::Bring(_) | Self::Install(_) => {
                RefuseCode::Link
            }
            Self::OtherBits(_) => RefuseCode::OtherBits,
            _ => RefuseCode::Internal,
        }
    }
}

impl From<Refused> for EnrolError {
    fn from(refused: Refused) -> Self {
        Self::Engine(refused.to_string())
    }
}

impl From<NotInstallable> for EnrolError {
    fn from(refused: NotInstallable) -> Self {
        Self::Engine(refused.to_string())
    }
}

impl From<RequestError> for EnrolError {
    fn from(error: RequestError) -> Self {
        Self::Bring(BringError::Request(error))
    }
}
